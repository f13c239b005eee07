"""Picture of a figure: our bars with intervals, and the paper's rates as marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

from kgbench.numbers import metric_name
from kgbench.report.bars import FAINT, INK, picture_bytes, styled
from kgbench.reproduction.page import MEDIAN_RANK
from kgbench.reproduction.paper_figures import PaperFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "picture", "small_png"]

_Shown = TypeVar("_Shown")

_COLOURS = 64
"""Of a file; with all of them it is eight times as large."""

_TITLE, _LETTER, _MARGIN = 9.0, 0.68, 24.0
"""Title: font size in points, mean width of a bold letter relative to it, margin in points."""

_BAR = "#0072B2"
_MARKS: Mapping[str, tuple[str, str]] = {
    "gemma-2b": ("o", "#D55E00"),
    "llama-3.2-1b": ("s", "#009E73"),
    "gpt2-xl": ("^", "#CC79A7"),
    "pythia-2.8b": ("D", "#E69F00"),
}
"""Shape and colour (Okabe and Ito) of each of the paper's models."""


def picture(figure: PaperFigure) -> bytes:
    """A figure as PNG; equal figures give equal bytes in one version of matplotlib and Pillow."""
    return small_png(draw, figure)


def small_png(drawing: Callable[[_Shown], Figure], shown: _Shown) -> bytes:
    """A drawing as a PNG file of half the usual size, in few colours."""
    from PIL import Image

    buffer = BytesIO()
    with Image.open(BytesIO(picture_bytes(drawing, shown, "png"))) as drawn:
        small = drawn.convert("RGB").resize(
            (drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS
        )
        small.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            buffer, "png", optimize=True
        )
    return buffer.getvalue()


@styled
def draw(figure: PaperFigure) -> Figure:
    """One panel per prompt; the paper's configurations from left to right."""
    from matplotlib.figure import Figure

    prompts, names = figure.spec.prompts, list(figure.rows)
    size = (1.6 + 0.55 * len(names), 0.9 + 2.5 * len(prompts))
    drawn = Figure(figsize=size, layout="constrained")
    axes = list(drawn.subplots(len(prompts), 1, squeeze=False)[:, 0])
    for axis, prompt in zip(axes, prompts, strict=True):
        _panel(axis, figure, prompt)
        axis.set_xticks(range(len(names)), [])
    axes[-1].set_xticks(range(len(names)), names, rotation=35, ha="right")
    _legend(drawn, axes)
    room = 72 * drawn.get_figwidth() - _MARGIN
    title = fill(figure.spec.title, int(room / (_LETTER * _TITLE)))
    drawn.suptitle(title, color=INK, fontsize=_TITLE, fontweight="bold")
    return drawn


def _legend(drawn: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels: that of the panel with most of the paper's models."""
    legends = [axis.get_legend_handles_labels() for axis in axes]
    handles, labels = max(legends, key=lambda legend: len(legend[0]))
    if handles:
        drawn.legend(
            handles,
            labels,
            fontsize=6,
            frameon=False,
            ncols=len(handles),
            loc="outside lower center",
        )


def _panel(axis: Axes, figure: PaperFigure, prompt: str) -> None:
    spec = figure.spec
    for x, graft in enumerate(figure.rows.values()):
        ours = figure.estimate(prompt, graft)
        if ours.value is None:
            continue
        axis.bar(x, ours.value, 0.7, color=_BAR, zorder=2)
        if ours.low is None or ours.high is None:
            continue
        ends = [[ours.value - ours.low], [ours.high - ours.value]]
        axis.errorbar(x, ours.value, ends, color=INK, capsize=3, lw=1, zorder=3)
    _marks(axis, figure, prompt)
    if spec.metric == MEDIAN_RANK:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.05)
    seeds = f", {len(figure.seeds)} training seeds" if len(figure.seeds) > 1 else ""
    axis.set_ylabel(metric_name(spec.metric))
    title = f"{prompt}, {figure.model}, {figure.n(prompt)} facts{seeds}"
    axis.set_title(title, fontsize=8, loc="left", color=INK)
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def _marks(axis: Axes, figure: PaperFigure, prompt: str) -> None:
    """The paper's rates, a mark per model."""
    spec, rates = figure.spec, figure.rates(prompt)
    mean = "" if spec.cited == spec.metric else f", {metric_name(spec.cited)}"
    for step, (model, known) in enumerate(rates.items()):
        shape, colour = _MARKS[model]
        beside = 0.12 * (step - (len(rates) - 1) / 2)
        across, up = [], []
        for x, name in enumerate(figure.rows):
            if name in known:
                across.append(x + beside)
                up.append(getattr(known[name], spec.cited))
        axis.scatter(
            across,
            up,
            s=16,
            c=colour,
            marker=shape,
            label=f"{model} (paper{mean})",
            zorder=4,
            edgecolors="white",
            linewidths=0.4,
        )
