"""Footnotes of a table: why figures are undefined."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgbench.board.numbers import figure_text
from kgbench.records import NOT_APPLICABLE, Estimate

__all__ = ["Footnotes"]


@dataclass
class Footnotes:
    """Reasons why figures are undefined, numbered as they come."""

    reasons: list[str] = field(default_factory=list)

    def cell(self, estimate: Estimate) -> str:
        """A figure, or a word with the number of its footnote."""
        if estimate.undefined is None:
            return figure_text(estimate)
        if estimate.undefined not in self.reasons:
            self.reasons.append(estimate.undefined)
        word = "n/a" if estimate.undefined.startswith(NOT_APPLICABLE) else "undefined"
        return f"{word} ({self.reasons.index(estimate.undefined) + 1})"

    def lines(self) -> list[str]:
        """The footnotes."""
        return [f"({i}) {reason}" for i, reason in enumerate(self.reasons, 1)]
