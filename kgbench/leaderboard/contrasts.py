"""Means of methods over cells, and paired differences, by one resample of facts for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.leaderboard.cells import Cell
from kgbench.leaderboard.hits import PromptHits
from kgbench.stats import Resampled, apart, mean_of, ratio_draws, ratio_floor, resample
from kgbench.stats.ratios import no_gain

__all__ = ["Contrast", "Means", "contrast"]

Array = NDArray[Any]

DRAWS = 2000


@lru_cache(maxsize=4)
def _counts(facts: tuple[str, ...]) -> Array:
    """Resample of these facts [draws, n], the same for every method."""
    return resample(len(facts), DRAWS, crc32("\n".join(facts).encode())).astype(float)


@lru_cache(maxsize=32)
def _sums(hits: PromptHits) -> Mapping[str, Array]:
    """Hits of each configuration by draw [draws], by one exact product of integer matrices."""
    together = np.stack(list(hits.hits.values()), axis=1).astype(float)
    return dict(zip(hits.hits, (_counts(hits.facts) @ together).T, strict=True))


@dataclass(frozen=True, eq=False)
class Contrast:
    """A method's figure on a cell: a weighted sum of configurations over the donor's gain."""

    hits: PromptHits
    weights: Mapping[str, float]
    """Of each configuration; whole numbers where the sum is of hits."""
    anchors: tuple[int, ...] = (0, 1)
    """Ratios that facts can take exactly."""

    @property
    def facts(self) -> tuple[str, ...]:
        """Ids of the facts."""
        return self.hits.facts

    @cached_property
    def numerator(self) -> Array:
        """The weighted sum, of each fact [n]."""
        whole = all(weight == int(weight) for weight in self.weights.values())
        kind: type = np.int64 if whole else np.float64
        total: Array = np.sum(
            [
                kind(weight) * self.hits.hits[graft].astype(kind)
                for graft, weight in self.weights.items()
            ],
            axis=0,
        )
        # Rounded, so that facts tie exactly where nothing but the order of the sum differs.
        return total if whole else np.round(total, 12)

    @cached_property
    def denominator(self) -> Array:
        """The donor's gain, of each fact [n]."""
        before, after = (
            self.hits.hits[name].astype(self.numerator.dtype) for name in ("PRE", "SFT")
        )
        gained: Array = after - before
        return gained

    @cached_property
    def resampled(self) -> Resampled:
        """The ratio under the resample of its facts."""
        sums, gap = _sums(self.hits), float(np.mean(self.denominator))
        above = np.sum([weight * sums[graft] for graft, weight in self.weights.items()], axis=0)
        draws = ratio_draws(above, sums["SFT"] - sums["PRE"], gap)
        floor = ratio_floor(self.numerator, self.denominator, self.anchors)
        return Resampled(float(np.mean(self.numerator)) / gap, draws, floor, len(self.facts))

    def minus(self, other: Contrast) -> Resampled:
        """The paired difference; both are of the same facts."""
        first, second = ((c.numerator, c.denominator) for c in (other, self))
        return apart((first, other.resampled), (second, self.resampled), self.anchors)


def contrast(
    hits: PromptHits, weights: Mapping[str, float], anchors: tuple[int, ...] = (0, 1)
) -> Contrast | str:
    """The share of the donor's gain that a weighted sum of configurations has, or why there is none.

    Args:
        hits: One prompt's hits.
        weights: Of each configuration; whole numbers where the sum is of hits.
        anchors: Ratios that facts can take exactly.
    """
    if missing := [graft for graft in ("PRE", "SFT", *weights) if graft not in hits.hits]:
        return f"{' and '.join(dict.fromkeys(missing))} was not run"
    reason = _no_gain(hits.facts, hits.hits["PRE"].tobytes(), hits.hits["SFT"].tobytes())
    return Contrast(hits, weights, anchors) if reason is None else reason


@lru_cache(maxsize=256)
def _no_gain(facts: tuple[str, ...], pre: bytes, sft: bytes) -> str | None:
    """Why there is no share of the gain; the same for all methods on a cell, and so asked once."""
    scores = {"PRE": np.frombuffer(pre, bool), "SFT": np.frombuffer(sft, bool)}
    found = no_gain(scores)
    return None if found is None else found.undefined


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of a figure over cells, of one method."""

    cells: Mapping[Cell, Contrast]

    @property
    def n(self) -> int:
        """Number of facts behind it, each counted once."""
        return len({fact for own in self.cells.values() for fact in own.facts})

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval."""
        return mean_of([own.resampled for own in self.cells.values()], self.n).figure()

    def minus(self, other: Means) -> Resampled:
        """Its paired difference from another method on the same cells."""
        return mean_of([own.minus(other.cells[cell]) for cell, own in self.cells.items()], self.n)
