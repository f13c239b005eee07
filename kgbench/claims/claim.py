"""Claims: figures of a prompt, their bounds, and a note of each in the test's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text
from kgbench.records import Record
from kgbench.stats.ratios import between_configurations, between_prompts
from kgbench.stats.scores import PromptColumns
from kgbench.testing import decide
from kgbench.testing.decisions import sentence
from kgbench.testing.undecided import report_undecided

__all__ = ["Claim"]


@dataclass(frozen=True)
class Claim:
    """The evaluation on one prompt. Bounds are given by operator: `ge`, `gt`, `le` or `lt`."""

    prompt: str
    record: Record
    rows: Mapping[str, PromptColumns]
    """Per-fact rows of each prompt."""
    note: Callable[[str], None]
    """Takes a figure for the test's report."""

    def sufficiency(self, graft: str, **bounds: float) -> None:
        """The sufficiency of a configuration keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        self._keeps(self.tell(graft), f"{self.prompt}, {graft}: sufficiency", bounds)

    def tell(self, graft: str) -> Estimate:
        """Note the sufficiency of a configuration; nothing is claimed of it."""
        (found,) = (
            row.sufficiency
            for row in self.record.rows
            if (row.prompt, row.graft) == (self.prompt, graft)
        )
        self.note(f"{graft} {figure_text(found)}")
        return found

    def difference(self, first: str, second: str, **bounds: float) -> None:
        """The sufficiency of one configuration less that of another, fact by fact, keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        found = between_configurations(self.rows[self.prompt], self.record.metric, first, second)
        self._difference(
            found,
            f"{first} − {second}",
            f"{self.prompt}, {first}: sufficiency less that of {second}",
            bounds,
        )

    def beside(self, other: str, graft: str, **bounds: float) -> None:
        """The sufficiency of a configuration less that on another prompt, over the same facts, keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        found = between_prompts(self.rows[self.prompt], self.rows[other], self.record.metric, graft)
        self._difference(
            found,
            f"{graft}, {self.prompt} − {other}",
            f"{self.prompt}, {graft}: sufficiency less that on {other}",
            bounds,
        )

    def _difference(
        self, figure: Estimate, short: str, what: str, bounds: Mapping[str, float]
    ) -> None:
        __tracebackhide__ = True
        estimate = figure.rounded()
        self.note(f"{short} {figure_text(estimate)}")
        self._keeps(estimate, what, bounds)

    def _keeps(self, estimate: Estimate, what: str, bounds: Mapping[str, float]) -> None:
        """Undecided, with the reason, where a method cannot express a configuration."""
        __tracebackhide__ = True
        decisions = [decide(estimate, op, bound) for op, bound in bounds.items()]
        if failed := [
            sentence(decision, what) for decision in decisions if decision.outcome == "fails"
        ]:
            raise AssertionError("\n".join(failed))
        report_undecided(
            [sentence(decision, what) for decision in decisions if decision.outcome == "undecided"]
        )
