"""Plan of a study: its units, what is known of each, and groups of those that are left.

No model is loaded, and no torch: what is done is read from the receipts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from math import ceil
from pathlib import Path
from typing import Any

from kgbench.errors import without_password
from kgbench.numbers import count_text
from kgbench.progress import Progress
from kgbench.report import Cell, Dash, Report, Table
from kgbench.runner.sweeps.engines import Launch, Pending, run_groups
from kgbench.runner.sweeps.study import StudyFile, StudyUnit, option_text
from kgbench.runner.sweeps.work import Receipts, State, work

LEFT = ("left", "check")
"""Words of units that are to be computed."""

RECEIPT_FIELDS = ("record", "error", "seconds", "host")
"""Fields of a receipt that JSON has of a unit."""


@dataclass(frozen=True)
class StudyPlan:
    """A study with its receipts."""

    study: StudyFile
    root: Path
    """Folder of the records."""

    @cached_property
    def states(self) -> tuple[State, ...]:
        """All units.

        Raises:
            InputError: Something in a unit is wrong; the message names the unit.
        """
        self.study.check()
        return Receipts(self.root).read(self.study.units)

    def groups(self, workers: int, retry_failed: bool = False) -> list[list[StudyUnit]]:
        """Units to compute, those of one pair together, so that its models are loaded once.

        A pair of more units than each worker gets on average is in several groups.

        Args:
            workers: Groups that run at once.
            retry_failed: Whether failed units are computed again.
        """
        words = (*LEFT, "failed") if retry_failed else LEFT
        by_pair: dict[str, list[StudyUnit]] = {}
        for state in self.states:
            if state.word in words:
                by_pair.setdefault(state.unit.pair, []).append(state.unit)
        most = ceil(sum(map(len, by_pair.values())) / max(workers, 1))
        groups = []
        for units in by_pair.values():
            groups += [units[start : start + most] for start in range(0, len(units), most)]
        return groups

    def report(self, groups: Sequence[Sequence[StudyUnit]]) -> Report:
        """Each unit, whether it is done, and its group.

        Args:
            groups: Units to compute, see `groups`.
        """
        numbers: dict[str, int] = {}
        for number, group in enumerate(groups, 1):
            numbers |= dict.fromkeys((unit.key for unit in group), number)
        rows: list[list[Cell]] = []
        for state in self.states:
            unit = state.unit
            rows.append(
                [
                    unit.label(self.study.axes or unit.options),
                    state.word,
                    numbers.get(unit.key, Dash()),
                ]
            )
        done = sum(state.word == "done" for state in self.states)
        verdict = (
            f"{count_text(len(rows), 'unit')}: {done:,} done, {len(numbers):,} to compute in "
            f"{count_text(len(groups), 'group')}"
        )
        table = Table("", ["unit", "state", "group"], rows)
        return Report(
            f"Study: {without_password(self.study.output_dir)}", (table,), verdict=verdict
        )

    def status(self, axes: Sequence[str] = ()) -> Report:
        """What is done, by axis, with the reasons of failures.

        Args:
            axes: Options; by default those with several values.
        """
        heads = ["units", "done", "failed", "check", "left"]
        words = Counter(state.word for state in self.states)

        def row(label: str, words: Counter[str]) -> list[Any]:
            return [label, words.total(), *(words[word] for word in heads[1:])]

        tables = [Table("", ["", *heads], [row("all", words)])]
        for axis in axes or self.study.axes:
            by_value = defaultdict[str, Counter[str]](Counter)
            for state in self.states:
                by_value[option_text(state.unit.options.get(axis))][state.word] += 1
            tables.append(Table("", [axis, *heads], list(starmap(row, by_value.items()))))
        failed = [state for state in self.states if state.word == "failed"]
        if failed:
            reasons = Counter(state.receipt["error"] for state in failed)
            tables.append(Table("", ["why units failed", "units"], list(reasons.most_common())))
        verdict = f"{words['done']} of {words.total()} units are done"
        verdict += f", {words['failed']} failed" if words["failed"] else ""
        if words["done"] == words.total():
            verdict = f"all {words.total()} units are done"
        notes = []
        if words["check"]:
            notes.append(
                "check: done by another version of kgbench, or the weights' files changed since; "
                "a run finds the record again or computes it."
            )
        return Report(
            f"Study: {without_password(self.study.output_dir)}", tables, (), notes, verdict
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench sweep --json` prints."""
        units = []
        for state in self.states:
            receipt = state.receipt
            units.append(
                {
                    "options": dict(state.unit.options),
                    "key": state.unit.key,
                    "state": state.word,
                    **{name: receipt[name] for name in RECEIPT_FIELDS if name in receipt},
                }
            )
        return {
            "output_dir": without_password(self.study.output_dir),
            "counts": dict(Counter(state.word for state in self.states)),
            "units": units,
        }


def run_study(
    plan: StudyPlan,
    engine: str = "local",
    *,
    workers: int = 1,
    retry_failed: bool = False,
    announce: Progress | None = None,
) -> Pending | None:
    """Compute what is left of a study.

    Args:
        plan: The study with its receipts.
        engine: One of `kgbench.runner.sweeps.engines.ENGINES`.
        workers: Groups that run at once; the only one of the local engine is this process.
        retry_failed: Whether to compute units that failed again.
        announce: Progress callback: of groups, or in this process of each unit.

    Returns:
        What an engine goes on with; None where all groups have ended.

    Raises:
        InputError: Something in the study or the engine is wrong.
    """
    groups = plan.groups(workers, retry_failed)
    if engine == "local" and workers == 1:
        for group in groups:
            work(plan.root, group, retry_failed, announce)
        return None

    def ended(number: int) -> None:
        if announce is not None:
            announce(number, len(groups), "groups")

    options = plan.study.engines.get(engine, {})
    return run_groups(engine, Launch(plan.root, groups, workers, retry_failed, options, ended))
