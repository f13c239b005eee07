"""Make figures: train and run what is missing, and compute figures from the rows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import pyarrow as pa

from kgbench.estimate import Estimate
from kgbench.models.trained import read_donor_card
from kgbench.records import RecordStore
from kgbench.reproduction.claimed import Checked, checked
from kgbench.reproduction.ingredients import Ingredients
from kgbench.reproduction.measured import (
    About,
    Donor,
    Evaluated,
    Measured,
    columns_of,
    kept_rows,
    with_evaluation,
)
from kgbench.reproduction.page import MEDIAN_RANK, FigureSpec, Page
from kgbench.runner import Pairs, run_job
from kgbench.stats.scores import PromptColumns
from kgbench.stats.training_seeds import mean_over, median_rank_over
from kgbench.training.corpus import finetuning_rounds
from kgbench.training.finetuning import finetune

__all__ = [
    "Made",
    "Part",
    "Progress",
    "distinct",
    "distinct_claims",
    "evaluations_of",
    "figures_of",
    "figures_there",
    "is_there",
    "lacking",
    "make",
    "parts_of",
    "shown",
    "trainings_of",
]

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
    def seeds(self) -> tuple[int, ...]:
        """Its training seeds."""
        return self.about.seeds_of(self.figure.evaluation)

    @property
    def donors(self) -> Mapping[tuple[int, str], Donor]:
        """By training seed and training."""
        return self.about.donors_of(self.trainings)

    def n(self, prompt: str) -> int:
        """Number of facts."""
        return self.prompts[prompt][0].n

    def estimate(self, prompt: str, graft: str, metric: str | None = None) -> Estimate:
        """A configuration's figure over facts and training seeds; by default in the figure's metric."""
        metric, seeds = metric or self.figure.metric, self.prompts[prompt]
        found = (
            median_rank_over(seeds, graft)
            if metric == MEDIAN_RANK
            else mean_over(seeds, metric, graft)
        )
        return found.rounded()


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
            found.setdefault(
                (one.figure.evaluation, claim.prompt, one.figure.metric, claim.claim.says),
                (one.name, claim),
            )
    return list(found.values())


def evaluations_of(figures: Sequence[str], page: Page) -> tuple[str, ...]:
    """The evaluations behind figures, each once."""
    return tuple(dict.fromkeys(page.figures[name].evaluation for name in figures))


def trainings_of(evaluations: Sequence[str], page: Page, tiny: bool) -> tuple[str, ...]:
    """The donors behind evaluations, each once, recipients first."""
    needed = chain.from_iterable(page.evaluations[name].trainings(tiny) for name in evaluations)
    return tuple(dict.fromkeys(needed))


@dataclass(frozen=True)
class Part:
    """One thing to make: a recipient, a donor or an evaluation."""

    kind: Literal["pair", "donor", "evaluation"]
    what: Ingredients
    name: str = ""
    """Of a pair `donor` where its own donor is made too."""


def parts_of(
    figures: Sequence[str], pairs: Sequence[Ingredients], known: Measured | None = None
) -> list[Part]:
    """What is to be made for figures, seed by seed: each evaluation right after the donors that it needs.

    Args:
        figures: Their names.
        pairs: What they are made of, under each training seed.
        known: Rows that are there; evaluations of the same identity are left out.
    """
    page, found = pairs[0].page, []
    for what in pairs:
        left = [name for name in evaluations_of(figures, page) if not is_there(name, what, known)]
        made: set[str] = set()
        if what.builds and left:
            own = any(what.is_own(name) for name in trainings_of(left, page, what.tiny))
            found.append(Part("pair", what, "donor" if own else ""))
        for evaluation in left:
            trainings = page.evaluations[evaluation].trainings(what.tiny)
            new = [
                name
                for name in dict.fromkeys(trainings)
                if name not in made and not what.is_own(name)
            ]
            found += [Part("donor", what, name) for name in new]
            found.append(Part("evaluation", what, evaluation))
            made.update(new)
    return found


def is_there(evaluation: str, what: Ingredients, known: Measured | None) -> bool:
    """Whether rows hold an evaluation under the seed of the ingredients, made of the same."""
    if known is None or known.about.model != what.model:
        return False
    there = known.about.evaluations.get(what.seed, {}).get(evaluation)
    return there is not None and there.identity == what.identity(evaluation)


def make(
    figures: Sequence[str],
    pairs: Sequence[Ingredients],
    output_dir: Path,
    device: str,
    progress: Progress | None = None,
    known: Measured | None = None,
    keep: Callable[[Measured], None] | None = None,
) -> Measured:
    """Measure what figures rest on, seed by seed: the pair where it is not there, then donors and evaluations.

    Whatever is interrupted goes on where it was: a training from its last checkpoint, an evaluation
    from its journal.

    Args:
        figures: Their names.
        pairs: What they are made of, under each training seed.
        output_dir: Where records go.
        device: Where it is computed.
        progress: Progress callback.
        known: Rows that are there, which are not made again.
        keep: Called with all rows after each evaluation.

    Raises:
        InputError: Something cannot be had; found before the part that needs it is begun.
    """
    parts, measured = parts_of(figures, pairs, known), known
    loaded: tuple[int | None, Pairs] = (None, Pairs())
    for number, part in enumerate(parts, 1):
        what, report = part.what, _part(progress, number, len(parts))
        if part.kind == "pair":
            what.build(bool(part.name), report)
        elif part.kind == "donor":
            finetune(
                what.training(part.name), what.place(part.name), device=device, progress=report
            )
        else:
            if loaded[0] != what.seed:
                loaded = (what.seed, Pairs())
            measured = with_evaluation(
                measured, *_evaluated(part, output_dir, device, report, loaded[1])
            )
            if keep is not None:
                keep(measured)
        gc.collect()  # a trainer and its model refer to each other; of large models two do not fit
    assert measured is not None
    return measured


def _evaluated(
    part: Part, output_dir: Path, device: str, progress: Progress | None, loaded: Pairs
) -> tuple[About, pa.Table]:
    """The rows of one evaluation, and how they were made."""
    what, name = part.what, part.name
    record = run_job(what.job(name), what.settings(output_dir, device), progress, loaded).record
    facts = RecordStore(output_dir).load(record.id).facts()
    about = About(
        model=what.model,
        tiny=what.tiny,
        donors={
            what.seed: {
                one: _donor(what, one) for one in what.page.evaluations[name].trainings(what.tiny)
            }
        },
        evaluations={what.seed: {name: Evaluated.of(record, what.identity(name))}},
    )
    return about, kept_rows(what.seed, name, what.page, facts)


def _donor(what: Ingredients, name: str) -> Donor:
    if not what.is_own(name):
        return Donor.of(read_donor_card(what.place(name)))
    texts = len(set(finetuning_rounds(what.recipe, what.own_facts())[0]))
    return Donor.of_pair(*what.own_donor(), texts)


def figures_there(names: Sequence[str], measured: Measured, page: Page) -> list[str]:
    """Of these figures those of which there are rows under some seed."""
    return [name for name in names if measured.about.seeds_of(page.figures[name].evaluation)]


def lacking(names: Sequence[str], measured: Measured, page: Page) -> dict[str, tuple[int, ...]]:
    """Missing training seeds of the evaluations behind figures, by evaluation."""
    about = measured.about
    found = {
        evaluation: tuple(seed for seed in about.seeds if seed not in about.seeds_of(evaluation))
        for evaluation in evaluations_of(names, page)
    }
    return {evaluation: seeds for evaluation, seeds in found.items() if seeds}


def figures_of(names: Sequence[str], measured: Measured, page: Page) -> list[Made]:
    """Figures from rows; no model is needed.

    Args:
        names: Their names.
        measured: The rows.
        page: The page of the figures.

    Raises:
        InputError: The rows are not of all of these figures.
        DataError: They are not of the same facts under all seeds, or lack a configuration.
    """
    columns = {
        evaluation: columns_of(measured, evaluation) for evaluation in evaluations_of(names, page)
    }
    tiny, made = measured.about.tiny, []
    for name in names:
        figure = page.figures[name]
        prompts = {prompt: columns[figure.evaluation][prompt] for prompt in figure.prompts}
        dataset = page.trainings[page.evaluations[figure.evaluation].learned(tiny)].dataset
        claims, trainings = (
            checked(figure, page, prompts, dataset),
            trainings_of([figure.evaluation], page, tiny),
        )
        made.append(
            Made(
                name,
                figure,
                measured.about,
                prompts,
                claims,
                dataset,
                page.rows[figure.rows],
                trainings,
            )
        )
    return made


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(done, total, f"{number} of {parts}: {text}")
