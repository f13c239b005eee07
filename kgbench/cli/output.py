"""How results leave the process: JSON or a table on stdout, and the options of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from kgbench.errors import InputError, OutputError
from kgbench.progress import Progress, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kgbench.local_server import LocalServer
    from kgbench.report import Report

Shown = TypeVar("Shown")

CONTROL = re.compile(
    r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters of terminals, characters of text direction, and lone surrogates."""


_PLAIN = str.maketrans({"−": "-", "–": "-", "×": "x", "→": "->", "…": "...", "’": "'"})
"""Characters of tables and sentences for streams of narrow encodings."""


def terminal_text(text: str) -> str:
    """Text with tabs and line ends; other control characters are shown as their code."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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
        if not shown:
            return 0  # click asks so whether the stream takes text
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            shown.encode(encoding)
        except UnicodeEncodeError:
            plain = shown.translate(_PLAIN)
            shown = plain.encode(encoding, "backslashreplace").decode(encoding)
        with self._written():
            return self._stream.write(shown)

    def flush(self) -> None:
        """Write what is held back."""
        with self._written():
            self._stream.flush()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Refuse a stream that takes nothing, as of a file on a full disk.

        Raises:
            OutputError: It takes nothing; what it holds back is dropped.
        """
        try:
            yield
        except BrokenPipeError:  # of a reader that has seen enough
            raise
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


@dataclass(frozen=True)
class Output:
    """What a command prints, and its exit status."""

    parts: Sequence[str | Report] = ()
    """Lines, tables and reports; none where everything but JSON is printed already."""
    json: Any = None
    """The value that `--json` prints."""
    status: int = 0
    brief: str | None = None
    """What `--quiet` prints, where it is something else."""

    def text(self, as_json: bool = False, quiet: bool = False) -> str:
        """What is printed."""
        if as_json:
            return json_text(self.json)
        if quiet and self.brief is not None:
            return self.brief
        return "\n".join(map(_text, self.parts))

    def print(self, as_json: bool = False, quiet: bool = False) -> int:
        """Print it, and return the exit status."""
        if as_json or self.parts:
            click.echo(self.text(as_json, quiet))
        return self.status


def _text(part: str | Report) -> str:
    if isinstance(part, str):
        return part
    from kgbench.report import to_text

    return to_text(part)


def json_text(value: Any) -> str:
    """One JSON value; a number that JSON does not have is an error."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def shortened(text: str, width: int) -> str:
    """A text of some width at most."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def table_text(
    headers: Sequence[str], rows: Sequence[Sequence[str]], one_line: bool = False
) -> str:
    """Rows under headers; the last column wraps at the width of the terminal, or is cut there."""
    from tabulate import tabulate

    from kgbench.report import wrapped

    columns = list(zip(headers, *rows, strict=True))
    before = sum(max(map(len, column)) + 2 for column in columns[:-1])
    room = max(shutil.get_terminal_size().columns - before, 30)
    fit = shortened if one_line else wrapped
    fitted = [[*row[:-1], fit(row[-1], width=room)] for row in rows]
    return tabulate(fitted, headers=headers, tablefmt="simple", disable_numparse=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    from kgbench.records import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror}; name a file in a folder that is there "
            "and can be written"
        ) from error


SUFFIXES = (".png", ".svg", ".pdf")
"""Of files of pictures."""


def picture_kind(path: Path) -> str:
    """The format of a picture by the name of its file.

    Raises:
        InputError: The name ends with none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--output {str(path)!r}: expected a name that ends with {', '.join(SUFFIXES)}"
        )
    return path.suffix.lower()[1:]


def write_picture(path: Path, draw: Callable[[Shown], Figure], shown: Shown) -> None:
    """Draw into a file, whole or not at all.

    Raises:
        InputError: The name ends with none of `SUFFIXES`.
        OutputError: The file cannot be written.
    """
    from kgbench.report.bars import picture_bytes

    (content,) = picture_bytes(draw, shown, picture_kind(path))
    write_file(path, content)


@contextmanager
def working(as_json: bool, quiet: bool = False) -> Iterator[Progress | None]:
    """Work with a progress bar; what a library prints does not mix with the JSON object.

    Yields:
        The progress callback, or None.
    """
    with redirect_stdout(sys.stderr if as_json else sys.stdout), progress(not quiet) as report:
        yield report


def until_interrupted(server: LocalServer) -> None:
    """Print the address of a server and answer until Ctrl-C."""
    with server, suppress(KeyboardInterrupt):
        click.echo(f"{server.address}    (Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()
