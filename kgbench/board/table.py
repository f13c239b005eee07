"""The report of a run: a table per prompt, its ranking, the truth, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgbench.board.export import necessity_cell
from kgbench.board.planted import planted_parts
from kgbench.estimate import Estimate
from kgbench.numbers import count_text, duration_text, number_text, significant_text
from kgbench.records import Record, Row
from kgbench.report import Cell, Column, Dash, Line, Lines, Report, Table, table_width, text_width
from kgbench.stats import verdict_of

__all__ = ["record_report"]

GRAFT_WIDTH = 30

TOP = 10
"""Sites of a ranking that are shown; the record holds all."""

COLUMNS = ("top1", "top5", "mrr", "prob", "median_rank")
"""Metrics in addition to that of the ratios, as many as fit."""

BASELINES = {"name_prior": "name prior (always the five most frequent first tokens), top5"}

PLAIN = "one plain forward"


def record_report(record: Record) -> Report:
    """The verdict on a run and a table per prompt, configurations in the paper's order.

    Metrics that do not fit the terminal's width are left out, with a note.
    """
    what = record.identity
    limit = f", the first {what.limit}" if what.limit is not None else ""
    title = (
        f"{what.localizer.name} on {record.model}, {what.dataset.name}{limit}, {what.dtype}, "
        f"seed {', '.join(map(str, what.seeds))}: means over facts with 95 % intervals; "
        f"sufficiency and necessity on {record.metric}"
    )
    same = (record.metric, "mrr" if record.metric == "rr" else "")
    metrics = [record.metric, *(name for name in COLUMNS if name not in same)]
    count = len(metrics)
    tables = _tables(record, metrics)
    while count > 1 and max(map(table_width, tables)) > text_width():
        count -= 1
        tables = _tables(record, metrics[:count])
    parts: list[Table | Lines] = [*tables, *_ranking(record)]
    if record.planted is not None:
        parts += planted_parts(record.planted)
    notes = _notes(record)
    if count < len(metrics):
        notes.append(
            f"columns left out for their width: {', '.join(metrics[count:])}; "
            f"a wider terminal or `kgbench export {record.id[:12]}` shows them"
        )
    return Report(title, parts, notes=notes, verdict=verdict_of(record))


def _tables(record: Record, metrics: Sequence[str]) -> list[Table]:
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    return [
        _table([row for row in record.rows if row.prompt == prompt], metrics) for prompt in prompts
    ]


def _table(rows: Sequence[Row], metrics: Sequence[str]) -> Table:
    """The rows of one prompt; numbers of facts are columns where rows differ in them."""
    dropped = f", {rows[0].dropped} dropped" if len({row.dropped for row in rows}) == 1 else ""
    title = f"{rows[0].prompt}: {rows[0].n} facts{dropped}"
    uneven = len({(row.n, row.dropped) for row in rows if row.applicable}) > 1
    body: list[list[Cell]] = []
    for row in rows:
        means = [row.estimate(metric) for metric in metrics]
        counts = [row.n, row.dropped] if uneven else []
        body.append([row.graft, *means, row.sufficiency, necessity_cell(row), *counts])
    names = ["mrr" if metric == "rr" else metric for metric in metrics]
    heads = ["graft", *names, "sufficiency", "necessity", *["n", "dropped"] * uneven]
    return Table(title, [Column(head) for head in heads], body, GRAFT_WIDTH)


def _ranking(record: Record) -> list[Table]:
    """The sites that a scoring localizer holds most responsible."""
    if not record.scores:
        return []
    rows: list[list[Cell]] = []
    for site in sorted(record.scores, key=lambda site: -site.score)[:TOP]:
        layer: Cell = Dash() if site.layer is None else site.layer
        rows.append([layer, site.component, site.region, significant_text(site.score, 3)])
    title = f"highest scores of {len(record.scores)} sites, mean over the halves"
    columns = [Column(head) for head in ("layer", "component", "region", "score")]
    return [Table(title, columns, rows)]


def _notes(record: Record) -> list[Line]:
    """Figures over configurations, dropped facts, and the cost."""
    lines: list[Line] = []
    if record.curve is None and record.planted is None:
        lines.append(["synergy of FE and LT: ", *_by_prompt(record.synergy)])
    if record.curve is not None:
        areas = {prompt: curve.area for prompt, curve in record.curve.items()}
        head = "area under the recovery curve, over log10(budget) from .1 to 100 %: "
        lines.append([head, *_by_prompt(areas)])
    if (ranking := record.ranking) is not None:
        first, second = ranking.facts
        sites = f"over {ranking.agreement.n} sites: "
        head = f"Spearman's correlation of the maps by the halves of {first} and {second} facts, "
        lines.append([head + sites, ranking.agreement])
    for name, estimates in record.baselines.items():
        lines.append([f"{BASELINES.get(name, name)}: ", *_by_prompt(estimates)])
    if record.dropped:
        reasons = [f"{count} × {reason}" for reason, count in record.dropped.items()]
        lines.append(f"dropped: {'; '.join(reasons)}")
    cost = record.cost
    rows = count_text(cost.token_rows, "token row")
    spent = f"{count_text(cost.forwards, 'forward')}, {rows}, {duration_text(cost.seconds)}"
    ratio = cost.plain_forward_ratio
    times = _times(ratio)
    if ratio.value is None:
        times = [f"ratio to {PLAIN} ", ratio]
    lines.append([f"cost: {spent}; ", *times, f" ({cost.measured_on})"])
    if (scoring := cost.scoring) is not None:
        spent = f"{count_text(scoring.forwards, 'forward')}, {duration_text(scoring.seconds)}"
        lines.append(
            [f"of that to rank the sites: {spent}; ", *_times(scoring.plain_forward_ratio)]
        )
    return lines


def _times(ratio: Estimate) -> list[str | Estimate]:
    return [ratio] if ratio.value is None else [f"{number_text(ratio.value)} × {PLAIN}"]


def _by_prompt(estimates: Mapping[str, Estimate]) -> list[str | Estimate]:
    line: list[str | Estimate] = []
    for prompt, estimate in estimates.items():
        line += [", " if line else "", estimate, f" on {prompt}"]
    return line
