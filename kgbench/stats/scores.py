"""Per-fact scores: the metrics, and one prompt's stored rows as columns by configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np
import pyarrow as pa

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.records.fact_rows import spans
from kgbench.stats.intervals import Array

METRICS = (
    "top1",
    "top5",
    "top10",
    "top20",
    "top50",
    "top100",
    "log_rank",
    "mrr",
    "prob",
    "logprob",
    "logit_diff",
)
"""Top-k hit, natural logarithm of the rank (0 is best, lower is better), reciprocal rank,
probability, log-probability (nats), logit difference."""

LOG_RANK = "log_rank"
"""Its mean, unlike that of ranks, is not dominated by few facts."""

DEFAULT_METRIC = "top5"

HITS = tuple(name for name in METRICS if name.startswith("top"))

SUPPORT = dict.fromkeys((*HITS, "mrr", "prob"), (0.0, 1.0))
"""Bounds of each metric; means of others are bounded by those of the prompt's configurations."""

ONLY_SHARES = (
    "the readout writes texts, so that the only metric is prob, the share that meets the criterion"
)
"""Why other metrics of such rows are undefined."""

Columns = Mapping[str, Array]
"""Stored columns [n] by name."""
Scores = Mapping[str, Array]
"""Per-fact scores [n] by configuration, over the same facts in the same order."""


def support_of(scores: Iterable[Array], metric: str = "") -> tuple[float, float]:
    """Bounds of means: the metric's own, else the least and the largest mean of these scores."""
    if metric in SUPPORT:
        return SUPPORT[metric]
    centres = [fsum(values.tolist()) / len(values) for values in scores]
    return min(centres), max(centres)


def check_metric(metric: str) -> str:
    """The metric's name as METRICS has it; `rr`, its name in earlier records, is read as `mrr`.

    Raises:
        UnknownNameError: If there is no such metric.
    """
    if not isinstance(metric, str):
        raise InputError(
            f"the metric is a {type(metric).__name__}; expected one name, such as 'top1'. A run has "
            "the means of all metrics, and its ratios are on one"
        )
    name = "mrr" if metric == "rr" else metric
    if name not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    return name


def has_metric(columns: Collection[str], metric: str) -> bool:
    """Whether stored columns of these names give a metric."""
    return metric == "prob" or "rank" in columns


def score(columns: Columns, metric: str) -> Array:
    """Per-fact scores [n] of a metric.

    Args:
        columns: Arrays [n] by name: `rank`, `prob`, `logprob`, `logit_diff`, as far as the metric
            needs them.
        metric: One of METRICS.

    Returns:
        Booleans for hits, floats otherwise.

    Raises:
        InputError: The rows are of texts, which have another metric only.
    """
    name = check_metric(metric)
    if not has_metric(columns, name):
        raise InputError(f"there is no {name} in these rows: {ONLY_SHARES}")
    if name == LOG_RANK:
        logs: Array = np.log(np.asarray(columns["rank"], float))
        return logs
    if name.startswith("top"):
        return np.asarray(columns["rank"]) <= int(name[3:])
    if name == "mrr":
        return 1.0 / np.asarray(columns["rank"], float)
    return np.asarray(columns[name], float)


def numbers(scores: Array) -> Array:
    """Hits as integers, so that they can be subtracted and yet differ in type from other scores."""
    return scores.astype(np.int64 if scores.dtype == bool else np.float64)


@dataclass(frozen=True)
class PromptColumns:
    """One prompt's columns of each configuration over the same facts."""

    name: str
    columns: Mapping[str, Columns]
    """By configuration."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return len(self.facts)

    @property
    def facts(self) -> Array:
        """Ids of the facts."""
        return self.columns["PRE"]["fact"]

    def over(self, facts: Array) -> PromptColumns:
        """The columns over some of the facts."""
        mask, columns = np.isin(self.facts, facts), {}
        for graft, of_graft in self.columns.items():
            columns[graft] = {name: values[mask] for name, values in of_graft.items()}
        return PromptColumns(self.name, columns)

    def scores(self, metric: str, facts: Array | None = None) -> dict[str, Array]:
        """Per-fact scores [n] of each configuration.

        Args:
            metric: One of METRICS.
            facts: Only of these; by default of all.
        """
        if facts is not None and not np.array_equal(facts, self.facts):
            return self.over(facts).scores(metric)
        return {graft: score(columns, metric) for graft, columns in self.columns.items()}


def by_prompt(facts: pa.Table, order: Sequence[str]) -> list[PromptColumns]:
    """Each prompt's columns, prompts by name.

    Args:
        facts: Per-fact rows, sorted. Where a prompt was read at several positions, the last counts.
        order: Configurations that come first; others follow by name.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the
            same facts.
    """
    prompts = []
    places, scores = spans(facts), facts.drop_columns(["prompt", "graft"])
    arrays = {name: scores[name].to_numpy() for name in scores.column_names}
    last = np.append(arrays["fact"][1:] != arrays["fact"][:-1], True)  # of several positions
    for name in dict.fromkeys(prompt for prompt, _ in places):
        grafts = [graft for prompt, graft in places if prompt == name]
        columns = {}
        for graft in _ordered(grafts, order):
            start, n = places[name, graft]
            last[start + n - 1] = True
            rows = start + np.flatnonzero(last[start : start + n])
            columns[graft] = {key: values[rows] for key, values in arrays.items()}
        for graft in ("PRE", "SFT"):
            if graft not in columns:
                raise DataError(
                    f"per-fact rows: prompt {name} was not run under {graft}, without which there "
                    "is no ratio"
                )
        ids = columns["PRE"]["fact"]
        for graft, column in columns.items():
            if not np.array_equal(column["fact"], ids):
                raise DataError(
                    f"per-fact rows: prompt {name} was run over {len(ids)} facts under PRE and "
                    f"over others under {graft}"
                )
        prompts.append(PromptColumns(name, columns))
    return prompts


def _ordered(grafts: Sequence[str], order: Sequence[str]) -> list[str]:
    """Configurations in the order given, then others naturally."""
    first = [graft for graft in dict.fromkeys(order) if graft in grafts]
    return [*first, *naturally(set(grafts).difference(first))]


def naturally(names: Iterable[str]) -> list[str]:
    """Names sorted, numbers in them by their size: layer 2 before layer 10."""

    def key(name: str) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    return sorted(names, key=key)
