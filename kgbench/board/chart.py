"""The bar chart of a run."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill, wrap
from typing import TYPE_CHECKING

from kgbench.board.files import FAINT, INK, picture_files, styled
from kgbench.numbers import metric_name, number_text, undefined_text
from kgbench.records import Estimate, Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["chart_files", "draw_chart"]

REFERENCE, GRAFT, COMPLEMENT = "#8C8C8C", "#0072B2", "#E69F00"
"""Okabe and Ito's blue and orange, and grey: told apart by colour-blind readers and in print."""

BAR_INCH, PANEL_INCH = 0.62, 3.1


def chart_files(record: Record) -> dict[str, bytes]:
    """The picture as `chart.png` and `chart.svg`: equal records give equal bytes under one version of matplotlib."""
    return picture_files("chart", draw_chart, record)


@styled
def draw_chart(record: Record) -> Figure:
    """One panel per prompt: the mean of the record's metric under each configuration, in the paper's order, with 95 % intervals."""
    from matplotlib.figure import Figure

    prompts = list(dict.fromkeys(row.prompt for row in record.rows))
    panels = [[row for row in record.rows if row.prompt == prompt] for prompt in prompts]
    bars = max(map(len, panels))
    figure = Figure(figsize=(max(5.6, 1.3 + BAR_INCH * bars), 0.9 + PANEL_INCH * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharey=True)[:, 0]
    for axis, rows, below in zip(axes, panels, [*panels[1:], []], strict=True):
        _panel(axis, rows, record.metric)
        _name_bars(axis, [row.graft for row in rows], [row.graft for row in below])
    what = record.identity
    figure.suptitle(f"{what.localizer.name} on {record.model} ({what.dataset.name})", color=INK, fontweight="bold", fontsize=11)
    _legend(figure, record.rows)
    return figure


def _panel(axis: Axes, rows: Sequence[Row], metric: str) -> None:
    values = [row.estimate(metric) for row in rows]
    drawn = [(x, row, e) for x, (row, e) in enumerate(zip(rows, values, strict=True)) if e.value is not None]
    for x, row, estimate in drawn:
        value, low, high = _numbers(estimate)
        axis.bar(x, value, 0.7, color=_colour(row.graft), zorder=2)
        axis.errorbar(x, value, [[value - low], [high - value]], color=INK, capsize=3, lw=1, zorder=3)
        above = value >= 0
        axis.annotate(
            number_text(value),
            (x, high if above else low),
            xytext=(0, 3 if above else -3),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            color=INK,
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=4,
        )
    for x, estimate in enumerate(values):
        if estimate.value is None:
            axis.annotate(undefined_text(estimate), (x, 0), ha="center", va="bottom", rotation=90, color=REFERENCE, fontsize=8)
    _references(axis, rows, metric)
    _frame(axis, rows, metric)


def _references(axis: Axes, rows: Sequence[Row], metric: str) -> None:
    """A thin line at PRE and at ALL, floor and ceiling of what a graft into the recipient can reach."""
    for row in rows:
        if row.graft in ("PRE", "ALL") and (value := row.estimate(metric).value) is not None:
            axis.axhline(value, color=REFERENCE, lw=0.8, ls=(0, (4, 3)), zorder=1)


def _frame(axis: Axes, rows: Sequence[Row], metric: str) -> None:
    axis.set_title(f"{rows[0].prompt} ({rows[0].n} facts)", loc="left", color=INK, fontsize=10)
    axis.set_ylabel(metric_name(metric), color=INK)
    axis.set_xlim(-0.6, len(rows) - 0.4)
    if metric.startswith("top") or metric in ("rr", "prob"):
        axis.set_ylim(0, 1.12)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    else:
        axis.margins(y=0.12)
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _name_bars(axis: Axes, grafts: Sequence[str], below: Sequence[str]) -> None:
    """Names under the bars, upright where they are long or many, and then only once for panels with the same bars."""
    lines = [wrap(graft, 11, break_on_hyphens=False) for graft in grafts]
    if len(grafts) <= 12 and all(len(line) <= 2 for line in lines):
        axis.set_xticks(range(len(grafts)), ["\n".join(line) for line in lines], color=INK)
        return
    shown = [] if list(below) == list(grafts) else [fill(graft, 26, break_on_hyphens=False) for graft in grafts]
    axis.set_xticks(range(len(grafts)), shown or [""] * len(grafts), color=INK, rotation=90)


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {row.graft for row in rows}
    texts = {REFERENCE: "model by itself, or everything grafted", GRAFT: "graft", COMPLEMENT: "complement: all other tokens"}
    handles: list[Patch | Line2D] = [Patch(color=c, label=t) for c, t in texts.items() if c in set(map(_colour, used))]
    line = "floor (PRE) and ceiling (ALL) of grafts" if "ALL" in used else "floor of grafts (PRE)"
    handles.append(Line2D([], [], color=REFERENCE, lw=0.8, ls=(0, (4, 3)), label=line))
    handles.append(Line2D([], [], color=INK, marker="|", ls="none", label="95 % interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)


def _colour(graft: str) -> str:
    if graft in ("PRE", "SFT", "ALL"):
        return REFERENCE
    return COMPLEMENT if "^C" in graft else GRAFT


def _numbers(estimate: Estimate) -> tuple[float, float, float]:
    assert estimate.value is not None and estimate.low is not None and estimate.high is not None
    return estimate.value, estimate.low, estimate.high
