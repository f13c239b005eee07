"""The engine: next-token logits of a model pair under a treatment per token."""

from kgbench.engine.edits import Treatment
from kgbench.engine.engine import EXECUTORS, Engine, grafted_logits
from kgbench.engine.grafted_model import as_model
from kgbench.engine.plan import Answers, Budget, Plan
from kgbench.engine.selftest import load_pair

__all__ = [
    "EXECUTORS",
    "Answers",
    "Budget",
    "Engine",
    "Plan",
    "Treatment",
    "as_model",
    "grafted_logits",
    "load_pair",
]
