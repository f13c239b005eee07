"""The budget curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from kgbench.board.chart import number_ticks
from kgbench.board.files import FAINT, INK, picture_files, styled
from kgbench.board.grouped import COLOURS
from kgbench.board.names import common_name, distinct_names
from kgbench.numbers import figure_text
from kgbench.records import Curve, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["curve_files", "draw_curve", "draw_curves"]

LINE, GUIDE = "#0072B2", "#8C8C8C"
ZERO = 0.03
"""Where a budget of 0 stands on the axis, in per cent."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One for each of the colours, so that runs are told apart without colour."""

APART = 1.1
"""Factor between the places of two runs at a budget of 0, where all of them have the same figure."""

LEGEND_WIDTH = 60
"""Characters of a line of a legend."""

BUDGET = "best-ranked sites, per cent of weights × tokens"

Bars = tuple[list[float], list[float], list[float], list[float]]
"""Budgets in per cent, recovery, and the ends of its interval."""


def curve_files(record: Record) -> dict[str, bytes]:
    """The picture as `curve.png` and `curve.svg`; none where no budgets were run."""
    return picture_files("curve", draw_curve, record) if record.curve else {}


@styled
def draw_curve(record: Record) -> Figure:
    """A panel per prompt: recovery over the log budget, with 95 % intervals; budget 0 is apart."""
    from matplotlib.figure import Figure

    curves = record.curve or {}
    figure = Figure(figsize=(max(5.6, 4.2 * len(curves)), 3.8), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    for axis, (prompt, curve) in zip(axes, curves.items(), strict=True):
        _panel(axis, curve)
        axis.set_title(
            f"{prompt}: area {figure_text(curve.area)}", loc="left", color=INK, fontsize=10
        )
        axis.set_xlabel(BUDGET, color=INK)
    axes[0].set_ylabel(f"recovery ({record.metric})", color=INK)
    what = record.identity
    figure.suptitle(
        f"{what.localizer.name} on {record.model} ({what.dataset.name})",
        color=INK,
        fontweight="bold",
        fontsize=11,
    )
    return figure


@styled
def draw_curves(records: Sequence[Record]) -> Figure:
    """A panel per prompt, a line per run with its 95 % band; the legend gives each area."""
    from matplotlib.figure import Figure

    prompts = list(dict.fromkeys(prompt for record in records for prompt in record.curve or {}))
    curves = {
        prompt: [(record.curve or {}).get(prompt) for record in records] for prompt in prompts
    }
    labels = {prompt: _labels(curves[prompt], distinct_names(records)) for prompt in prompts}
    lines = max(sum(1.2 + label.count("\n") for label in own) for own in labels.values())
    size = (max(5.6, 4.6 * len(prompts)), 3.9 + 0.15 * lines)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(prompts), squeeze=False, sharey=True)[0]
    for axis, prompt in zip(axes, prompts, strict=True):
        for i, curve in enumerate(curves[prompt]):
            if curve is not None:
                _line(axis, curve, i, APART ** (i - (len(records) - 1) / 2))
        _frame(axis)
        _legend(axis, labels[prompt])
        axis.set_title(prompt, loc="left", color=INK, fontsize=10)
        axis.set_xlabel(BUDGET, color=INK)
    for axis in axes:
        number_ticks(axis.yaxis)
    axes[0].set_ylabel(f"recovery ({records[0].metric})", color=INK)
    figure.suptitle(
        f"budget curves on {common_name(records)}", color=INK, fontweight="bold", fontsize=11
    )
    return figure


def _line(axis: Axes, curve: Curve, i: int, apart: float) -> None:
    """One run's line with its band, and its point at a budget of 0."""
    x, y, low, high = _bars(curve, True)
    axis.plot(x, y, color=COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=1.4, zorder=3)
    axis.fill_between(x, low, high, color=COLOURS[i], alpha=0.16, lw=0, zorder=2)
    x, y, low, high = _bars(curve, False)
    x = [budget * apart for budget in x]
    axis.vlines(x, low, high, color=COLOURS[i], alpha=0.4, lw=1.4, zorder=2)
    axis.plot(x, y, color=COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=0, zorder=3)


def _labels(curves: Sequence[Curve | None], names: Sequence[str]) -> list[str]:
    """Each run's name, with the area under its curve on one prompt."""
    areas = ["no curve" if curve is None else f"area {figure_text(curve.area)}" for curve in curves]
    return [fill(f"{name}: {area}", LEGEND_WIDTH) for name, area in zip(names, areas, strict=True)]


def _legend(axis: Axes, labels: Sequence[str]) -> None:
    """Below a panel."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    for i, label in enumerate(labels):
        handles.append(
            Line2D([], [], color=COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=1.4, label=label)
        )
    handles.append(Patch(facecolor=GUIDE, alpha=0.3, lw=0, label="95 % interval"))
    axis.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -0.17),
        frameon=False,
        fontsize=8,
        borderaxespad=0,
    )


def _panel(axis: Axes, curve: Curve) -> None:
    for within in (True, False):
        x, y, low, high = _bars(curve, within)
        if x:
            errors = [
                [v - a for v, a in zip(y, low, strict=True)],
                [b - v for v, b in zip(y, high, strict=True)],
            ]
            axis.errorbar(
                x,
                y,
                errors,
                color=LINE,
                marker="o",
                markersize=3.5,
                lw=1.4 if within else 0,
                elinewidth=0.9,
                capsize=2.5,
                zorder=3,
            )
    if all(point.recovery.undefined is not None for point in curve.points):
        axis.annotate("undefined", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GUIDE)
    _frame(axis)


def _bars(curve: Curve, within: bool) -> Bars:
    """The defined points of a curve: those at budgets above 0, or that at 0."""
    found = [
        (p.budget, e.value, e.low, e.high)
        for p in curve.points
        if (e := p.recovery).undefined is None
    ]
    some = [
        (b or ZERO, v or 0.0, low or 0.0, high or 0.0)
        for b, v, low, high in found
        if (b > 0) == within
    ]
    x, y, lows, highs = (
        (list(column) for column in zip(*some, strict=True)) if some else ([], [], [], [])
    )
    return x, y, lows, highs


def _frame(axis: Axes) -> None:
    """Axes, guides at 0 and 1, and the gap between a budget of 0 and the others."""
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
