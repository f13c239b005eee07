"""A progress bar on stderr, with an estimate of the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all (0 where nobody knows), and what is being done."""


@contextmanager
def progress(shown: bool = True) -> Iterator[Report | None]:
    """Give a function to report progress with; None where nobody watches.

    Args:
        shown: False for none; it is also left out where stderr is no terminal.
    """
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # Names come from users: they are text, never markup.
    what = TextColumn("{task.description}", markup=False)
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=None)

        def report(done: int, total: int, description: str) -> None:
            bars.update(task, completed=done, total=total or None, description=description)

        yield report
