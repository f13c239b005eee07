"""Figures of specificity: what a configuration moves of each kind of texts, with intervals over whole facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.specificity.measured import Measured, Moved
from kgbench.stats import (
    FEW,
    Resampled,
    difference,
    mean,
    ratio,
    ratio_draws,
    resample,
    resampled_means,
    unseen,
)

__all__ = ["Row", "rows_of"]

Array = NDArray[Any]

_BASELINE = "SFT"


@dataclass(frozen=True)
class Row:
    """One configuration on texts of one kind; a figure is None where the kind has no such thing."""

    graft: str
    kind: str
    prompts: int
    """Number of prompts that the configuration was read on."""
    lacking: int
    """Number of prompts that it cannot be read on."""
    kl: Estimate
    """Mean KL(p_PRE || p) of the next token, in nats."""
    largest: float | None
    """The largest of any prompt."""
    changed: Estimate
    """Share of prompts of which another token is the likeliest."""
    leak: Estimate | None
    """Mean KL, as a share of that on the target facts under the same configuration."""
    of_sft: Estimate | None
    """Mean KL, as a share of what the whole donor does to the very prompts that the configuration was read on."""
    logprob: Estimate | None
    """Mean change of the true answer's log-probability against PRE."""
    top5_before: Estimate | None
    """Share of true answers among PRE's five likeliest tokens."""
    top5: Estimate | None
    """The same under the configuration."""
    top5_change: Estimate | None
    """The difference of the two."""

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in `kgbench specificity --json`."""
        named = {
            "kl": self.kl,
            "top1_changed": self.changed,
            "leak": self.leak,
            "of_sft": self.of_sft,
            "logprob_change": self.logprob,
            "top5_pre": self.top5_before,
            "top5": self.top5,
            "top5_change": self.top5_change,
        }
        figures = {
            name: None if figure is None else figure.to_json() for name, figure in named.items()
        }
        return {
            "graft": self.graft,
            "kind": self.kind,
            "prompts": self.prompts,
            "lacking": self.lacking,
            "kl_largest": self.largest,
            **figures,
        }


@dataclass(frozen=True)
class _Column:
    """One score of each fact: the mean over its prompts."""

    facts: tuple[str, ...]
    values: Array
    seed: int

    @property
    def counts(self) -> Array:
        """A resample of the facts; the same facts and seed give the same one."""
        return _resample(len(self.facts), self.seed)


@lru_cache(maxsize=16)
def _resample(n: int, seed: int) -> Array:
    return resample(n, seed=seed)


def rows_of(measured: Sequence[Measured], labels: Sequence[str], seed: int = 0) -> list[Row]:
    """The figures of every configuration on every kind of texts.

    Facts are resampled whole, a fact's score being the mean over its prompts. Kinds that have the same facts share a resample, so that
    their ratio is paired; others are resampled apart.

    Args:
        measured: The kinds of texts, the target facts first.
        labels: Configurations.
        seed: Of the resamples.
    """
    seeds = {
        one.texts.kind: seed if one.texts.kind in ("target", "sibling") else seed + place
        for place, one in enumerate(measured)
    }
    target = measured[0].moved
    return [_row(label, one, target, seeds) for label in labels for one in measured]


def _row(
    label: str, measured: Measured, target: Mapping[str, Moved], seeds: Mapping[str, int]
) -> Row:
    kind, moved = measured.texts.kind, measured.moved.get(label)
    lacking = sum(measured.absent.get(label, {}).values()) + sum(measured.unread.values())
    if moved is None:
        missing = Estimate.missing(_reason(label, measured), 0)
        return Row(
            label, kind, 0, lacking, missing, None, missing, None, None, None, None, None, None
        )
    kl = _column(moved, moved.kl, seeds[kind])
    leak = of_sft = logprob = before = after = change = None
    if kind != "target" and label in target:
        leak = _leak(kl, _column(target[label], target[label].kl, seeds["target"]))
    if label != _BASELINE and _BASELINE in measured.moved:
        of_sft = _share(moved, measured.moved[_BASELINE], seeds[kind])
    if measured.texts.answers:
        changes = [float(other.logprob.mean()) for other in measured.moved.values()]
        logprob = _mean(
            _column(moved, moved.logprob, seeds[kind]), (min(0.0, *changes), max(0.0, *changes))
        )
        hits = [_column(moved, hit, seeds[kind]) for hit in (moved.top5_before, moved.top5)]
        before, after = (_mean(column, (0.0, 1.0)) for column in hits)
        change = difference(hits[1].values, hits[0].values)
    changed = _mean(_column(moved, moved.changed, seeds[kind]), (0.0, 1.0))
    largest, most = (
        float(moved.kl.max()),
        max(float(other.kl.mean()) for other in measured.moved.values()),
    )
    return Row(
        label,
        kind,
        len(moved.kl),
        lacking,
        _mean(kl, (0.0, most)),
        largest,
        changed,
        leak,
        of_sft,
        logprob,
        before,
        after,
        change,
    )


def _reason(label: str, measured: Measured) -> str:
    """Why a configuration has no figures on a kind of texts."""
    reasons = (
        [*measured.absent.get(label, {}), *measured.unread]
        if measured.texts.prompts
        else [measured.texts.about]
    )
    return f"absent: {'; '.join(reasons[:2])}"


def _column(moved: Moved, values: Array, seed: int) -> _Column:
    """Scores by fact; of facts with one prompt each, as they are, so that hits stay hits."""
    facts, places, prompts = np.unique(
        [fact for fact, _ in moved.prompts], return_inverse=True, return_counts=True
    )
    by_fact = (
        values[places.argsort()]
        if len(facts) == len(values)
        else np.bincount(places, values.astype(float)) / prompts
    )
    return _Column(tuple(facts.tolist()), by_fact, seed)


def _mean(column: _Column, support: tuple[float, float] | None = None) -> Estimate:
    return mean(column.values, support)


def _share(part: Moved, whole: Moved, seed: int) -> Estimate:
    """The ratio of two means over the prompts that both were read on."""
    places = {prompt: place for place, prompt in enumerate(whole.prompts)}
    own = _column(part, part.kl, seed)
    donor = _column(part, whole.kl[[places[prompt] for prompt in part.prompts]], seed)
    n = len(own.facts)
    if not donor.values.any():
        return Estimate.missing("the whole donor moves none of these texts", n)
    if n < 2:
        return Estimate.missing(f"{n} fact, and an interval needs two", n)
    return ratio(own.values, donor.values)


def _leak(near: _Column, target: _Column) -> Estimate:
    """The ratio of two means, of the same facts or of facts that are resampled apart."""
    n = min(len(near.facts), len(target.facts))
    if not target.values.any():
        return Estimate.missing("the graft moves no target fact", n)
    if n < 2:
        return Estimate.missing(
            f"{n} fact{'s' * (n != 1)} on one side, and an interval needs two", n
        )
    if near.facts == target.facts:
        return ratio(near.values, target.values)
    above, below = float(near.values.mean()), float(target.values.mean())
    draws = ratio_draws(
        resampled_means(near.values, near.counts),
        resampled_means(target.values, target.counts),
        below,
    )
    moved, share = np.count_nonzero(near.values), above / below
    open_to = (
        unseen(len(near.facts)) if moved < FEW and 2 * moved < len(near.facts) else 0.0
    )  # as in `stats.ratio_floor`
    return Resampled(share, draws, (share - open_to, share + open_to), n).figure()
