"""kgbench in the Language Model Evaluation Harness: its tasks, and a model that answers under a graft.

Nothing here needs lm-eval or torch until it is used: the package is installed with ``pip install 'kgbench[lm-eval]'``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kgbench.errors import InputError

__all__ = ["MODEL", "REQUEST", "needs_lm_eval", "register", "tasks_path"]

MODEL = "kgbench"
"""What lm-eval's ``--model`` calls ours."""

REQUEST = "kgbench_configurations"
"""What tasks of effects ask of a model: the name of its method."""

_CLASS = "kgbench.harness.model:KgbenchLM"


def tasks_path() -> Path:
    """The folder of the tasks, for lm-eval's ``--include_path``: in the wheel within the package, in a checkout beside it."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "tasks", package.parent / "tasks") if path.is_dir())


def needs_lm_eval() -> None:
    """Refuse what cannot be done without lm-eval.

    Raises:
        InputError: It is not installed.
    """
    if find_spec("lm_eval") is None:
        raise InputError(
            "this needs lm-eval, which is not installed: pip install 'kgbench[lm-eval]'"
        )


def register() -> None:
    """Make ``--model kgbench`` known to lm-eval; from Python, call it once before `simple_evaluate(model="kgbench", ...)`.

    Raises:
        InputError: lm-eval is not installed.
    """
    needs_lm_eval()
    import_module(
        "lm_eval.models"
    )  # fills the registry, which a model of ours in it would otherwise keep empty
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=_CLASS)
