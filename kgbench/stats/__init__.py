"""Arrays in, estimates out: intervals, recovery and what follows from it, ranking."""

from __future__ import annotations

from kgbench.stats.intervals import (
    FEW,
    LEVEL,
    Parts,
    Resampled,
    apart,
    difference,
    hit_rate,
    linearised,
    mean,
    mean_of,
    rate_interval,
    ratio,
    resample,
    resampled_ratios,
    resampled_strata,
    stratified_mean,
)
from kgbench.stats.ranking_quality import agreement
from kgbench.stats.ratios import necessity, recovery, sufficiency
from kgbench.stats.scores import DEFAULT_METRIC, METRICS, score
from kgbench.stats.summary import (
    Ground,
    against_truth,
    best_effects,
    pathways_of,
    rescored,
    verdict_of,
    with_clause,
)

__all__ = [
    "DEFAULT_METRIC",
    "FEW",
    "LEVEL",
    "METRICS",
    "Ground",
    "Parts",
    "Resampled",
    "against_truth",
    "agreement",
    "apart",
    "best_effects",
    "difference",
    "hit_rate",
    "linearised",
    "mean",
    "mean_of",
    "necessity",
    "pathways_of",
    "rate_interval",
    "ratio",
    "recovery",
    "resample",
    "resampled_ratios",
    "resampled_strata",
    "rescored",
    "score",
    "stratified_mean",
    "sufficiency",
    "verdict_of",
    "with_clause",
]
