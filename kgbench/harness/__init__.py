"""kgbench in the Language Model Evaluation Harness: tasks, and a model under a graft.

Nothing here loads lm-eval or torch until it is used; `pip install 'kgbench[lm-eval]'` brings both.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from kgbench.errors import InputError
from kgbench.harness.task_files import tasks_path

__all__ = ["MODEL", "REQUEST", "needs_lm_eval", "register", "tasks_path"]

MODEL = "kgbench"
"""Name of the model, for lm-eval's `--model`."""

REQUEST = "kgbench_configurations"
"""Request type of tasks of effects: the name of the model's method that answers it."""

_CLASS = "kgbench.harness.model:KgbenchLM"


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
    """Register the model with lm-eval; call it once before `simple_evaluate(model="kgbench")`.

    Raises:
        InputError: lm-eval is not installed.
    """
    needs_lm_eval()
    # This import fills lm-eval's registry. lm-eval does so by itself only while it is empty,
    # so that a model registered before would hide all built-in ones.
    import_module("lm_eval.models")
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=_CLASS)
