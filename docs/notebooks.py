"""Sphinx extension: each tutorial is offered as a notebook, in `notebooks/` next to the pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INSTALL = "# Once, in a clone of kgbench: pip install -e '.[notebook,lora,tools]'"
"""The first cell."""

_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_CELL = re.compile(r"^```\{code-cell\} python\n(?::[^\n]*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]+\)")
_OFFER = """
<p>This page as a notebook:
<a href="../notebooks/{name}.ipynb" download>{name}.ipynb</a>, for Jupyter, VS Code or Colab
(there: File, Upload notebook). Its first cell says how to install kgbench.</p>
"""


def notebook(page: str) -> dict[str, Any]:
    """A tutorial as a notebook without outputs, in Jupyter's format 4.5.

    Args:
        page: Text of the page, in MyST Markdown.
    """
    text = _FRONT.sub("", page)
    parts = _CELL.split(text)  # prose and code by turns
    cells = [_cell("code", INSTALL)]
    for place, part in enumerate(parts):
        if place % 2:
            cells.append(_cell("code", part))
        elif part.strip():
            # Links to other pages lead nowhere from a notebook.
            cells.append(_cell("markdown", _LINK.sub(r"\1", part)))
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text.strip("\n")}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def offer(app: Sphinx, page: str, content: list[str]) -> None:
    """Name the notebook below the title of its page."""
    if page.startswith("tutorials/"):
        offered = _OFFER.format(name=page.rpartition("/")[2])
        content[0] = re.sub(r"^# .*\n", rf"\g<0>{offered}", content[0], count=1, flags=re.M)


def export(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks of all tutorials."""
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "notebooks"
    folder.mkdir(exist_ok=True)
    for page in sorted(Path(app.srcdir).glob("tutorials/*.md")):
        content = json.dumps(notebook(page.read_text("utf-8")), indent=1, ensure_ascii=False)
        (folder / page.with_suffix(".ipynb").name).write_text(content + "\n", "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what Sphinx calls."""
    app.connect("source-read", offer)
    app.connect("build-finished", export)
    return {"parallel_read_safe": True}
