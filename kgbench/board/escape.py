"""Text that stands in a table of another language and means nothing there."""

from __future__ import annotations

import re

__all__ = ["csv_text", "latex_text", "markdown_text"]

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""

LATEX = {
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

MARKDOWN = {mark: f"\\{mark}" for mark in "\\`*_[]|~#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


NEGATIVE = re.compile(r"(?<!\w)-(?=[.\d])")
"""A hyphen that is the sign of a number."""


def csv_text(text: str) -> str:
    """A cell of text; one that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{text}" if text.startswith(FORMULA) else text


def latex_text(text: str) -> str:
    """Text in LaTeX, in one line."""
    signed = NEGATIVE.sub("−", " ".join(text.split()))
    return "".join(LATEX.get(character, character) for character in signed)


def markdown_text(text: str) -> str:
    """Text in a cell of a Markdown table, in one line."""
    return "".join(MARKDOWN.get(character, character) for character in " ".join(text.split()))
