"""Records as text for other programs: CSV, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kgbench.board.figures import figures
from kgbench.board.names import record_name, run_names
from kgbench.records import Record, Row
from kgbench.report import Cell, Column, Dash, Report, Table, csv_lines, to_latex, to_markdown
from kgbench.sites import PATHWAYS
from kgbench.stats import verdict_of

__all__ = [
    "CSV_COLUMNS",
    "FORMATS",
    "as_csv",
    "as_latex",
    "as_markdown",
    "necessity_cell",
    "run_columns",
]

NO_GRAFT = "–: PRE and SFT are no grafts, and necessity is asked of grafts"
NO_REST = "–: the complement of the best-ranked sites was not run"

OF_TRUTH = {
    "graded_precision": "graded average precision",
    "auroc_decoy": "AUROC against the decoy",
}


OF_RUN = ("date", "arguments", "prompts", "grafts", "suite", "limit", "seed", "verdict")
"""Columns of `run_columns` that a line of CSV has beside those of the figure."""

CSV_COLUMNS = (
    *("id", "model", "dataset", "localizer", "metric", "prompt", "graft", "figure"),
    *("value", "low", "high", "n", "undefined", *OF_RUN),
)
"""One line per figure, which ends with what its run is.

`metric` is that of the ratios; an undefined figure has no numbers and a reason."""


def run_columns(record: Record) -> dict[str, str]:
    """What a run is, a text per column: the same in a list of runs and in an export."""
    what = record.identity
    arguments = ", ".join(f"{name}={value}" for name, value in what.localizer.parameters.items())
    rest = ("PRE", "SFT", "ALL", "NONE")
    asked = [
        graft for graft in what.configurations if graft not in rest and not _is_complement(graft)
    ]
    return {
        "date": record.provenance.time[:16].replace("T", " "),
        "method": what.localizer.name,
        "arguments": arguments,
        "model": record.model,
        "prompts": ", ".join(what.prompts),
        "grafts": ", ".join(asked),
        "suite": _suite(record),
        "limit": "" if what.limit is None else str(what.limit),
        "seed": ", ".join(map(str, what.seeds)),
        "n": str(max((row.n for row in record.rows), default=0)),
        "verdict": verdict_of(record),
    }


def _is_complement(graft: str) -> bool:
    return "^C" in graft or (graft.startswith("ALL;") and "=recipient" in graft)


def _suite(record: Record) -> str:
    """The suite of a record's configurations; empty where they were given one by one."""
    if record.planted is not None:
        return "planted"
    if record.curve is not None:
        return "budget"
    return "pathways" if set(PATHWAYS) <= set(record.identity.configurations) else ""


def as_csv(records: Sequence[Record]) -> str:
    """Every figure of some records, a line each; numbers are as the record holds them."""
    return csv_lines((line for record in records for line in _csv_rows(record)), CSV_COLUMNS)


def _csv_rows(record: Record) -> Iterator[dict[str, Any]]:
    what, run = record.identity, run_columns(record)
    about = {
        "id": record.id,
        "model": record.model,
        "dataset": what.dataset.name,
        "localizer": what.localizer.name,
        "metric": record.metric,
        **{name: run[name] for name in OF_RUN},
    }
    for named in figures(record):
        estimate = named.estimate
        yield {
            **about,
            "prompt": named.prompt,
            "graft": named.graft,
            "figure": named.figure,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "n": estimate.n,
            "undefined": estimate.undefined,
        }


def as_markdown(records: Sequence[Record]) -> str:
    """Tables as GitHub reads them; the reasons of undefined figures below."""
    return to_markdown(_report(records))


def as_latex(records: Sequence[Record]) -> str:
    r"""Tables for a paper; they need `\usepackage{booktabs}`."""
    return to_latex(_report(records))


FORMATS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}


def _report(records: Sequence[Record]) -> Report:
    configurations, others = _configurations(records), _others(records)
    tables = [table for table in (configurations, others) if table.rows]
    return Report(configurations.title, tables)


def _configurations(records: Sequence[Record]) -> Table:
    """Every configuration of every prompt, a row each; a model that all share is in the title."""
    metrics = list(dict.fromkeys(record.metric for record in records))
    means = ["mrr" if metric == "rr" else metric for metric in metrics]
    shown = list(dict.fromkeys([*means, "top1", "mrr"]))
    several = len(records) > 1
    rows: list[list[Cell]] = []
    for record, name in zip(records, run_names(records), strict=True):
        for row in record.rows:
            label: list[Cell] = [name] if several else []
            values = [getattr(row, metric) for metric in shown]
            ratios = [row.sufficiency, necessity_cell(row)]
            rows.append([*label, row.prompt, row.graft, *values, *ratios, row.n])
    heads = ["prompt", "configuration", *shown, "sufficiency", "necessity", "n"]
    about = "means over facts with 95 % intervals; sufficiency and necessity on"
    title = f"{about} {', '.join(metrics)}"
    if not several:
        title = f"{record_name(records[0])}, {records[0].identity.dataset.name}: {title}"
    columns = [Column(head) for head in ["run"] * several + heads]
    return Table(title, columns, rows)


def necessity_cell(row: Row) -> Cell:
    """The necessity of a configuration; a dash where it is not asked, as of PRE and SFT."""
    if row.graft in ("PRE", "SFT"):
        return Dash(NO_GRAFT)
    if row.graft.startswith("top ") and row.complement is None and row.applicable:
        return Dash(NO_REST)
    return row.necessity


def _others(records: Sequence[Record]) -> Table:
    """Figures of records over configurations: synergy, area under the curve, the truth."""
    rows: list[list[Cell]] = []
    for record, name in zip(records, run_names(records), strict=True):
        if record.curve is None and record.planted is None:
            for prompt, synergy in record.synergy.items():
                rows.append([name, prompt, "synergy of FE and LT", synergy, synergy.n])
        for prompt, curve in (record.curve or {}).items():
            area = curve.area
            rows.append([name, prompt, "area under the recovery curve", area, area.n])
        for prompt, prior in record.baselines.get("name_prior", {}).items():
            rows.append([name, prompt, "name prior (top5)", prior, prior.n])
        if (planted := record.planted) is None:
            continue
        for key, what in OF_TRUTH.items():
            if (estimate := getattr(planted, key)) is not None:
                rows.append([name, "all", what, estimate, estimate.n])
        for key in ("sufficiency", "necessity"):
            estimate = getattr(planted.effect, key)
            what = f"{key} of the {planted.k} best-ranked sites"
            rows.append([name, "all", what, estimate, estimate.n])
    heads = ("run", "prompt", "figure", "value", "n")
    return Table("figures over configurations", [Column(head) for head in heads], rows)
