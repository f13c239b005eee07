"""Ctrl-C in processes that tests start."""

from __future__ import annotations

import signal

__all__ = ["hears_interrupts"]


def hears_interrupts() -> None:
    """Let a child end on SIGINT: it inherits from whoever runs the tests that it is ignored, as
    under `nohup make test &`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
