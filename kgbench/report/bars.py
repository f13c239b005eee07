"""Bar charts of runs, and what all pictures share: style and file formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kgbench.numbers import metric_name, number_text, plain_text, undefined_text
from kgbench.records import Record, Row
from kgbench.report.export import run_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

_Shown = TypeVar("_Shown")

INK, FAINT = "#222222", "#D9D9D9"
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


def styled(draw: Callable[[_Shown], Figure]) -> Callable[[_Shown], Figure]:
    """Draw in the style of all pictures."""

    @wraps(draw)
    def drawn(shown: _Shown) -> Figure:
        import matplotlib

        with matplotlib.rc_context(SETTINGS):
            return draw(shown)

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


def title(figure: Figure, text: str) -> None:
    """Put a title above all panels."""
    figure.suptitle(text, color=INK, fontweight="bold", fontsize=11)


def run_title(figure: Figure, record: Record) -> None:
    """Put a run's method, model and data above all panels."""
    what = record.identity
    title(figure, f"{what.localizer.name} on {record.model} ({what.dataset.name})")


def plain_axes(axis: Axes, grid: Literal["x", "y"]) -> None:
    """Axes without ticks, with a faint grid in one direction and a line at its foot."""
    axis.grid(axis=grid, color=FAINT, lw=0.6, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(length=0)
    axis.spines[["top", "right", "bottom" if grid == "x" else "left"]].set_visible(False)


SMALL_COLOURS = 64
"""Of a small file; with all of them it is eight times as large."""


def small_picture(drawing: Callable[[_Shown], Figure], shown: _Shown) -> bytes:
    """A drawing as a WebP file without loss, of half the usual size, in few colours."""
    from PIL import Image

    (png,), buffer = picture_bytes(drawing, shown, "png"), BytesIO()
    with Image.open(BytesIO(png)) as drawn:
        small = drawn.convert("RGB").resize(
            (drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS
        )
        few = small.quantize(SMALL_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.convert("RGB").save(buffer, "webp", lossless=True, quality=100, method=6)
    return buffer.getvalue()


Role = Literal["reference", "graft", "complement"]

ROLE_COLOURS: Mapping[Role, str] = {
    "reference": "#8C8C8C",
    "graft": "#0072B2",
    "complement": "#E69F00",
}
"""Okabe and Ito's blue and orange, and grey: distinct for colour-blind readers and in print."""

ROLES: Mapping[Role, str] = {
    "reference": "model by itself, or everything grafted",
    "graft": "graft",
    "complement": "complement: everything but the graft",
}

BAR_INCH, PANEL_INCH = 0.31, 3.3
PER_LINE = 3
"""Panels per line."""

NAME_WIDTH = 26
"""Characters of a line of a name."""


@styled
def draw_chart(record: Record) -> Figure:
    """One panel per prompt: a bar per configuration, the metric's mean with its 95 % interval.

    Configurations are in the paper's order from the top; colours are by role.
    """
    prompts, roles = record.by_prompt, _roles(record.rows)
    names = short_names(record.rows)
    columns = min(len(prompts), PER_LINE)
    lines = -(-len(prompts) // columns)
    height = BAR_INCH * sum(1 + 0.6 * name.count("\n") for name in names.values())
    size = (2.2 + PANEL_INCH * columns, 1.0 + lines * (0.7 + height))
    figure, axes = panels(size, lines, columns, sharex=True, sharey=True)
    for axis, rows in zip(axes.flat, prompts.values(), strict=False):
        _bar_panel(axis, rows, names, roles, record.metric)
    for axis in axes.flat[: len(prompts)]:
        number_ticks(axis.xaxis)
    for axis in axes.flat[len(prompts) :]:
        axis.set_visible(False)
    run_title(figure, record)
    _role_legend(figure, roles)
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


def _bar_panel(
    axis: Axes,
    rows: Mapping[str, Row],
    names: Mapping[str, str],
    roles: Mapping[str, Role],
    metric: str,
) -> None:
    for y, graft in enumerate(names):
        if graft in rows:
            _bar(axis, y, rows[graft], ROLE_COLOURS[roles[graft]], metric)
    for graft in ("PRE", "ALL"):
        if graft in rows and (value := rows[graft].estimate(metric).value) is not None:
            axis.axvline(value, color=ROLE_COLOURS["reference"], lw=0.8, ls=(0, (4, 3)), zorder=1)
    first = next(iter(rows.values()))
    axis.set_title(f"{first.prompt} ({first.n} facts)", loc="left", color=INK, fontsize=10)
    axis.set_xlabel(metric_name(metric), color=INK)
    axis.set_yticks(range(len(names)), list(names.values()), color=INK)
    axis.set_ylim(len(names) - 0.4, -0.6)
    if _is_share(metric):
        axis.set_xlim(0, 1.18)
        axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    else:
        axis.margins(x=0.18)
    plain_axes(axis, "x")
    axis.tick_params(labelbottom=True)


def _is_share(metric: str) -> bool:
    return metric.startswith("top") or metric in ("mrr", "prob")


def _bar(axis: Axes, y: int, row: Row, colour: str, metric: str) -> None:
    estimate = row.estimate(metric)
    if estimate.numbers is None:
        axis.annotate(
            undefined_text(estimate), (0, y), xytext=(3, 0), textcoords="offset points",
            va="center", color=ROLE_COLOURS["reference"], fontsize=8,
        )  # fmt: skip
        return
    value, low, high = estimate.numbers
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
    axis.set_ticks(ticks, list(map(plain_text, ticks)))


def _role_legend(figure: Figure, roles: Mapping[str, Role]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = []
    for role, text in ROLES.items():
        if role in roles.values():
            handles.append(Patch(color=ROLE_COLOURS[role], label=text))
    line = "floor (PRE) and ceiling (ALL) of grafts" if "ALL" in roles else "floor of grafts (PRE)"
    handles.append(
        Line2D([], [], color=ROLE_COLOURS["reference"], lw=0.8, ls=(0, (4, 3)), label=line)
    )
    handles.append(Line2D([], [], color=INK, marker="_", ls="none", label="95 % interval"))
    _legend_below(figure, handles)


def _legend_below(figure: Figure, handles: list[Patch | Line2D]) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)


RUN_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#8C8C8C",
)
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "---")
"""Okabe and Ito's colours, and a hatch each, so that bars differ without colour."""

MOST = len(RUN_COLOURS)
"""Runs in one chart."""

GROUP_BAR_INCH, GROUP_PANEL_INCH, GROUP = 0.2, 2.9, 0.82


@styled
def draw_grouped(records: Sequence[Record]) -> Figure:
    """One panel per prompt: a bar per configuration and run, on the metric of the first run.

    A configuration that a run does not have leaves its place empty; an undefined figure is named as
    such.
    """
    metric = records[0].metric
    grafts: dict[str, dict[str, None]] = {}
    by_prompt = [record.by_prompt for record in records]
    for of_run in by_prompt:
        for prompt, rows in of_run.items():
            grafts.setdefault(prompt, {}).update(dict.fromkeys(rows))
    prompts = list(grafts)
    bars = max(map(len, grafts.values())) * (len(records) + 1)
    size = (max(6.4, 1.3 + GROUP_BAR_INCH * bars), 0.9 + GROUP_PANEL_INCH * len(prompts))
    figure, axes = panels(size, len(prompts), 1, sharey=True)
    for axis, prompt in zip(axes[:, 0], prompts, strict=True):
        runs = [of_run.get(prompt, {}) for of_run in by_prompt]
        _group_panel(axis, runs, list(grafts[prompt]), metric)
        axis.set_title(f"{prompt} ({_facts(runs)} facts)", loc="left", color=INK, fontsize=10)
        axis.set_ylabel(metric_name(metric), color=INK)
    _run_legend(figure, run_names(records))
    return figure


def _facts(rows: Sequence[dict[str, Row]]) -> str:
    numbers: set[int] = set()
    for by_graft in rows:
        numbers |= {row.n for row in by_graft.values() if row.applicable}
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _group_panel(
    axis: Axes, rows: Sequence[dict[str, Row]], grafts: Sequence[str], metric: str
) -> None:
    width = GROUP / len(rows)
    for i, bars in enumerate(rows):
        for x, graft in enumerate(grafts):
            if graft in bars:
                middle = x + (i - (len(rows) - 1) / 2) * width
                _group_bar(axis, bars[graft], metric, middle, width, i)
    lines = ["\n".join(wrap(graft, 11, break_on_hyphens=False)) for graft in grafts]
    upright = len(grafts) > 12 or any(line.count("\n") > 1 for line in lines)
    axis.set_xticks(
        range(len(grafts)),
        list(grafts) if upright else lines,
        color=INK,
        rotation=90 if upright else 0,
    )
    axis.set_xlim(-0.6, len(grafts) - 0.4)
    if _is_share(metric):
        axis.set_ylim(0, 1.05)
    plain_axes(axis, "y")


def _group_bar(axis: Axes, row: Row, metric: str, x: float, width: float, i: int) -> None:
    estimate = row.estimate(metric)
    if estimate.numbers is None:
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
    value, low, high = estimate.numbers
    axis.bar(
        x,
        value,
        width * 0.92,
        color=RUN_COLOURS[i],
        hatch=HATCHES[i],
        edgecolor="white",
        lw=0,
        zorder=2,
    )
    axis.errorbar(x, value, [[value - low], [high - value]], color=INK, capsize=2, lw=0.9, zorder=3)


def _run_legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = []
    for name, colour, hatch in zip(names, RUN_COLOURS, HATCHES, strict=False):
        handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name))
    handles.append(Line2D([], [], color=INK, marker="|", ls="none", label="95 % interval"))
    _legend_below(figure, handles)
