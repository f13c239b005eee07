"""How results leave the process: JSON or a table on stdout, and the options of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from kgbench.errors import OutputError
from kgbench.progress import Progress, progress

__all__ = []

CONTROL = re.compile(
    r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters of terminals, characters of text direction, and lone surrogates."""


_PLAIN = str.maketrans({"−": "-", "–": "-", "×": "x", "→": "->", "…": "...", "’": "'"})
"""Characters of tables and sentences for streams of narrow encodings."""


def terminal_text(text: str) -> str:
    """Text with tabs and line ends; other control characters are shown as their code."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TerminalText:
    """A stream to which texts are written without the control characters that files may hold."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap a stream."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text that a terminal only shows.

        What the stream's encoding lacks, as those of Windows do for files, is written plainly.
        """
        shown = terminal_text(text)
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            shown.encode(encoding)
        except UnicodeEncodeError:
            plain = shown.translate(_PLAIN)
            shown = plain.encode(encoding, "backslashreplace").decode(encoding)
        return self._stream.write(shown)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(about: str = "One JSON object on stdout.") -> Callable[[Command], Command]:
    """The option `--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def quiet_option(about: str = "No progress.") -> Callable[[Command], Command]:
    """The option `--quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help=about)


VERDICT_ONLY = "The verdict only, with --json not even that."


def json_text(value: Any) -> str:
    """One JSON value; a number that JSON does not have is an error."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def echo_json(value: Any) -> None:
    """Print one JSON value."""
    click.echo(json_text(value))


def echo_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers; the last column wraps at the width of the terminal."""
    from tabulate import tabulate

    from kgbench.report import wrapped

    columns = list(zip(headers, *rows, strict=True))
    before = sum(max(map(len, column)) + 2 for column in columns[:-1])
    room = max(shutil.get_terminal_size().columns - before, 30)
    fitted = [[*row[:-1], wrapped(row[-1], width=room)] for row in rows]
    click.echo(tabulate(fitted, headers=headers, tablefmt="simple", disable_numparse=True))


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def working(as_json: bool, quiet: bool = False) -> Iterator[Progress | None]:
    """Work with a progress bar; what a library prints does not mix with the JSON object.

    Yields:
        The progress callback, or None.
    """
    with redirect_stdout(sys.stderr if as_json else sys.stdout), progress(not quiet) as report:
        yield report
