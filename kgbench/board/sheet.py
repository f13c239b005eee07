"""Records as tables for a paper: one table of configurations, one of what a record says beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kgbench.board.footnotes import Footnotes
from kgbench.records import Record

__all__ = ["Sheet", "configurations_sheet", "others_sheet", "run_names"]

OTHERS = ("auroc", "average_precision", "recall_at_k", "auroc_decoy")


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
    shown = list(dict.fromkeys(["mrr" if metric == "rr" else metric for metric in metrics] + ["top1", "mrr"]))
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
        found += [("name prior (top5)", prompt, e) for prompt, e in record.baselines.get("name_prior", {}).items()]
        if (planted := record.planted) is not None:
            of_truth = {key: getattr(planted, key) for key in OTHERS}
            found += [(key.replace("_", " "), "all", e) for key, e in of_truth.items() if e is not None]
            effect = {"sufficiency": planted.effect.sufficiency, "necessity": planted.effect.necessity}
            found += [(f"{key} of the {planted.k} best-ranked sites", "all", e) for key, e in effect.items()]
        sheet.body += [(name, prompt, what, sheet.notes.cell(estimate), str(estimate.n)) for what, prompt, estimate in found]
    return sheet


def _title(records: Sequence[Record]) -> str:
    metrics = ", ".join(dict.fromkeys(record.metric for record in records))
    what = f"{_name(records[0])}, {records[0].identity.dataset.name}: " if len(records) == 1 else ""
    return f"{what}means over facts with 95 % intervals; sufficiency and necessity on {metrics}"


def run_names(records: Sequence[Record]) -> list[str]:
    """A name per record; the start of the id tells apart those of one method and model."""
    plain = [_name(record) for record in records]
    return [f"{name} ({record.id[:8]})" if plain.count(name) > 1 else name for name, record in zip(plain, records, strict=True)]


def _name(record: Record) -> str:
    return f"{record.identity.localizer.name} on {record.model}"
