"""The bar chart of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from kgbench.board.files import FAINT, INK, picture_files, styled
from kgbench.numbers import metric_name, number_text, plain_text, undefined_text
from kgbench.records import Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["chart_files", "draw_chart", "number_ticks", "short_names"]

Role = Literal["reference", "graft", "complement"]

COLOURS: Mapping[Role, str] = {"reference": "#8C8C8C", "graft": "#0072B2", "complement": "#E69F00"}
"""Okabe and Ito's blue and orange, and grey: told apart by colour-blind readers and in print."""

ROLES: Mapping[Role, str] = {
    "reference": "model by itself, or everything grafted",
    "graft": "graft",
    "complement": "complement: everything but the graft",
}

BAR_INCH, PANEL_INCH = 0.31, 3.3
PER_LINE = 3
"""Panels beside each other."""

NAME_WIDTH = 26
"""Characters of a line of a name."""


def chart_files(record: Record) -> dict[str, bytes]:
    """The picture as PNG and SVG; equal records give equal bytes under one version of matplotlib."""
    return picture_files("chart", draw_chart, record)


@styled
def draw_chart(record: Record) -> Figure:
    """One panel per prompt: horizontal bars, the mean of the metric under each configuration with its 95 % interval.

    Configurations stand in the paper's order from the top; colours are by role.
    """
    from matplotlib.figure import Figure

    prompts = list(dict.fromkeys(row.prompt for row in record.rows))
    names = short_names(record.rows)
    columns = min(len(prompts), PER_LINE)
    lines = -(-len(prompts) // columns)
    height = BAR_INCH * sum(1 + 0.6 * name.count("\n") for name in names.values())
    size = (2.2 + PANEL_INCH * columns, 1.0 + lines * (0.7 + height))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axis, prompt in zip(axes.flat, prompts, strict=False):
        rows = {row.graft: row for row in record.rows if row.prompt == prompt}
        _panel(axis, rows, names, _roles(record.rows), record.metric)
    for axis in axes.flat[: len(prompts)]:
        number_ticks(axis.xaxis)
    for axis in axes.flat[len(prompts) :]:
        axis.set_visible(False)
    what = record.identity
    title = f"{what.localizer.name} on {record.model} ({what.dataset.name})"
    figure.suptitle(title, color=INK, fontweight="bold", fontsize=11)
    _legend(figure, record.rows)
    return figure


def short_names(rows: Sequence[Row]) -> dict[str, str]:
    """A name for each configuration, in lines that break between words and terms.

    A complement that kgbench wrote itself (`ALL; …=recipient`) is named by what it leaves out.
    """
    found = {}
    for row in rows:
        name = row.graft
        if row.complement is not None and name.startswith("ALL;"):
            name = f"all but {row.complement}"
        found[row.graft] = "\n".join(
            wrap(name, NAME_WIDTH, break_long_words=False, break_on_hyphens=False)
        )
    return found


def _roles(rows: Sequence[Row]) -> dict[str, Role]:
    """The role of each configuration: a complement is what was run as that of an earlier one."""
    roles: dict[str, Role] = {}
    complements: set[str] = set()
    for row in rows:
        if row.graft in ("PRE", "SFT", "ALL", "NONE"):
            roles[row.graft] = "reference"
            continue
        if row.graft not in complements and "^C" not in row.graft and row.complement is not None:
            complements.add(row.complement)
        rest = row.graft in complements or "^C" in row.graft
        roles[row.graft] = "complement" if rest else "graft"
    return roles


def _panel(
    axis: Axes,
    rows: Mapping[str, Row],
    names: Mapping[str, str],
    roles: Mapping[str, Role],
    metric: str,
) -> None:
    for y, graft in enumerate(names):
        if graft in rows:
            _bar(axis, y, rows[graft], COLOURS[roles[graft]], metric)
    for graft in ("PRE", "ALL"):
        if graft in rows and (value := rows[graft].estimate(metric).value) is not None:
            axis.axvline(value, color=COLOURS["reference"], lw=0.8, ls=(0, (4, 3)), zorder=1)
    first = next(iter(rows.values()))
    axis.set_title(f"{first.prompt} ({first.n} facts)", loc="left", color=INK, fontsize=10)
    axis.set_xlabel(metric_name(metric), color=INK)
    axis.set_yticks(range(len(names)), list(names.values()), color=INK)
    axis.set_ylim(len(names) - 0.4, -0.6)
    if metric.startswith("top") or metric in ("rr", "prob"):
        axis.set_xlim(0, 1.18)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    else:
        axis.margins(x=0.18)
    axis.grid(axis="x", color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, labelbottom=True)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def _bar(axis: Axes, y: int, row: Row, colour: str, metric: str) -> None:
    estimate = row.estimate(metric)
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or low is None or high is None:
        axis.annotate(
            undefined_text(estimate), (0, y), xytext=(3, 0), textcoords="offset points",
            va="center", color=COLOURS["reference"], fontsize=8,
        )  # fmt: skip
        return
    axis.barh(y, value, 0.7, color=colour, zorder=2)
    axis.errorbar(
        value, y, xerr=[[value - low], [high - value]], color=INK, capsize=3, lw=1, zorder=3
    )
    right = value >= 0
    axis.annotate(
        number_text(value),
        (high if right else low, y),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=INK,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        zorder=4,
    )


def number_ticks(axis: Axis) -> None:
    """Write an axis's numbers as tables do: `.25`, `−1`; call it when everything is drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [float(tick) for tick in axis.get_majorticklocs() if low <= tick <= high]
    axis.set_ticks(ticks, [plain_text(tick) for tick in ticks])


def _legend(figure: Figure, rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used, roles = {row.graft for row in rows}, set(_roles(rows).values())
    handles: list[Patch | Line2D] = [
        Patch(color=COLOURS[r], label=text) for r, text in ROLES.items() if r in roles
    ]
    line = "floor (PRE) and ceiling (ALL) of grafts" if "ALL" in used else "floor of grafts (PRE)"
    handles.append(Line2D([], [], color=COLOURS["reference"], lw=0.8, ls=(0, (4, 3)), label=line))
    handles.append(Line2D([], [], color=INK, marker="_", ls="none", label="95 % interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
