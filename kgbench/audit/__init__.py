"""How far a figure would move under other wordings, seeds and samples of facts.

What reads records and makes figures of them needs no torch; what runs evaluations loads on first use.
"""

from __future__ import annotations

from kgbench.audit.figures import Asked, Audit, Quantity, audited
from kgbench.audit.methods import Method, Part, methods_of
from kgbench.audit.sentences import verdict_of
from kgbench.audit.tables import render_audit
from kgbench.audit.wordings import wordings_of

__all__ = [
    "Asked",
    "Audit",
    "Method",
    "Part",
    "Quantity",
    "audited",
    "methods_of",
    "render_audit",
    "verdict_of",
    "wordings_of",
]
