"""Comparison of a run's rows with those of a repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from kgbench.estimate import Estimate, plain
from kgbench.records import Record, SiteScore
from kgbench.records.fact_rows import KEYS
from kgbench.stats.intervals import Array
from kgbench.stats.ranking_quality import agreement
from kgbench.stats.scores import DEFAULT_METRIC, Columns, score

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-6,
    "float32": 1e-3,
    "float16": 0.05,
    "bfloat16": 0.25,
}
"""Largest difference of log-probabilities by rounding on one platform, in nats, by dtype."""

RANKS = 0.01
"""Relative tolerance of ranks, at least: rank r may change by 1 + r × this."""

TIES = 0.005
"""Share of rows whose hit may flip by one rank, since two tokens are nearly equally probable."""

SCORES = 1e-3
"""Share of the spread of a map by which rounding may change a score."""

OLDER_METRIC = (
    "the record is of metric version 1, which counted ties for the method; they count against "
    "it now, so that ranks of tied answers differ"
)

Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Read:
    """What a row holds of its answer."""

    rank: int
    logprob: float


@dataclass(frozen=True)
class OtherRow:
    """A row that differs."""

    prompt: str
    graft: str
    fact: str
    stored: Read
    now: Read


@dataclass(frozen=True)
class Repeat:
    """One configuration of one prompt, stored and now."""

    prompt: str
    graft: str
    n: int
    stored: float
    """Mean of the metric."""
    now: float
    flipped: int
    """Facts whose hit differs."""
    largest: float
    """Difference of log-probabilities, in nats; of texts, of their shares."""
    others: tuple[OtherRow, ...]
    """Rows that differ by more than rounding."""

    def answer(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        fields: dict[str, Any] = plain(self)
        others = fields.pop("others")
        return {**fields, "difference": self.now - self.stored, "others": others}


@dataclass(frozen=True)
class MapRepeat:
    """A map of sites, stored and now."""

    spearman: Estimate
    largest: float
    """Difference of scores."""
    allowed: float
    missing: int
    """Sites that only one of the maps has."""

    @property
    def agrees(self) -> bool:
        """Whether the maps are the same but for rounding."""
        return self.largest <= self.allowed and not self.missing


@dataclass(frozen=True)
class Repeated:
    """A run and its repetition."""

    metric: str
    hits: str
    """The top-k hit that facts flip by; of texts `prob`, their share."""
    tolerance: float
    """In nats."""
    repeats: tuple[Repeat, ...]
    missing: tuple[Key, ...]
    """Rows that were measured now and are not stored."""
    extra: tuple[Key, ...]
    """Rows that are stored and were not measured now."""
    map: MapRepeat | None = None
    note: str = ""
    """Why some rows cannot be compared."""
    knows_answers: bool = False
    """Whether the method is given the answers, so that its scores verify nothing."""

    @property
    def rows(self) -> int:
        """Number of rows that were compared."""
        return sum(repeat.n for repeat in self.repeats)

    @property
    def largest(self) -> float:
        """Difference of log-probabilities over all rows, in nats."""
        return max((repeat.largest for repeat in self.repeats), default=0.0)

    @property
    def flipped(self) -> int:
        """Number of rows whose hit differs."""
        return sum(repeat.flipped for repeat in self.repeats)

    @property
    def others(self) -> tuple[OtherRow, ...]:
        """Rows that differ by more than rounding."""
        return tuple(chain.from_iterable(repeat.others for repeat in self.repeats))

    @property
    def agrees(self) -> bool:
        """Whether both are the same but for rounding."""
        complete = not self.missing and not self.extra and self.rows > 0
        ties = self.flipped <= ceil(TIES * self.rows)
        return complete and ties and not self.others and (self.map is None or self.map.agrees)


def repeated(
    record: Record,
    stored: pa.Table,
    now: pa.Table,
    tolerance: float | None = None,
    scores: Sequence[SiteScore] | None = None,
) -> Repeated:
    """Compare rows one by one.

    A row is the same where log-probability and logit difference agree within the tolerance, the
    target is the same, and the rank is the same but for one and a hundredth of it. Of texts the
    share is the same, but for few, where two tokens were nearly equally probable.

    Args:
        record: The record; its metric, its order and its map are used.
        stored: Per-fact rows.
        now: Per-fact rows of the same run again.
        tolerance: Of log-probabilities, in nats; by default that of the record's dtype.
        scores: The map of the same run again, where sites were ranked.
    """
    metric, identity = record.metric, record.identity
    tolerance = tolerance or TOLERANCES[identity.dtype]
    wrote = "rank" not in stored.column_names
    hits = metric if metric.startswith("top") or wrote else DEFAULT_METRIC
    before, after = _by_key(stored), _by_key(now)
    cells: dict[tuple[str, str], list[Key]] = {}
    for row in record.rows:  # in the record's order
        cells[row.prompt, row.graft] = []
    for key in after:
        if key in before:
            cells.setdefault(key[:2], []).append(key)
    repeats, near = list[Repeat](), "prob" if wrote else "logprob"
    for (prompt, graft), keys in cells.items():
        if not keys:
            continue
        was = _columns([before[key] for key in keys])
        is_now = _columns([after[key] for key in keys])
        others = []
        for i in np.flatnonzero(_apart(was, is_now, tolerance)).tolist():
            others.append(OtherRow(*keys[i][:3], _read(was, i), _read(is_now, i)))
        repeat = Repeat(
            prompt,
            graft,
            len(keys),
            stored=float(np.mean(score(was, metric))),
            now=float(np.mean(score(is_now, metric))),
            flipped=int(np.count_nonzero(score(was, hits) != score(is_now, hits))),
            largest=float(np.max(np.abs(was[near] - is_now[near]))),
            others=tuple(others),
        )
        repeats.append(repeat)
    ranked = record.scores is not None and scores is not None
    return Repeated(
        metric,
        hits,
        tolerance,
        tuple(repeats),
        missing=tuple(key for key in after if key not in before),
        extra=tuple(key for key in before if key not in after),
        map=repeated_map(record.scores or (), scores or ()) if ranked else None,
        note=OLDER_METRIC if identity.ties_count_for_the_target else "",
    )


def repeated_map(stored: Sequence[SiteScore], now: Sequence[SiteScore]) -> MapRepeat:
    """Compare maps site by site.

    Args:
        stored: Scores.
        now: Scores of the same method again.
    """
    before, after = _by_site(stored), _by_site(now)
    shared = [(score, after[site]) for site, score in before.items() if site in after]
    a, b = np.array(shared, float).reshape(-1, 2).T
    spread = float(np.ptp(a)) or float(np.max(np.abs(a), initial=0.0))
    largest = float(np.max(np.abs(a - b), initial=0.0))
    missing = len(set(before) ^ set(after))
    return MapRepeat(agreement(a, b).rounded(), largest, SCORES * spread, missing)


def _apart(first: Columns, second: Columns, tolerance: float) -> Array:
    """Which rows differ by more than rounding."""
    if "rank" not in first:  # a share that differs has flipped
        return np.zeros(len(first["prob"]), bool)
    ranks = np.maximum(first["rank"], second["rank"])
    allowed = {
        "logprob": tolerance,
        "prob": tolerance,
        "logit_diff": 2 * tolerance,  # of two logits, each of which may be off
        "rank": 1 + max(RANKS, tolerance) * ranks,
        "target": 0,
    }
    differs = [np.abs(first[name] - second[name]) > most for name, most in allowed.items()]
    apart: Array = np.any(differs, axis=0)
    return apart


def _read(columns: Columns, i: int) -> Read:
    return Read(int(columns["rank"][i]), float(columns["logprob"][i]))


def _by_site(scores: Sequence[SiteScore]) -> dict[tuple[object, ...], float]:
    return {(site.region, site.component, site.layer): site.score for site in scores}


def _by_key(table: pa.Table) -> dict[Key, dict[str, Any]]:
    return dict(zip(map(itemgetter(*KEYS), rows := table.to_pylist()), rows, strict=True))


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    names = rows[0].keys() & {"target", "rank", "prob", "logprob", "logit_diff"}
    return {name: np.array(list(map(itemgetter(name), rows))) for name in names}
