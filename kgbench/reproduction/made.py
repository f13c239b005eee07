"""Making a figure: what is missing is trained and run, what is there is found."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgbench.models.trained import read_donor_card
from kgbench.records import Record, RecordStore
from kgbench.reproduction.claimed import Checked, checked
from kgbench.reproduction.ingredients import Ingredients
from kgbench.reproduction.page import FigureSpec
from kgbench.runner import Pairs, run_job
from kgbench.training.finetuning import finetune

__all__ = ["Made", "Progress", "distinct", "distinct_claims", "evaluations_of", "make", "shown", "trainings_of"]

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""


@dataclass(frozen=True)
class Made:
    """A figure with all that it is drawn from."""

    name: str
    model: str
    figure: FigureSpec
    record: Record
    facts: pa.Table
    cards: Mapping[str, Mapping[str, Any]]
    """Of the donors, by their training."""
    claims: Sequence[Checked]
    dataset: str
    """The shipped data set whose facts are asked for."""
    rows: Mapping[str, str]
    """The paper's name of each configuration, and the record's."""


def distinct(made: Sequence[Made]) -> dict[tuple[str, tuple[str, ...], str], Made]:
    """The figures without those that show the same as an earlier one, by what they show."""
    found: dict[tuple[str, tuple[str, ...], str], Made] = {}
    for one in made:
        found.setdefault(shown(one), one)
    return found


def shown(made: Made) -> tuple[str, tuple[str, ...], str]:
    """What a figure shows: evaluation, prompts and metric."""
    return made.figure.evaluation, made.figure.prompts, made.figure.metric


def distinct_claims(made: Sequence[Made]) -> list[tuple[str, Checked]]:
    """Every claim with the figure that it is first about."""
    found: dict[tuple[str, str, str, str], tuple[str, Checked]] = {}
    for one in made:
        for claim in one.claims:
            found.setdefault((one.figure.evaluation, claim.prompt, one.figure.metric, claim.claim.says), (one.name, claim))
    return list(found.values())


def evaluations_of(figures: Sequence[str], what: Ingredients) -> tuple[str, ...]:
    """The evaluations behind figures, each once."""
    return tuple(dict.fromkeys(what.page.figures[name].evaluation for name in figures))


def trainings_of(evaluations: Sequence[str], what: Ingredients) -> tuple[str, ...]:
    """The donors behind evaluations, each once, recipients first."""
    needed = []
    for name in evaluations:
        evaluation = what.page.evaluations[name]
        needed += [*([evaluation.recipient] if evaluation.recipient else []), *evaluation.donors.values()]
    return tuple(dict.fromkeys(needed))


def make(figures: Sequence[str], what: Ingredients, output_dir: Path, device: str, progress: Progress | None = None) -> Iterator[Made]:
    """Make figures: all donors, then all evaluations, then figure by figure.

    Whatever is interrupted goes on where it was: a training from its last checkpoint, an evaluation from its journal.

    Args:
        figures: Their names.
        what: What they are made of.
        output_dir: Where records go.
        device: Where it is computed.
        progress: Told of the progress of each part.

    Raises:
        InputError: Something cannot be had; found before the part that needs it is begun.
    """
    evaluations = evaluations_of(figures, what)
    trainings = trainings_of(evaluations, what)
    parts = len(trainings) + len(evaluations)
    cards, records, pairs = {}, {}, Pairs()
    for number, name in enumerate(trainings, 1):
        place = finetune(what.training(name), what.place(name), device=device, progress=_part(progress, number, parts))
        cards[name] = read_donor_card(place)
        gc.collect()  # a trainer and its model refer to each other; of large models two do not fit
    for number, name in enumerate(evaluations, len(trainings) + 1):
        run = run_job(what.job(name), what.settings(output_dir, device), _part(progress, number, parts), pairs)
        records[name] = run.record
    for name in figures:
        figure = what.page.figures[name]
        record = records[figure.evaluation]
        facts = RecordStore(output_dir).load(record.id).facts()
        used = trainings_of([figure.evaluation], what)
        dataset = what.page.trainings[what.page.evaluations[figure.evaluation].learned].dataset
        claims = checked(figure, what.page, record, facts, dataset)
        yield Made(name, what.model, figure, record, facts, {n: cards[n] for n in used}, claims, dataset, what.page.rows[figure.rows])


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(done, total, f"{number} of {parts}: {text}")
