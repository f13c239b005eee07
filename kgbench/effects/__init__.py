"""What grafts do: recovery, sufficiency, necessity, synergy, and one sentence over a run."""

from __future__ import annotations

from kgbench.effects.against_truth import Ground, against_truth
from kgbench.effects.judged import (
    best_effects,
    pathways_of,
    verdict_of,
    with_clause,
)
from kgbench.effects.ranking import agreement, graded_precision
from kgbench.effects.ratios import COMPLEMENTS, gain, necessity, recovery, sufficiency, synergy
from kgbench.effects.rescored import rescored
from kgbench.effects.scores import DEFAULT_METRIC, METRICS, name_prior, score
from kgbench.effects.summary import Summary, summarize
from kgbench.effects.verdict import verdict

__all__ = [
    "COMPLEMENTS",
    "DEFAULT_METRIC",
    "METRICS",
    "Ground",
    "Summary",
    "against_truth",
    "agreement",
    "best_effects",
    "gain",
    "graded_precision",
    "name_prior",
    "necessity",
    "pathways_of",
    "recovery",
    "rescored",
    "score",
    "sufficiency",
    "summarize",
    "synergy",
    "verdict",
    "verdict_of",
    "with_clause",
]
