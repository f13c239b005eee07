"""Where does a language model retrieve a finetuned fact from?

The public names below load on first use, so importing the package costs
nothing and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgbench.version import __version__

if TYPE_CHECKING:
    from kgbench.api import (
        Evaluation,
        Evaluations,
        compare,
        evaluate,
        explore,
        ls,
        open_run,
        sweep,
        train,
    )
    from kgbench.callback import GraftCallback
    from kgbench.engine import as_model, grafted_logits, load_pair
    from kgbench.runner import load_prompts
    from kgbench.sites import parse_graft
    from kgbench.submission import submit

__all__ = [
    "Evaluation",
    "Evaluations",
    "GraftCallback",
    "__version__",
    "as_model",
    "compare",
    "evaluate",
    "explore",
    "grafted_logits",
    "load_pair",
    "load_prompts",
    "ls",
    "open_run",
    "parse_graft",
    "submit",
    "sweep",
    "train",
]

_HOMES = {
    "as_model": "kgbench.engine",
    "GraftCallback": "kgbench.callback",
    "grafted_logits": "kgbench.engine",
    "load_pair": "kgbench.engine",
    "load_prompts": "kgbench.runner",
    "parse_graft": "kgbench.sites",
    "submit": "kgbench.submission",
}
"""Modules of public names that are not in `kgbench.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "kgbench.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
