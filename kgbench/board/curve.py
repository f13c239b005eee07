"""The budget curve as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgbench.board.files import FAINT, INK, picture_files, styled
from kgbench.numbers import figure_text
from kgbench.records import Curve, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["curve_files", "draw_curve"]

LINE, GUIDE = "#0072B2", "#8C8C8C"
ZERO = 0.03
"""Where a budget of 0 stands on the axis, in per cent."""


def curve_files(record: Record) -> dict[str, bytes]:
    """The picture as `curve.png` and `curve.svg`; none where no budgets were run."""
    return picture_files("curve", draw_curve, record) if record.curve else {}


@styled
def draw_curve(record: Record) -> Figure:
    """One panel per prompt: recovery over the logarithm of the budget, with 95 % intervals; a budget of 0 stands apart."""
    from matplotlib.figure import Figure

    curves = record.curve or {}
    figure = Figure(figsize=(max(5.6, 4.2 * len(curves)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    for axis, (prompt, curve) in zip(axes, curves.items(), strict=True):
        _panel(axis, curve)
        axis.set_title(f"{prompt}: area {figure_text(curve.area)}", loc="left", color=INK, fontsize=10)
        axis.set_xlabel("best-ranked sites, per cent of weights × tokens", color=INK)
    axes[0].set_ylabel(f"recovery ({record.metric})", color=INK)
    what = record.identity
    figure.suptitle(f"{what.localizer.name} on {record.model} ({what.dataset.name})", color=INK, fontweight="bold", fontsize=11)
    return figure


def _panel(axis: Axes, curve: Curve) -> None:
    found = [(p.budget, e.value, e.low, e.high) for p in curve.points if (e := p.recovery).undefined is None]
    for within in (True, False):
        some = [(b or ZERO, v or 0.0, low or 0.0, high or 0.0) for b, v, low, high in found if (b > 0) == within]
        if some:
            x, y, low, high = zip(*some, strict=True)
            errors = [[v - a for v, a in zip(y, low, strict=True)], [b - v for v, b in zip(y, high, strict=True)]]
            axis.errorbar(
                x, y, errors, color=LINE, marker="o", markersize=3.5, lw=1.4 if within else 0, elinewidth=0.9, capsize=2.5, zorder=3
            )
    if not found:
        axis.annotate("undefined", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GUIDE)
    for level in (0, 1):
        axis.axhline(level, color=GUIDE, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axis.set_xscale("log")
    axis.set_xlim(ZERO / 1.6, 100 * 1.6)
    axis.set_xticks([ZERO, 0.1, 1, 10, 100], ["0", ".1", "1", "10", "100"], color=INK)
    axis.set_xticks([], minor=True)
    axis.axvline((ZERO * 0.1) ** 0.5, color=FAINT, lw=0.8, zorder=0)
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
