"""Ranks, contrasts and maps: what the boards compare methods by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.planted import PlantScores
from kgbench.leaderboard.boards.shares import Contrast, Means, contrast
from kgbench.leaderboard.cells import Cell
from kgbench.leaderboard.hits import PromptHits, hits_by_prompt
from kgbench.leaderboard.ranks import better, rank_sets
from kgbench.stats import Resampled, mean, ratio
from tests.equal_methods import (
    at_one_level,
    board,
    over_places,
    over_plants,
    ranks,
    split,
    wrong,
    wrong_over_plants,
)
from tests.fake_runs import rows

A, B = ("a", "a"), ("b", "b")
ONE, TWO = Cell(True, "tiny-gemma", "headline"), Cell(True, "tiny-gemma", "qa")


@dataclass(frozen=True)
class Known:
    """A figure of known value and standard error, independent of others'."""

    value: float
    error: float = 0.02
    seed: int = 0

    @property
    def figure(self) -> Estimate:
        return Estimate(self.value, self.value - 1, self.value + 1, 100)

    def minus(self, other: Known) -> Resampled:
        gap = self.value - other.value
        noise = [
            own.error * np.random.default_rng(own.seed).normal(size=500) for own in (self, other)
        ]
        return Resampled(gap, gap + noise[0] - noise[1], (gap, gap), 100)


methods = st.lists(st.tuples(st.floats(-1, 1), st.floats(0.001, 0.3)), max_size=7).map(
    lambda found: {f"m{i}": Known(value, error, i + 1) for i, (value, error) in enumerate(found)}
)


@given(methods)
def test_what_is_told_is_an_order(found: dict[str, Known]) -> None:
    """Who is told to be better has the higher figure; better than a better one is better too, and
    ranks follow.
    """
    above = better(found)
    assert set(above) == set(found)
    for name, own in above.items():
        for other in own:
            assert found[other].value > found[name].value
            assert above[other] < own
            assert ranks(found)[other] < ranks(found)[name]


@given(methods)
def test_ranks_do_not_depend_on_the_order_of_methods(found: dict[str, Known]) -> None:
    """Whatever their order, the ranks are the same; a method without a figure has none and changes
    no other's.
    """
    assert ranks(dict(reversed(found.items()))) == ranks(found)


def test_a_rank_counts_the_methods_that_are_told_to_be_better() -> None:
    """Methods far apart have ranks 1, 2, 3; two that no fact tells apart share one, and the next
    counts both.
    """
    clear = {
        name: Known(value, 0.001, i)
        for i, (name, value) in enumerate({"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.5}.items())
    }
    assert ranks(clear) == {"a": 1, "b": 2, "c": 2, "d": 4}


def test_a_vague_method_is_told_from_few() -> None:
    """A method that is hardly known shares the first rank, though its figure is below that of one
    that does not.
    """
    found = {
        "good": Known(0.9, 0.001, 1),
        "less": Known(0.8, 0.001, 2),
        "vague": Known(0.6, 0.3, 3),
    }
    assert ranks(found) == {"good": 1, "less": 2, "vague": 1}


@pytest.mark.nightly
def test_equal_methods_share_one_rank() -> None:
    """Of twenty equal methods on 150 facts and 8 cells more than one rank is found on 5 % of boards
    at most, within chance.
    """
    boards = 60
    assert sum(
        wrong(boards, 20, cells=cells, budgets=budgets) for cells, budgets in ((8, 8), (1, 1))
    ) <= binom.ppf(0.999, 2 * boards, 0.05)


def test_methods_truly_apart_are_told() -> None:
    """Of three groups of methods whose true rates are .3, .5 and .7 every one is told from the
    others' on nearly all boards.
    """
    rates = [0.7] * 4 + [0.5] * 8 + [0.3] * 8
    names = [f"m{i:02d}" for i in range(20)]
    expected = dict(zip(names, [1] * 4 + [5] * 8 + [13] * 8, strict=True))
    assert sum(ranks(board(seed, rates)) == expected for seed in range(20)) >= 17


def hits(seed: int = 0, n: int = 60, **rates: float) -> PromptHits:
    rng = np.random.default_rng(seed)
    draw = rng.random(n)
    return PromptHits(
        tuple(f"f{i:03d}" for i in range(n)),
        {g: draw < r for g, r in {"PRE": 0.02, "SFT": 0.98, **rates}.items()},
    )


def test_contrast_is_the_ratio_of_means() -> None:
    """On one cell, mean and interval are those of `ratio` under the same resample; of a method with
    itself the difference is 0.
    """
    own = contrast(hits(FE=0.7), {"FE": 1, "PRE": -1})
    assert isinstance(own, Contrast)
    found, direct = Means({ONE: own}).figure, own.resampled.figure()
    assert found == direct
    assert found.value == pytest.approx(ratio(*own.parts).value)
    nothing = Means({ONE: own}).minus(Means({ONE: own})).figure()
    assert (
        nothing.value == 0
        and nothing.low is not None
        and nothing.high is not None
        and nothing.low < 0 < nothing.high
    )


def test_contrasts_are_antisymmetric() -> None:
    """The difference of A from B is that of B from A with the other sign."""
    a, b = (
        Means({ONE: contrast(hits(s, FE=r), {"FE": 1, "PRE": -1})}) for s, r in ((0, 0.8), (1, 0.6))
    )  # type: ignore[dict-item]
    there, back = a.minus(b).figure(), b.minus(a).figure()
    assert (there.value, there.low, there.high) == pytest.approx(
        (-back.value, -back.high, -back.low)
    )  # type: ignore[operator]


def test_mean_over_cells() -> None:
    """A mean of two equal cells of the same facts is the cell's own figure, and facts count once."""
    own = contrast(hits(FE=0.7), {"FE": 1, "PRE": -1})
    assert isinstance(own, Contrast)
    single, both = Means({ONE: own}), Means({ONE: own, TWO: own})
    assert both.figure.value == pytest.approx(single.figure.value) and both.n == 60
    assert (both.figure.low, both.figure.high) == pytest.approx(
        (single.figure.low, single.figure.high)
    )


def test_no_gain_is_told() -> None:
    """Where the donor gained nothing there is no share, and what was not run is named."""
    flat = PromptHits(
        tuple("abcd"), {"PRE": np.zeros(4, bool), "SFT": np.zeros(4, bool), "FE": np.ones(4, bool)}
    )
    assert "not significantly better" in str(contrast(flat, {"FE": 1, "PRE": -1}))
    assert contrast(flat, {"LT": 1}) == "LT was not run"


def test_hits_are_those_of_the_rows() -> None:
    """Hits of each prompt and configuration are the rows whose rank is at most 5, facts in the
    order of their ids.
    """
    table = rows(n=20)
    found = hits_by_prompt(table)
    assert set(found) == {"headline", "qa"}
    listed = {(r["prompt"], r["graft"], r["fact"]): r["rank"] <= 5 for r in table.to_pylist()}
    for prompt, own in found.items():
        assert list(own.facts) == sorted(own.facts)
        for graft, values in own.hits.items():
            assert values.tolist() == [listed[prompt, graft, fact] for fact in own.facts]


# ------------------------------------------------------------------------------------------- plants


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12))
def test_plants_are_the_unit(values: list[tuple[float, float]]) -> None:
    """The mean has Student's interval over plants, a difference is paired by plant and of the other
    sign the other way round.
    """
    one, two = (
        PlantScores({(f"p{i:02d}", ""): pair[k] for i, pair in enumerate(values)}) for k in (0, 1)
    )
    assert one.figure == mean(np.array([pair[0] for pair in values]), (0, 1))
    apart = one.minus(two)
    assert apart.n == len(values) and apart.value == pytest.approx(
        np.mean([a - b for a, b in values])
    )
    np.testing.assert_allclose(apart.draws, -two.minus(one).draws)
    assert ranks({"a": one, "same": one})["same"] == 1


def test_other_plants_are_not_compared() -> None:
    """Figures of other plants are refused."""
    with pytest.raises(DataError, match="other plants"):
        PlantScores({A: 0.5, B: 0.5}).minus(PlantScores({A: 0.5, ("c", "c"): 0.5}))


def test_one_plant_tells_nothing() -> None:
    """On a single plant all share rank 1, and the value stands alone."""
    scores = {name: PlantScores({A: value}) for name, value in (("best", 1.0), ("worst", 0.0))}
    assert ranks(scores) == {"best": 1, "worst": 1} and scores["best"].figure.low is None


@pytest.mark.sampled(1)
def test_equal_methods_share_a_rank_over_plants() -> None:
    """Of boards of 20 equal methods on 8 plants about 5 % or fewer tell any two apart
    (`tests/equal_methods.py` has more).
    """
    assert wrong_over_plants(60, 20, 8) <= binom.ppf(0.999, 60, 0.05)


def test_much_better_methods_are_told_over_plants() -> None:
    """A gap of several standard errors on 12 plants is told."""
    found = ranks(over_plants(0, [2.0, 2.0, -1.0], 12))
    assert found["m02"] == 3 and found["m00"] == found["m01"] == 1


# ------------------------------------------------------------------------------------------- levels


seeds_of_levels = st.lists(
    st.lists(st.floats(0, 1), min_size=2, max_size=5), min_size=1, max_size=5
)


def by_seed(levels: list[list[float]]) -> dict[tuple[str, str], float]:
    found = {}
    for level, values in enumerate(levels):
        for seed, value in enumerate(values):
            found[f"level{level}", f"level{level}-seed{seed}"] = value
    return found


@given(seeds_of_levels)
def test_levels_weigh_the_same(levels: list[list[float]]) -> None:
    """However many seeds they have: the mean is that over levels of the mean over seeds, and n
    counts the plants.
    """
    scores = PlantScores(by_seed(levels))
    assert scores.figure.value == pytest.approx(np.mean([np.mean(own) for own in levels]))
    assert scores.figure.n == sum(map(len, levels))
    nothing = PlantScores(dict.fromkeys(scores.values, 0.0))
    gap = scores.minus(nothing)
    assert gap.value == pytest.approx(scores.figure.value)
    np.testing.assert_allclose(gap.draws, -nothing.minus(scores).draws, atol=1e-12)


@given(seeds_of_levels.filter(lambda levels: len(levels) > 1), st.floats(-0.5, 0.5))
def test_differences_between_levels_are_no_uncertainty(
    levels: list[list[float]], more: float
) -> None:
    """A method that is better at one level and worse at another by as much has the same spread, of
    the variance within levels: that of the mean, whatever the bootstrap leaves out.
    """
    nothing = PlantScores(dict.fromkeys(by_seed(levels), 0.0))
    shifted = [list(own) for own in levels]
    shifted[0] = [value + more for value in levels[0]]
    shifted[1] = [value - more for value in levels[1]]
    one, two = (PlantScores(by_seed(some)).minus(nothing) for some in (levels, shifted))
    np.testing.assert_allclose(one.draws, two.draws, atol=1e-9)
    within = [np.var(own, ddof=1) / len(own) for own in levels]
    error = np.sqrt(np.sum(within)) / len(levels)
    assert np.std(one.draws) == pytest.approx(error, rel=0.1, abs=1e-6)


def test_a_level_of_one_seed_makes_levels_the_unit() -> None:
    """Its variance is not known, so that the interval is over levels, by the means of their
    seeds.
    """
    levels = [[0.9, 0.7], [0.4], [0.2, 0.6, 0.4]]
    figure = PlantScores(by_seed(levels)).figure
    assert figure == mean(np.array([np.mean(own) for own in levels]), (0, 1))
    assert figure.n == 3


@pytest.mark.sampled(1)
def test_equal_methods_share_a_rank_over_places() -> None:
    """Of planted boards of 12 methods that are equal in expectation over places about 5 % or fewer
    tell any two apart (`tests/equal_methods.py` has more).
    """
    assert split(40, 12) <= binom.ppf(0.999, 40, 0.05)


def test_a_level_that_alone_varies() -> None:
    """Equal methods share a rank where their scores vary at one level, and hardly at others."""
    boards = [at_one_level(seed, 12, (8,) * 7) for seed in range(10)]
    assert sum(len(set(ranks(made).values())) > 1 for made in boards) <= binom.ppf(0.999, 10, 0.05)


def test_better_methods_are_told_over_places() -> None:
    """A gap of several standard errors is told, though methods differ between levels."""
    ranked = ranks(over_places(0, [0.9, 0.9, 0.3]))
    assert ranked["m02"] == 3
    assert ranked["m00"] == ranked["m01"] == 1


@given(pairs=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_rank_sets(pairs: set[tuple[int, int]]) -> None:
    """They go from after all that is better to before all that is worse."""
    order = {(a, b) for a, b in pairs if a < b}  # a better than b: a partial order, closed below
    while more := {(a, d) for a, b in order for c, d in order if b == c} - order:
        order |= more
    above = {str(b): frozenset(str(a) for a, c in order if c == b) for b in range(6)}
    for name, (low, high) in rank_sets(above).items():
        worse = sum(name in own for own in above.values())
        assert (low, high) == (1 + len(above[name]), 6 - worse)
