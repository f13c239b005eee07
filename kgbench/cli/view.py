"""`kgbench view`: recorded runs in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from kgbench.cli.options import ExistingFolder, cli_command
from kgbench.cli.output import until_interrupted
from kgbench.errors import InputError


@cli_command("records", port={"type": click.IntRange(0, 65535)}, runs={"required": False})
def view_command(
    runs: tuple[str, ...],
    *,
    board: ExistingFolder | None,
    no_browser: bool,
    port: int = 0,
    **options: Path,
) -> None:
    """Show recorded runs in a browser, until Ctrl-C.

    A list with search, and of each run its figures, budget curves, map and single
    facts; two that are chosen are compared. A run that ends meanwhile is there
    when the list is loaded again.

    \b
    kgbench view                        # all runs of kgbench-results
    kgbench view RUN_A RUN_B
    kgbench view --board leaderboard    # the leaderboard's pages, and your runs in them

    Args:
        runs ([RUN]...): Recorded runs.  [default: all]
        board (DIR): A leaderboard: its pages are drawn, which takes a while.
        no_browser: Print the address alone.
        port (N): On this machine.  [default: a free one]
        **options: The folder of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.build import (
        Pages,
        board_pages,
        own_entries,
        results_folder,
        site_server,
    )
    from kgbench.leaderboard.entries import Entry, find_run
    from kgbench.viewer import Viewer

    output_dir = options["output_dir"]

    def read() -> list[Entry]:
        if runs:
            return [find_run(run, output_dir) for run in runs]
        return own_entries(output_dir) if output_dir.is_dir() else []

    entries = read()
    if board is not None:
        results_folder(board)
        click.echo(f"drawing the pages of {board} and {len(entries)} runs of yours")
        pages: Pages = board_pages(board, entries).get
    elif not entries:
        raise InputError(
            f"no run in {output_dir}: `kgbench eval` makes one, or name another folder by --results"
        )
    else:
        pages = Viewer(read).page
    server = site_server(pages, port)
    if not no_browser and (
        sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
    ):
        webbrowser.open(server.address)
    until_interrupted(server)
