"""The localization map as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgbench.board.files import INK, picture_files, styled
from kgbench.records import Record
from kgbench.sites import COMPONENTS, SCORED_REGIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["draw_heatmap", "heatmap_files"]

PER_LINE = 4
"""Panels beside each other."""

ABSENT = "#D4D4D4"
"""Where the model has no such component."""


def heatmap_files(record: Record) -> dict[str, bytes]:
    """The picture as `map.png` and `map.svg`; none where sites were not ranked."""
    return picture_files("map", draw_heatmap, record) if record.scores else {}


@styled
def draw_heatmap(record: Record) -> Figure:
    """One panel per region: layers upwards, components in the order of computation, the score as a colour.

    Scores of both signs have white at 0 and red above it; scores of one sign are light where they are low.
    """
    from matplotlib.figure import Figure

    scores = record.scores or ()
    regions = [region for region in SCORED_REGIONS if any(s.region == region for s in scores)]
    components = [name for name in COMPONENTS if any(s.component == name for s in scores)]
    layers = sorted({s.layer for s in scores if s.layer is not None})
    lines, columns = -(-len(regions) // PER_LINE), min(len(regions), PER_LINE)
    size = (0.9 + columns * (0.6 + 0.26 * len(components)), 0.7 + lines * (1.4 + 0.24 * (len(layers) + 1)))
    figure = Figure(figsize=(max(size[0], 4.5), size[1]), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    image = None
    for axis, region in zip(axes.flat, regions, strict=False):
        grid = np.full((len(layers) + 1, len(components)), np.nan)
        for s in (s for s in scores if s.region == region):
            grid[0 if s.layer is None else 1 + layers.index(s.layer), components.index(s.component)] = s.score
        image = _panel(axis, grid, _ends([s.score for s in scores]))
        axis.set_title(region, color=INK, fontsize=10)
        axis.set_xticks(range(len(components)), components, rotation=90, color=INK, fontsize=8)
        axis.set_yticks(range(len(layers) + 1), ["embed", *map(str, layers)], color=INK, fontsize=8)
    for axis in axes.flat[len(regions) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer", color=INK)
    if image is not None:
        figure.colorbar(image, ax=axes, label="score", shrink=0.8)
    what = record.identity
    figure.suptitle(f"{what.localizer.name} on {record.model} ({what.dataset.name})", color=INK, fontweight="bold", fontsize=11)
    return figure


def _ends(scores: list[float]) -> tuple[float, float]:
    """Ends of the scale: symmetric about 0 where scores have both signs."""
    low, high = min(scores), max(scores)
    if low < 0 < high:
        return -max(-low, high), max(-low, high)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _panel(axis: Axes, grid: np.ndarray, ends: tuple[float, float]) -> AxesImage:
    axis.set_facecolor(ABSENT)
    colours = "RdBu_r" if ends[0] == -ends[1] else "cividis"
    shown = np.ma.masked_invalid(grid)
    image = axis.imshow(shown, aspect="auto", origin="lower", cmap=colours, vmin=ends[0], vmax=ends[1], interpolation="nearest")
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    return image
