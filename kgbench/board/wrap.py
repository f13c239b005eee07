"""Text that fits a terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

__all__ = ["WIDTH", "text_width", "wrapped"]

WIDTH = 100
"""Columns of text that goes to a file or a pipe."""

NARROWEST = 60


def text_width() -> int:
    """Columns that text may take: the terminal's, or 100 where the output is none."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def wrapped(text: str, indent: str = "", width: int | None = None) -> str:
    """Text in lines of at most so many columns, by default the output's; a number stays with its sign and interval."""
    whole = re.sub(
        r" %?(?: ?\[[^][]*\])| %", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text
    )
    filled = textwrap.fill(
        whole,
        width or text_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")
