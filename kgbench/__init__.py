"""Where does a language model retrieve a finetuned fact from?

The public names below load on first use, so importing the package costs
nothing and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgbench.api import Evaluation, evaluate, explore
    from kgbench.engine import grafted_logits, load_pair
    from kgbench.runner import load_prompts
    from kgbench.sites import parse_graft

__all__ = [
    "Evaluation",
    "__version__",
    "evaluate",
    "explore",
    "grafted_logits",
    "load_pair",
    "load_prompts",
    "parse_graft",
]

__version__ = "0.1.0"

_HOMES = {
    "Evaluation": "kgbench.api",
    "evaluate": "kgbench.api",
    "explore": "kgbench.api",
    "grafted_logits": "kgbench.engine",
    "load_pair": "kgbench.engine",
    "load_prompts": "kgbench.runner",
    "parse_graft": "kgbench.sites",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
