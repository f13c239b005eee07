"""Per-fact scores of each metric, from the stored columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from kgbench.errors import UnknownNameError
from kgbench.stats import LEVEL, Figure, wilson

__all__ = ["DEFAULT_METRIC", "LOG_RANK", "METRICS", "check_metric", "median_rank", "name_prior", "score"]

METRICS = ("top1", "top5", "top10", "top20", "top50", "top100", "rank", "rr", "prob", "logprob", "logit_diff")
"""Top-k hit, rank (1 is best, lower is better), reciprocal rank, probability, log-probability (nats), logit difference."""

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
        columns: Arrays [n] by name: `rank`, `prob`, `logprob`, `logit_diff`, as far as the metric needs them.
        metric: One of METRICS, or `log_rank`, the natural logarithm of the rank, which no record stores.

    Returns:
        Booleans for hits, floats otherwise.
    """
    if metric == LOG_RANK:
        logs: Array = np.log(np.asarray(columns["rank"], float))
        return logs
    name = check_metric(metric)
    if name.startswith("top"):
        return np.asarray(columns["rank"]) <= int(name[3:])
    if name == "rr":
        return 1.0 / np.asarray(columns["rank"], float)
    return np.asarray(columns[name], float)


def median_rank(ranks: Array) -> Figure:
    """The median over facts; its interval ends at two ranks in order (the sign test's), whatever the distribution.

    Args:
        ranks: Of each fact [n].
    """
    n = len(ranks)
    end = int(binom.ppf((1 - LEVEL) / 2, n, 0.5))
    if end < 1:
        return Figure.missing(f"{n} fact{'s' * (n != 1)}, and an interval of a median needs six", n)
    ordered = np.sort(np.asarray(ranks, float))
    return Figure(float(np.median(ordered)), float(ordered[end - 1]), float(ordered[n - end]), n)


def name_prior(targets: Array, k: int = 5) -> Figure:
    """The hit rate of always predicting the k most frequent first tokens of these facts.

    The tokens are chosen on the facts that they are scored on, which favours this baseline.

    Args:
        targets: Target token ids [n].
        k: How many tokens are predicted.
    """
    counts = np.unique(np.asarray(targets), return_counts=True)[1]
    return wilson(int(np.sort(counts)[-k:].sum()), len(targets))
