"""The library of models, used by one thread at a time and in silence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from transformers.utils import logging as transformers_logging

_LIBRARY = RLock()


@contextmanager
def in_turn() -> Iterator[None]:
    """One thread at a time: while it makes models, the library changes what the process shares."""
    with _LIBRARY:
        yield


@contextmanager
def quiet_library() -> Iterator[None]:
    """Silence transformers' progress bars, advice and reports, `in_turn`."""
    with in_turn():
        bars = transformers_logging.is_progress_bar_enabled()
        verbosity = transformers_logging.get_verbosity()
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()
