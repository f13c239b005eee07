"""A figure as a picture: our bars with intervals, and the paper's figures as marks beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

from kgbench.board.files import FAINT, INK, picture_bytes, styled
from kgbench.numbers import metric_name
from kgbench.reproduction.claimed import published_rates
from kgbench.reproduction.made import Made
from kgbench.reproduction.page import MEDIAN_RANK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "picture", "small_png"]

_Shown = TypeVar("_Shown")

_COLOURS = 64
"""In the file, which is an eighth of its size with all of them."""

_TITLE, _LETTER, _MARGIN = 9.0, 0.68, 24.0
"""Size of the title's font in points, how wide a bold letter is of it on average, and what is left free beside it in points."""

_BAR = "#0072B2"
_MARKS: Mapping[str, tuple[str, str]] = {
    "gemma-2b": ("o", "#D55E00"),
    "llama-3.2-1b": ("s", "#009E73"),
    "gpt2-xl": ("^", "#CC79A7"),
    "pythia-2.8b": ("D", "#E69F00"),
}
"""Shape and colour (Okabe and Ito) of each of the paper's models."""


def picture(made: Made) -> bytes:
    """A figure as PNG; equal figures give equal bytes under one version of matplotlib and Pillow."""
    return small_png(draw, made)


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
def draw(made: Made) -> Figure:
    """One panel per prompt; the paper's configurations from left to right."""
    from matplotlib.figure import Figure

    prompts, names = made.figure.prompts, list(made.rows)
    drawn = Figure(
        figsize=(1.6 + 0.55 * len(names), 0.9 + 2.5 * len(prompts)), layout="constrained"
    )
    axes = drawn.subplots(len(prompts), 1, squeeze=False)[:, 0]
    for axis, prompt in zip(axes, prompts, strict=True):
        _panel(axis, made, prompt)
    axes[-1].set_xticks(range(len(names)), names, rotation=35, ha="right")
    for axis in axes[:-1]:
        axis.set_xticks(range(len(names)), [])
    handles, labels = max(
        (axis.get_legend_handles_labels() for axis in axes), key=lambda found: len(found[0])
    )
    if handles:
        drawn.legend(
            handles,
            labels,
            fontsize=6,
            frameon=False,
            ncols=len(handles),
            loc="outside lower center",
        )
    room = 72 * drawn.get_figwidth() - _MARGIN
    drawn.suptitle(
        fill(made.figure.title, int(room / (_LETTER * _TITLE))),
        color=INK,
        fontsize=_TITLE,
        fontweight="bold",
    )
    return drawn


def _panel(axis: Axes, made: Made, prompt: str) -> None:
    metric = made.figure.metric
    for x, graft in enumerate(made.rows.values()):
        figure = made.estimate(prompt, graft)
        if figure.value is None:
            continue
        axis.bar(x, figure.value, 0.7, color=_BAR, zorder=2)
        if figure.low is None or figure.high is None:
            continue
        axis.errorbar(
            x,
            figure.value,
            [[figure.value - figure.low], [figure.high - figure.value]],
            color=INK,
            capsize=3,
            lw=1,
            zorder=3,
        )
    rates = published_rates(made.figure, made.dataset, prompt)
    mean = "" if made.figure.cited == metric else f", {metric_name(made.figure.cited)}"
    for step, (model, known) in enumerate(rates.items()):
        shape, colour = _MARKS[model]
        at = [
            (x, getattr(known[name], made.figure.cited))
            for x, name in enumerate(made.rows)
            if name in known
        ]
        across = [x + 0.12 * (step - (len(rates) - 1) / 2) for x, _ in at]
        axis.scatter(
            across,
            [y for _, y in at],
            s=16,
            c=colour,
            marker=shape,
            label=f"{model} (paper{mean})",
            zorder=4,
            edgecolors="white",
            linewidths=0.4,
        )
    if metric == MEDIAN_RANK:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.05)
    seeds = f", {len(made.seeds)} training seeds" if len(made.seeds) > 1 else ""
    axis.set_ylabel(metric_name(metric))
    axis.set_title(
        f"{prompt}, {made.model}, {made.n(prompt)} facts{seeds}", fontsize=8, loc="left", color=INK
    )
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
