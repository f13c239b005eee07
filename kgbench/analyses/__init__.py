"""Analyses: one question about runs each, a file per question; large ones are packages.

An analysis describes its command: its dataclass fields are options, and `kgbench.cli.analysis`
makes the rest. One that computes takes pair, facts and method from a run. Listing analyses, and the
help of their commands, load no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from kgbench.registry import Registry

if TYPE_CHECKING:  # the help of a command must not wait for them
    from kgbench.data import Prompt
    from kgbench.leaderboard.entries import Entry
    from kgbench.progress import Progress
    from kgbench.report import Report
    from kgbench.runner.spec import Settings, Spec

__all__ = [
    "GRAFTS",
    "SAMPLED",
    "Analysis",
    "Answer",
    "Inputs",
    "analyses",
    "fact_sample",
    "inputs_of",
]

T = TypeVar("T")

GRAFTS = ("FE", "LT", "FE+LT")
"""Default grafts of analyses."""

SAMPLED: Mapping[str, Mapping[str, Any]] = {
    "grafts": {
        "help": "With PRE and SFT; several with commas.  [default: the run's, else FE, LT, FE+LT]"
    },
    "seed": {"help": "Random seed for sampling facts.  [default: the run's]"},
}
"""Help of options of an analysis that reads `GRAFTS` on a sample of the facts."""


def sampled(items: Sequence[T], n: int, seed: int) -> list[T]:
    """So many drawn at random, all where there are fewer, in their order."""
    places = sorted(Random(seed).sample(range(len(items)), min(n, len(items))))
    return [items[place] for place in places]


def fact_sample(prompts: Iterable[Prompt], n: int, seed: int) -> list[str]:
    """Ids of n facts drawn from those of prompts, sorted."""
    return sampled(sorted({prompt.fact.id for prompt in prompts}), n, seed)


@dataclass(frozen=True)
class Inputs:
    """What is analysed: the specification of a run, of which more is computed, or recorded runs."""

    specs: Sequence[Spec]
    """One where the analysis computes, else none."""
    runs: Sequence[Entry]
    settings: Settings
    progress: Progress | None
    announce: Callable[[str], None]
    """Called with each line on what will be run."""


@dataclass(frozen=True)
class Answer:
    """What an analysis gives, in each format."""

    report: Report
    json: Any
    """The value that `--json` prints."""
    csv: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Sources of a pair's models, by name."""

    def __repr__(self) -> str:
        """The report, as an interactive Python shows it."""
        from kgbench.report import to_text

        return to_text(self.report)

    def _repr_html_(self) -> str:
        """The report, as a notebook shows it."""
        from kgbench.report import to_html

        return to_html(self.report)


@dataclass(frozen=True)
class Analysis(ABC):
    """One question about runs.

    A subclass's docstring is the help of its command, and its dataclass fields are options. A
    field's docstring is the option's help; its metadata holds what else the option needs, as in
    `kgbench.runner.spec`, and `computes` where it makes no sense for recorded runs.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """Line in the list of commands."""
    arguments: ClassVar[str] = ""
    """Recorded runs that are given, by metavar, such as `A B` or `RUN...`."""
    of: ClassVar[Literal["", "pair", "method"]] = ""
    """What it takes from a run to compute on: pair and facts, or the method too. If empty, or where
    several runs are given, runs are read as they are."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Fields of `Spec` and `Settings` that options may replace in what is taken from a run."""
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By such a field, what differs in its option."""
    writes_csv: ClassVar[bool] = False

    @abstractmethod
    def answer(self, inputs: Inputs) -> Answer:
        """Run or read what is needed, and answer.

        Raises:
            InputError: Something in the inputs is wrong.
        """


@cache
def analyses() -> Registry:
    """All analyses, including those of installed packages (entry points `kgbench.analyses`)."""
    return Registry("analysis", __package__, "kgbench.analyses", Analysis)


def inputs_of(
    analysis: type[Analysis],
    runs: Sequence[Entry],
    settings: Settings,
    progress: Progress | None,
    announce: Callable[[str], None],
    spec: Spec | None = None,
    localizer: str | None = None,
    **changes: Any,
) -> Inputs:
    """The recorded runs, or the specification of the only one where more is computed of it.

    Args:
        analysis: What is asked.
        runs: Recorded runs.
        settings: How more is computed.
        progress: Progress callback.
        announce: Called with each line on what will be run.
        spec: What was evaluated, where that is in memory.
        localizer: The method of the run, where it is not installed.
        **changes: Fields that replace those of the specification.
    """
    if not analysis.of or len(runs) > 1:
        return Inputs((), runs, settings, progress, announce)
    from kgbench.runner.rerun import question_spec, specification
    from kgbench.runner.sources import sources_of
    from kgbench.runner.spec import Spec

    (run,) = runs
    sources = sources_of(run.folder)
    if spec is None:
        method = localizer if analysis.of == "method" else Spec.localizer
        spec = specification(run.record, sources, method)
    question = replace(question_spec(spec, run.record, analysis.of), **changes)
    return Inputs((question,), (), sources.on(settings), progress, announce)
