"""For tests: assertions on records, the contract of localizers, and tiny random model pairs.

The names below load on first use, so that a test file that is only collected loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgbench.testing.assertions import (
        assert_localized,
        assert_necessary,
        assert_not_at,
        assert_planted,
    )
    from kgbench.testing.contract import Verdict, check_localizer, parametrize_with_checks
    from kgbench.testing.laws import Law, laws_of
    from kgbench.testing.pico import PICO_FAMILIES, pico_pair, pico_tokenizer
    from kgbench.testing.undecided import UndecidedError

__all__ = [
    "PICO_FAMILIES",
    "Law",
    "UndecidedError",
    "Verdict",
    "assert_localized",
    "assert_necessary",
    "assert_not_at",
    "assert_planted",
    "check_localizer",
    "laws_of",
    "parametrize_with_checks",
    "pico_pair",
    "pico_tokenizer",
]

_HOMES = {
    "PICO_FAMILIES": "pico",
    "Law": "laws",
    "UndecidedError": "undecided",
    "Verdict": "contract",
    "assert_localized": "assertions",
    "assert_necessary": "assertions",
    "assert_not_at": "assertions",
    "assert_planted": "assertions",
    "check_localizer": "contract",
    "laws_of": "laws",
    "parametrize_with_checks": "contract",
    "pico_pair": "pico",
    "pico_tokenizer": "pico",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
