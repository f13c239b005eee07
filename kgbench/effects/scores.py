"""Per-fact scores of each metric, from the stored columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import UnknownNameError
from kgbench.estimate import Estimate
from kgbench.stats import hit_rate

__all__ = ["DEFAULT_METRIC", "LOG_RANK", "METRICS", "check_metric", "name_prior", "score"]

METRICS = (
    "top1",
    "top5",
    "top10",
    "top20",
    "top50",
    "top100",
    "log_rank",
    "rr",
    "prob",
    "logprob",
    "logit_diff",
)
"""Top-k hit, natural logarithm of the rank (0 is best, lower is better), reciprocal rank, probability, log-probability (nats), logit
difference."""

LOG_RANK = "log_rank"
"""Its mean is that of no few facts, as a mean rank is."""

DEFAULT_METRIC = "top5"

Array = NDArray[Any]


def check_metric(metric: str) -> str:
    """The metric's name as METRICS has it; `mrr`, the mean of `rr`, is read as `rr`.

    Raises:
        UnknownNameError: If there is no such metric.
    """
    name = "rr" if metric == "mrr" else metric
    if name not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    return name


def score(columns: Mapping[str, Array], metric: str) -> Array:
    """Per-fact scores [n] of a metric.

    Args:
        columns: Arrays [n] by name: `rank`, `prob`, `logprob`, `logit_diff`, as far as the metric
            needs them.
        metric: One of METRICS.

    Returns:
        Booleans for hits, floats otherwise.
    """
    name = check_metric(metric)
    if name == LOG_RANK:
        logs: Array = np.log(np.asarray(columns["rank"], float))
        return logs
    if name.startswith("top"):
        return np.asarray(columns["rank"]) <= int(name[3:])
    if name == "rr":
        return 1.0 / np.asarray(columns["rank"], float)
    return np.asarray(columns[name], float)


def name_prior(targets: Array, k: int = 5) -> Estimate:
    """The hit rate of always predicting the k most frequent first tokens of these facts.

    The tokens are chosen on the facts that they are scored on, which favours this baseline.

    Args:
        targets: Target token ids [n].
        k: How many tokens are predicted.
    """
    counts = np.unique(np.asarray(targets), return_counts=True)[1]
    return hit_rate(int(np.sort(counts)[-k:].sum()), len(targets))
