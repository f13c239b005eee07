"""How results leave the process: JSON or a table on stdout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import Any

import click


def echo_json(value: Any) -> None:
    """Print one JSON value; a number that JSON does not have is an error."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def echo_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers; the last column wraps at the width of the terminal."""
    from tabulate import tabulate

    before = sum(max(len(row[i]) for row in (headers, *rows)) + 2 for i in range(len(headers) - 1))
    room = max(shutil.get_terminal_size().columns - before, 30)
    widths = [None] * (len(headers) - 1) + [room]
    click.echo(tabulate(rows, headers=headers, tablefmt="simple", maxcolwidths=widths, disable_numparse=True))
