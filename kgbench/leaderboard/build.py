"""From entries to boards, and from boards to LEADERBOARD.md and the site, written or served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import zip_longest
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tabulate import tabulate

from kgbench.errors import InputError, OutputError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Leaderboard, Table, spread_text
from kgbench.leaderboard.boards import all_boards
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.leaderboard.folders import RESULTS
from kgbench.leaderboard.site.pages import POLICY, render_site
from kgbench.local_server import LocalServer, names_this_machine
from kgbench.records import RecordStore, write_whole
from kgbench.report import Dash, Footnotes, markdown_text

MARKDOWN, SITE = "LEADERBOARD.md", "site"

HEAD = """# Leaderboard

Localizers say where a finetuned model retrieves a fact from; these tables say how well they do. For *planted facts* it is known which
weights learned them; *budget* measures how much the sites bring that a method ranks first; for *pathways* no truth is known. A figure
is only given to a method that was run on all cells that it is over. Tables with ranks are in the order of the figure that ranks, others
by name; methods in italics are baselines, which look at no model or know the answer. `kgbench view --board leaderboard` shows pages
with pictures, single cells and runs; how to add a method is in [README.md](README.md). `kgbench leaderboard build`
writes this file.

The ranks of a method are a 95 % confidence set of its true rank: from 1 + the number of significantly better methods to the number of
all that are ranked less the significantly worse ones (all paired differences of a table at once). A method that differs significantly
from no other has no rank, nor has one that breaks a law of localizers (`kgbench check-localizer`). What the levels of plants are, and
which differences can be shown, is in [Planted facts](../docs/results/plants.md). The source *maintainers* is kgbench's own methods, run
by the project; *verified* is what a maintainer ran again and it agreed; *self-reported* is what only the submitter has run: its ranks
stand in brackets, and the ranks of others and the sentences on who leads leave it out.
"""

TIES = "metric version 1: ties counted for the method"
UNTRIED = "contract not run: no record that the laws of localizers were tried"


def make_leaderboard(entries: Sequence[Entry]) -> Leaderboard:
    """All boards of some entries, whatever order these come in."""
    entries = sorted(entries, key=lambda entry: (entry.method, entry.pair, entry.result.id))
    older = {e.result.id for e in entries if e.result.identity.ties_count_for_the_target}
    marks = {TIES: older, UNTRIED: {e.result.id for e in entries if e.untried}}

    def marked(table: Table) -> Table:
        notes = list(table.notes)
        for mark, ids in marks.items():
            if names := [line.method for line in table.lines if not ids.isdisjoint(line.runs)]:
                of = "all methods" if len(names) == len(table.lines) else ", ".join(names)
                notes.append(f"{mark} ({of})")
        return replace(table, notes=tuple(notes))

    boards = all_boards(entries)
    made = [replace(board, tables=tuple(map(marked, board.tables))) for board in boards]
    return Leaderboard(tuple(made), tuple(entries))


# ----------------------------------------------------------------------------------- LEADERBOARD.md


def render_markdown(leaderboard: Leaderboard) -> str:
    """Tables over all cells of each board, with its best method; equal boards give equal texts."""
    texts = [HEAD]
    for board in leaderboard.boards:
        parts = [
            f"## {board.title} ({board.versioned})",
            board.about,
            f"**{markdown_text(board.lead)}**",
        ]
        for table in board.tables:
            if table.brief and not table.scope:
                parts += _markdown_table(table)
        texts.append("\n\n".join(filter(None, parts)) + "\n")
    return "\n".join(texts)


def _markdown_table(table: Table) -> Iterator[str]:
    """Title, figures, footnotes, reasons why there is no rank, and notes."""
    columns, footnotes = table.ordered_columns, Footnotes()
    heads = ["ranks", "method", "source", "cells", *(markdown_text(c.title) for c in columns)]
    rows, shown = [], []
    for line in table.lines:
        have, of = line.coverage
        method = f"`{line.method}`"  # no marks in it, by the pattern of names
        method = f"*{method}*" if line.baseline else method
        method += f" (breaks a law: {line.broken_text})" if line.broken else ""
        figures = [line.figures.get(column.key, Dash()) for column in columns]
        shown += [figure for figure in figures if isinstance(figure, Estimate)]
        cells = map(footnotes.cell, figures)
        rows.append([line.rank_text or "–", method, line.badge, f"{have} of {of}", *cells])
    reasons = []
    for reason, names in table.unranked.items():
        reasons.append(f"without a rank: {', '.join(names)}: {reason}")
    if table.ranked_by is None:
        heads, rows, reasons = heads[1:], [row[1:] for row in rows], []
    spread = spread_text(shown, table.spread)
    notes = [f"{spread}.", *table.notes] if spread else table.notes
    yield f"{table.title}:"
    yield tabulate(rows, heads, "github", disable_numparse=True) if rows else "No entries yet."
    for lines in (footnotes.lines(), reasons, notes):
        yield "\n".join(f"- {markdown_text(line)}" for line in lines)


# -------------------------------------------------------------------------------------------- files


def results_folder(root: Path) -> Path:
    """The folder of a leaderboard's entries.

    Raises:
        InputError: If there is none.
    """
    if not (root / RESULTS).is_dir():
        raise InputError(
            f"{root} is no leaderboard: expected a folder {RESULTS!r} in it; give the place of "
            "one, such as leaderboard in a clone"
        )
    return root / RESULTS


def outputs(root: Path, entries: Sequence[Entry] | None = None) -> dict[str, bytes]:
    """Every file of the board by its path; the same entries give the same bytes.

    Args:
        root: The leaderboard's folder.
        entries: Its entries, where they were read already.

    Raises:
        DataError: If an entry does not read.
        InputError: If the folder holds no results.
    """
    results = results_folder(root)
    leaderboard = make_leaderboard(list(read_entries(results)) if entries is None else entries)
    pages = {f"{SITE}/{path}": content for path, content in render_site(leaderboard)}
    return {MARKDOWN: render_markdown(leaderboard).encode(), **pages}


def build(root: Path) -> tuple[int, int]:
    """Write the files of the board that differ, and delete pages of records that are gone.

    All files are made before one is written, so that an entry that gives none leaves it as it was.

    Returns:
        How many files there are, and how many of them were written or deleted.

    Raises:
        OutputError: If one cannot be written, or a link leads out of the board.
    """
    places = [root / MARKDOWN, root / SITE, *sorted((root / SITE).rglob("*"))]
    if links := list(filter(Path.is_symlink, places)):
        raise OutputError(
            f"{links[0]} is a link, and the board is written to plain folders only; delete it"
        )
    files = {root / name: content for name, content in outputs(root).items()}
    try:
        there = set(filter(Path.is_file, places))
        new = [path for path in files if path not in there or path.read_bytes() != files[path]]
        stale = there - files.keys()
        for path in stale:
            path.unlink()
        for path in filter(Path.is_dir, reversed(places)):
            if not any(path.iterdir()):
                path.rmdir()
        for path in sorted(new, key=lambda path: path.name == MARKDOWN):  # the summary last
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, files[path])
    except OSError as error:
        raise OutputError(
            f"cannot write the board to {str(root)!r}: {error.strerror or error}"
        ) from error
    return len(files), len(new) + len(stale)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder that is empty, or holds hidden files alone.

    Raises:
        InputError: It holds others.
        OutputError: It cannot be written.
    """
    try:
        if any(not path.name.startswith(".") for path in folder.glob("*")):
            raise InputError(f"{folder} holds other files: give an empty folder, or a new one")
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, content)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from error


def differences(root: Path, entries: Sequence[Entry] | None = None) -> list[str]:
    """Differences of the Markdown from the entries; pages are rendered, too, but not compared.

    Args:
        root: The leaderboard's folder.
        entries: As of `outputs`.

    Raises:
        DataError: If an entry does not read, or gives no page.
        InputError: If the folder holds no results.
    """
    path, expected = root / MARKDOWN, outputs(root, entries)[MARKDOWN]
    if path.is_symlink():
        return [f"{path}: it is a link"]
    if not path.is_file():
        return [f"{path}: it is missing; run kgbench leaderboard build"]
    has, gives = (text.splitlines(keepends=True) for text in (path.read_bytes(), expected))
    for number, (line, given) in enumerate(zip_longest(has, gives, fillvalue=b""), 1):
        if line != given:
            wrong = f"it has {line[:200]!a}, and the entries give {given[:200]!a}"
            return [f"{path}: line {number}: {wrong}"]
    return []


# ------------------------------------------------------------------------------------------ serving


def board_pages(root: Path, own: Sequence[Entry] = ()) -> dict[str, bytes]:
    """Pages of a leaderboard by their paths, with the reader's own runs under the badge `yours`.

    Raises:
        DataError: If an entry does not read.
        InputError: If there is no leaderboard.
    """
    entries = {entry.result.id: entry for entry in (*own, *read_entries(results_folder(root)))}
    return dict(render_site(make_leaderboard(list(entries.values()))))


def own_entries(folder: Path) -> list[Entry]:
    """Runs of a folder, each once; one that is damaged gives a warning."""
    stored = RecordStore(folder).scan()
    return list({run.record.id: Entry(run.path, run.record) for run in stored}.values())


Pages = Callable[[str], bytes | None]
"""Gives a page by its path; None where there is none."""


def site_server(pages: Pages, port: int) -> LocalServer:
    """A server of pages for this machine alone.

    Raises:
        InputError: If the port cannot be had.
    """
    return LocalServer(partial(_Pages, pages), port)


class _Pages(BaseHTTPRequestHandler):
    """Pages only, and only to who asks for this machine by its own name."""

    def __init__(self, pages: Pages, *connection: Any) -> None:
        self.pages = pages
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Send a page, but not to another site's page that made a browser ask."""
        path = unquote(urlsplit(self.path).path).removeprefix("/") or "index.html"
        if not names_this_machine(self.headers):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "asked for by another name")
        elif (content := self.pages(path)) is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no such page")
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", guess_type(path)[0] or "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def end_headers(self) -> None:
        """Headers: no caching, nothing from elsewhere, no frames."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", f"{POLICY};frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No log."""
