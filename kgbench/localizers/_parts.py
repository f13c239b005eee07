"""Parts of a long scoring: what an earlier process computed is not computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import call

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, "_ prompt"]
Keep = Callable[[Callable[[], Values]], Values]
"""Computes the next part, or gives what is known of it; parts always come in the same order."""

_KEEP: ContextVar[Keep] = ContextVar("keep", default=call)


@contextmanager
def keeping(keep: Keep) -> Iterator[None]:
    """Set where the parts of scorings in the block are kept."""
    token = _KEEP.set(keep)
    try:
        yield
    finally:
        _KEEP.reset(token)


def part(compute: Callable[[], Values]) -> Values:
    """The next part of a scoring, computed once."""
    return _KEEP.get()(compute)
