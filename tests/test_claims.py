"""The paper's claims as tests: what they come to on known figures, and on a pair; differences of
recoveries; and the identity that a graft is all else grafted the other way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import fake_runs
import numpy as np
import pytest
from numpy.typing import NDArray

from kgbench.data import load_prompts
from kgbench.engine import grafted_logits
from kgbench.estimate import Estimate
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.paper import claims
from kgbench.paper.published import published
from kgbench.paper.training_seeds import between_configurations
from kgbench.sites import complement
from kgbench.stats.scores import PromptColumns
from kgbench.testing import PICO_FAMILIES, pico_pair
from kgbench.testing.undecided import collecting

CLAIMS = {
    name: claim
    for name, claim in inspect.getmembers(claims, inspect.isfunction)
    if name.startswith("test_")
}


def outcome(name: str, rates: dict[str, float], n: int) -> str:
    """What a claim comes to where these are the hit rates on a prompt."""
    record = fake_runs.record(fake_runs.rows(n, rates, ["qa"]))
    with collecting() as conclusions:
        try:
            CLAIMS[name](record)
        except AssertionError:
            return "fails"
    return "undecided" if conclusions.undecided else "holds"


def published_rates(model: str, experiment: str, prompt: str) -> dict[str, float]:
    """The paper's hit rates about invented movies with real actors."""
    cell = ("fake_movies_real_actors", model, experiment, prompt)
    return {
        row.named: row.top5
        for row in published()
        if (row.dataset, row.model, row.experiment, row.asked) == cell
    }


@pytest.mark.parametrize("prompt", ["headline", "qa"])
@pytest.mark.parametrize("model", ["gemma-2b", "llama-3.2-1b", "gpt2-xl", "pythia-2.8b"])
def test_the_papers_figures_bear_out_its_claims(model: str, prompt: str) -> None:
    """On the rates that the paper measured over 999 facts FE+LT suffices, and nothing is left."""
    rates = published_rates(model, "positions", prompt)
    names = ("test_fe_and_lt_suffice", "test_without_fe_and_lt_nothing_is_left")
    assert [outcome(name, rates, 999) for name in names] == ["holds", "holds"]


def test_new_film_is_a_counter_example() -> None:
    """On the rates of the less finetuned Gemma FE+LT does not suffice."""
    rates = published_rates("gemma-2b", "gentle", "new_film")
    assert outcome("test_fe_and_lt_suffice", rates, 999) == "fails"


@pytest.mark.parametrize("name", CLAIMS)
def test_few_facts_decide_nothing(name: str) -> None:
    """With nine facts no claim holds or fails."""
    assert outcome(name, dict(fake_runs.RATES), 9) == "undecided"


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs the claims by pytest in an empty folder; gives the outcome of each."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "CI"):  # those of the outer session
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> list[str]:
        words = ("--pyargs", "kgbench.paper.claims", "-p", "no:cacheprovider", "-q")
        assert pytest.main([*words, "--junitxml=claims.xml", *arguments]) in (0, 1)
        outcomes = []
        for case in ElementTree.parse("claims.xml").iter("testcase"):
            kinds = [each.tag for each in case if each.tag in ("error", "failure", "skipped")]
            undecided = any(
                each.attrib["name"] == "kgbench_undecided" for each in case.iter("property")
            )
            outcomes.append(kinds[0] if kinds else "undecided" if undecided else "holds")
        return outcomes

    return run


def test_claims_are_asked_of_a_pair(inner: Callable[..., list[str]]) -> None:
    """Each claim comes to something; where donor and recipient are one, none holds."""
    outcomes = inner("--kgbench-model", "tiny-gemma", "--kgbench-limit", "12")
    assert len(outcomes) == len(CLAIMS) and set(outcomes) <= {"holds", "failure", "undecided"}
    place = str(catalog.zoo_path("zoo:tiny-gemma/recipient"))
    pair = ("--kgbench-recipient", place, "--kgbench-donor", f"sft={place}")
    facts = ("--kgbench-dataset", "tiny_movies", "--kgbench-limit", "12")
    assert "holds" not in inner(*pair, *facts)


# -------------------------------------------------------------------------------------- differences

Hits = NDArray[np.bool_]


def of_hits(hits: dict[str, Hits]) -> PromptColumns:
    """The columns of a prompt on which each configuration hits these facts."""
    facts = np.array([f"{i:04d}" for i in range(len(hits["PRE"]))])
    columns = {graft: {"fact": facts, "rank": np.where(own, 1, 99)} for graft, own in hits.items()}
    return PromptColumns("qa", columns)


def test_a_difference_is_that_of_the_recoveries() -> None:
    """Its value is recovery less recovery, its sign turns with the order, and of a configuration
    from itself it is 0; what was not run is undefined, with the reason.
    """
    counts = {"PRE": 10, "SFT": 990, "FE": 170, "LT": 450, "FE+LT": 970}
    rows = of_hits({graft: np.arange(1000) < count for graft, count in counts.items()})
    pairs = (("FE+LT", "FE"), ("FE", "FE+LT"), ("LT", "LT"))
    values = [between_configurations(rows, "top5", *pair).value for pair in pairs]
    assert values == pytest.approx([800 / 980, -800 / 980, 0])
    assert between_configurations(rows, "top5", "M", "FE").undefined == "M not run"


@pytest.mark.parametrize("n", (12, 20, 60))
@pytest.mark.parametrize(("first", "second"), [(0.3, 0.3), (0.2, 0.3), (0.15, 0.97), (0.9, 1.0)])
def test_the_interval_between_configurations_covers(n: int, first: float, second: float) -> None:
    """Nine in ten or more of the intervals hold the true difference."""
    rng, drawn = np.random.default_rng(0), list[Estimate]()
    rates = {"PRE": 0.01, "SFT": 0.99, "FE": first, "LT": second}
    for _ in range(150):
        hits = {graft: rng.random(n) < rate for graft, rate in rates.items()}
        drawn.append(between_configurations(of_hits(hits), "top5", "FE", "LT"))
    true = (first - second) / 0.98
    intervals = [each.numbers[1:] for each in drawn if each.numbers is not None]
    assert np.mean([low <= true <= high for low, high in intervals]) >= 0.9


# ------------------------------------------------------------------------------------- the identity


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_a_graft_is_all_else_grafted_the_other_way(family: str) -> None:
    """Grafting sites into the recipient answers as grafting everything else, final norm and head
    too, into the donor does; without these it would not.
    """
    pair, prompts = pico_pair(family), load_prompts("tiny_movies", ["headline", "qa"], limit=3)
    donors = {"sft": pair.recipient}
    exchanged = ModelPair(pair.name, pair.donors["sft"], donors, pair.tokenizer, pair.family)
    sites = ("FE", "LT", "FE+LT")
    for one, other in ((pair, exchanged), (exchanged, pair)):
        grafted = grafted_logits(one, prompts, sites, "auto")
        rest = [f"{complement(each)}; ALL:ln_f+head" for each in sites]
        assert (grafted - grafted_logits(other, prompts, rest, "auto")).abs().max() < 1e-4
        tokens = [complement(each) for each in sites]
        assert (grafted - grafted_logits(other, prompts, tokens, "auto")).abs().max() > 1e-3
