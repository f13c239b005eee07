"""The paper's claims as tests: what they cite, what they come to on known figures, and how the
suite runs.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import fake_runs
import forks
import numpy as np
import pytest
from claims_table import TITLES
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.models import catalog
from kgbench.paper import claim, claims
from kgbench.paper.claim import Claim, assert_complement_identity, exchanged
from kgbench.paper.claim_session import PROMPTS
from kgbench.paper.contrasts import between_configurations, between_prompts
from kgbench.paper.published import cited, cited_rows
from kgbench.records import Record
from kgbench.stats.intervals import discordance
from kgbench.stats.scores import PromptColumns, by_prompt
from kgbench.testing import PICO_FAMILIES, pico_pair
from kgbench.testing.undecided import collecting

EXACT = {
    test.__name__: test
    for test in (
        claims.test_a_graft_is_all_else_grafted_the_other_way,
        claims.test_and_the_other_way_round,
    )
}
PATHWAYS = {
    name: test
    for name, test in inspect.getmembers(claims, inspect.isfunction)
    if name.startswith("test_") and name not in EXACT
}
POSITION = "test_it_is_the_position_not_the_preposition"
N = 999
SESSION = "-p no:cacheprovider -q --junitxml=claims.xml"


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the claims in an empty folder, with warnings as errors, in this process, which has its
    imports; gives the exit status.
    """
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    # Of the session that this one runs in; in CI what is undecided would fail.
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "CI"):
        monkeypatch.delenv(name, raising=False)

    def run(options: str = "", *more: str) -> int:
        line = f"--pyargs kgbench.paper.claims {SESSION} -s {options}"
        return int(pytest.main([*line.split(), *more]))

    return run


def outcomes(folder: Path) -> dict[str, str]:
    """What became of each test of a session."""
    found = {}
    for case in ElementTree.parse(folder / "claims.xml").iter("testcase"):
        undecided = any(
            each.attrib["name"] == "kgbench_undecided" for each in case.iter("property")
        )
        kinds = [kind for kind in ("error", "failure", "skipped") if case.find(kind) is not None]
        assert case.attrib["name"] not in found
        found[case.attrib["name"]] = kinds[0] if kinds else "undecided" if undecided else "holds"
    return found


Rates = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


@cache
def known(rates: Rates, n: int) -> tuple[Record, dict[str, PromptColumns]]:
    """The record of an evaluation over n facts with these rates on each prompt, and its per-fact
    rows.
    """
    parts = [fake_runs.rows(n, dict(own), [prompt]).to_pydict() for prompt, own in rates]
    facts = fake_runs.facts_table(
        {name: [value for part in parts for value in part[name]] for name in parts[0]}
    )
    return fake_runs.record(facts), {own.name: own for own in by_prompt(facts, ())}


def columns(n: int = N) -> PromptColumns:
    return known((("qa", tuple(fake_runs.RATES.items())),), n)[1]["qa"]


def outcome(
    test: Callable[[Claim], None], prompt: str, rates: Mapping[str, Mapping[str, float]], n: int = N
) -> str:
    """What a claim comes to where the rates are these on each prompt."""
    record, rows = known(tuple((name, tuple(own.items())) for name, own in rates.items()), n)
    with collecting() as found:
        try:
            test(Claim(prompt, record, rows, lambda figure: None))
        except AssertionError:
            return "fails"
    return "undecided" if found.undecided else "holds"


def measured(model: str, prompt: str) -> dict[str, float]:
    """The paper's hit rates by configuration."""
    return {name: row.top5 for name, row in cited_rows()[model, prompt].items()}


def of_paper(name: str, model: str, prompt: str) -> str:
    """What a claim comes to on the paper's own rates."""
    rates = {
        own: {**measured(model, own), "ALL": 1.0} for own in dict.fromkeys((prompt, "headline"))
    }
    return outcome(PATHWAYS[name], prompt, rates)


# ------------------------------------------------------------------------------------ what is cited


@pytest.mark.parametrize("name", [*PATHWAYS, *EXACT])
def test_each_claim_cites_the_paper(name: str) -> None:
    """Whatever looks like a rate in a docstring stands on a line that says whose it is, just as the
    package's data has it.
    """
    text = inspect.getdoc({**PATHWAYS, **EXACT}[name]) or ""
    lines = [line for line in text.splitlines() if re.search(r"\b[01]\.\d{4}\b", line)]
    assert lines
    for line in lines:
        found = re.fullmatch(r"(.+ on \w+): (.+) \((v1, figures? .+|in no figure)\)", line)
        assert found is not None
        names = [each.rpartition(" ")[0] for each in found[2].split(", ")]
        assert line == cited(f"{found[1]}: {', '.join(names)}")
    assert "2506.20746" in text + (claims.__doc__ or "")


def test_the_table_has_a_title_for_each_claim() -> None:
    """The table knows all claims and no others."""
    assert set(TITLES) == {*PATHWAYS, *EXACT}


# ----------------------------------------------------------------------- on the paper's own figures


@pytest.mark.parametrize("model", ("Gemma", "GPT-2 XL", "Llama", "Pythia"))
@pytest.mark.parametrize("prompt", ("headline", "qa", "movie_title"))
def test_the_papers_figures_bear_out_its_claims(model: str, prompt: str) -> None:
    """On the rates that the paper measured over 999 facts, FE+LT suffices, the rest does not, and
    each alone carries a part.

    One is too small to tell: FE of Pythia on movie_title.
    """
    claims = [name for name in PATHWAYS if name != POSITION and "all_but" not in name]
    small = (
        {"test_fe_alone_carries_a_part": "undecided"}
        if (model, prompt) == ("Pythia", "movie_title")
        else {}
    )
    assert {name: of_paper(name, model, prompt) for name in claims} == {
        **dict.fromkeys(claims, "holds"),
        **small,
    }
    if prompt == "qa":
        assert of_paper(POSITION, model, prompt) == "holds"


def test_new_film_is_a_counter_example() -> None:
    """On the rates of the less finetuned Gemma, FE+LT does not suffice, FE alone brings nothing,
    and LT alone next to nothing.
    """
    model = "Gemma, less finetuned"
    found = {
        name: of_paper(name, model, "new_film")
        for name in PATHWAYS
        if name != POSITION and "all_but" not in name
    }
    assert found == {
        "test_fe_and_lt_suffice": "fails",
        "test_without_fe_and_lt_nothing_is_left": "holds",
        "test_fe_alone_carries_a_part": "fails",
        "test_lt_alone_carries_a_part": "undecided",
    }


@pytest.mark.parametrize(
    ("name", "held", "not_held"),
    [
        (
            "test_all_but_fe_does_what_lt_does",
            [("Llama", "headline"), ("GPT-2 XL", "headline")],
            [
                ("Gemma", "headline"),
                *((model, "movie_title") for model in ("Gemma", "GPT-2 XL", "Llama", "Pythia")),
            ],
        ),
        (
            "test_all_but_lt_does_what_fe_does",
            [("Llama", "headline"), ("Llama", "qa"), ("Pythia", "headline"), ("Pythia", "qa")],
            [("GPT-2 XL", "headline"), ("GPT-2 XL", "qa")],
        ),
    ],
)
def test_other_tokens_held_where_the_docstring_says(
    name: str, held: list[tuple[str, str]], not_held: list[tuple[str, str]]
) -> None:
    """Whether the other tokens add something differs between the paper's models, as the docstrings
    say.
    """
    assert {of_paper(name, *each) for each in held} == {"holds"}
    assert {of_paper(name, *each) for each in not_held} == {"fails"}


def test_a_part_is_more_than_the_papers_noise() -> None:
    """In all of the paper's runs (FE+LT)^C stays within .02 of the recipient, in shares of what
    finetuning added.
    """
    shares = [
        (own["(FE+LT)^C"] - own["PRE"]) / (own["SFT"] - own["PRE"])
        for own in (measured(*cell) for cell in cited_rows())
    ]
    assert 0.019 < max(map(abs, shares)) < 0.02


@pytest.mark.parametrize("alone", ("FE", "LT"))
@pytest.mark.parametrize(("n", "expected"), [(60, "undecided"), (200, "fails"), (N, "fails")])
def test_a_part_that_is_nothing_is_refuted(alone: str, n: int, expected: str) -> None:
    """Where FE or LT brings exactly nothing, the claim that it carries a part fails, given facts
    enough.
    """
    rates = {**fake_runs.RATES, "PRE": 0.0, "SFT": 1.0, alone: 0.0}
    assert (
        outcome(PATHWAYS[f"test_{alone.lower()}_alone_carries_a_part"], "qa", {"qa": rates}, n)
        == expected
    )


# ----------------------------------------------------------------------- nothing learned, few facts


@pytest.mark.parametrize("name", PATHWAYS)
def test_nothing_learned_bears_out_nothing(name: str) -> None:
    """Where the donor knows no more than the recipient, no claim holds."""
    rates = dict.fromkeys(("headline", "qa"), dict.fromkeys(fake_runs.RATES, 0.02))
    assert outcome(PATHWAYS[name], "qa", rates) == "undecided"


@pytest.mark.parametrize("name", PATHWAYS)
def test_few_facts_decide_nothing(name: str) -> None:
    """With nine facts no claim holds or fails."""
    assert (
        outcome(PATHWAYS[name], "qa", dict.fromkeys(("headline", "qa"), fake_runs.RATES), 9)
        == "undecided"
    )


def test_the_verb_must_not_do_worse() -> None:
    """The claim on position fails where FE+LT loses more on qa than on headline, though not where
    it loses as much on both.
    """
    good, worse = fake_runs.RATES, {**fake_runs.RATES, "FE+LT": 0.7}
    assert outcome(PATHWAYS[POSITION], "qa", {"headline": good, "qa": good}) == "holds"
    assert outcome(PATHWAYS[POSITION], "qa", {"headline": good, "qa": worse}) == "fails"


# -------------------------------------------------------------------------------------- differences


def test_a_difference_is_that_of_the_sufficiencies() -> None:
    """On one prompt its value is recovery less recovery, its sign turns with the order, and of a
    configuration from itself it is 0.
    """
    rows = columns()
    there, back = (
        between_configurations(rows, "top5", *pair) for pair in (("FE+LT", "FE"), ("FE", "FE+LT"))
    )
    gain = round(0.99 * N) - round(0.01 * N)
    assert there.value == pytest.approx(
        (round(0.97 * N) - round(0.17 * N)) / gain
    ) and back.value == pytest.approx(-there.value)
    same = between_configurations(rows, "top5", "LT", "LT")
    assert (
        same.value == 0
        and same.low is not None
        and same.high is not None
        and same.low < 0 < same.high
    )


def test_between_prompts_is_over_the_facts_of_both() -> None:
    """Equal prompts differ by 0; the facts are those that both have; and what was not run is
    undefined, with the reason.
    """
    many, few = (columns(n) for n in (N, 50))
    assert between_prompts(many, many, "top5", "FE+LT").value == 0
    assert between_prompts(many, few, "top5", "FE+LT").n == 50
    assert between_prompts(many, few, "top5", "M").undefined == "M not run"
    assert between_configurations(many, "top5", "M", "FE").undefined == "M not run"


Hits = NDArray[np.bool_]


def of_hits(name: str, hits: Mapping[str, Hits]) -> PromptColumns:
    """The columns of a prompt on which each configuration hits these facts."""
    facts = np.array([f"{i:04d}" for i in range(len(hits["PRE"]))])
    return PromptColumns(
        name, {graft: {"fact": facts, "rank": np.where(own, 1, 99)} for graft, own in hits.items()}
    )


def beside(here: Hits, there: Hits) -> Estimate:
    """The difference between two prompts on which finetuning brought every fact, and FE+LT hits
    these.
    """
    n = len(here)
    edges = {"PRE": np.zeros(n, bool), "SFT": np.ones(n, bool)}
    first, second = (
        of_hits(name, {**edges, "FE+LT": own}) for name, own in (("qa", here), ("headline", there))
    )
    return between_prompts(first, second, "top5", "FE+LT")


@pytest.mark.parametrize("n", (12, 150))
@pytest.mark.parametrize("discordant", (0, 1, 3))
def test_the_difference_between_prompts_is_that_of_the_paired_contrast(
    n: int, discordant: int
) -> None:
    """Where finetuning brought every fact on both, the difference is a paired one; with no
    discordant fact its interval is no point.
    """
    there = np.ones(n, bool)
    here = np.arange(n) >= discordant
    found, (low, high) = beside(here, there), discordance(here.astype(int) - there.astype(int))
    assert found.value == pytest.approx(-discordant / n)
    assert found.low is not None and found.high is not None
    if not discordant:
        assert low - 0.2 < found.low < -1 / (2 * n) < 1 / (2 * n) < found.high < high + 0.2


@pytest.mark.parametrize("n", (12, 20, 60))
@pytest.mark.parametrize("lost", (0.0, 0.1, 0.3))
def test_the_interval_between_prompts_covers(n: int, lost: float) -> None:
    """Of the intervals of worlds where FE+LT loses so many facts more on one prompt, nine in ten or
    more hold the true difference.
    """
    rng = np.random.default_rng(0)
    found = [beside(rng.random(n) >= lost, np.ones(n, bool)) for _ in range(150)]
    assert (
        np.mean(
            [
                each.low <= -lost <= each.high
                for each in found
                if each.low is not None and each.high is not None
            ]
        )
        >= 0.9
    )


@pytest.mark.parametrize("n", (12, 20, 60))
@pytest.mark.parametrize(("first", "second"), [(0.3, 0.3), (0.2, 0.3), (0.15, 0.97), (0.9, 1.0)])
def test_the_interval_between_configurations_covers(n: int, first: float, second: float) -> None:
    """So do the intervals of a difference between configurations."""
    rng, found = np.random.default_rng(0), list[Estimate]()
    for _ in range(150):
        rates = {"PRE": 0.01, "SFT": 0.99, "FE": first, "LT": second}
        hits = {graft: rng.random(n) < rate for graft, rate in rates.items()}
        found.append(between_configurations(of_hits("qa", hits), "top5", "FE", "LT"))
    true = (first - second) / 0.98
    assert (
        np.mean(
            [
                each.low <= true <= each.high
                for each in found
                if each.low is not None and each.high is not None
            ]
        )
        >= 0.9
    )


# ------------------------------------------------------------------------------------- the identity


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_the_identity_holds_in_every_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds of random models to rounding, nothing is copied, and it would not hold without final
    norm and head.
    """
    from kgbench.data import load_prompts

    pair, prompts = pico_pair(family), load_prompts("tiny_movies", ["headline", "qa"], limit=3)
    other = exchanged(pair)
    assert other.recipient is pair.donors["sft"] and other.donors["sft"] is pair.recipient
    assert max(assert_complement_identity(each, prompts) for each in (pair, other)) < 1e-4
    monkeypatch.setattr(claim, "everything_else", lambda sites: f"({sites})^C")
    with pytest.raises(AssertionError, match="more than rounding"):
        assert_complement_identity(pair, prompts)


# --------------------------------------------------------------------------- the suite as it is run


def test_each_claim_is_made_once_on_each_prompt(
    inner: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """By default on four prompts, and where one is chosen on that; what needs two prompts is made
    where both are there.
    """
    every = {f"{name}[{prompt}]" for name in TITLES if name != POSITION for prompt in PROMPTS} | {
        f"{POSITION}[qa]"
    }
    one = {f"{name}[qa]" for name in TITLES if name != POSITION}
    for options, expected in (("", every), ("--kgbench-prompt qa", one)):
        assert inner(f"--collect-only {options}") == 0
        ids = re.findall(r"::(\S+)$", capfd.readouterr().out, re.MULTILINE)
        assert len(ids) == len(set(ids)) and set(ids) == expected


@pytest.mark.parametrize(
    ("chosen", "missing"),
    [("qa", "headline"), ("movie_title", "qa and headline"), ("headline,qa", "")],
)
def test_what_is_left_out_is_told_in_a_line(
    chosen: str, missing: str, inner: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """A claim that needs a prompt that was not chosen is not silently missing."""
    assert inner(f"--collect-only --kgbench-prompt {chosen}") == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "left out" in line]
    assert lines == [
        f"kgbench: {POSITION} needs the prompts qa and headline, and is left out: {missing} not"
        " chosen"
    ] * bool(missing)


@pytest.mark.nightly
def test_the_suite_runs_in_two_processes(tmp_path: Path) -> None:
    """On a tiny pair every claim comes to something, the exact ones hold, and every report holds
    its figure.
    """
    few = "--kgbench-model tiny-gemma --kgbench-limit 12 --kgbench-prompt headline,qa"
    line = f"-m pytest --pyargs kgbench.paper.claims {SESSION} -n 2 {few}".split()
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = forks.run(
        [sys.executable, *line], capture_output=True, text=True, cwd=tmp_path, env=ours
    )
    found = outcomes(tmp_path)
    assert done.returncode in (0, 1) and len(found) == 2 * (len(TITLES) - 1) + 1, done.stdout
    assert set(found.values()) <= {"holds", "failure", "undecided"}
    assert {what for name, what in found.items() if name.partition("[")[0] in EXACT} == {"holds"}
    cases = list(ElementTree.parse(tmp_path / "claims.xml").iter("testcase"))
    assert all(
        any(each.attrib["name"] == "figure" for each in case.iter("property")) for case in cases
    )


def test_a_pair_without_knowledge_bears_out_nothing(
    inner: Callable[..., int], tmp_path: Path
) -> None:
    """Where donor and recipient are one, no claim holds but the exact ones."""
    place = str(catalog.zoo_path("zoo:tiny-gemma/recipient"))
    few = "--kgbench-dataset tiny_movies --kgbench-limit 12 --kgbench-prompt headline,qa"
    assert inner(few, "--kgbench-recipient", place, "--kgbench-donor", place) == 0
    found = outcomes(tmp_path)
    assert {what for name, what in found.items() if name.partition("[")[0] in PATHWAYS} == {
        "undecided"
    }
    assert {what for name, what in found.items() if name.partition("[")[0] in EXACT} == {"holds"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--kgbench-localizer weight_delta", "localizer 'weight_delta' scores"),
        ("--kgbench-suite budget", "leave out --kgbench-suite budget"),
        ("--kgbench-localizer dynamic_grift", "Did you mean 'dynamic_graft'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(
    options: str, told: str, inner: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    """A usage error, before anything is loaded."""
    assert inner(options) == 4
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    assert len(lines) == 1 and told in lines[0]


def test_what_a_method_cannot_express_is_undecided(
    inner: Callable[..., int], tmp_path: Path
) -> None:
    """A method that knows no positions neither bears the claims out nor fails them."""
    few = "--kgbench-limit 12 --kgbench-prompt headline"
    assert inner(f"--kgbench-localizer static_graft {few}") == 0
    assert {
        what for name, what in outcomes(tmp_path).items() if name.partition("[")[0] in PATHWAYS
    } == {"undecided"}
