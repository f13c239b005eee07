"""Footnotes of a table: why figures are undefined."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, reason_text
from kgbench.records import NOT_APPLICABLE, Row

__all__ = ["Footnotes"]

NO_GRAFT = "–: PRE and SFT are no grafts, and necessity is asked of grafts"
NO_REST = "–: the complement of the best-ranked sites was not run"


@dataclass
class Footnotes:
    """Reasons why figures are undefined, numbered as they come."""

    reasons: list[str] = field(default_factory=list)
    dashes: list[str] = field(default_factory=list)
    """What a dash means, where there is one."""

    def cell(self, estimate: Estimate) -> str:
        """A figure; one that is undefined or has no interval with the number of its footnote."""
        if estimate.undefined is None:
            return figure_text(estimate)
        if estimate.undefined not in self.reasons:
            self.reasons.append(estimate.undefined)
        word = "n/a" if estimate.undefined.startswith(NOT_APPLICABLE) else figure_text(estimate)
        return f"{word} ({self.reasons.index(estimate.undefined) + 1})"

    def necessity(self, row: Row) -> str:
        """The necessity of a configuration; a dash where it is not asked, as of PRE and SFT."""
        if row.graft in ("PRE", "SFT"):
            return self._dash(NO_GRAFT)
        if row.graft.startswith("top ") and row.complement is None and row.applicable:
            return self._dash(NO_REST)
        return self.cell(row.necessity)

    def _dash(self, meaning: str) -> str:
        if meaning not in self.dashes:
            self.dashes.append(meaning)
        return "–"

    def lines(self) -> list[str]:
        """The footnotes."""
        return [
            *self.dashes,
            *(f"({i}) {reason_text(reason)}" for i, reason in enumerate(self.reasons, 1)),
        ]
