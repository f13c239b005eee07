"""Records as text for other programs: CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence

from kgbench.board.escape import csv_text, latex_text, markdown_text
from kgbench.board.figures import figures
from kgbench.board.sheet import Sheet, configurations_sheet, others_sheet
from kgbench.effects import verdict_of
from kgbench.records import Record
from kgbench.sites import PATHWAYS

__all__ = ["CSV_COLUMNS", "FORMATS", "as_csv", "as_latex", "as_markdown", "run_columns"]

OF_RUN = ("date", "arguments", "prompts", "grafts", "suite", "limit", "seed", "verdict")
"""Columns of `run_columns` that a line of CSV has beside those of the figure."""

CSV_COLUMNS = (
    *("id", "model", "dataset", "localizer", "metric", "prompt", "graft", "figure"),
    *("value", "low", "high", "n", "undefined", *OF_RUN),
)
"""One line per figure, which ends with what its run is. `metric` is that of the ratios; an undefined figure has no numbers and a reason."""


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
    """The suite that asks for the configurations of a record; empty where they were given one by one."""
    if record.planted is not None:
        return "planted"
    if record.curve is not None:
        return "budget"
    return "pathways" if set(PATHWAYS) <= set(record.identity.configurations) else ""


def as_csv(records: Sequence[Record]) -> str:
    """Every figure of some records, a line each.

    Numbers stand as the record holds them. Text that a spreadsheet would compute begins with an apostrophe.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        what = record.identity
        about = (record.id, record.model, what.dataset.name, what.localizer.name, record.metric)
        columns = run_columns(record)
        run = [csv_text(columns[name]) for name in OF_RUN]
        for named in figures(record):
            estimate, place = named.estimate, (named.prompt, named.graft, named.figure)
            numbers = [
                "" if x is None else repr(x) for x in (estimate.value, estimate.low, estimate.high)
            ]
            texts = [csv_text(text) for text in (*about, *place)]
            writer.writerow(
                [*texts, *numbers, estimate.n, csv_text(estimate.undefined or ""), *run]
            )
    return out.getvalue()


def as_markdown(records: Sequence[Record]) -> str:
    """Tables as GitHub reads them; the reasons of undefined figures below."""
    return "\n\n".join(_markdown(sheet) for sheet in _sheets(records)) + "\n"


def as_latex(records: Sequence[Record]) -> str:
    r"""Tables for a paper; they need `\usepackage{booktabs}`."""
    return (
        "% needs \\usepackage{booktabs}\n"
        + "\n\n".join(_latex(sheet) for sheet in _sheets(records))
        + "\n"
    )


FORMATS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}


def _sheets(records: Sequence[Record]) -> list[Sheet]:
    return [sheet for sheet in (configurations_sheet(records), others_sheet(records)) if sheet.body]


def _markdown(sheet: Sheet) -> str:
    lines = [_pipes(map(markdown_text, cells)) for cells in (sheet.heads, *sheet.body)]
    rule = _pipes(["---"] * len(sheet.heads))
    reasons = [f"{markdown_text(line)}  " for line in sheet.notes.lines()]
    return "\n".join(
        [
            f"{markdown_text(sheet.title)}",
            "",
            lines[0],
            rule,
            *lines[1:],
            *(["", *reasons] if reasons else []),
        ]
    )


def _pipes(cells: Sequence[str] | map[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(sheet: Sheet) -> str:
    head, *body = [
        " & ".join(map(latex_text, cells)) + r" \\" for cells in (sheet.heads, *sheet.body)
    ]
    reasons = [rf"\par\footnotesize {latex_text(line)}" for line in sheet.notes.lines()]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(sheet.title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(sheet.heads)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *reasons,
            r"\end{table}",
        ]
    )
