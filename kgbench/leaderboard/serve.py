"""The leaderboard's pages on this machine, with the reader's own runs beside the board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from kgbench.errors import InputError, OutputError
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.leaderboard.model import Leaderboard
from kgbench.leaderboard.site import render_site
from kgbench.records import RecordStore

__all__ = ["own_entries", "serve", "site_server", "write_site"]

HOST = "127.0.0.1"


def serve(root: Path, port: int, own: Path | None, announce: Callable[[str], None] = print) -> None:
    """Render the pages into a temporary folder and serve them until interrupted.

    Args:
        root: The leaderboard's folder, which holds `results/`.
        port: Port on this machine; 0 takes a free one.
        own: Folder with the reader's own runs, shown with the badge `yours`; None for none.
        announce: Told the address once it answers.

    Raises:
        DataError: If an entry does not read.
        InputError: If the port cannot be had.
    """
    entries = list(read_entries(root / "results"))
    entries += own_entries(own, entries) if own is not None else []
    with TemporaryDirectory(prefix="kgbench-leaderboard-") as folder:
        write_site(make_leaderboard(entries), Path(folder))
        with site_server(Path(folder), port) as server:
            announce(f"http://{HOST}:{server.server_port}/")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return


def own_entries(own: Path, board: list[Entry]) -> list[Entry]:
    """The runs of a folder that are not on the board already; of each damaged one a `DamagedRecordWarning` tells."""
    there = {entry.record.id for entry in board}
    found = {stored.record.id: Entry(stored.path, stored.record, None, None) for stored in RecordStore(own).scan()}
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
    """A server of a folder's files on this machine, to nobody else.

    Raises:
        InputError: If the port cannot be had.
    """
    try:
        server = _Server((HOST, port), partial(_Files, directory=str(folder)))
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on port {port}: {error}; give another one by --port, or 0 for a free one") from error
    try:
        yield server
    finally:
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Takes as many connections at once as a busy browser opens."""

    request_queue_size = 64
    daemon_threads = True


class _Files(SimpleHTTPRequestHandler):
    """Files only, no lists of folders, and only to who asks for this machine by its own name."""

    def send_head(self) -> object:  # type: ignore[override]
        """Refuse what another site's page could have made a browser ask."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if name not in (HOST, "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "asked for by another name")
            return None
        return super().send_head()

    def list_directory(self, path: object) -> None:
        """Nothing: every page is linked from the first."""
        self.send_error(HTTPStatus.NOT_FOUND, "no such page")

    def end_headers(self) -> None:
        """Pages change when they are served again."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""
