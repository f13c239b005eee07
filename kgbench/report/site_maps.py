"""Budget curves and localization maps as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from kgbench.errors import InputError, check_choice
from kgbench.numbers import figure_text
from kgbench.records import Curve, Record, SiteScore
from kgbench.report.bars import (
    FAINT,
    INK,
    RUN_COLOURS,
    draw_chart,
    number_ticks,
    panels,
    plain_axes,
    run_title,
    styled,
    title,
)
from kgbench.report.export import common_name, distinct_names
from kgbench.sites import COMPONENTS, SCORED_REGIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PICTURES = ("chart", "curve", "map")
"""What is drawn of a run: its bars, and of ranked sites the budget curve and the map of scores."""


def picture_of(record: Record, kind: str) -> Callable[[Record], Figure]:
    """What draws a picture of a run.

    Raises:
        UnknownNameError: There is no such kind of picture.
        InputError: The run has none of it.
    """
    check_choice("kind", kind, PICTURES)
    if kind == "chart":
        return draw_chart
    if not (record.curve if kind == "curve" else record.scores):
        what = "budget curve" if kind == "curve" else "map"
        raise InputError(
            f"the run of {record.identity.localizer.name} on {record.model} has no {what}: no "
            "sites were ranked; --kind chart draws its bars"
        )
    return draw_curve if kind == "curve" else draw_heatmap


LINE, GUIDE = "#0072B2", "#8C8C8C"
ZERO = 0.03
"""Position of a budget of 0 on the axis, in per cent."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One for each of the colours, so that runs differ without colour."""

APART = 1.1
"""Factor between the places of two runs at a budget of 0, where all of them have the same figure.
"""

LEGEND_WIDTH = 60
"""Characters of a line of a legend."""

BUDGET = "best-ranked sites, per cent of weights × tokens"


@styled
def draw_curve(record: Record) -> Figure:
    """A panel per prompt: recovery over the log budget, with 95 % intervals; budget 0 is apart."""
    curves = record.curve or {}
    size = (max(5.6, 4.2 * len(curves)), 3.8)
    figure, ((*axes,),) = panels(size, 1, len(curves), sharey=True)
    for axis, (prompt, curve) in zip(axes, curves.items(), strict=True):
        _curve_panel(axis, curve)
        axis.set_title(
            f"{prompt}: area {figure_text(curve.area)}", loc="left", color=INK, fontsize=10
        )
        axis.set_xlabel(BUDGET, color=INK)
    axes[0].set_ylabel(f"recovery ({record.metric})", color=INK)
    run_title(figure, record)
    return figure


@styled
def draw_curves(records: Sequence[Record]) -> Figure:
    """A panel per prompt, a line per run with its 95 % band; the legend gives each area."""
    names, prompts = distinct_names(records), dict[str, None]()
    for record in records:
        prompts |= dict.fromkeys(record.curve or {})
    curves, labels, lines = {}, {}, 0.0
    for prompt in prompts:
        curves[prompt] = [(record.curve or {}).get(prompt) for record in records]
        labels[prompt] = _labels(curves[prompt], names)
        lines = max(lines, sum(1.2 + label.count("\n") for label in labels[prompt]))
    size = (max(5.6, 4.6 * len(prompts)), 3.9 + 0.15 * lines)
    figure, ((*axes,),) = panels(size, 1, len(prompts), sharey=True)
    for axis, prompt in zip(axes, prompts, strict=True):
        for i, curve in enumerate(curves[prompt]):
            if curve is not None:
                _line(axis, curve, i, APART ** (i - (len(records) - 1) / 2))
        _curve_axes(axis)
        _curve_legend(axis, labels[prompt])
        axis.set_title(prompt, loc="left", color=INK, fontsize=10)
        axis.set_xlabel(BUDGET, color=INK)
    for axis in axes:
        number_ticks(axis.yaxis)
    axes[0].set_ylabel(f"recovery ({records[0].metric})", color=INK)
    title(figure, f"budget curves on {common_name(records)}")
    return figure


def _line(axis: Axes, curve: Curve, i: int, apart: float) -> None:
    """One run's line with its band, and its point at a budget of 0."""
    x, y, low, high = _bars(curve, True)
    axis.plot(x, y, color=RUN_COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=1.4, zorder=3)
    axis.fill_between(x, low, high, color=RUN_COLOURS[i], alpha=0.16, lw=0, zorder=2)
    x, y, low, high = _bars(curve, False)
    x = x * apart
    axis.vlines(x, low, high, color=RUN_COLOURS[i], alpha=0.4, lw=1.4, zorder=2)
    axis.plot(x, y, color=RUN_COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=0, zorder=3)


def _labels(curves: Sequence[Curve | None], names: Sequence[str]) -> list[str]:
    """Each run's name, with the area under its curve on one prompt."""
    areas = ["no curve" if curve is None else f"area {figure_text(curve.area)}" for curve in curves]
    return [fill(f"{name}: {area}", LEGEND_WIDTH) for name, area in zip(names, areas, strict=True)]


def _curve_legend(axis: Axes, labels: Sequence[str]) -> None:
    """Below a panel."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Line2D | Patch] = []
    for i, label in enumerate(labels):
        handles.append(
            Line2D(
                [], [], color=RUN_COLOURS[i], marker=MARKERS[i], markersize=4.5, lw=1.4, label=label
            )
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


def _curve_panel(axis: Axes, curve: Curve) -> None:
    for within in (True, False):
        x, y, low, high = _bars(curve, within)
        if len(x):
            axis.errorbar(
                x,
                y,
                [y - low, high - y],
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
    _curve_axes(axis)


def _bars(curve: Curve, within: bool) -> np.ndarray:
    """The defined points of a curve at budgets above 0, or that at 0: budget, recovery, its ends.

    Returns:
        Columns [4, point], budgets in per cent.
    """
    bars = []
    for point in curve.points:
        recovery, budget = point.recovery, point.budget
        if recovery.undefined is None and (budget > 0) == within:
            bars.append((budget or ZERO, recovery.value, recovery.low, recovery.high))
    return np.array(bars, float).reshape(-1, 4).T


def _curve_axes(axis: Axes) -> None:
    """Axes, guides at 0 and 1, and the gap between a budget of 0 and the others."""
    for level in (0, 1):
        axis.axhline(level, color=GUIDE, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axis.set_xscale("log")
    axis.set_xlim(ZERO / 1.6, 100 * 1.6)
    axis.set_xticks([ZERO, 0.1, 1, 10, 100], ["0", ".1", "1", "10", "100"], color=INK)
    axis.set_xticks([], minor=True)
    axis.axvline((ZERO * 0.1) ** 0.5, color=FAINT, lw=0.8, zorder=0)
    plain_axes(axis, "y")


PER_LINE = 4
"""Panels per line."""

ABSENT = "#D4D4D4"
"""Where the model has no such component."""

BAR_WIDTH = 22
"""Characters of a line at a colour bar."""

Places = tuple[list[str], list[int], list[str]]
"""Regions, layers and components."""


@styled
def draw_heatmap(record: Record) -> Figure:
    """One panel per region: layers upwards, components in order of computation, scores as colours.

    Scores of both signs have white at 0 and red above it; scores of one sign are light where they
    are low.
    """
    scores = record.scores or ()
    regions, layers, components = places = _places(scores)
    lines, columns = -(-len(regions) // PER_LINE), min(len(regions), PER_LINE)
    size = (
        0.9 + columns * (0.6 + 0.26 * len(components)),
        0.7 + lines * (1.4 + 0.24 * (len(layers) + 1)),
    )
    figure, axes = panels((max(size[0], 4.5), size[1]), lines, columns, sharey=True)
    image = None
    for axis, region in zip(axes.flat, regions, strict=False):
        image = _map_panel(axis, scores, region, places)
    for axis in axes.flat[len(regions) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer", color=INK)
    if image is not None:
        figure.colorbar(image, ax=axes, label="score", shrink=0.8)
    run_title(figure, record)
    return figure


@styled
def draw_heatmaps(maps: Sequence[tuple[Record, str]]) -> Figure:
    """One line of panels per run on the same axes, with a colour bar each: units of scores differ.

    Args:
        maps: Runs with scores, each with the meaning of its scores.
    """
    records = [record for record, _ in maps]
    scores: list[SiteScore] = []
    for record in records:
        scores += record.scores or ()
    regions, layers, components = places = _places(scores)
    size = (
        2.4 + len(regions) * (0.25 + 0.14 * len(components)),
        1.0 + len(maps) * (0.75 + max(0.9, 0.16 * (len(layers) + 1))),
    )
    size = (max(size[0], 5.5), size[1])
    figure, axes = panels(size, len(maps), len(regions), sharex=True, sharey=True)
    for line, (record, meaning), name in zip(axes, maps, distinct_names(records), strict=True):
        for axis, region in zip(line, regions, strict=True):
            image = _map_panel(axis, record.scores or (), region, places)
        # Room for the name, which is wider than a panel.
        line[0].set_title("\n", loc="left", fontsize=10)
        line[0].annotate(
            name,
            (0, 1),
            (0, 20),
            xycoords="axes fraction",
            textcoords="offset points",
            color=INK,
            fontweight="bold",
        ).set_in_layout(False)
        line[0].set_ylabel("layer", color=INK)
        bar = figure.colorbar(image, ax=line, aspect=12, pad=0.01)
        number_ticks(bar.ax.yaxis)
        bar.set_label(fill(meaning, BAR_WIDTH), color=INK, fontsize=8)
    title(figure, f"scores of sites on {common_name(records)}")
    return figure


def _places(scores: Sequence[SiteScore]) -> Places:
    """What a map has panels, rows and columns for."""
    scored = {score.region for score in scores}
    regions = [region for region in SCORED_REGIONS if region in scored]
    scored = {score.component for score in scores}
    components = [name for name in COMPONENTS if name in scored]
    return regions, sorted({s.layer for s in scores if s.layer is not None}), components


def _ends(scores: list[float]) -> tuple[float, float]:
    """Ends of the scale: symmetric about 0 where scores have both signs."""
    low, high = min(scores), max(scores)
    if low < 0 < high:
        return -max(-low, high), max(-low, high)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _map_panel(axis: Axes, scores: Sequence[SiteScore], region: str, places: Places) -> AxesImage:
    """One region of a map, in the colours of the whole map."""
    _, layers, components = places
    grid = np.full((len(layers) + 1, len(components)), np.nan)
    for s in scores:
        if s.region == region:
            row = 0 if s.layer is None else 1 + layers.index(s.layer)
            grid[row, components.index(s.component)] = s.score
    ends = _ends([s.score for s in scores])
    axis.set_facecolor(ABSENT)
    colours = "RdBu_r" if ends[0] == -ends[1] else "cividis"
    shown = np.ma.masked_invalid(grid)
    image = axis.imshow(
        shown,
        aspect="auto",
        origin="lower",
        cmap=colours,
        vmin=ends[0],
        vmax=ends[1],
        interpolation="nearest",
    )
    axis.set_title(region, color=INK, fontsize=10)
    axis.set_xticks(range(len(components)), components, rotation=90, color=INK, fontsize=8)
    axis.set_yticks(range(len(layers) + 1), ["embed", *map(str, layers)], color=INK, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image
