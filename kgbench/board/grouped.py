"""Several runs in one bar chart: the same configurations beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from kgbench.board.files import FAINT, INK, styled
from kgbench.board.names import run_names
from kgbench.numbers import metric_name, undefined_text
from kgbench.records import Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST", "draw_grouped"]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "---")
"""Okabe and Ito's colours, and a hatch each, so that bars are told apart without colour."""

MOST = len(COLOURS)
"""Runs in one chart."""

BAR_INCH, PANEL_INCH, GROUP = 0.2, 2.9, 0.82


@styled
def draw_grouped(records: Sequence[Record]) -> Figure:
    """One panel per prompt, one group per configuration, one bar per run, on the metric of the first, with 95 % intervals.

    A configuration that a run does not have leaves its place empty; an undefined figure is named as
    such.
    """
    from matplotlib.figure import Figure

    metric = records[0].metric
    prompts = list(dict.fromkeys(row.prompt for record in records for row in record.rows))
    grafts = {
        p: list(
            dict.fromkeys(row.graft for record in records for row in record.rows if row.prompt == p)
        )
        for p in prompts
    }
    bars = max(len(of) for of in grafts.values()) * (len(records) + 1)
    figure = Figure(
        figsize=(max(6.4, 1.3 + BAR_INCH * bars), 0.9 + PANEL_INCH * len(prompts)),
        layout="constrained",
    )
    axes = figure.subplots(len(prompts), 1, squeeze=False, sharey=True)[:, 0]
    for axis, prompt in zip(axes, prompts, strict=True):
        rows = [
            {row.graft: row for row in record.rows if row.prompt == prompt} for record in records
        ]
        _panel(axis, rows, grafts[prompt], metric)
        axis.set_title(f"{prompt} ({_facts(rows)} facts)", loc="left", color=INK, fontsize=10)
        axis.set_ylabel(metric_name(metric), color=INK)
    _legend(figure, run_names(records))
    return figure


def _facts(rows: Sequence[dict[str, Row]]) -> str:
    numbers = sorted({row.n for own in rows for row in own.values() if row.applicable})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _panel(axis: Axes, rows: Sequence[dict[str, Row]], grafts: Sequence[str], metric: str) -> None:
    width = GROUP / len(rows)
    for i, own in enumerate(rows):
        for x, graft in enumerate(grafts):
            if graft in own:
                _bar(axis, own[graft], metric, (x + (i - (len(rows) - 1) / 2) * width, width, i))
    lines = ["\n".join(wrap(graft, 11, break_on_hyphens=False)) for graft in grafts]
    upright = len(grafts) > 12 or any(line.count("\n") > 1 for line in lines)
    axis.set_xticks(
        range(len(grafts)),
        list(grafts) if upright else lines,
        color=INK,
        rotation=90 if upright else 0,
    )
    axis.set_xlim(-0.6, len(grafts) - 0.4)
    if metric.startswith("top") or metric in ("rr", "mrr", "prob"):
        axis.set_ylim(0, 1.05)
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _bar(axis: Axes, row: Row, metric: str, at: tuple[float, float, int]) -> None:
    estimate, (x, width, i) = row.estimate(metric), at
    if estimate.value is None or estimate.low is None or estimate.high is None:
        axis.annotate(
            undefined_text(estimate),
            (x, 0),
            ha="center",
            va="bottom",
            rotation=90,
            color="#6B6B6B",
            fontsize=7,
        )
        return
    error = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
    axis.bar(
        x,
        estimate.value,
        width * 0.92,
        color=COLOURS[i],
        hatch=HATCHES[i],
        edgecolor="white",
        lw=0,
        zorder=2,
    )
    axis.errorbar(x, estimate.value, error, color=INK, capsize=2, lw=0.9, zorder=3)


def _legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(facecolor=COLOURS[i], hatch=HATCHES[i], edgecolor="white", label=n)
        for i, n in enumerate(names)
    ]
    handles.append(Line2D([], [], color=INK, marker="|", ls="none", label="95 % interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
