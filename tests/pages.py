"""The README and the pages of docs/, and what stands between their marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["DOCS", "PAGES", "ROOT", "block", "code", "fenced", "table"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

PAGES: Mapping[Path, str] = {
    path: path.read_text("utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
    if "_build" not in path.parts
}
"""Text of each page, by path."""


def block(name: str) -> str:
    """The text between the marks of this name, which one page has."""
    begin, end = f"<!-- begin: {name} -->\n", f"\n<!-- end: {name} -->"
    (text,) = [text for text in PAGES.values() if begin in text]
    assert text.count(begin) == text.count(end) == 1, name
    return text.partition(begin)[2].partition(end)[0]


def code(name: str) -> str:
    """The code of a marked block that is one fence."""
    found = re.fullmatch(r"```\w*\n(.*?\n)```", block(name), re.DOTALL)
    assert found is not None, name
    return found[1]


def table(name: str) -> list[list[str]]:
    """The cells of a marked block's table, its head first."""
    rows = []
    for line in block(name).splitlines():
        if line.startswith("|") and "---" not in line:
            rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return rows


def fenced(text: str) -> list[str]:
    """The lines of all fences of a page; a backslash at the end joins it with the next."""
    fences = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return re.sub(r"\\\n\s*", "", "".join(fences)).splitlines()
