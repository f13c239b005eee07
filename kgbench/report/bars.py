"""Bar charts of runs, and what all pictures share: style and file formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from itertools import chain
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kgbench.numbers import metric_name, number_text, plain_text, undefined_text
from kgbench.records import Record, Row
from kgbench.report.export import common_name, distinct_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_Shown = TypeVar("_Shown")

INK, FAINT, GREY = "#222222", "#D9D9D9", "#8C8C8C"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "kgbench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
}


KINDS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Of files, with what is left out of each: date and program version, which would differ from run to
run.
"""


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the style of all pictures."""

    @wraps(draw)
    def drawn(*shown: Any, **options: Any) -> Figure:
        import matplotlib

        with matplotlib.rc_context(SETTINGS):
            return draw(*shown, **options)

    return drawn


def picture_bytes(draw: Callable[[_Shown], Figure], shown: _Shown, *kinds: str) -> list[bytes]:
    """A picture as a file of each of some `KINDS`.

    Equal records give equal bytes under one version of matplotlib.
    """
    import matplotlib

    files = []
    with matplotlib.rc_context(SETTINGS):
        figure = draw(shown)
        for kind in kinds:
            buffer = BytesIO()
            figure.savefig(buffer, format=kind, dpi=160, metadata=KINDS[kind], facecolor="white")
            files.append(buffer.getvalue())
    return files


def panels(
    size: tuple[float, float], lines: int, columns: int, **shared: Any
) -> tuple[Figure, Any]:
    """A figure and its panels [line, column]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False, **shared)


def title(figure: Figure, records: Sequence[Record], what: str) -> None:
    """Put a title above all panels: the method of one run, or what is drawn of several."""
    names = distinct_names(records)
    text = f"{names[0] if len(names) == 1 else what} on {common_name(records)}"
    figure.suptitle(text, color=INK, fontweight="bold", fontsize=11)


def plain_axes(axis: Axes, grid: Literal["x", "y"]) -> None:
    """Axes without ticks, with a faint grid in one direction and a line at its foot."""
    axis.grid(axis=grid, color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    axis.spines[["top", "right", "bottom" if grid == "x" else "left"]].set_visible(False)


def number_ticks(axis: Axis) -> None:
    """Write an axis's numbers as tables do: `.25`, `−1`; call it when everything is drawn."""
    low, high = sorted(axis.get_view_interval())
    ticks = [float(tick) for tick in axis.get_majorticklocs() if low <= tick <= high]
    axis.set_ticks(ticks, list(map(plain_text, ticks)))


RUN_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    GREY,
)
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "---")
"""Okabe and Ito's colours, and a hatch each, so that bars differ without colour."""

MOST = len(RUN_COLOURS)
"""Runs in one picture."""

ROLES = {
    "model by itself, or everything grafted": GREY,
    "graft": RUN_COLOURS[0],
    "complement: everything but the graft": RUN_COLOURS[1],
}
"""Colours of the bars of one run, by what they say."""

BAR_INCH, PANEL_INCH = 0.31, 3.3
PER_LINE = 3
"""Panels per line."""

NAME_WIDTH = 26
"""Characters of a line of a name."""

GROUP = 0.82
"""Share of a configuration's place that its bars take."""


@styled
def draw_chart(records: Sequence[Record]) -> Figure:
    """A panel per prompt: a bar per configuration and run with its 95 % interval.

    Configurations are in the paper's order from the top, on the metric of the first run. Colours
    are by role in one run, and by run in several. A configuration that a run does not have leaves
    its place empty; an undefined figure is named as such.
    """
    by_prompt = [record.by_prompt for record in records]
    prompts = list(dict.fromkeys(chain.from_iterable(by_prompt)))
    rows = list(chain.from_iterable(record.rows for record in records))
    names, columns = short_names(rows), min(len(prompts), PER_LINE)
    lines = -(-len(prompts) // columns)
    height = sum(0.4 * len(records) + 0.6 * (1 + name.count("\n")) for name in names.values())
    size = (2.2 + PANEL_INCH * columns, 1.0 + lines * (0.7 + BAR_INCH * height))
    figure, axes = panels(size, lines, columns, sharex=True, sharey=True)
    for axis, prompt in zip(axes.flat, prompts, strict=False):
        runs = [of_run.get(prompt, {}) for of_run in by_prompt]
        _bar_panel(axis, runs, names, records[0].metric)
        axis.set_title(f"{prompt} ({_facts(runs)} facts)", loc="left", color=INK, fontsize=10)
    for axis in axes.flat[: len(prompts)]:
        number_ticks(axis.xaxis)
    for axis in axes.flat[len(prompts) :]:
        axis.set_visible(False)
    title(figure, records, metric_name(records[0].metric))
    _legend(figure, records)
    return figure


def short_names(rows: Sequence[Row]) -> dict[str, str]:
    """A name for each configuration, in lines that break between words and terms.

    A complement that kgbench wrote itself (`ALL; …=recipient`) is named by what it leaves out.
    """
    names = {}
    for row in rows:
        name = row.graft
        if row.complement is not None and name.startswith("ALL;"):
            name = f"all but {row.complement}"
        names[row.graft] = "\n".join(
            wrap(name, NAME_WIDTH, break_long_words=False, break_on_hyphens=False)
        )
    return names


def _facts(runs: Sequence[Mapping[str, Row]]) -> str:
    rows = chain.from_iterable(of_run.values() for of_run in runs)
    numbers = {row.n for row in rows if row.applicable}
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


def _colours(rows: Mapping[str, Row]) -> dict[str, str]:
    """By configuration the colour of its role: a complement is run as that of an earlier one."""
    reference, graft, rest = ROLES.values()
    colours = dict[str, str]()
    complements = set[str]()
    for name, row in rows.items():
        colours[name] = rest if name in complements or "^C" in name else graft
        if name in ("PRE", "SFT", "ALL", "NONE"):
            colours[name] = reference
        elif colours[name] == graft and row.complement is not None:
            complements.add(row.complement)
    return colours


def _bar_panel(
    axis: Axes, runs: Sequence[Mapping[str, Row]], names: Mapping[str, str], metric: str
) -> None:
    width = GROUP / len(runs)
    for i, rows in enumerate(runs):
        colours = _colours(rows) if len(runs) == 1 else dict.fromkeys(rows, RUN_COLOURS[i])
        for y, graft in enumerate(names):
            if graft in rows:
                place = y + (i - (len(runs) - 1) / 2) * width
                style = {"color": colours[graft], "hatch": HATCHES[i], "edgecolor": "white"}
                _bar(axis, place, rows[graft], metric, height=width * 0.9, lw=0, **style)
    for graft in ("PRE", "ALL") if len(runs) == 1 else ():
        row = runs[0].get(graft)
        if row is not None and (value := row.estimate(metric).value) is not None:
            axis.axvline(value, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axis.set_xlabel(metric_name(metric), color=INK)
    axis.set_yticks(range(len(names)), list(names.values()), color=INK)
    axis.set_ylim(len(names) - 0.4, -0.6)
    if metric.startswith("top") or metric in ("mrr", "prob"):
        axis.set_xlim(0, 1.18)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    else:
        axis.margins(x=0.18)
    plain_axes(axis, "x")
    axis.tick_params(labelbottom=True)


def _bar(axis: Axes, y: float, row: Row, metric: str, **style: Any) -> None:
    estimate = row.estimate(metric)
    label: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    if estimate.numbers is None:
        axis.annotate(undefined_text(estimate), (0, y), (3, 0), color=GREY, fontsize=8, **label)
        return
    value, low, high = estimate.numbers
    axis.barh(y, value, zorder=2, **style)
    axis.errorbar(
        value, y, xerr=[[value - low], [high - value]], color=INK, capsize=3, lw=1, zorder=3
    )
    right = value >= 0
    axis.annotate(
        number_text(value),
        (high if right else low, y),
        (4 if right else -4, 0),
        ha="left" if right else "right",
        color=INK,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        zorder=4,
        **label,
    )


def _legend(figure: Figure, records: Sequence[Record]) -> None:
    """Below all panels: the roles of the bars of one run, or the names of several runs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = []
    if len(records) == 1:
        colours = _colours({row.graft: row for row in records[0].rows})
        for text, colour in ROLES.items():
            if colour in colours.values():
                handles.append(Patch(color=colour, label=text))
        floor = "floor of grafts (PRE)"
        if "ALL" in colours:
            floor = "floor (PRE) and ceiling (ALL) of grafts"
        handles.append(Line2D([], [], color=GREY, lw=0.8, ls=(0, (4, 3)), label=floor))
    else:
        for name, colour, hatch in zip(distinct_names(records), RUN_COLOURS, HATCHES, strict=False):
            handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name))
    handles.append(Line2D([], [], color=INK, marker="_", ls="none", label="95 % interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
