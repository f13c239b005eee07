"""Recorded runs as CSV, Markdown and LaTeX: every figure by name, and names of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isclose
from typing import Any

from kgbench.estimate import Estimate
from kgbench.numbers import count_text
from kgbench.records import Planted, Record, Row
from kgbench.report import Cell, Dash, Report, Table, csv_lines, to_latex, to_markdown
from kgbench.sites import PATHWAYS
from kgbench.stats import METRICS, verdict_of


def run_names(records: Sequence[Record]) -> list[str]:
    """A name per record, with the start of the id where method and model are equal."""
    plain = list(map(record_name, records))
    names = []
    for name, record in zip(plain, records, strict=True):
        names.append(f"{name} ({record.id[:8]})" if plain.count(name) > 1 else name)
    return names


def common_name(records: Sequence[Record]) -> str:
    """Model and data of records of one dataset; the data alone where models differ."""
    models, data = {record.model for record in records}, records[0].identity.dataset.name
    return f"{records[0].model} ({data})" if len(models) == 1 else data


def distinct_names(records: Sequence[Record]) -> list[str]:
    """A short name per record in addition to `common_name`: its method.

    Model, parameters and number of facts follow where they differ.

    The start of the id is added where something else differs.
    """
    plain = [_distinct_name(record, records) for record in records]
    names = []
    for name, record in zip(plain, records, strict=True):
        ambiguous = plain.count(name) > 1 or _is_ambiguous(record, records)
        names.append(f"{name} ({record.id[:8]})" if ambiguous else name)
    return names


def _distinct_name(record: Record, records: Sequence[Record]) -> str:
    what = record.identity
    alike = []
    for other in records:
        if other.identity.localizer.name == what.localizer.name:
            alike.append(other.identity.localizer.parameters)
    parts = [what.localizer.name, *differing_parameters(what.localizer.parameters, alike)]
    if any(other.model != record.model for other in records):
        parts.append(record.model)
    if any(other.identity.limit != what.limit for other in records):
        limit = "all facts" if what.limit is None else f"first {count_text(what.limit, 'fact')}"
        parts.append(limit)
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


def _is_ambiguous(record: Record, records: Sequence[Record]) -> bool:
    """Whether another record has the same name for other weights."""
    return any(
        other.model == record.model and other.identity.weights != record.identity.weights
        for other in records
    )


def record_name(record: Record) -> str:
    """Method and model."""
    return f"{record.identity.localizer.name} on {record.model}"


OF_ROWS = (
    *METRICS,
    "rank",
    "median_rank",
    "sufficiency",
    "necessity",
    "gain",
)
ROUNDING = 2e-5
"""Two units in the last of the six digits that are stored, of each."""


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


def from_rows(named: Named) -> bool:
    """Whether a figure follows from the per-fact rows; how a map ranks its sites does not."""
    return named.figure not in ("average_precision", "agreement")


@dataclass(frozen=True)
class Changed:
    """A figure that two records of one run do not have alike."""

    where: str
    stored: Estimate | None
    """None where the first record does not have it."""
    now: Estimate | None


def changed_figures(stored: Record, now: Record) -> tuple[Changed, ...]:
    """Figures that differ by more than rounding, in the first record's order, then the second's."""
    before = {named.where: named.estimate for named in figures(stored)}
    after = {named.where: named.estimate for named in figures(now)}
    changed = []
    for where in dict.fromkeys((*before, *after)):
        first, second = before.get(where), after.get(where)
        if not _alike(first, second):
            changed.append(Changed(where, first, second))
    return tuple(changed)


def _alike(first: Estimate | None, second: Estimate | None) -> bool:
    if first is None or second is None:
        return False
    if (first.n, first.undefined) != (second.n, second.undefined):
        return False
    for a, b in ((first.value, second.value), (first.low, second.low), (first.high, second.high)):
        if a is None or b is None:
            if a != b:
                return False
        elif not isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-9):
            return False
    return True


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
    tables = [_configurations(records), _others(records)]
    return Report(tables[0].title, [table for table in tables if table.rows])


def _configurations(records: Sequence[Record]) -> Table:
    """Every configuration of every prompt, a row each; a model that all share is in the title."""
    metrics = list(dict.fromkeys(record.metric for record in records))
    shown = list(dict.fromkeys([*metrics, "top1", "mrr"]))
    several = len(records) > 1
    rows: list[list[Cell]] = []
    for record, name in zip(records, run_names(records), strict=True):
        for row in record.rows:
            label: list[Cell] = [name] if several else []
            values = [row.estimate(metric) for metric in shown]
            ratios = [row.sufficiency, necessity_cell(row)]
            rows.append([*label, row.prompt, row.graft, *values, *ratios, row.n])
    heads = ["prompt", "configuration", *shown, "sufficiency", "necessity", "n"]
    about = "means over facts with 95 % intervals; sufficiency and necessity on"
    title = f"{about} {', '.join(metrics)}"
    if not several:
        title = f"{record_name(records[0])}, {records[0].identity.dataset.name}: {title}"
    return Table(title, ["run"] * several + heads, rows)


def necessity_cell(row: Row) -> Cell:
    """The necessity of a configuration; a dash where it is not asked, as of PRE and SFT."""
    if row.graft in ("PRE", "SFT"):
        return Dash(NO_GRAFT)
    if row.graft.startswith("top ") and row.complement is None and row.applicable:
        return Dash(NO_REST)
    return row.necessity


def _others(records: Sequence[Record]) -> Table:
    """Figures of records over configurations."""
    rows: list[list[Cell]] = []
    for record, name in zip(records, run_names(records), strict=True):
        for prompt, what, estimate in _over_configurations(record):
            rows.append([name, prompt, what, estimate, estimate.n])
    heads = ("run", "prompt", "figure", "value", "n")
    return Table("figures over configurations", heads, rows)


def _over_configurations(record: Record) -> Iterator[tuple[str, str, Estimate]]:
    """Synergy, area under the curve, the truth: prompt, figure and estimate."""
    planted = record.planted
    if record.curve is None and planted is None:
        for prompt, synergy in record.synergy.items():
            yield prompt, "synergy of FE and LT", synergy
    for prompt, curve in (record.curve or {}).items():
        yield prompt, "area under the recovery curve", curve.area
    for prompt, prior in record.baselines.get("name_prior", {}).items():
        yield prompt, "name prior (top5)", prior
    for prompt, counts in (record.answers or {}).items():
        share = len(counts) / sum(counts)
        exact = Estimate(share, share, share, sum(counts))
        yield prompt, "distinct first tokens ÷ facts", exact
    if planted is None:
        return
    yield "all", "average precision", planted.average_precision
    for key in ("sufficiency", "necessity"):
        what = f"{key} of the {planted.k} best-ranked sites"
        yield "all", what, getattr(planted.effect, key)
