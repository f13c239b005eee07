"""Runs of one base with several finetuned models, such as checkpoints along a training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kgbench.numbers import count_text, metric_name
from kgbench.records import Record
from kgbench.report import Cell, Report, Table
from kgbench.report.bars import INK, PANEL_INCH, RUN_COLOURS, panels, plain_axes, styled, title
from kgbench.report.export import necessity_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = "osD^vPX*"
LINES = ("-", "--", ":", "-.")


def donor_name(record: Record) -> str:
    """Name of a run's donor."""
    return ", ".join(record.identity.weights.donors)


def donor_groups(records: Iterable[Record]) -> list[list[Record]]:
    """Runs of one method and base with several donors, in the order given."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        what = record.identity
        key = what.localizer.model_dump_json(), record.model, what.weights.recipient
        groups.setdefault(key, []).append(record)
    return [group for group in groups.values() if len(set(map(donor_name, group))) > 1]


def donors_report(runs: Sequence[Record]) -> Report:
    """A table per prompt with a group of rows per donor, in the order given.

    Args:
        runs: Records of one base, suite and metric.
    """
    tables, metric = [], runs[0].metric
    for prompt in runs[0].by_prompt:
        body: list[list[Cell]] = []
        for record in runs:
            for row in record.by_prompt[prompt].values():
                name = donor_name(record) if row.graft == "PRE" else ""
                cells = [row.estimate(record.metric), row.sufficiency, necessity_cell(row)]
                body.append([name, row.graft, *cells])
        heads = ["donor", "graft", metric, "sufficiency", "necessity"]
        n = runs[0].by_prompt[prompt]["PRE"].n
        tables.append(Table(f"{prompt}: {count_text(n, 'fact')}", heads, body))
    notes = ["sufficiency and necessity are of each donor's own gain"]
    others = [f"{donor_name(run)}: {run.metric}" for run in runs if run.metric != metric]
    if others:
        notes.append(f"metrics differ ({', '.join(others)}): give one by --metric")
    return Report(f"{len(runs)} donors of {runs[0].model}", tables, (), notes)


@styled
def draw_donors(runs: Sequence[Record]) -> Figure:
    """A panel per prompt: a line per configuration along the donors, with 95 % intervals.

    Complements are left out; undefined figures leave a gap.
    """
    metric, prompts = runs[0].metric, list(runs[0].by_prompt)
    size = (1.5 + max(PANEL_INCH, 0.5 * len(runs)) * len(prompts), 3.6)
    figure, axes = panels(size, 1, len(prompts), sharey=True)
    for axis, prompt in zip(axes.flat, prompts, strict=True):
        by_donor = [record.by_prompt[prompt] for record in runs]
        grafts = [
            graft for graft in by_donor[0] if "^C" not in graft and not graft.startswith("ALL;")
        ]
        for number, graft in enumerate(grafts):
            points = []
            for place, rows in enumerate(by_donor):
                numbers = rows[graft].estimate(metric).numbers
                if numbers is not None:
                    points.append((place + 0.06 * (number - len(grafts) / 2), *numbers))
            style = {"color": RUN_COLOURS[number % len(RUN_COLOURS)], "capsize": 2, "lw": 1.2}
            style |= {"marker": MARKS[number % len(MARKS)], "ls": LINES[number % len(LINES)]}
            places, values, lows, highs = zip(*points, strict=True) if points else [()] * 4
            below = [value - low for value, low in zip(values, lows, strict=True)]
            above = [high - value for value, high in zip(values, highs, strict=True)]
            axis.errorbar(places, values, yerr=[below, above], label=graft, **style)
        axis.set_xticks(range(len(runs)), list(map(donor_name, runs)), rotation=30, color=INK)
        axis.set_title(prompt, loc="left", color=INK, fontsize=10)
        plain_axes(axis, "y")
    axes.flat[0].set_ylabel(metric_name(metric), color=INK)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    title(figure, runs, metric_name(metric))
    return figure
