"""The paper's claims as tests: `pytest --pyargs kgbench.claims --kgbench-model NAME`.

The claims are those of arXiv 2506.20746. Their bounds lie between values that the paper's figures
separate, not between those of any pair. `kgbench.claims.bench` times a localizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

__all__ = ["cites"]

Test = TypeVar("Test", bound=Callable[..., None])


def cites(*lines: str) -> Callable[[Test], Test]:
    """Cite the paper's rates in a test's docstring.

    Args:
        lines: Such as `Gemma on qa: SFT, FE+LT`, see `kgbench.leaderboard.published.cited`.
    """
    from kgbench.leaderboard.published import cited

    def decorate(test: Test) -> Test:
        claim = inspect.cleandoc(test.__doc__ or "")
        test.__doc__ = "\n".join([claim, "", *map(cited, lines)])
        return test

    return decorate
