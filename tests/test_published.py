"""The published figures: what the data files hold, and the board that is made of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import isfinite

import pytest

from kgbench.data.prompts import prompt_names
from kgbench.leaderboard.board_tables import Line, Table
from kgbench.models.catalog import pair_names
from kgbench.paper.published import (
    PublishedRow,
    experiments,
    paper,
    published,
    published_board,
)
from kgbench.sites import BASELINES, parse_graft
from kgbench.stats import hit_rate

BOARD = published_board()
HALVES = {
    "gemma-2b": (8, 17),
    "llama-3.2-1b": (8, 15),
    "gpt2-xl": (24, 47),
    "pythia-2.8b": (16, 31),
}
"""Third and fourth quarter as the authors' code cuts them: 18, 16, 48 and 32 layers."""


def one(
    experiment: str, model: str, prompt: str, named: str, dataset: str = "fake_movies_real_actors"
) -> PublishedRow:
    """The row of one configuration."""
    asked = (experiment, model, prompt, named, dataset)
    (found,) = (
        row
        for row in published()
        if (row.experiment, row.model, row.prompt, row.named, row.dataset) == asked
    )
    return found


def cells() -> dict[tuple[str, str, str, str], list[PublishedRow]]:
    """The rows of each experiment, model, data set and prompt."""
    found: dict[tuple[str, str, str, str], list[PublishedRow]] = {}
    for row in published():
        found.setdefault((row.experiment, row.model, row.dataset, row.prompt), []).append(row)
    return found


def test_every_graft_reads_and_writes_back() -> None:
    """Configurations are PRE, SFT or the canonical text of a graft expression, whose donors the
    experiment tells of.
    """
    for row in published():
        if row.configuration not in BASELINES:
            graft = parse_graft(row.configuration)
            assert str(graft) == row.configuration
            assert set(graft.donors()) <= set(experiments()[row.experiment].donors)


def test_numbers_of_rows() -> None:
    """All rows are there: so many in each experiment, and the same configurations in the cells of
    one but for the hybrids.
    """
    assert Counter(row.experiment for row in published()) == {
        "positions": 224,
        "gentle": 32,
        "reversal": 120,
        "components": 30,
        "hybrid": 18,
    }
    for (experiment, *_), rows in cells().items():
        assert (
            len(rows)
            == len({row.configuration for row in rows})
            == len({row.named for row in rows})
        )
        assert len(rows) == {"positions": 8, "gentle": 8, "reversal": 10, "components": 10}.get(
            experiment, len(rows)
        )
        assert len({row.n for row in rows}) == 1
    assert sorted(
        len(rows) for (experiment, *_), rows in cells().items() if experiment == "hybrid"
    ) == [3, 3, 6, 6]


def test_names_are_ours() -> None:
    """Models are the catalog's, prompts are built in, and data sets are told of."""
    assert (
        {row.model for row in published()}
        == {"gemma-2b", "llama-3.2-1b", "gpt2-xl", "pythia-2.8b"}
        <= set(pair_names())
    )
    assert {row.prompt for row in published()} <= set(prompt_names())
    assert {row.dataset for row in published()} == set(paper().datasets)


def test_nothing_is_missing() -> None:
    """Every figure is a finite number, and PRE and SFT stand in every cell; the hybrids have no
    PRE.
    """
    assert all(isfinite(figure) for row in published() for figure in (row.top5, row.rank, row.prob))
    for (experiment, *_), rows in cells().items():
        wanted = {"SFT"} if experiment == "hybrid" else {"PRE", "SFT"}
        assert {row.configuration for row in rows} & {"PRE", "SFT"} == wanted


def test_rates_are_hits_of_n() -> None:
    """Every hit rate is a whole number of n facts, to the four digits that are given; ranks and
    probabilities go with it.
    """
    for row in published():
        assert round(round(row.top5 * row.n) / row.n, 4) == row.top5
        assert row.rank >= 1 + 5 * (1 - row.top5) - 0.01
        assert row.top5 < 1 or row.rank <= 5


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        (one("positions", "gemma-2b", "headline_v1", "LT"), (999, 0.5315, 42.34, 0.2049)),
        (one("positions", "gpt2-xl", "headline_v1", "FE"), (999, 0.2763, 119.46, 0.0347)),
        (
            one("positions", "llama-3.2-1b", "new_film", "SFT", "real_movies_real_actors_shuffled"),
            (1000, 0.4700, 263.53, 0.2076),
        ),
        (
            one("positions", "gemma-2b", "qa", "LT^C", "fake_movies_fake_actors"),
            (991, 0.0999, 1898.74, 0.0150),
        ),
        (one("gentle", "gemma-2b", "new_film", "FE+LT"), (999, 0.1502, 389.49, 0.0297)),
        (one("reversal", "llama-3.2-1b", "movie_title_v1", "FFN"), (999, 0.2052, 140.52, 0.0377)),
        (one("components", "gemma-2b", "movie_title", "ATTN+O+FFN"), (999, 0.8028, 24.76, 0.5101)),
        (
            one("hybrid", "gemma-2b", "headline_v1", "hybrid, ATTN at FE"),
            (500, 0.6260, 51.00, 0.1480),
        ),
        (
            one("hybrid", "pythia-2.8b", "headline_v1", "hybrid, all at FE"),
            (500, 0.0620, 171.51, 0.0018),
        ),
    ],
    ids=lambda value: value.experiment if isinstance(value, PublishedRow) else "",
)
def test_spot_values(row: PublishedRow, figures: tuple[float, ...]) -> None:
    """Figures are as published."""
    assert (row.n, row.top5, row.rank, row.prob) == figures


@pytest.mark.parametrize("experiment", ["reversal", "components"])
def test_component_grafts_are_at_the_last_token_of_the_upper_layers(experiment: str) -> None:
    """What the paper calls ATTN+O+FFN and so on are those components of the layers from the third
    quarter on, and LT alone.
    """
    for row in published():
        if row.experiment == experiment and row.named not in BASELINES:
            (term,) = parse_graft(row.configuration).terms
            assert (str(term.positions), term.donor) == ("LT", "sft")
            first, last = HALVES[row.model]
            assert term.layers is not None
            assert term.layers.resolve(last + 1) == frozenset(range(first, last + 1))
            up, down = (
                "FFN-DOWN" not in row.named and "FFN" in row.named,
                "FFN-UP" not in row.named and "FFN" in row.named,
            )
            parts = set(term.component_names())
            assert ({"q", "k", "v"} <= parts, "o" in parts, "up" in parts, "down" in parts) == (
                "ATTN" in row.named,
                "O" in row.named.split("+"),
                up,
                down,
            )


def test_hybrids_take_the_relation_at_the_last_token() -> None:
    """O, up and down come from the relation model at LT in the upper n//2 layers; the gate, where
    there is one, does not.
    """
    for row in published():
        if row.experiment == "hybrid" and row.named != "SFT":
            *fe, lt, relation = parse_graft(row.configuration).terms
            assert (lt.donor, relation.donor, relation.component_names()) == (
                "task",
                "relation",
                ("o", "up", "down"),
            )
            assert all(
                (str(term.positions), term.donor, term.layers) == ("FE", "task", None)
                for term in fe
            )
            assert ("gate" in lt.component_names()) == (row.model in ("gemma-2b", "llama-3.2-1b"))
            last = HALVES[row.model][1]
            assert relation.layers is not None
            assert relation.layers == lt.layers
            assert relation.layers.resolve(last + 1) == frozenset(range((last + 1) // 2, last + 1))


def test_the_reversal_has_no_figures_of_its_recipient() -> None:
    """PRE of the reversal is that of the position experiment, as its doubts say: the pretrained
    model, and not what was grafted into.
    """
    for row in published():
        if row.experiment == "reversal" and row.named in BASELINES:
            same = one("positions", row.model, row.prompt, row.named)
            assert (row.n, row.top5, row.rank, row.prob) == (
                same.n,
                same.top5,
                same.rank,
                same.prob,
            )


def table(key: str) -> Table:
    """A table of the board."""
    return next(found for found in BOARD.tables if found.key == key)


def lines() -> Iterator[tuple[Table, Line]]:
    """All lines of the board with their tables."""
    return ((found, line) for found in BOARD.tables for line in found.lines)


@pytest.mark.parametrize(
    ("line", "recovery", "complement"),
    [
        ("gemma-2b · headline_v1 · fake_movies_real_actors", 0.987 / 0.985, -0.009 / 0.985),
        (
            "llama-3.2-1b · new_film · real_movies_real_actors_shuffled",
            0.984 / 0.457,
            -0.005 / 0.457,
        ),
        ("gemma-2b, gently · new_film · fake_movies_real_actors", 0.1502 / 0.991, 0.001 / 0.991),
    ],
)
def test_recovery_by_hand(line: str, recovery: float, complement: float) -> None:
    """Recovery is (m(S) - m(PRE)) / (m(SFT) - m(PRE)), beyond 1 and below 0 where it is so."""
    (found,) = (each for each in table("positions").lines if each.method == line)
    assert found.figures["recovery"].value == pytest.approx(recovery, abs=1e-5)
    assert found.figures["complement"].value == pytest.approx(complement, abs=1e-5)
    assert found.figures["separation"].value == pytest.approx(recovery - complement, abs=2e-5)


def test_nothing_is_left_out() -> None:
    """Every published figure stands on the board, under its configuration."""
    shown = Counter(
        line.figures[column.key].value
        for found, line in lines()
        for column in found.columns
        if column.key in line.figures
    )
    wanted = Counter(
        float(f"{figure:.6g}") for row in published() for figure in (row.top5, row.rank, row.prob)
    )
    assert not wanted - shown


def test_the_board_ranks_nothing() -> None:
    """All lines are marked as published, none has a rank, and each says why."""
    for found, line in lines():
        assert (line.badge, line.ranks, line.runs, line.baseline) == ("published", None, (), False)
        assert line.unranked == "published, not reproduced here"
        assert found.ranked_by is None


def test_no_interval_is_invented() -> None:
    """Hit rates have the interval of rate and n; all else has none, and its column says so."""
    for found, line in lines():
        for column in found.columns:
            if (figure := line.figures.get(column.key)) is None:
                continue
            if "the interval is" in column.about:
                assert figure.value is not None
                expected = hit_rate(round(figure.value * figure.n), figure.n)
                assert (figure.low, figure.high) == (
                    pytest.approx(expected.low, abs=1e-4),
                    pytest.approx(expected.high, abs=1e-4),
                )
            else:
                assert "no interval" in column.about
                assert figure.low == figure.value == figure.high


def test_no_torch() -> None:
    """Neither data nor board import torch."""
    code = (
        "import sys; from kgbench.paper.published import published_board; "
        "published_board(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
