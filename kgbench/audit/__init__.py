"""How far a figure would move under other wordings, seeds and samples of facts.

What reads records and makes figures of them needs no torch; `kgbench.audit.run`, which runs
evaluations, is imported on first use.
"""

from __future__ import annotations

from kgbench.audit.figures import Asked, Audit, Method, Part, Quantity, audited, methods_of
from kgbench.audit.report import audit_report, verdict_of

__all__ = [
    "Asked",
    "Audit",
    "Method",
    "Part",
    "Quantity",
    "audit_report",
    "audited",
    "methods_of",
    "verdict_of",
]
