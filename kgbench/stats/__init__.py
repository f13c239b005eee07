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
    resampled_ratio,
    resampled_strata,
    stratified_mean,
)
from kgbench.stats.ranking_quality import agreement
from kgbench.stats.ratios import necessity, recovery, sufficiency
from kgbench.stats.scores import DEFAULT_METRIC, METRICS, score
from kgbench.stats.summary import (
    Ground,
    judged,
    rescored,
    verdict_of,
    with_figures,
    with_planted,
)

__all__ = [
    "DEFAULT_METRIC",
    "FEW",
    "LEVEL",
    "METRICS",
    "Ground",
    "Parts",
    "Resampled",
    "agreement",
    "apart",
    "difference",
    "hit_rate",
    "judged",
    "linearised",
    "mean",
    "mean_of",
    "necessity",
    "rate_interval",
    "ratio",
    "recovery",
    "resample",
    "resampled_ratio",
    "resampled_strata",
    "rescored",
    "score",
    "stratified_mean",
    "sufficiency",
    "verdict_of",
    "with_figures",
    "with_planted",
]
