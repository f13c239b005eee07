"""Reports: what commands, boards and analyses show, and how each format writes it.

A report is a title, tables of estimates, texts and counts, notes, and a verdict. The formats write
numbers, wrap text and number the reasons of undefined estimates in one way.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from tabulate import tabulate

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, number_text, reason_text
from kgbench.records import NOT_APPLICABLE

WIDTH = 100
"""Columns of text that goes to a file or a pipe."""

NARROWEST = 60

ABSENT = "absent"
"""How the reason begins why a text lacks what a configuration is about."""

INDENT = "    "


@dataclass(frozen=True)
class Dash:
    """A cell of which nothing is asked."""

    meaning: str = ""
    """Explained in a footnote, unless empty."""


Cell = Estimate | str | int | Dash
"""What a table holds."""


def number_cell(value: float | None) -> Cell:
    """A number without an interval, or a dash."""
    return Dash() if value is None else number_text(value)


@dataclass(frozen=True)
class Column:
    """The head of a column whose estimates are not written by `figure_text`."""

    head: str
    text: Callable[[Estimate], str] = figure_text

    def __str__(self) -> str:
        return self.head


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell of a row is its label."""

    title: str
    columns: Sequence[str | Column]
    """Their heads."""
    rows: Sequence[Sequence[Cell]]
    label_width: int = WIDTH
    """Longer labels are wrapped in text."""

    @property
    def heads(self) -> list[str]:
        """Heads of the columns, as text."""
        return list(map(str, self.columns))


Line = str | Sequence[str | Estimate]
"""A line of text, with the estimates in it."""


@dataclass(frozen=True)
class Lines:
    """Lines of text between tables, each of which is wrapped."""

    lines: Sequence[Line]
    indent: str = ""
    """Before continuation lines."""


@dataclass(frozen=True)
class Report:
    """What a command, a board or an analysis shows."""

    title: str
    parts: Sequence[Table | Lines]
    about: Sequence[str] = ()
    """Lines on the data, below the title."""
    notes: Sequence[Line] = ()
    """Last lines, before the footnotes."""
    verdict: str | None = None


@dataclass
class Footnotes:
    """Reasons why estimates are undefined, numbered as they occur, and meanings of dashes."""

    reasons: list[str] = field(default_factory=list)
    dashes: list[str] = field(default_factory=list)

    def cell(self, cell: Cell, text: Callable[[Estimate], str] = figure_text) -> str:
        """The text of a cell; an estimate with a reason has the number of its footnote."""
        if isinstance(cell, Dash):
            if cell.meaning and cell.meaning not in self.dashes:
                self.dashes.append(cell.meaning)
            return "–"
        if not isinstance(cell, Estimate):
            return str(cell)
        reason = cell.undefined
        if reason is None:
            return text(cell)
        if reason not in self.reasons:
            self.reasons.append(reason)
        word = figure_text(cell)
        if reason.startswith(NOT_APPLICABLE):
            word = "n/a"
        elif reason.startswith(ABSENT):
            word = ABSENT
        return f"{word} ({self.reasons.index(reason) + 1})"

    def table(self, table: Table) -> list[list[str]]:
        """The rows of a table as texts."""
        rows = []
        for row in table.rows:
            cells = []
            for column, cell in zip(table.columns, row, strict=True):
                text = column.text if isinstance(column, Column) else figure_text
                cells.append(self.cell(cell, text))
            rows.append(cells)
        return rows

    def line(self, line: Line) -> str:
        """The text of a line."""
        return line if isinstance(line, str) else "".join(map(self.cell, line))

    def lines(self) -> list[str]:
        """The footnotes."""
        numbered = [f"({i}) {reason_text(reason)}" for i, reason in enumerate(self.reasons, 1)]
        return [*self.dashes, *numbered]


def to_text(report: Report) -> str:
    """The report for a terminal: verdict, title, tables, notes and footnotes.

    Returns:
        Text of at most the terminal's width, or 100 columns, without a line end after the last.
    """
    footnotes = Footnotes()
    about = [wrapped(line, INDENT) for line in report.about]
    blocks = [wrapped(report.verdict)] if report.verdict is not None else []
    if report.title:
        heads = report.title.splitlines()
        titles = [wrapped(line, "   " if len(heads) > 1 else "") for line in heads]
        blocks.append("\n".join([*titles, *about]))
    for part in report.parts:
        if isinstance(part, Table):
            title = f"{wrapped(part.title)}\n" if part.title else ""
            blocks.append(f"{title}{_fitted(part, footnotes.table(part))}")
        else:
            lines = [wrapped(footnotes.line(line), part.indent) for line in part.lines]
            blocks.append("\n".join(lines))
    notes = [wrapped(footnotes.line(line), "  ") for line in report.notes]
    notes += [wrapped(line, INDENT) for line in footnotes.lines()]
    if notes:
        blocks.append("\n".join(notes))
    return "\n\n".join(blocks)


def _fitted(table: Table, rows: Sequence[Sequence[str]]) -> str:
    """A table, with intervals below their values where it is too wide otherwise."""
    text = _body(table, rows)
    if max(map(len, text.splitlines())) <= text_width():
        return text
    narrow = []
    for row in rows:
        narrow.append([cell.replace(" [", "\n[") for cell in row])
    return _body(table, narrow)


def _body(table: Table, rows: Sequence[Sequence[str]]) -> str:
    body = []
    for label, *cells in rows:
        lines = []
        for part in label.splitlines():
            lines += textwrap.wrap(part, table.label_width)
        body.append(["\n".join(lines), *cells])
    return str(tabulate(body, table.heads, tablefmt="simple", disable_numparse=True))


def table_width(table: Table) -> int:
    """Columns that a table takes in text, without its title."""
    rows = Footnotes().table(table)
    return max(map(len, _body(table, rows).splitlines()))


def _with_notes(
    tables: Iterable[Table], text: Callable[[str], str]
) -> Iterator[tuple[str, list[list[str]], list[str]]]:
    """Title, rows with the heads first, and footnotes of each table, as texts of a format."""
    for table in tables:
        footnotes = Footnotes()
        rows = [table.heads, *footnotes.table(table)]
        texts = [list(map(text, row)) for row in rows]
        yield text(table.title), texts, list(map(text, footnotes.lines()))


def to_markdown(tables: Iterable[Table]) -> str:
    """Tables as GitHub reads them, each with its footnotes below."""
    blocks = []
    for title, rows, notes in _with_notes(tables, markdown_text):
        head, *body = ["| " + " | ".join(row) + " |" for row in rows]
        lines = [title, "", head, "| " + " | ".join(["---"] * len(rows[0])) + " |", *body]
        blocks.append("\n".join([*lines, *[""] * bool(notes), *(f"{note}  " for note in notes)]))
    return "\n\n".join(blocks) + "\n"


def to_latex(tables: Iterable[Table]) -> str:
    r"""Tables for a paper, each with its footnotes; they need `\usepackage{booktabs}`."""
    blocks = []
    for title, rows, notes in _with_notes(tables, latex_text):
        head, *body = [" & ".join(row) + r" \\" for row in rows]
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{title}}}"]
        lines += [rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}", r"\toprule", head]
        lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {note}" for note in notes]
        blocks.append("\n".join([*lines, r"\end{table}"]))
    return "% needs \\usepackage{booktabs}\n" + "\n\n".join(blocks) + "\n"


def to_html(report: Report) -> str:
    """A fragment of a page, as a notebook shows it: the parts of `to_text` in its order."""
    footnotes = Footnotes()
    blocks = [_paragraph(f"<strong>{escape(report.verdict)}</strong>")] if report.verdict else []
    blocks += [_paragraph(escape(line)) for line in (*report.title.splitlines(), *report.about)]
    for part in report.parts:
        if isinstance(part, Lines):
            blocks += [_paragraph(escape(footnotes.line(line))) for line in part.lines]
            continue
        rows = footnotes.table(part)
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in part.heads)
        body = "".join(map(_html_row, rows))
        blocks.append(
            f"<table><caption>{escape(part.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    notes = [*map(footnotes.line, report.notes), *footnotes.lines()]
    blocks += [_paragraph(f"<small>{escape(line)}</small>") for line in notes]
    return f'<div class="kgbench">{"".join(blocks)}</div>'


def _paragraph(html: str) -> str:
    return f"<p>{html}</p>"


def _html_row(cells: Sequence[str]) -> str:
    label, *others = map(escape, cells)
    return f'<tr><th scope="row">{label}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def csv_lines(rows: Iterable[Mapping[str, Any]], heads: Sequence[str]) -> str:
    """CSV with a line per row; lists are joined with `|`, and None is empty.

    Text that a spreadsheet would compute begins with an apostrophe.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        cells = []
        for head in heads:
            value = "|".join(row[head]) if isinstance(row[head], list) else row[head]
            cells.append(csv_text(value) if isinstance(value, str) else value)
        writer.writerow(cells)
    return out.getvalue()


def text_width() -> int:
    """Columns that text may take: the terminal's, or 100 where the output is none."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def wrapped(text: str, indent: str = "", width: int | None = None) -> str:
    """Text in lines of at most so many columns, by default the output's.

    A number stays with its sign and interval.
    """
    space = "\N{NO-BREAK SPACE}"
    unbroken = re.sub(r" %?(?: ?\[[^][]*\])| %", lambda part: part[0].replace(" ", space), text)
    filled = textwrap.fill(
        unbroken,
        width or text_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(space, " ")


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""

LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "−": "$-$",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "–": "--",
        "…": r"\ldots{}",
    }
)

MARKDOWN = str.maketrans(
    {**{mark: f"\\{mark}" for mark in "\\`*_[]|~#"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"}
)

NEGATIVE = re.compile(r"(?<!\w)-(?=[.\d])")
"""A hyphen that is the sign of a number."""


def csv_text(text: str) -> str:
    """A cell of text; one that a spreadsheet would compute begins with an apostrophe."""
    return f"'{text}" if text.startswith(FORMULA) else text


def latex_text(text: str) -> str:
    """Text in LaTeX, in one line."""
    signed = NEGATIVE.sub("−", " ".join(text.split()))
    return signed.translate(LATEX)


def markdown_text(text: str) -> str:
    """Text in a cell of a Markdown table, in one line."""
    return " ".join(text.split()).translate(MARKDOWN)
