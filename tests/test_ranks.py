"""Ranks, contrasts and maps: what the boards compare methods by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.leaderboard.cells import Cell
from kgbench.leaderboard.contrasts import Contrast, Means, contrast, smallest_difference
from kgbench.leaderboard.hits import PromptHits, hits_by_prompt
from kgbench.leaderboard.maps import PlantMap, PlantMaps
from kgbench.leaderboard.ranks import dense_ranks
from kgbench.stats import Figure, discordance, ratio, resample
from tests.fake_runs import rows

ONE, TWO = Cell(True, "tiny-gemma", "headline"), Cell(True, "tiny-gemma", "qa")


@dataclass(frozen=True)
class Known:
    """A figure whose differences have a known margin."""

    value: float
    margin: float = 0.1

    @property
    def figure(self) -> Figure:
        return Figure(self.value, self.value - 1, self.value + 1, 10)

    def difference(self, other: Known) -> Figure:
        gap = self.value - other.value
        return Figure(gap, gap - self.margin, gap + self.margin, 10)


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(-1, 1), max_size=8))
def test_ranks_are_dense_and_ordered(values: dict[str, float]) -> None:
    """Ranks are 1, 2, … without a gap; a higher value never has a higher rank; each group lies within the margin of its first."""
    ranks = dense_ranks({name: Known(value) for name, value in values.items()})
    assert set(ranks) == set(values) and set(ranks.values()) == set(range(1, len(set(ranks.values())) + 1))
    for a in values:
        for b in values:
            assert values[a] <= values[b] or ranks[a] <= ranks[b]
    for rank in set(ranks.values()):
        group = [values[name] for name in ranks if ranks[name] == rank]
        assert max(group) - min(group) <= 0.1 + 1e-12


def test_ranks_by_the_first_of_a_group() -> None:
    """A method that differs from the first opens a new group, though it does not differ from the one above it."""
    assert dense_ranks({"a": Known(1.0), "b": Known(0.95), "c": Known(0.89), "d": Known(0.5)}) == {"a": 1, "b": 1, "c": 2, "d": 3}


def hits(seed: int = 0, n: int = 60, **rates: float) -> PromptHits:
    rng = np.random.default_rng(seed)
    draw = rng.random(n)
    return PromptHits(tuple(f"f{i:03d}" for i in range(n)), {g: draw < r for g, r in {"PRE": 0.02, "SFT": 0.98, **rates}.items()})


def test_contrast_is_the_ratio_of_means() -> None:
    """On one cell, mean and interval are those of `ratio` under the same resample; of a method with itself the difference is 0."""
    own = contrast(hits(FE=0.7), {"FE": 1, "PRE": -1})
    assert isinstance(own, Contrast)
    found, direct = Means({ONE: own}).figure, own.resampled.figure()
    assert found == direct
    assert found.value == ratio(own.numerator, own.denominator, resample(60)).value
    nothing = Means({ONE: own}).difference(Means({ONE: own}))
    assert nothing.value == 0 and nothing.low is not None and nothing.high is not None and nothing.low < 0 < nothing.high


def test_contrasts_are_antisymmetric() -> None:
    """The difference of A from B is that of B from A with the other sign."""
    a, b = (Means({ONE: contrast(hits(s, FE=r), {"FE": 1, "PRE": -1})}) for s, r in ((0, 0.8), (1, 0.6)))  # type: ignore[dict-item]
    there, back = a.difference(b), b.difference(a)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))  # type: ignore[operator]


def test_mean_over_cells() -> None:
    """A mean of two equal cells of the same facts is the cell's own figure, and facts count once."""
    own = contrast(hits(FE=0.7), {"FE": 1, "PRE": -1})
    assert isinstance(own, Contrast)
    single, both = Means({ONE: own}), Means({ONE: own, TWO: own})
    assert both.figure.value == pytest.approx(single.figure.value) and both.n == 60
    assert (both.figure.low, both.figure.high) == pytest.approx((single.figure.low, single.figure.high))


def test_no_gain_is_told() -> None:
    """Where the donor gained nothing there is no share, and what was not run is named."""
    flat = PromptHits(tuple("abcd"), {"PRE": np.zeros(4, bool), "SFT": np.zeros(4, bool), "FE": np.ones(4, bool)})
    assert "not told from 0" in str(contrast(flat, {"FE": 1, "PRE": -1}))
    assert contrast(flat, {"LT": 1}) == "LT was not run"


@given(st.integers(1, 400))
def test_smallest_difference(n: int) -> None:
    """It is the smallest share whose interval leaves out 0, and more facts show no larger one."""
    found = smallest_difference(n)
    if found is None:
        assert n < 10
        return
    k = round(found * n)
    facts = np.array([1] * k + [0] * (n - k))
    assert discordance(facts)[0] > 0
    facts[k - 1] = 0
    assert discordance(facts)[0] <= 0


def test_hits_are_those_of_the_rows() -> None:
    """Hits of each prompt and configuration are the rows whose rank is at most 5, facts in the order of their ids."""
    table = rows(n=20)
    found = hits_by_prompt(table)
    assert set(found) == {"headline", "qa"}
    listed = {(r["prompt"], r["graft"], r["fact"]): r["rank"] <= 5 for r in table.to_pylist()}
    for prompt, own in found.items():
        assert list(own.facts) == sorted(own.facts)
        for graft, values in own.hits.items():
            assert values.tolist() == [listed[prompt, graft, fact] for fact in own.facts]


def plant(scores: dict[tuple[int, str], float], planted: set[tuple[int, str]]) -> PlantMap:
    units = tuple(sorted(scores))
    return PlantMap("p", units, np.array([scores[u] for u in units]), np.array([u in planted for u in units]))


PLACES = [(layer, component) for layer in range(4) for component in ("q", "k", "v", "o")]
PLANTED = {(0, "q"), (0, "k"), (1, "o")}


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_auroc_counts_pairs(seed: int) -> None:
    """The AUROC is the share of pairs in which the planted place is above, ties a half; its mean draw is near it."""
    rng = np.random.default_rng(seed)
    scores = {place: float(rng.integers(0, 5)) for place in PLACES}
    found = plant(scores, PLANTED)
    pairs = [(scores[a] > scores[b]) + 0.5 * (scores[a] == scores[b]) for a in PLANTED for b in PLACES if b not in PLANTED]
    assert found.value == pytest.approx(np.mean(pairs))
    assert np.mean(found.draws) == pytest.approx(found.value, abs=0.03)


def test_maps_are_compared_in_pairs() -> None:
    """A perfect map is told from a reversed one, and not from itself nor from one that errs once among few places."""
    perfect = {place: float(place in PLANTED) for place in PLACES}
    reverse = {place: -score for place, score in perfect.items()}
    nearly = {**perfect, (3, "o"): 0.5}
    one, two, three = (PlantMaps({"p": plant(scores, PLANTED)}) for scores in (perfect, reverse, nearly))
    assert dense_ranks({"a": one, "b": two, "c": three}) == {"a": 1, "c": 1, "b": 2}
    assert one.difference(one).value == 0
    assert one.smallest_difference == pytest.approx(0.5 * 3.8415 / (3 + 3.8415), rel=1e-3)
