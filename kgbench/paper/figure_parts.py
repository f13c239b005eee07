"""The parts that figures rest on, seed by seed: pairs, donors and evaluations; made, or forecast."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from kgbench.models import catalog
from kgbench.models.catalog import CARD, read_donor_card, read_pair_card
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.loading import adapted_donor
from kgbench.models.lora import ADAPTER_CONFIG
from kgbench.models.tensors import stored_hash
from kgbench.paper.ingredients import SHIPPED, Ingredients, is_on_hub
from kgbench.paper.pair_rows import (
    About,
    Donor,
    Evaluated,
    PairRows,
    joined,
    kept_rows,
)
from kgbench.progress import Progress, numbered
from kgbench.records import RecordStore
from kgbench.runner import Pairs, Run, Settings, Spec, dry_run, run_job
from kgbench.runner.costs import Cost, room
from kgbench.runner.job import main_device_of
from kgbench.runner.training.finetuning import finetune
from kgbench.runner.training.finetuning_cost import finetuning_cost
from kgbench.runner.training.finetuning_plan import FinetuneSpec, plan_finetuning
from kgbench.runner.training.model_setup import load_recipient, store_donor
from kgbench.zoo.tiny_pairs import (
    build_recipe,
    finetuning_rounds,
)


@dataclass(frozen=True)
class FigurePart:
    """A recipient, a donor or an evaluation."""

    kind: Literal["pair", "donor", "evaluation"]
    what: Ingredients
    name: str = ""
    """Of a pair `donor` where its own donor is made too."""


def parts_of(
    figures: Sequence[str], seeds: Sequence[Ingredients], known: PairRows | None = None
) -> list[FigurePart]:
    """Missing parts of figures, seed by seed; each evaluation follows the donors that it needs.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        known: Rows that are there; evaluations of the same identity are left out.
    """
    page, parts = seeds[0].page, []
    for what in seeds:
        left = [e for e in page.evaluations_of(figures) if not _is_there(e, what, known)]
        trainings = page.trainings_of(left, what.scale)
        if what.builds and left:
            own = any(map(what.is_own, trainings))
            parts.append(FigurePart("pair", what, "donor" if own else ""))
        made: set[str] = set()
        for evaluation in left:
            for name in page.trainings_of([evaluation], what.scale):
                if name not in made and not what.is_own(name):
                    parts.append(FigurePart("donor", what, name))
                    made.add(name)
            parts.append(FigurePart("evaluation", what, evaluation))
    return parts


def _is_there(evaluation: str, what: Ingredients, known: PairRows | None) -> bool:
    """Whether rows hold this evaluation, made of the same ingredients."""
    if known is None or known.about.model != what.model:
        return False
    there = known.about.evaluations.get(what.seed, {}).get(evaluation)
    return there is not None and there.identity == what.identity(evaluation)


def make(
    figures: Sequence[str],
    seeds: Sequence[Ingredients],
    output_dir: Path,
    device: str,
    progress: Progress | None = None,
    known: PairRows | None = None,
    keep: Callable[[PairRows], None] | None = None,
    on_record: Callable[[Run], None] | None = None,
) -> PairRows:
    """Measure what figures rest on: pairs that are missing, then donors and evaluations.

    An interrupted training goes on from its last checkpoint, an evaluation from its journal.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        output_dir: Where records go.
        device: Where it is computed.
        progress: Progress callback.
        known: Rows that are there, which are not made again.
        keep: Called with all rows after each evaluation.
        on_record: Called with each run when its record is there.

    Raises:
        InputError: Something cannot be had; found before the part that needs it is begun.
    """
    parts, measured = parts_of(figures, seeds, known), known
    seed, loaded = seeds[0].seed, Pairs()
    for number, part in enumerate(parts, 1):
        what, report = part.what, numbered(progress, number, len(parts))
        if part.kind == "pair":
            donor = bool(part.name)
            build_recipe(what.recipe, what.pair, seed=what.seed, progress=report, donor=donor)
        elif part.kind == "donor":
            spec, place = what.training(part.name), what.place(part.name)
            # Texts on the Hub are not downloaded again to find a donor complete.
            if not (is_on_hub(spec.supplement) and _stored(spec, place).done):
                finetune(what.with_texts(spec), place, device=device, progress=report)
        else:
            if seed != what.seed:
                seed, loaded = what.seed, Pairs()
            settings = Settings(device=device, output_dir=output_dir, on_record=on_record)
            rows = _evaluated(part, settings, report, loaded)
            measured = joined(measured, rows)
            if keep is not None:
                keep(measured)
        gc.collect()  # a trainer and its model refer to each other; of large models two do not fit
    assert measured is not None
    return measured


def _evaluated(
    part: FigurePart, settings: Settings, progress: Progress | None, loaded: Pairs
) -> PairRows:
    """The rows of one evaluation."""
    what, name = part.what, part.name
    with merged_adapters(what, name) as spec:
        record = run_job(spec, settings, progress, loaded).record
    facts = RecordStore(settings.output_dir).load(record.id).facts()
    trainings = what.page.trainings_of([name], what.scale)
    about = About(
        model=what.model,
        tiny=what.tiny,
        donors={what.seed: {training: _donor(what, training) for training in trainings}},
        evaluations={what.seed: {name: Evaluated.of(record, what.identity(name))}},
    )
    return PairRows(about, kept_rows(what.seed, name, facts))


@contextmanager
def merged_adapters(what: Ingredients, evaluation: str) -> Iterator[Spec]:
    """The specification of an evaluation; adapters are merged if the recipient is finetuned too.

    An adapter is a donor of the model that it was trained on, and of no other. The merged
    checkpoints are removed when the block ends.

    Args:
        what: The pair and its donors.
        evaluation: The evaluation.
    """
    spec = what.job(evaluation)
    if what.page.evaluations[evaluation].recipient is None:
        yield spec
        return
    with TemporaryDirectory(prefix="kgbench-") as folder:

        def checkpoint(name: str, source: str) -> str:
            adapter = catalog.zoo_path(source) or Path(source)
            if not (adapter / ADAPTER_CONFIG).is_file():
                return source
            place = Path(folder, name)
            store_merged(locate(what.recipient), adapter, place)
            return str(place)

        donors = {name: checkpoint(name, source) for name, source in spec.donors.items()}
        yield replace(spec, recipient=checkpoint("recipient", str(spec.recipient)), donors=donors)


def store_merged(recipient: Checkpoint, adapter: Path, folder: Path) -> None:
    """Write the model in float32 that an adapter makes of the checkpoint it was trained from.

    Unlike the adapter it can be a recipient, or the donor of another one.
    """
    model = load_recipient(recipient)
    peft_model: Any = adapted_donor(model, adapter, str(adapter), recipient.origin)[1]
    folder.mkdir()
    store_donor(peft_model.merge_and_unload(), recipient, folder)


def _donor(what: Ingredients, name: str) -> Donor:
    shipped = catalog.zoo_path(what.source(name))
    if not what.is_own(name) or not what.tiny:
        return Donor.of(read_donor_card(shipped or what.place(name)))
    texts = len(set(finetuning_rounds(what.recipe, what.own_facts())[0]))
    return Donor.of_pair(read_pair_card(what.pair), stored_hash(what.pair / "sft"), texts)


def costs(
    figures: Sequence[str],
    seeds: Sequence[Ingredients],
    settings: Settings,
    progress: Progress | None = None,
    known: PairRows | None = None,
) -> list[Cost]:
    """Costs of all missing parts, then of all together, without training or downloads.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        settings: How it would be computed, and where records would go.
        progress: Progress callback, called before each part is measured.
        known: Rows that are there, which would not be made again.

    Raises:
        InputError: Something is wrong that can be found beforehand.
    """
    parts, pairs = parts_of(figures, seeds, known), Pairs()
    runs: dict[str, Cost] = {}
    made: list[Cost] = []
    for done, part in enumerate(parts):
        of = f", seed {part.what.seed}" if len(seeds) > 1 else ""
        title = f"pair{of}" if part.kind == "pair" else f"{part.kind} {part.name}{of}"
        if progress is not None:
            progress(done, len(parts), title)
        if part.kind == "pair":
            cost = _pair_cost(part, settings)
        elif part.kind == "donor":
            cost = _donor_cost(part, settings)
        else:
            # With the recipient as its own donor everything takes as long as with missing donors.
            recipient = part.what.entry.recipient
            spec = part.what.job(part.name)
            spec = replace(spec, recipient=recipient, donors=dict.fromkeys(spec.donors, recipient))
            if repr(spec) not in runs:
                runs[repr(spec)] = dry_run(spec, settings, pairs)
            cost = runs[repr(spec)]
        made.append(replace(cost, what=title))
    return [*made, sum(made, Cost("in all", done=True))]


def _pair_cost(part: FigurePart, settings: Settings) -> Cost:
    """Pretraining of a recipient and finetuning of its donor, from those of the shipped pair."""
    what = part.what
    shipped = locate(what.entry.recipient).directory
    seconds = read_pair_card(shipped.parent)["seconds"]
    stages = [] if what.ready else ["recipient"]
    if part.name and not (what.pair / CARD).is_file():
        stages.append("sft")
    if not stages:
        return Cost("", done=True)
    size = sum(file.stat().st_size for file in shipped.iterdir())
    return Cost(
        "",
        sum(seconds[stage] for stage in stages),
        "the training of the shipped pair",
        memory={"weights": size, "gradients": size, "AdamW": 2 * size},
        disk=2 * size,
        **room(main_device_of(settings), None, torch.float32),
    )


def _donor_cost(part: FigurePart, settings: Settings) -> Cost:
    what, name = part.what, part.name
    place = what.place(name)
    if (place / CARD).is_file():
        return _stored(what.training(name), place)
    # A recipient that is not there yet is as large as the shipped one.
    spec = what.training(name) if what.ready else replace(what, seed=SHIPPED).training(name)
    spec = what.with_texts(spec, download=False)
    return finetuning_cost(spec, place, device=settings.device)


def _stored(spec: FinetuneSpec, place: Path) -> Cost:
    """Whether a folder holds the donor that is asked for, by its card; no weights are read."""
    if not (place / CARD).is_file():
        return Cost("")
    card = read_donor_card(place)
    recipe = card["recipe"]["name"]
    stored = {**{key: card[key] for key in ("model", "seed", "changes", "data")}, "recipe": recipe}
    wanted = {"model": spec.model, "seed": spec.seed, "changes": spec.changed()}
    wanted |= {"data": plan_finetuning(spec).data(), "recipe": spec.recipe}
    other = [key for key, value in wanted.items() if stored[key] != value]
    basis = f"trained in another way (other: {', '.join(other)}): move it" if other else ""
    return Cost("", basis=basis, done=not other)
