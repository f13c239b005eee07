"""Figures as they stand in the cells of a page's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from kgbench.estimate import Estimate
from kgbench.leaderboard.model import Spread, spread_text
from kgbench.numbers import number_text
from kgbench.records import NOT_APPLICABLE

__all__ = ["Cells", "number", "short"]

_MISSING = Markup("<td>–")


def short(value: float) -> float:
    """Four significant digits: what a picture can show."""
    return float(f"{value:.4g}")


def number(value: float) -> str:
    """A number as it is written in tables, with a minus sign."""
    return number_text(value)


@dataclass
class Cells:
    """Cells of one table, with the footnotes that they need and the figures that were shown."""

    exact: bool = True
    """Whether more digits stand beside a figure's text than in it."""
    reasons: list[str] = field(default_factory=list)
    shown: list[Estimate] = field(default_factory=list)

    def cell(self, estimate: Estimate | None) -> Markup:
        """A cell with data for pictures and sorting; an undefined one points to a footnote."""
        if estimate is None:
            return _MISSING
        if estimate.value is None:
            return self._undefined(estimate.undefined or "")
        if estimate.low is None or estimate.high is None:
            value = _four(estimate.value)
            return Markup('<td data-v="{} {} {} {}">{} ({})').format(
                value,
                value,
                value,
                estimate.n,
                number(estimate.value),
                self._mark(estimate.undefined or ""),
            )
        self.shown.append(estimate)
        text = _text(number, estimate.value, estimate.low, estimate.high)
        if not self.exact:
            return Markup(f"<td>{text}")
        exact = " ".join(map(_four, (estimate.value, estimate.low, estimate.high)))
        return Markup(f'<td data-v="{exact} {estimate.n}">{text}')

    def precise(self, estimate: Estimate | None) -> Markup:
        """A plain cell with three decimals, for pages that draw pictures from their tables."""
        if (
            estimate is None
            or estimate.value is None
            or estimate.low is None
            or estimate.high is None
        ):
            return self.cell(estimate)
        return Markup(f"<td>{_text(_third, estimate.value, estimate.low, estimate.high)}")

    def across(self, estimate: Estimate, columns: int) -> Markup:
        """One cell instead of several that are undefined for one reason."""
        return self._undefined(estimate.undefined or "", Markup(" colspan={}").format(columns))

    def _undefined(self, reason: str, how: str = "") -> Markup:
        mark = self._mark(reason)
        word = "n/a" if reason.startswith(NOT_APPLICABLE) else "undefined"
        return Markup("<td data-f={}{}>{} ({})").format(mark, how, word, mark)

    def _mark(self, reason: str) -> int:
        """The number of a reason's footnote."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason) + 1

    def legend(self, spread: Spread) -> str:
        """What the brackets hold, and of how many the figures are."""
        if not self.shown:
            return ""
        low, high = (end(figure.n for figure in self.shown) for end in (min, max))
        n = f"n = {low}" if low == high else f"n from {low} to {high}"
        return f"{spread_text(self.shown, spread)}; {n}."


def _text(write: Callable[[float], str], value: float, low: float, high: float) -> str:
    """A value with its interval; alone where it holds by definition or has no interval."""
    return write(value) if low == high else f"{write(value)} [{write(low)}, {write(high)}]"


def _four(value: float) -> str:
    """Four significant digits, without a leading zero."""
    text = f"{value:.4g}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _third(value: float) -> str:
    if abs(value) >= 9.9995:
        return number(value)
    text = f"{value:.3f}".replace("-", "−")
    if text.lstrip("−") == "0.000" or text == "1.000":
        return text[-5]
    return text.replace("0.", ".", 1) if text.lstrip("−").startswith("0.") else text
