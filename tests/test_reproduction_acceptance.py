"""The positive control: what the shipped pairs show of the paper's mechanism, on the rows that are
published.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import control_table
import fake_reproduction
import numpy as np
import pyarrow as pa
import pytest
from control_table import PAIRS, PUBLISHED, REPORTED
from hypothesis import given
from hypothesis import strategies as st
from pages import block

from kgbench.models import catalog
from kgbench.paper.figure_claims import LEAST, ClaimTerm, figures_from, figures_there, lacking
from kgbench.paper.figure_specs import Criterion, chosen, page
from kgbench.paper.pair_rows import ROWS, SCHEMA, PairRows, read_measured
from kgbench.paper.paper_report import report_text
from kgbench.paper.positive_control import Result, is_kept, results

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NEGATIVE: Mapping[str, Mapping[str, Mapping[str, str]]] = tomllib.loads(
    (PUBLISHED / "negative.toml").read_text("utf-8")
)
"""By pair and criterion, the figures of each seed where the pair does not show it, and what was
tried.
"""
BY_NAME = {criterion.name: criterion for criterion in page().criteria}


# ----------------------------------------------------------------------------------- published rows


def test_reports_come_with_their_rows() -> None:
    """Each folder but the study's is of a pair of the catalog, with rows of at most 2 MB."""
    folders = sorted(path.name for path in PUBLISHED.iterdir() if path.is_dir())
    assert folders == sorted(["study", *REPORTED]) and PAIRS
    assert set(REPORTED) <= set(catalog.pair_names())
    for name in REPORTED:
        assert (PUBLISHED / name / ROWS).stat().st_size <= 2_000_000
    assert set(NEGATIVE) <= set(PAIRS)


@pytest.mark.parametrize("pair", PAIRS)
def test_what_a_pair_shows(pair: str, record_property: Callable[[str, object], None]) -> None:
    """Every criterion is kept under four of five seeds and not vacuous, or is a known negative
    result with these very figures.
    """
    found = results(read_measured(PUBLISHED / pair / ROWS))
    assert found
    record_property("seeds", max(len(one.rates) for one in found))
    negative = control_table.not_shown(found)
    stated = {
        name: {seed: text for seed, text in told.items() if seed != "tries"}
        for name, told in NEGATIVE.get(pair, {}).items()
    }
    assert negative == stated
    assert all(told["tries"] for told in NEGATIVE.get(pair, {}).values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pair", REPORTED)
def test_a_report_follows_from_its_rows(pair: str) -> None:
    """Each figure of which there are rows has its part of the page, with the rates of its prompts."""
    measured = read_measured(PUBLISHED / pair / ROWS)
    every = list(chosen("all", measured.about.scale))
    made = figures_from(figures_there(every, measured.about), measured)
    control = results(measured) if measured.about.tiny else ()
    text = report_text(made, lacking(every, measured.about), control)
    assert made
    for figure in made:
        _, _, part = text.partition(f"\n## {figure.name}: {figure.spec.title}\n")
        assert part.partition("\n## ")[0].count("\n|") > 2 or "shows it twice" in part[:99]


def test_the_page_has_the_control() -> None:
    """The tables on the page are those of the published rows (`python tests/control_table.py`)."""
    assert block("control") == control_table.table(control_table.published_results())
    assert block("agreement") == control_table.agreement()


# ----------------------------------------------------------------------------------------- criteria

PERFECT = {
    "PRE": 0.0,
    "SFT": 1.0,
    "FE+LT": 1.0,
    "(FE+LT)^C": 0.0,
    "ATTN+O+FFN": 0.8,
    "O+FFN": 0.7,
    "FFN": 0.4,
    "ATTN+O": 0.1,
    "hybrid, ATTN at FE": 0.6,
    "hybrid, nothing at FE": 0.4,
}


def test_gemma_of_the_paper_shows_all() -> None:
    """Gemma 2B's published figures of the reversal keep every criterion, and so do those of a
    perfect pair.
    """
    gemma = {"ATTN+O+FFN": 0.78, "O+FFN": 0.67, "FFN": 0.44, "ATTN+O": 0.12}
    for one in page().criteria:
        assert is_kept(one, PERFECT) and is_kept(one, {**PERFECT, **gemma}), one.name


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("known_suffice", {"FE+LT": 0.94}),
        ("unknown_complement", {"(FE+LT)^C": 0.031}),
        ("reversal_recalls", {"ATTN+O+FFN": 0.39}),
        ("reversal_o_ffn", {"O+FFN": 0.59}),
        ("reversal_ffn", {"FFN": 0.7}),
        ("reversal_attn_o", {"ATTN+O": 0.151}),
        ("hybrid_attn", {"hybrid, ATTN at FE": 0.4}),
    ],
)
def test_each_criterion_can_fail(name: str, worse: Mapping[str, float]) -> None:
    """Just beyond its bound it is not kept."""
    assert not is_kept(BY_NAME[name], {**PERFECT, **worse})


@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_four_of_five_seeds(kept: list[bool]) -> None:
    """A criterion is shown where at least four fifths of the seeds keep it."""
    about = {"name": "name", "title": "title", "figure": "figure-4", "prompts": ("headline",)}
    rule = Criterion.model_validate({**about, "first": "FFN", "gt": 0.5})
    rates = {seed: {"headline": {"FFN": float(one)}} for seed, one in enumerate(kept)}
    found = Result(rule, rates, {"headline": ClaimTerm("FFN", LEAST)})
    assert found.shown == (5 * sum(kept) >= 4 * len(kept))
    assert found.kept == tuple(seed for seed, one in enumerate(kept) if one)


def test_a_criterion_is_kept_on_every_prompt() -> None:
    rule = BY_NAME["known_suffice"]
    rates = dict.fromkeys(rule.prompts, PERFECT)
    larger = dict.fromkeys(rule.prompts, ClaimTerm("SFT", 1.0))
    assert Result(rule, {0: rates}, larger).shown
    assert not Result(rule, {0: {**rates, "new_film": {**PERFECT, "FE+LT": 0.9}}}, larger).shown


@pytest.mark.parametrize("term", [ClaimTerm("FE+LT", LEAST - 0.001), None])
def test_a_criterion_of_next_to_nothing_is_not_shown(term: ClaimTerm | None) -> None:
    """Neither where its larger term recovers less than a quarter on one of its prompts, nor where
    finetuning added nothing there, whatever its bounds.
    """
    rule = BY_NAME["known_suffice"]
    larger = {**dict.fromkeys(rule.prompts, ClaimTerm("SFT", 1.0)), "new_film": term}
    found = Result(rule, {0: dict.fromkeys(rule.prompts, PERFECT)}, larger)
    assert found.kept == (0,) and not found.shown
    assert found.vacuous.startswith("new_film: ")


@pytest.mark.parametrize("pair", PAIRS)
def test_a_criterion_is_vacuous_where_its_claim_is(pair: str) -> None:
    """Parts of the upper half at LT: the report's claims and its control have one rule."""
    measured = read_measured(PUBLISHED / pair / ROWS)
    (figure,) = figures_from(["figure-4"], measured)
    claims = {claim.spec.first: claim.outcome == "vacuous" for claim in figure.claims}
    found = {one.criterion.name: bool(one.vacuous) for one in results(measured)}
    assert found["reversal_o_ffn"] == claims["O+FFN"]
    assert found["reversal_ffn"] == claims["FFN"]
    assert found["reversal_attn_o"] == claims["ATTN+O"]


def test_rates_are_those_of_the_rows() -> None:
    """Under each seed the share of facts of rank five or better, of the configuration by the
    paper's name.
    """
    measured = fake_reproduction.measured(chosen("acceptance"), seeds=(0, 3))
    for one in results(measured):
        figure = page().figures[one.criterion.figure]
        rows = {"PRE": "PRE", "SFT": "SFT", **page().rows[figure.rows]}
        wanted = hit_rates(measured.table, figure.evaluation)
        assert set(one.rates) == {0, 3}
        for seed, own in one.rates.items():
            for prompt, rates in own.items():
                assert {term: rates[term] for term in one.criterion.terms} == {
                    term: pytest.approx(wanted[seed, prompt, rows[term]])
                    for term in one.criterion.terms
                }


def hit_rates(table: pa.Table, evaluation: str) -> dict[tuple[int, str, str], float]:
    ranks: dict[tuple[int, str, str], list[int]] = {}
    for row in table.to_pylist():
        if row["evaluation"] == evaluation:
            ranks.setdefault((row["seed"], row["prompt"], row["configuration"]), []).append(
                row["rank"]
            )
    return {key: float(np.mean([rank <= 5 for rank in own])) for key, own in ranks.items()}


def test_evaluations_that_are_not_there_are_not_judged() -> None:
    own = [name for name, figure in page().figures.items() if figure.evaluation == "actors"]
    measured = fake_reproduction.measured(own)
    assert [one.criterion.name for one in results(measured)] == [
        "known_suffice",
        "known_complement",
    ]
    assert (
        results(
            PairRows(measured.about.model_copy(update={"evaluations": {}}), SCHEMA.empty_table())
        )
        == ()
    )
