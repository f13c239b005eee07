"""Analyses: one question about runs each, a file per question.

An analysis describes its command: its dataclass fields are options, and `kgbench.cli.analysis`
makes the rest. Listing analyses, and the help of their commands, load no torch.
"""

from __future__ import annotations

from functools import cache

from kgbench.analyses._analysis import GRAFTS, Analysis, Answer, Inputs, Need
from kgbench.registry import Registry

__all__ = ["GRAFTS", "Analysis", "Answer", "Inputs", "Need", "analyses"]


@cache
def analyses() -> Registry:
    """All analyses, including those of installed packages (entry points `kgbench.analyses`)."""
    return Registry("analysis", __package__, "kgbench.analyses", Analysis)
