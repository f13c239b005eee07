"""The leaderboard's pages on this machine, with the reader's own runs added."""

from __future__ import annotations

import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any
from urllib.parse import unquote

from kgbench.errors import InputError, OutputError
from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.build import make_leaderboard, results_folder
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.leaderboard.site.pages import POLICY, render_site
from kgbench.records import RecordStore

__all__ = ["own_entries", "serve", "site_server", "write_site"]

HOST = "127.0.0.1"


def serve(root: Path, port: int, own: Path | None, announce: Callable[[str], None] = print) -> None:
    """Render the pages into a temporary folder and serve them until Ctrl-C, SIGTERM or SIGHUP.

    Call it from the main thread, which is the one that signals reach.

    Args:
        root: The leaderboard's folder, which holds `results/`.
        port: Port on this machine; 0 takes a free one.
        own: Folder with the reader's own runs, shown with the badge `yours`; None for none.
        announce: Callback for a line each: what is read, and the address once it answers.

    Raises:
        DataError: If an entry does not read.
        InputError: If there is no leaderboard, or the port cannot be had.
    """
    results = results_folder(root)
    with (
        _ended_by_signals(),
        TemporaryDirectory(prefix="kgbench-leaderboard-") as folder,
        site_server(Path(folder), port) as server,
    ):
        announce(f"reading {results}")
        entries = list(read_entries(results))
        yours = own_entries(own, entries) if own is not None else []
        of_own = f" and {len(yours)} of your own from {own}" if own is not None else ""
        announce(f"drawing the pages of {len(entries)} runs{of_own}")
        write_site(make_leaderboard([*entries, *yours]), Path(folder))
        with suppress(KeyboardInterrupt):
            announce(f"ready: http://{HOST}:{server.server_port}/  (Ctrl-C ends)")
            server.serve_forever()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process as Ctrl-C does, so that no temporary folder stays."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def own_entries(own: Path, board: list[Entry]) -> list[Entry]:
    """Runs of a folder that are not on the board; a damaged one gives a `DamagedRecordWarning`."""
    there = {entry.record.id for entry in board}
    found = {
        stored.record.id: Entry(stored.path, stored.record, None, None)
        for stored in RecordStore(own).scan()
    }
    return [entry for id, entry in found.items() if id not in there]


def write_site(leaderboard: Leaderboard, folder: Path) -> None:
    """Write all pages into an empty folder.

    Raises:
        OutputError: If they cannot be written.
    """
    try:
        for name, content in render_site(leaderboard):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise OutputError(f"cannot write the pages: {error.strerror or error}") from error


@contextmanager
def site_server(folder: Path, port: int) -> Iterator[ThreadingHTTPServer]:
    """A server of a folder's files, for this machine alone.

    Raises:
        InputError: If the port cannot be had.
    """
    try:
        server = _Server((HOST, port), partial(_Files, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on port {port}: {error}; give another one by --port, or 0 for a free "
            "one"
        ) from error
    try:
        yield server
    finally:
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Takes as many connections at once as a busy browser opens, each for a limited time."""

    request_queue_size = 64
    daemon_threads = True
    limit = 30.0
    """Seconds after which a connection is closed, whatever it still wants."""

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request; past the limit its connection is closed, and its thread reads the end."""

        def close() -> None:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

        timer = Timer(self.limit, close)
        timer.daemon = True
        timer.start()
        super().process_request_thread(request, client_address)
        timer.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error; anything else is a warning in one line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            warnings.warn(f"a request was not answered: {error!r}", RuntimeWarning, stacklevel=1)


class _Files(SimpleHTTPRequestHandler):
    """Files only, no lists of folders, and only to who asks for this machine by its own name."""

    def send_head(self) -> object:  # type: ignore[override]
        """Refuse what another site's page could have made a browser ask."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if name not in (HOST, "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "asked for by another name")
            return None
        if "\0" in unquote(self.path):
            self.send_error(HTTPStatus.BAD_REQUEST, "no such address")
            return None
        return super().send_head()

    def list_directory(self, path: object) -> None:
        """Nothing: every page is linked from the first."""
        self.send_error(HTTPStatus.NOT_FOUND, "no such page")

    def end_headers(self) -> None:
        """Headers: no caching, nothing from elsewhere, no frames."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", f"{POLICY};frame-ancestors 'none'")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No log."""
