"""The localization map as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from kgbench.board.chart import number_ticks
from kgbench.board.files import INK, picture_files, styled
from kgbench.board.names import common_name, distinct_names
from kgbench.records import Record, SiteScore
from kgbench.sites import COMPONENTS, SCORED_REGIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["draw_heatmap", "draw_heatmaps", "heatmap_files"]

PER_LINE = 4
"""Panels beside each other."""

ABSENT = "#D4D4D4"
"""Where the model has no such component."""

BAR_WIDTH = 22
"""Characters of a line at a colour bar."""

Places = tuple[list[str], list[int], list[str]]
"""Regions, layers and components."""


def heatmap_files(record: Record) -> dict[str, bytes]:
    """The picture as `map.png` and `map.svg`; none where sites were not ranked."""
    return picture_files("map", draw_heatmap, record) if record.scores else {}


@styled
def draw_heatmap(record: Record) -> Figure:
    """One panel per region: layers upwards, components in the order of computation, the score as a colour.

    Scores of both signs have white at 0 and red above it; scores of one sign are light where they
    are low.
    """
    from matplotlib.figure import Figure

    scores = record.scores or ()
    regions, layers, components = places = _places(scores)
    lines, columns = -(-len(regions) // PER_LINE), min(len(regions), PER_LINE)
    size = (
        0.9 + columns * (0.6 + 0.26 * len(components)),
        0.7 + lines * (1.4 + 0.24 * (len(layers) + 1)),
    )
    figure = Figure(figsize=(max(size[0], 4.5), size[1]), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    image = None
    for axis, region in zip(axes.flat, regions, strict=False):
        image = _panel(axis, scores, region, places)
    for axis in axes.flat[len(regions) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer", color=INK)
    if image is not None:
        figure.colorbar(image, ax=axes, label="score", shrink=0.8)
    what = record.identity
    figure.suptitle(
        f"{what.localizer.name} on {record.model} ({what.dataset.name})",
        color=INK,
        fontweight="bold",
        fontsize=11,
    )
    return figure


@styled
def draw_heatmaps(maps: Sequence[tuple[Record, str]]) -> Figure:
    """One line of panels per run, all on the same axes; a bar beside each line has its colours, as scores have units of their own.

    Args:
        maps: Runs with scores, each with what a score of it says.
    """
    from matplotlib.figure import Figure

    records = [record for record, _ in maps]
    regions, layers, components = places = _places(
        [score for record in records for score in record.scores or ()]
    )
    size = (
        2.4 + len(regions) * (0.25 + 0.14 * len(components)),
        1.0 + len(maps) * (0.75 + max(0.9, 0.16 * (len(layers) + 1))),
    )
    figure = Figure(figsize=(max(size[0], 5.5), size[1]), layout="constrained")
    axes = figure.subplots(len(maps), len(regions), squeeze=False, sharex=True, sharey=True)
    for line, (record, meaning), name in zip(axes, maps, distinct_names(records), strict=True):
        for axis, region in zip(line, regions, strict=True):
            image = _panel(axis, record.scores or (), region, places)
        line[0].set_title(
            "\n", loc="left", fontsize=10
        )  # room for the name, which is wider than a panel
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
    figure.suptitle(
        f"scores of sites on {common_name(records)}", color=INK, fontweight="bold", fontsize=11
    )
    return figure


def _places(scores: Sequence[SiteScore]) -> Places:
    """What a map has panels, rows and columns for."""
    regions = [region for region in SCORED_REGIONS if any(s.region == region for s in scores)]
    components = [name for name in COMPONENTS if any(s.component == name for s in scores)]
    return regions, sorted({s.layer for s in scores if s.layer is not None}), components


def _ends(scores: list[float]) -> tuple[float, float]:
    """Ends of the scale: symmetric about 0 where scores have both signs."""
    low, high = min(scores), max(scores)
    if low < 0 < high:
        return -max(-low, high), max(-low, high)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _panel(axis: Axes, scores: Sequence[SiteScore], region: str, places: Places) -> AxesImage:
    """One region of a map, in the colours of the whole map."""
    _, layers, components = places
    grid = np.full((len(layers) + 1, len(components)), np.nan)
    for s in (s for s in scores if s.region == region):
        grid[0 if s.layer is None else 1 + layers.index(s.layer), components.index(s.component)] = (
            s.score
        )
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
    for side in axis.spines.values():
        side.set_visible(False)
    return image
