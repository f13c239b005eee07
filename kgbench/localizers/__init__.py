"""Localizers: methods that locate where a finetuned fact is retrieved, one per file."""

from __future__ import annotations

from kgbench.localizers._base import (
    COSTS,
    FLOORS,
    KINDS,
    NEEDS,
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
    Unit,
)
from kgbench.localizers._registry import (
    check_name,
    class_fingerprint,
    create,
    created,
    describe,
    fingerprint,
    is_foreign,
    names,
    needs,
    parameters_of,
    score_meaning,
)

__all__ = [
    "COSTS",
    "FLOORS",
    "KINDS",
    "NEEDS",
    "AbstractLocalizer",
    "InterventionLocalizer",
    "ScoringLocalizer",
    "Treatments",
    "Unit",
    "check_name",
    "class_fingerprint",
    "create",
    "created",
    "describe",
    "fingerprint",
    "is_foreign",
    "names",
    "needs",
    "parameters_of",
    "score_meaning",
]
