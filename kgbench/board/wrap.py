"""Text that fits a terminal."""

from __future__ import annotations

import re
import textwrap

__all__ = ["WIDTH", "wrapped"]

WIDTH = 100
"""Columns of a terminal that every table fits."""


def wrapped(text: str, indent: str = "") -> str:
    """Text in lines of at most 100 columns; an interval stays on its line."""
    whole = re.sub(r" %?(?: ?\[[^][]*\])| %", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    filled = textwrap.fill(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\N{NO-BREAK SPACE}", " ")
