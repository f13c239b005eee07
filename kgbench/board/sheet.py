"""Records as tables for a paper: one table of configurations, one of what a record says beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kgbench.board.footnotes import Footnotes
from kgbench.numbers import count_text
from kgbench.records import Record

__all__ = [
    "Sheet",
    "common_name",
    "configurations_sheet",
    "distinct_names",
    "others_sheet",
    "run_names",
]

OTHERS = {"graded_precision": "graded average precision", "auroc_decoy": "AUROC against the decoy"}


@dataclass
class Sheet:
    """A table of text, with footnotes on the figures that are undefined."""

    title: str
    heads: tuple[str, ...]
    body: list[tuple[str, ...]] = field(default_factory=list)
    notes: Footnotes = field(default_factory=Footnotes)


def configurations_sheet(records: Sequence[Record]) -> Sheet:
    """Every configuration of every prompt of some records, a row each.

    Columns that are the same in all rows, such as the model, stand in the title.
    """
    metrics = list(dict.fromkeys(record.metric for record in records))
    shown = list(
        dict.fromkeys(["mrr" if metric == "rr" else metric for metric in metrics] + ["top1", "mrr"])
    )
    heads = ("prompt", "configuration", *shown, "sufficiency", "necessity", "n")
    names = run_names(records)
    sheet = Sheet(_title(records), (*(("run",) if len(records) > 1 else ()), *heads))
    for record, name in zip(records, names, strict=True):
        for row in record.rows:
            figures = [sheet.notes.cell(getattr(row, metric)) for metric in shown]
            ratios = (sheet.notes.cell(row.sufficiency), sheet.notes.necessity(row))
            cells = (row.prompt, row.graft, *figures, *ratios, str(row.n))
            sheet.body.append((*((name,) if len(records) > 1 else ()), *cells))
    return sheet


def others_sheet(records: Sequence[Record]) -> Sheet:
    """What records say beside their configurations: synergy, area under the curve, figures on the truth."""
    sheet = Sheet("figures over configurations", ("run", "prompt", "figure", "value", "n"))
    for record, name in zip(records, run_names(records), strict=True):
        areas = {prompt: curve.area for prompt, curve in (record.curve or {}).items()}
        synergies = {} if record.curve is not None or record.planted is not None else record.synergy
        found = [("synergy of FE and LT", prompt, e) for prompt, e in synergies.items()]
        found += [("area under the recovery curve", prompt, e) for prompt, e in areas.items()]
        found += [
            ("name prior (top5)", prompt, e)
            for prompt, e in record.baselines.get("name_prior", {}).items()
        ]
        if (planted := record.planted) is not None:
            of_truth = {key: getattr(planted, key) for key in OTHERS}
            found += [(OTHERS[key], "all", e) for key, e in of_truth.items() if e is not None]
            effect = {
                "sufficiency": planted.effect.sufficiency,
                "necessity": planted.effect.necessity,
            }
            found += [
                (f"{key} of the {planted.k} best-ranked sites", "all", e)
                for key, e in effect.items()
            ]
        sheet.body += [
            (name, prompt, what, sheet.notes.cell(estimate), str(estimate.n))
            for what, prompt, estimate in found
        ]
    return sheet


def _title(records: Sequence[Record]) -> str:
    metrics = ", ".join(dict.fromkeys(record.metric for record in records))
    what = f"{_name(records[0])}, {records[0].identity.dataset.name}: " if len(records) == 1 else ""
    return f"{what}means over facts with 95 % intervals; sufficiency and necessity on {metrics}"


def run_names(records: Sequence[Record]) -> list[str]:
    """A name per record; the start of the id tells apart those of one method and model."""
    plain = [_name(record) for record in records]
    return [
        f"{name} ({record.id[:8]})" if plain.count(name) > 1 else name
        for name, record in zip(plain, records, strict=True)
    ]


def common_name(records: Sequence[Record]) -> str:
    """Model and data of records of one dataset; the data alone where models differ."""
    models, data = {record.model for record in records}, records[0].identity.dataset.name
    return f"{records[0].model} ({data})" if len(models) == 1 else data


def distinct_names(records: Sequence[Record]) -> list[str]:
    """A short name per record beside `common_name`: its method, with model, parameters and number of facts where these differ.

    The start of the id tells apart what differs in something else.
    """
    plain = [_distinct_name(record, records) for record in records]
    return [
        f"{name} ({record.id[:8]})"
        if plain.count(name) > 1 or _is_ambiguous(record, records)
        else name
        for name, record in zip(plain, records, strict=True)
    ]


def _distinct_name(record: Record, records: Sequence[Record]) -> str:
    what = record.identity
    alike = [
        other.identity.localizer
        for other in records
        if other.identity.localizer.name == what.localizer.name
    ]
    parts = [what.localizer.name]
    for key, value in what.localizer.parameters.items():
        if any(key not in other.parameters or other.parameters[key] != value for other in alike):
            parts.append(f"{key}={value}")
    if any(other.model != record.model for other in records):
        parts.append(record.model)
    if any(other.identity.limit != what.limit for other in records):
        parts.append(
            "all facts" if what.limit is None else f"first {count_text(what.limit, 'fact')}"
        )
    return ", ".join(parts)


def _is_ambiguous(record: Record, records: Sequence[Record]) -> bool:
    """Whether another record has the same name for other weights."""
    return any(
        other.model == record.model and other.identity.weights != record.identity.weights
        for other in records
    )


def _name(record: Record) -> str:
    return f"{record.identity.localizer.name} on {record.model}"
