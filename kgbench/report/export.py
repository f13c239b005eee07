"""Recorded runs as CSV, Markdown and LaTeX: every figure by name, and names of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kgbench.estimate import Estimate
from kgbench.numbers import count_text
from kgbench.records import Planted, Record, Row
from kgbench.report import Cell, Dash, Table, csv_lines, to_latex, to_markdown
from kgbench.sites import PATHWAYS
from kgbench.stats import METRICS, verdict_of


def common_name(records: Sequence[Record]) -> str:
    """Model and data of records of one dataset; the data alone where models differ."""
    models, data = {record.model for record in records}, records[0].identity.dataset.name
    return f"{records[0].model} ({data})" if len(models) == 1 else data


def distinct_names(records: Sequence[Record]) -> list[str]:
    """A short name per record in addition to `common_name`: its method.

    Model, parameters and number of facts follow where they differ, and the start of the id where
    something else does.
    """
    names = [_short_name(record, records) for record in records]
    weights: dict[str, set[str]] = {}
    for record in records:
        weights.setdefault(record.model, set()).add(record.identity.weights.model_dump_json())
    full = []
    for name, record in zip(names, records, strict=True):
        ambiguous = names.count(name) > 1 or len(weights[record.model]) > 1
        full.append(f"{name} ({record.id[:8]})" if ambiguous else name)
    return full


def _short_name(record: Record, records: Sequence[Record]) -> str:
    method, limit = record.identity.localizer, record.identity.limit
    methods = [other.identity.localizer for other in records]
    alike = [other.parameters for other in methods if other.name == method.name]
    parts = [method.name, *differing_parameters(method.parameters, alike)]
    if len({other.model for other in records}) > 1:
        parts.append(record.model)
    if len({other.identity.limit for other in records}) > 1:
        parts.append("all facts" if limit is None else f"first {count_text(limit, 'fact')}")
    return ", ".join(parts)


def differing_parameters(
    parameters: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Those of a method, as `key=value`, that others of its name do not have alike."""
    texts = []
    for key, value in parameters.items():
        if any(key not in other or other[key] != value for other in others):
            texts.append(f"{key}={value}")
    return texts


OF_ROWS = (*METRICS, "rank", "median_rank", "sufficiency", "necessity", "gain")


@dataclass(frozen=True)
class Named:
    """A figure with its prompt and configuration."""

    prompt: str
    """Empty where it is over all prompts."""
    graft: str
    """Empty where it is of no single configuration."""
    figure: str
    """A metric, `sufficiency`, `synergy`, `average_precision`, …"""
    estimate: Estimate

    @property
    def where(self) -> str:
        """Prompt, configuration and figure, in words."""
        return ", ".join(filter(None, (self.prompt, self.graft, self.figure)))


def figures(record: Record) -> Iterator[Named]:
    """All figures of a record that follow from what was measured; those of its cost do not."""
    for row in record.rows:
        for name in OF_ROWS:
            yield Named(row.prompt, row.graft, name, row.estimate(name))
    for prompt, estimate in record.synergy.items():
        yield Named(prompt, "", "synergy", estimate)
    for name, by_prompt in record.baselines.items():
        yield from (Named(prompt, "", name, estimate) for prompt, estimate in by_prompt.items())
    for prompt, curve in (record.curve or {}).items():
        for point in curve.points:
            yield Named(prompt, f"top {point.budget:g}%", "recovery", point.recovery)
        yield Named(prompt, "", "area", curve.area)
    if record.ranking is not None:
        yield Named("", "", "agreement", record.ranking.agreement)
    if record.planted is not None:
        yield from _planted(record.planted)


def _planted(planted: Planted) -> Iterator[Named]:
    yield Named("", "", "average_precision", planted.average_precision)
    for prompt, effect in {"": planted.effect, **planted.prompts}.items():
        yield Named(prompt, "top k", "best_sufficiency", effect.sufficiency)
        yield Named(prompt, "top k", "best_necessity", effect.necessity)
    for prompt, pathway in (planted.pathways or {}).items():
        yield Named(prompt, pathway.planted, "recovery_planted", pathway.recovery_planted)
        yield Named(prompt, pathway.other, "recovery_other", pathway.recovery_other)


NO_GRAFT = "– not applicable: PRE and SFT are not grafts"
NO_REST = "– not applicable: the complement of the best-ranked sites was not run"

OF_RUN = ("date", "arguments", "prompts", "grafts", "suite", "limit", "seed", "verdict")
"""Columns of `run_columns` in a line of CSV, after those of the figure."""

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
    columns = []
    for graft in what.configurations:
        rest = "^C" in graft or (graft.startswith("ALL;") and "=recipient" in graft)
        if not rest and graft not in ("PRE", "SFT", "ALL", "NONE"):
            columns.append(graft)
    return {
        "date": record.provenance.time[:16].replace("T", " "),
        "method": what.localizer.name,
        "arguments": arguments,
        "model": record.model,
        "prompts": ", ".join(what.prompts),
        "grafts": ", ".join(columns),
        "suite": _suite(record),
        "limit": "" if what.limit is None else str(what.limit),
        "seed": ", ".join(map(str, what.seeds)),
        "n": str(max((row.n for row in record.rows), default=0)),
        "verdict": verdict_of(record),
    }


def _suite(record: Record) -> str:
    """The suite of a record's configurations; empty where they were given one by one."""
    if record.planted is not None:
        return "planted"
    if record.curve is not None:
        return "budget"
    return "pathways" if set(PATHWAYS) <= set(record.identity.configurations) else ""


def as_csv(records: Sequence[Record]) -> str:
    """Every figure of some records, a line each; numbers are as the record holds them."""
    rows = chain.from_iterable(map(_csv_rows, records))
    return csv_lines(rows, CSV_COLUMNS)


def _csv_rows(record: Record) -> Iterator[dict[str, Any]]:
    what = record.identity
    about = {
        **run_columns(record),
        "id": record.id,
        "dataset": what.dataset.name,
        "localizer": what.localizer.name,
        "metric": record.metric,
    }
    for named in figures(record):
        yield {**about, **vars(named), **vars(named.estimate)}


def as_markdown(records: Sequence[Record]) -> str:
    """Tables as GitHub reads them; the reasons of undefined figures below."""
    return to_markdown(_tables(records))


def as_latex(records: Sequence[Record]) -> str:
    r"""Tables for a paper; they need `\usepackage{booktabs}`."""
    return to_latex(_tables(records))


FORMATS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}


def _tables(records: Sequence[Record]) -> list[Table]:
    return [table for table in (_configurations(records), _others(records)) if table.rows]


def _configurations(records: Sequence[Record]) -> Table:
    """Every configuration of every prompt and run, a row each."""
    metrics = list(dict.fromkeys(record.metric for record in records))
    shown = list(dict.fromkeys([*metrics, "top1", "mrr"]))
    several = len(records) > 1
    rows: list[list[Cell]] = []
    for record, name in zip(records, distinct_names(records), strict=True):
        for row in record.rows:
            label: list[Cell] = [name] if several else []
            values = [row.estimate(metric) for metric in shown]
            ratios = [row.sufficiency, necessity_cell(row)]
            rows.append([*label, row.prompt, row.graft, *values, *ratios, row.n])
    heads = ["prompt", "configuration", *shown, "sufficiency", "necessity", "n"]
    method = "" if several else f"{records[0].identity.localizer.name} on "
    title = (
        f"{method}{common_name(records)}: means over facts with 95 % intervals; sufficiency and "
        f"necessity on {', '.join(metrics)}"
    )
    return Table(title, ["run"] * several + heads, rows)


def necessity_cell(row: Row) -> Cell:
    """The necessity of a configuration; a dash where it is not asked, as of PRE and SFT."""
    if row.graft in ("PRE", "SFT"):
        return Dash(NO_GRAFT)
    if row.graft.startswith("top ") and row.complement is None and row.applicable:
        return Dash(NO_REST)
    return row.necessity


def _others(records: Sequence[Record]) -> Table:
    """Figures of runs that are of no single configuration, a row each."""
    rows: list[list[Cell]] = []
    for record, name in zip(records, distinct_names(records), strict=True):
        for each in figures(record):
            if not each.graft or each.graft == "top k":
                rows.append([name, each.prompt, each.figure, each.estimate, each.estimate.n])
    heads = ("run", "prompt", "figure", "value", "n")
    return Table("figures over configurations", heads, rows)
