"""Budget curves, localization maps and maps of changed weights as pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from kgbench.errors import InputError, check_choice
from kgbench.numbers import figure_text
from kgbench.records import CurvePoint, Record, SiteScore
from kgbench.report.bars import (
    FAINT,
    GREY,
    INK,
    MOST,
    RUN_COLOURS,
    draw_chart,
    number_ticks,
    panels,
    plain_axes,
    styled,
    title,
)
from kgbench.report.export import distinct_names
from kgbench.sites import COMPONENTS, region_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PICTURES = {"chart": "bars", "curve": "budget curve", "map": "map"}
"""What is drawn of runs: their bars, and of ranked sites the budget curve and the map of scores."""

Meaning = Callable[[str, str], str]
"""Gives what a score is and its unit, by name and version of the method."""


def pictures_of(record: Record) -> list[str]:
    """The kinds of pictures that there are of a run."""
    ranked = {"curve": record.curve, "map": record.scores}
    return ["chart", *(kind for kind, part in ranked.items() if part)]


def drawing(
    records: Sequence[Record], kind: str, meaning: Meaning
) -> Callable[[Sequence[Record]], Figure]:
    """What draws a picture of runs.

    Args:
        records: The runs.
        kind: A key of `PICTURES`.
        meaning: Labels the colours of a map.

    Raises:
        UnknownNameError: There is no such kind of picture.
        InputError: A run has none of it, or the runs cannot share a picture.
    """
    check_choice("kind", kind, PICTURES)
    if len(records) > MOST:
        raise InputError(
            f"{len(records)} runs in one picture cannot be distinguished; give at most {MOST}"
        )
    for i, record in enumerate(records):
        if kind not in pictures_of(record):
            raise InputError(
                f"{_run_text(record)} has no {PICTURES[kind]}: no sites were ranked; --format chart "
                "draws its bars"
            )
        if record.identity.readout != records[0].identity.readout:
            raise InputError(
                f"{_run_text(records[0])} and {_run_text(record)} have other readouts, and one axis "
                "has one quantity: draw them apart"
            )
        for other in records[:i] if kind != "chart" else ():
            _check_together(other, record, kind)
    if kind == "map":
        return partial(draw_maps, meaning=meaning)
    return draw_chart if kind == "chart" else draw_curves


def _check_together(first: Record, second: Record, kind: str) -> None:
    """Refuse two runs that are the same, or of other facts or prompts."""
    one, two = first.identity, second.identity
    if first.id == second.id:
        raise InputError(f"{_run_text(second)} is given twice; give each run once")
    if (one.dataset.hash, one.prompts) != (two.dataset.hash, two.prompts):
        what = "prompts" if one.dataset.hash == two.dataset.hash else "facts"
        raise InputError(
            f"{_run_text(first)} and {_run_text(second)} have different {what}; --format {kind} "
            "draws runs of the same facts and prompts side by side"
        )


def _run_text(record: Record) -> str:
    what = record.identity
    return f"the run {record.id[:8]} ({what.localizer.name} on {record.model}, {what.dataset.name})"


ZERO = 0.03
"""Position of a budget of 0 on the axis, in per cent."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One for each of the colours, so that runs differ without colour."""

APART = 1.1
"""Factor between the places of two runs at a budget of 0, where all of them have the same figure.
"""

LEGEND_WIDTH = 60
"""Characters of a line of a legend."""


@styled
def draw_curves(records: Sequence[Record]) -> Figure:
    """A panel per prompt: recovery over the log budget, a line per run with its 95 % band.

    The legend gives the area under each; a budget of 0 is apart.
    """
    names = distinct_names(records)
    prompts = list(dict.fromkeys(chain.from_iterable(record.curve or () for record in records)))
    size = (max(5.6, 4.6 * len(prompts)), 4.0 + 0.3 * len(records))
    figure, ((*axes,),) = panels(size, 1, len(prompts), sharey=True)
    for axis, prompt in zip(axes, prompts, strict=True):
        for i, (record, name) in enumerate(zip(records, names, strict=True)):
            curve = (record.curve or {}).get(prompt)
            area = "no curve" if curve is None else f"area {figure_text(curve.area)}"
            points = () if curve is None else curve.points
            style: dict[str, Any] = {"color": RUN_COLOURS[i], "marker": MARKERS[i]}
            label = fill(f"{name}: {area}", LEGEND_WIDTH)
            _line(axis, points, ZERO * APART ** (i - (len(records) - 1) / 2), label, style)
        _curve_axes(axis)
        axis.legend(
            loc="upper left", bbox_to_anchor=(0, -0.17), frameon=False, fontsize=8, borderaxespad=0
        )
        axis.set_title(prompt, loc="left", color=INK, fontsize=10)
        axis.set_xlabel("best-ranked sites, per cent of weights × tokens", color=INK)
    for axis in axes:
        number_ticks(axis.yaxis)
    axes[0].set_ylabel(f"recovery ({records[0].metric}), 95 % intervals", color=INK)
    title(figure, records, "budget curves")
    return figure


def _line(
    axis: Axes, points: Sequence[CurvePoint], zero: float, label: str, style: dict[str, Any]
) -> None:
    """A line with its band, and the point of a budget of 0 apart; undefined ones are left out."""
    bars = []
    for point in points:
        if point.recovery.numbers is not None:
            bars.append((point.budget or zero, *point.recovery.numbers))
    x, y, low, high = np.array(bars, float).reshape(-1, 4).T
    apart, line = x <= zero, x > zero
    axis.fill_between(x[line], low[line], high[line], color=style["color"], alpha=0.16, lw=0)
    axis.vlines(x[apart], low[apart], high[apart], color=style["color"], alpha=0.4)
    axis.plot(x[line], y[line], markersize=4.5, lw=1.4, zorder=3, label=label, **style)
    axis.plot(x[apart], y[apart], markersize=4.5, lw=0, zorder=3, **style)


def _curve_axes(axis: Axes) -> None:
    """Axes, guides at 0 and 1, and the gap between a budget of 0 and the others."""
    for level in (0, 1):
        axis.axhline(level, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axis.set_xscale("log")
    axis.set_xlim(ZERO / 1.6, 100 * 1.6)
    axis.set_xticks([ZERO, 0.1, 1, 10, 100], ["0", ".1", "1", "10", "100"], color=INK)
    axis.set_xticks([], minor=True)
    axis.axvline((ZERO * 0.1) ** 0.5, color=FAINT, lw=0.8, zorder=0)
    plain_axes(axis, "y")


ABSENT = "#D4D4D4"
"""Where the model has no such component."""

BAR_WIDTH = 22
"""Characters of a line at a colour bar."""

Places = tuple[list[str], list[int], list[str]]
"""Regions, layers and components."""


@styled
def draw_maps(records: Sequence[Record], meaning: Meaning) -> Figure:
    """A line of panels per run, one per region: layers upwards, components in order of computation.

    Runs have the same axes and a colour bar each, since units of scores differ. Scores of both
    signs have white at 0 and red above it; scores of one sign are light where they are low.
    """
    regions, layers, components = places = _places(records)
    size = (
        max(5.5, 2.4 + len(regions) * (0.25 + 0.14 * len(components))),
        1.0 + len(records) * (0.75 + max(0.9, 0.16 * (len(layers) + 1))),
    )
    figure, axes = panels(size, len(records), len(regions), sharex=True, sharey=True)
    for line, record, name in zip(axes, records, distinct_names(records), strict=True):
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
        method = record.identity.localizer
        label = fill(meaning(method.name, method.version), BAR_WIDTH)
        bar.set_label(label, color=INK, fontsize=8)
    title(figure, records, "scores of sites")
    return figure


def _places(records: Sequence[Record]) -> Places:
    """What maps have panels, rows and columns for."""
    scores = list(chain.from_iterable(record.scores or () for record in records))
    regions, components = {s.region for s in scores}, {s.component for s in scores}
    return (
        sorted(regions, key=region_order),
        sorted({s.layer for s in scores if s.layer is not None}),
        [component for component in COMPONENTS if component in components],
    )


def _map_panel(axis: Axes, scores: Sequence[SiteScore], region: str, places: Places) -> AxesImage:
    """One region of a map, in the colours of the whole map."""
    _, layers, components = places
    grid = np.full((len(layers) + 1, len(components)), np.nan)
    for s in scores:
        if s.region == region:
            row = 0 if s.layer is None else 1 + layers.index(s.layer)
            grid[row, components.index(s.component)] = s.score
    low, high = min(s.score for s in scores), max(s.score for s in scores)
    both_signs = low < 0 < high
    if both_signs:
        high = max(-low, high)
        low = -high
    elif low == high:
        low, high = low - 0.5, high + 0.5
    colours = "RdBu_r" if both_signs else "cividis"
    image = _grid(axis, grid, colours, (low, high), ["embed", *map(str, layers)], components)
    axis.set_title(region, color=INK, fontsize=10)
    return image


def _grid(
    axis: Axes,
    grid: Float[np.ndarray, "layer component"],
    colours: str,
    limits: tuple[float, float],
    layers: Sequence[str],
    components: Sequence[str],
) -> AxesImage:
    """Cells in colours, layers upwards; those without a number are grey."""
    axis.set_facecolor(ABSENT)
    low, high = limits
    image = axis.imshow(
        np.ma.masked_invalid(grid),
        aspect="auto",
        origin="lower",
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    axis.set_xticks(range(len(components)), components, rotation=90, color=INK, fontsize=8)
    axis.set_yticks(range(len(layers)), layers, color=INK, fontsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return image


@styled
def draw_weights(grids: Mapping[str, Mapping[tuple[int, str], float]], name: str) -> Figure:
    """A panel for each quantity of a change of weights: layers upwards, from 0.

    Args:
        grids: By what they show, the values by layer and component.
        name: The title.
    """
    sites = list(dict.fromkeys(chain.from_iterable(grids.values())))
    layers = sorted({layer for layer, _ in sites})
    components = list(dict.fromkeys(component for _, component in sites))
    size = (1.2 + len(grids) * (1.6 + 0.22 * len(components)), 1.2 + max(1.2, 0.16 * len(layers)))
    figure, axes = panels(size, 1, len(grids), sharey=True)
    for axis, (label, values) in zip(axes[0], grids.items(), strict=True):
        grid = np.full((len(layers), len(components)), np.nan)
        for (layer, component), value in values.items():
            grid[layers.index(layer), components.index(component)] = value
        limits = (0, max(values.values(), default=1.0))
        image = _grid(axis, grid, "cividis", limits, list(map(str, layers)), components)
        bar = figure.colorbar(image, ax=axis, aspect=20, pad=0.02)
        number_ticks(bar.ax.yaxis)
        axis.set_title(label, color=INK, fontsize=10)
    axes[0][0].set_ylabel("layer", color=INK)
    figure.suptitle(name, color=INK, fontweight="bold", fontsize=11)
    return figure
