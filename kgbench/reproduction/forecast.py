"""What making figures would take, part by part; nothing is trained, downloaded or recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kgbench.errors import InputError
from kgbench.models.catalog import CARD
from kgbench.models.trained import read_donor_card
from kgbench.reproduction.ingredients import Ingredients
from kgbench.reproduction.made import evaluations_of, trainings_of
from kgbench.runner import Pairs, dry_run
from kgbench.training.finetuning_forecast import forecast
from kgbench.training.finetuning_plan import Plan, make_plan

__all__ = ["PartForecast", "forecasts"]


@dataclass(frozen=True)
class PartForecast:
    """One donor or one evaluation."""

    part: str
    work: str
    """What is done, or that it is there."""
    seconds: float | None
    """None where nobody can say before the checkpoints are here."""
    memory_bytes: int | None
    disk_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return asdict(self)


def forecasts(figures: Sequence[str], what: Ingredients, output_dir: Path, device: str) -> Iterator[PartForecast]:
    """All parts of some figures, in the order in which they are made.

    Args:
        figures: Their names.
        what: What they are made of.
        output_dir: Where records would go.
        device: Where it would be computed.

    Raises:
        InputError: Something is wrong that can be told beforehand.
    """
    evaluations = evaluations_of(figures, what)
    for name in trainings_of(evaluations, what):
        yield _training(name, what, device)
    pairs = Pairs()
    for name in evaluations:
        yield _evaluation(name, what, (output_dir, device), pairs)


def _training(name: str, what: Ingredients, device: str) -> PartForecast:
    part = f"donor {name}"
    try:
        if (what.place(name) / CARD).is_file():
            return _there(part, read_donor_card(what.place(name)), make_plan(what.training(name)))
        found = forecast(what.training(name), what.place(name), device=device)
    except InputError as error:
        return PartForecast(part, f"cannot be made: {error}", None, None, 0)
    memory = found.weights_bytes + found.gradients_bytes + found.optimizer_bytes
    return PartForecast(part, f"{found.steps:,} steps on {found.texts:,} texts", found.seconds, memory, found.disk_bytes)


def _there(part: str, card: Mapping[str, Any], plan: Plan) -> PartForecast:
    """A donor that is there, if it is the one that is wanted, as far as its card says so without its weights being read."""
    spec = plan.spec
    wanted = {"model": spec.model, "seed": spec.seed, "changes": spec.changed(), "data": plan.data()}
    other = [key for key, value in wanted.items() if card[key] != value] + ["recipe"] * (card["recipe"]["name"] != spec.recipe)
    if other:
        return PartForecast(part, f"cannot be made: trained in another way is there (other: {', '.join(other)})", None, None, 0)
    return PartForecast(part, "there", 0.0, 0, 0)


def _evaluation(name: str, what: Ingredients, where: tuple[Path, str], pairs: Pairs) -> PartForecast:
    # With the recipient as its own donor everything takes as long as with those that are not there yet.
    spec = what.job(name)
    stand_in = replace(spec, recipient=what.entry.recipient, donors=dict.fromkeys(spec.donors, what.entry.recipient))
    output_dir, device = where
    found = dry_run(stand_in, what.settings(output_dir, device), pairs)
    work = f"{found.prompts} prompts × {found.configurations} configurations, {found.token_rows:,} token rows"
    return PartForecast(f"evaluation {name}", work, found.seconds, found.weights_bytes + found.logits_bytes, found.disk_bytes)
