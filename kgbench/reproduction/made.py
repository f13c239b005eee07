"""Making figures: what is missing is trained and run, what is there is found; and figures from the rows that came out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from kgbench.effects.columns import PromptColumns
from kgbench.effects.training_seeds import mean_over, median_rank_over
from kgbench.models.trained import read_donor_card
from kgbench.records import Estimate, RecordStore
from kgbench.reproduction.claimed import Checked, checked
from kgbench.reproduction.ingredients import Ingredients
from kgbench.reproduction.measured import About, Donor, Evaluated, Measured, columns_of, kept_rows
from kgbench.reproduction.page import MEDIAN_RANK, FigureSpec, Page
from kgbench.runner import Pairs, run_job
from kgbench.training.finetuning import finetune

__all__ = ["Made", "Progress", "distinct", "distinct_claims", "evaluations_of", "figures_of", "make", "shown", "trainings_of"]

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""


@dataclass(frozen=True)
class Made:
    """A figure with all that it is drawn from."""

    name: str
    figure: FigureSpec
    about: About
    prompts: Mapping[str, Sequence[PromptColumns]]
    """Each prompt's columns under each training seed."""
    claims: Sequence[Checked]
    dataset: str
    """The shipped data set whose facts are asked for."""
    rows: Mapping[str, str]
    """The paper's name of each configuration, and our expression."""
    trainings: Sequence[str]
    """Of its donors."""

    @property
    def model(self) -> str:
        """The pair."""
        return self.about.model

    @property
    def donors(self) -> Mapping[tuple[int, str], Donor]:
        """By training seed and training."""
        return self.about.donors_of(self.trainings)

    def n(self, prompt: str) -> int:
        """Number of facts."""
        return self.prompts[prompt][0].n

    def estimate(self, prompt: str, graft: str, metric: str | None = None) -> Estimate:
        """A configuration's figure over facts and, where there are several, training seeds; by default in the figure's metric."""
        metric, seeds = metric or self.figure.metric, self.prompts[prompt]
        found = median_rank_over(seeds, graft) if metric == MEDIAN_RANK else mean_over(seeds, metric, graft)
        return Estimate(**found.to_json())


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


def evaluations_of(figures: Sequence[str], page: Page) -> tuple[str, ...]:
    """The evaluations behind figures, each once."""
    return tuple(dict.fromkeys(page.figures[name].evaluation for name in figures))


def trainings_of(evaluations: Sequence[str], page: Page) -> tuple[str, ...]:
    """The donors behind evaluations, each once, recipients first."""
    needed = []
    for name in evaluations:
        evaluation = page.evaluations[name]
        needed += [*([evaluation.recipient] if evaluation.recipient else []), *evaluation.donors.values()]
    return tuple(dict.fromkeys(needed))


def make(figures: Sequence[str], pairs: Sequence[Ingredients], output_dir: Path, device: str, progress: Progress | None = None) -> Measured:
    """Measure what figures rest on, seed by seed: the pair where it is not there, then all donors, then all evaluations.

    Whatever is interrupted goes on where it was: a training from its last checkpoint, an evaluation from its journal.

    Args:
        figures: Their names.
        pairs: What they are made of, under each training seed.
        output_dir: Where records go.
        device: Where it is computed.
        progress: Told of the progress of each part.

    Raises:
        InputError: Something cannot be had; found before the part that needs it is begun.
    """
    page = pairs[0].page
    evaluations = evaluations_of(figures, page)
    trainings = trainings_of(evaluations, page)
    parts = sum(what.builds for what in pairs) + len(pairs) * (len(trainings) + len(evaluations))
    number = 0

    def told() -> Progress | None:
        nonlocal number
        number += 1
        return _part(progress, number, parts)

    donors: dict[int, dict[str, Donor]] = {}
    evaluated: dict[int, dict[str, Evaluated]] = {}
    tables, records = [], []
    for what in pairs:
        if what.builds:
            what.build(told())
        own, loaded = donors.setdefault(what.seed, {}), Pairs()
        for name in trainings:
            own[name] = Donor.of(read_donor_card(finetune(what.training(name), what.place(name), device=device, progress=told())))
            gc.collect()  # a trainer and its model refer to each other; of large models two do not fit
        for name in evaluations:
            record = run_job(what.job(name), what.settings(output_dir, device), told(), loaded).record
            facts = RecordStore(output_dir).load(record.id).facts()
            tables.append(kept_rows(what.seed, name, [page.figures[figure] for figure in figures], page, record, facts))
            ran = Evaluated(data=record.identity.dataset.name, record=record.id, seconds=record.cost.seconds)
            evaluated.setdefault(what.seed, {})[name] = ran
            records.append(record)
        del loaded
        gc.collect()
    origin = records[0].provenance
    about = About(
        model=pairs[0].model,
        tiny=pairs[0].tiny,
        donors=donors,
        evaluations=evaluated,
        kgbench=origin.kgbench,
        torch=origin.packages["torch"],
        device=origin.device,
        platform=origin.platform,
    )
    return Measured(about, pa.concat_tables(tables))


def figures_of(names: Sequence[str], measured: Measured, page: Page) -> list[Made]:
    """Figures from rows; no model is needed.

    Args:
        names: Their names.
        measured: The rows.
        page: The page that they stand on.

    Raises:
        InputError: The rows are not of all of these figures.
        DataError: They are not of the same facts under all seeds, or lack a configuration.
    """
    columns = {evaluation: columns_of(measured, evaluation) for evaluation in evaluations_of(names, page)}
    made = []
    for name in names:
        figure = page.figures[name]
        prompts = {prompt: columns[figure.evaluation][prompt] for prompt in figure.prompts}
        dataset = page.trainings[page.evaluations[figure.evaluation].learned].dataset
        claims, trainings = checked(figure, page, prompts, dataset), trainings_of([figure.evaluation], page)
        made.append(Made(name, figure, measured.about, prompts, claims, dataset, page.rows[figure.rows], trainings))
    return made


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(done, total, f"{number} of {parts}: {text}")
