"""Progress of long work: the callback, and a bar in a terminal or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all (0 where that is unknown), and the current task."""


@contextmanager
def progress(shown: bool = True) -> Iterator[Progress | None]:
    """Progress bar with an estimate of the time left; gives its callback.

    Args:
        shown: False for none; it is also left out where stderr is neither a terminal nor a
            notebook's, and the callback is None then.
    """
    if not (shown and ("ipykernel" in sys.modules or sys.stderr.isatty())):
        yield None
        return
    from tqdm.std import tqdm  # of text, which needs no widgets in a notebook

    with tqdm(total=None, leave=False, file=sys.stderr, desc="loading") as bar:

        def report(done: int, total: int, description: str) -> None:
            bar.total = total or None
            # Names come from users, and a terminal must not obey them.
            text = "".join(each if each.isprintable() else "?" for each in description)
            bar.set_description(text, refresh=False)
            bar.n = done
            bar.refresh()

        yield report


def numbered(report: Progress | None, number: int, parts: int) -> Progress | None:
    """The callback of one of several parts, whose number comes before the task."""
    if report is None:
        return None
    return lambda done, total, text: report(done, total, f"{number} of {parts}: {text}")


def with_progress(shown: Progress | bool, work: Callable[[Progress | None], T]) -> T:
    """The result of work that takes a progress callback.

    Args:
        shown: The callback, True for a bar, False for none.
        work: What is done.
    """
    if not isinstance(shown, bool):
        return work(shown)
    with progress(shown) as report:
        return work(report)
