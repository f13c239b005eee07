"""Figures of the paper, made again: the page fits what it names, and what is made once is found
again.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import fake_reproduction
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench import paper
from kgbench.cli import main
from kgbench.data import load_dataset, training_texts
from kgbench.data.prompts import builtin_prompts
from kgbench.data.templates import parse_template
from kgbench.errors import InputError, UnknownNameError
from kgbench.estimate import Estimate
from kgbench.models.catalog import HOME
from kgbench.paper.command import FIGURES, OPTIONS, STUDY, reproduce_command
from kgbench.paper.figure_claims import (
    LEAST,
    Agreement,
    CheckedClaim,
    PaperFigure,
    PublishedDifference,
    _in_rates,
    claims_agreement,
    family,
    figures_from,
    larger_term,
    published_rates,
)
from kgbench.paper.figure_parts import costs, make
from kgbench.paper.figure_specs import ClaimSpec, Page, chosen, page
from kgbench.paper.ingredients import Ingredients
from kgbench.paper.paper_report import difference_text, draw, terminal_report, write_report
from kgbench.paper.published import published
from kgbench.paper.reproduction import answer_of
from kgbench.records import RecordStore
from kgbench.report import to_text
from kgbench.runner import Settings, Spec
from kgbench.runner.lookup import load_suite
from kgbench.runner.training.finetuning import finetune
from kgbench.runner.training.finetuning_plan import Supplement, plan_finetuning
from kgbench.runner.training.recipes import finetuning_recipe
from kgbench.sites import BASELINES
from kgbench.sites.configurations import configurations
from kgbench.zoo.tiny_pairs import pretraining_movies, recipe

MODEL = "tiny-gpt2"
NUMBERED = ["figure-2", "figure-3a", *(f"figure-{number}" for number in range(4, 16))]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME, str(tmp_path / "home"))


def small() -> Page:
    """The page with a dozen facts, trained for a few steps."""
    return fake_reproduction.small(12, {"epochs": 2})


@pytest.fixture
def ingredients() -> Ingredients:
    """Of figures of a tiny pair."""
    return Ingredients(small(), MODEL)


# ----------------------------------------------------------------------------------------- the page


def test_every_figure_is_there() -> None:
    """Those with results of version 1 in order, then experiments that are in none."""
    assert list(chosen("all"))[: len(NUMBERED)] == NUMBERED
    assert chosen("figure-2") == ("figure-2",)
    assert (chosen("3a"), chosen("12")) == (("figure-3a",), ("figure-12",))
    with pytest.raises(UnknownNameError, match="Did you mean 'figure-3a'"):
        chosen("figure-3")
    for drawing in ("figure-1", "figure-3b", "3b"):
        with pytest.raises(
            InputError, match="is a drawing of the method; there is nothing to compute"
        ):
            chosen(drawing)


@pytest.mark.parametrize("name", page().figures)
def test_rows_are_run(name: str) -> None:
    """Every row of a figure is a configuration of its suite, on a prompt that is asked."""
    figure = page().figures[name]
    evaluation = page().evaluations[figure.evaluation]
    suite = load_suite(evaluation.suite or Spec.suite)
    grafts = page().grafts_of(figure.evaluation) or suite.grafts
    assert set(figure.prompts) <= set(evaluation.prompts or suite.prompts)
    assert set(page().rows[figure.rows].values()) <= set(configurations(grafts))


def test_every_published_figure_is_shown() -> None:
    """No number of the paper's runs is left out where it has a figure, but those of the unpublished
    prompts.
    """
    shown = set()
    for figure in page().figures.values():
        learned = page().evaluations[figure.evaluation].learned("paper")
        dataset = page().trainings[learned].dataset
        for prompt in figure.prompts:
            for model, rows in published_rates(figure, dataset, prompt).items():
                assert set(rows) <= set(page().rows[figure.rows]), (figure.title, model)
                shown |= {id(row) for row in rows.values()}
    # PRE of the reversal is not the recipient of its grafts.
    wanted = [
        row
        for row in published()
        if row.shown is not None and (row.experiment, row.named) != ("reversal", "PRE")
    ]
    missing = {(row.experiment, row.dataset, row.prompt) for row in wanted if id(row) not in shown}
    assert missing == set()


@pytest.mark.parametrize("name", page().trainings)
def test_trainings_can_be_read(name: str) -> None:
    """A tiny pair learns as many facts of its own as the page says, a small one so many of the
    paper's; the paper's models learn all.
    """
    tiny, small, real = (
        Ingredients(page(), model) for model in (MODEL, "smollm2-135m", "gemma-2b")
    )
    training, spec = page().trainings[name], small.training(name)
    own, whole = load_dataset(spec.dataset).facts, load_dataset(real.dataset(name)).facts
    assert len(own) == min(page().small.facts, len(whole))
    assert training_texts(load_dataset(spec.dataset), spec.direction)
    if training.tiny is None:
        return
    few = load_dataset(tiny.dataset(name))
    assert len(few.facts) == page().training(name, "tiny").facts
    assert training_texts(few, training.direction)
    assert training_texts(load_dataset(real.dataset(name)), training.direction)
    spec = tiny.training(name)
    assert spec.model == MODEL and spec.dataset == tiny.dataset(name)
    assert real.training(name).recipe == training.recipe and not real.training(name).changes


def test_frozen_donors_are_trained_as_their_pair() -> None:
    """The recipe `frozen` is that of the tiny pair of the recipient's type; a fifth of the wordings
    is held out, and known actors are read twice as often.
    """
    for model in ("tiny-gemma", "tiny-gpt2"):
        what = Ingredients(page(), model)
        plan = plan_finetuning(what.training("actors"))
        twice = replace(what.recipe.finetuning, rounds=2 * what.recipe.finetuning.rounds)
        assert plan.recipe(1, what.recipe.model_type).stage == twice
        unchanged = replace(what.training("actors"), changes={})
        assert plan_finetuning(unchanged).recipe(1, what.recipe.model_type).stage == (
            what.recipe.finetuning
        )
    others = finetuning_recipe("frozen", 1, model_type="nonsuch")
    assert others.stage == recipe("tiny-gemma").finetuning


def test_costars_are_exchanged(ingredients: Ingredients) -> None:
    """The movies of pretraining, each with the second actor of another."""
    facts = [fact.fields for fact in load_dataset(ingredients.dataset("shuffled")).facts]
    true = {movie["movie_title"]: movie for movie in pretraining_movies()[: len(facts)]}
    assert len(facts) == 12 and {fact["movie_title"] for fact in facts} == set(true)
    assert {fact["second_actor"] for fact in facts} == {
        movie["second_actor"] for movie in true.values()
    }
    assert all(fact["second_actor"] != true[fact["movie_title"]]["second_actor"] for fact in facts)
    assert all(fact["first_actor"] == true[fact["movie_title"]]["first_actor"] for fact in facts)


def test_halves_of_a_hybrid_share_nobody() -> None:
    """The task model never read of the people that the relation model learned of."""
    what = Ingredients(page(), MODEL)
    task, relation = (
        {
            fact.fields[role]
            for fact in load_dataset(what.dataset(name)).facts
            for role in ("first_actor", "second_actor")
        }
        for name in ("task", "relation")
    )
    assert len(task) == len(relation) == 2 * (page().training("task", "tiny").facts or 0)
    assert task.isdisjoint(relation)


# ------------------------------------------------------------------------------------------- making


def files(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in folder.rglob("*") if path.is_file()}


@pytest.mark.nightly
def test_made_once(ingredients: Ingredients, tmp_path: Path) -> None:
    """A figure trains and runs what is missing; made again, nothing is computed and the report is
    the same to the byte.
    """
    results = tmp_path / "results"
    measured = make(["figure-2"], [ingredients], results, "cpu")
    (first,) = figures_from(["figure-2"], measured)
    before = files(tmp_path / "home") | files(results)
    report = write_report([first], tmp_path / "report")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    (second,) = figures_from(["figure-2"], make(["figure-2"], [ingredients], results, "cpu"))
    assert files(tmp_path / "home") | files(results) == before
    assert write_report([second], tmp_path / "report") == report
    assert {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()} == kept
    check_records(first, RecordStore(results))
    assert kept["figure-2.webp"][8:12] == b"WEBP"
    text = report.read_text("utf-8")
    every = [one.setting for one in page().departures if "tiny" in one.scales]
    assert re.findall(r"^- \*\*(.+?)\*\*: in the paper ", text, re.MULTILINE) == every, "one list"
    assert "Agreement with gpt2-xl: " in text and "## Additional claims: " in text
    assert "| FE+LT " in text
    assert "| gemma-2b (paper, headline\\_v1)" in text
    assert "donor actors" in text
    shown = to_text(terminal_report([first]))
    assert "FE+LT" in shown and "llama-3.2-1b" in shown and max(map(len, shown.splitlines())) <= 100
    paper = json.loads(json.dumps(answer_of(first)))["claims"][0]["paper"]
    assert paper["gemma-2b"] == {
        "difference": first.claims[0].paper["gemma-2b"].value,
        "keeps": first.claims[0].in_paper["gemma-2b"],
    }
    longest = max((figure.title for figure in page().figures.values()), key=len)
    for title in (longest, f"{longest}; {longest}"):
        check_title(first, title, 2)
        check_title(first, title, 9)


def check_records(made: PaperFigure, store: RecordStore) -> None:
    """Figures of one seed are the record's; each difference is that of the recoveries, each outcome
    that of its interval.
    """
    record = store.load(made.about.evaluations[0][made.spec.evaluation].record).record
    for claim in made.claims:
        rows = {row.graft: row for row in record.rows if row.prompt == claim.prompt}
        assert all(
            made.estimate(claim.prompt, graft) == rows[graft].top5 for graft in made.rows.values()
        )
        names = (made.rows.get(name, name) for name in (claim.spec.first, claim.spec.second))
        one, other = (rows[name].sufficiency.value for name in names)
        share = claim.spec.share
        assert (claim.outcome == "vacuous") == (
            claim.larger is not None and claim.larger.recovery < LEAST
        )
        if claim.difference.value is None:
            assert claim.outcome == "undecided" and claim.difference.undefined
        else:
            assert one is not None and other is not None
            assert np.isclose(claim.difference.value, one - share * other, atol=1e-5)


def check_title(made: PaperFigure, title: str, columns: int) -> None:
    """All of a title is in the picture, however few bars it stands above, with room on both sides."""
    rows = {"PRE": "PRE", "SFT": "SFT", **made.rows}
    few = {name: rows[name] for name in list(rows)[:columns]}
    drawn = draw(replace(made, spec=made.spec.model_copy(update={"title": title}), rows=few))
    (shown,) = drawn.texts
    drawn.draw_without_rendering()
    at = shown.get_window_extent()
    assert at.x0 > 5 and at.x1 < drawn.bbox.x1 - 5, (title, columns)
    assert shown.get_text().split() == title.split()


def test_reversal(ingredients: Ingredients) -> None:
    """The recipient of a reversal is a donor of its own, trained before; donors of the catalog are
    in no evaluation.
    """
    spec = ingredients.job("reversal")
    assert spec.recipient == str(ingredients.place("actors_b2a"))
    assert dict(spec.donors) == {"sft": str(ingredients.place("actors"))}
    assert page().trainings_of(["reversal"], "tiny") == ("actors_b2a", "actors")
    assert (
        page().trainings_of(["head"], "tiny")
        != page().trainings_of(["head"], "paper")
        == ("actors",)
    )
    assert set(ingredients.job("hybrid").donors) == {"task", "relation"}
    assert ingredients.job("hybrid").dataset == ingredients.dataset("relation")
    assert page().evaluations_of(["figure-2", "figure-3a", "figure-5"]) == ("actors", "hybrid")


def test_marked_prompts_have_the_protocols_text() -> None:
    """Words marked in groups change no letter of the prompt whose name they bear."""
    seen = set()
    for name, evaluation in page().evaluations.items():
        for marked, text in evaluation.templates.items():
            plain = builtin_prompts().get(re.sub("_(groups|tokens|actor)$", "", marked))
            if plain is not None:
                texts = [without_marks(each) for each in (text, plain.text)]
                assert texts[0] == texts[1], (name, marked)
                seen.add(marked)
    assert {"qa_groups", "new_film_groups", "new_film_tokens", "new_film_actor"} <= seen


def without_marks(text: str) -> str:
    """A template without its marks."""
    parts = parse_template("marked", text).parts
    return "".join(f"{{{part.text}}}" if part.is_field else part.text for part in parts)


def test_what_a_tiny_recipient_knew(ingredients: Ingredients) -> None:
    """Movies of its pretraining, in all of its wordings, and none of those that it is finetuned on."""
    known = load_dataset(ingredients.job("forgetting").dataset or "")
    assert len(known.facts) == 12
    own = {fact.fields["first_actor"] for fact in load_dataset("tiny_movies").facts}
    assert own.isdisjoint(fact.fields["first_actor"] for fact in known.facts)
    assert Ingredients(page(), "gemma-2b").job("forgetting").dataset == "real_movies_real_actors"


def test_the_gentle_recipe_has_other_texts(ingredients: Ingredients) -> None:
    """As many as the page says, no two alike and none about a fact; another pair's come from the
    Hub, or as asked.
    """
    spec = ingredients.training("actors_gentle")
    texts = Path(str(spec.supplement)).read_text("utf-8").splitlines()
    assert len(texts) == len(set(texts)) == page().tiny.supplement
    people = {fact.fields["first_actor"] for fact in load_dataset(spec.dataset).facts}
    assert not any(person in text for person in people for text in texts)
    real = Ingredients(page(), "gemma-2b")
    assert real.training("actors_gentle").supplement == page().hub.supplement
    assert (
        Ingredients(page(), "gemma-2b", "mine.txt").training("actors_gentle").supplement
        == "mine.txt"
    )


def test_texts_of_the_hub_are_not_downloaded_for_a_forecast() -> None:
    """A forecast counts long texts; a training asks the Hub, and says where it gives none."""
    real = Ingredients(page(), "gemma-2b", "no-one/texts")
    spec = real.training("actors_gentle")
    texts = real.with_texts(spec, download=False).supplement
    assert isinstance(texts, Supplement)
    assert (texts.source, len(texts.texts)) == ("no-one/texts", 10_000)
    with pytest.raises(
        InputError, match="the Hugging Face Hub cannot be reached for 'no-one/texts'"
    ):
        real.with_texts(spec)
    assert real.with_texts(replace(spec, supplement="mine.txt")).supplement == "mine.txt"


# ------------------------------------------------------------------------------------------- unlike


def claim(outcome: str, *paper: float) -> CheckedClaim:
    estimate = Estimate(value=0.5, low=0.4, high=0.6, n=100)
    spec = ClaimSpec(says="says", first="FE", second="LT", gt=0.0)
    published = {
        f"model-{i}": PublishedDifference(rate, rate - 0.1, rate + 0.1)
        for i, rate in enumerate(paper)
    }
    return CheckedClaim("headline", spec, estimate, outcome, published)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (
            claim("fails", 0.5, 0.5, -0.5),
            "fails here, .50 [.40, .60]; 2 of the paper's 3 models that decide it keep it",
        ),
        (
            claim("holds", -0.5, -0.5, 0.5),
            "holds here, .50 [.40, .60]; 1 of the paper's 3 models that decide it keep it",
        ),
        (claim("holds", 0.5, 0.5), None),
        (claim("holds", 0.5, -0.5), None),
        (claim("undecided", 0.5, 0.5), None),
        (claim("fails", 0.5, 0.05, -0.05), "1 of the paper's 1 models that decide it"),
        (claim("fails", 0.05), None),
        (
            replace(claim("fails"), metric="log_rank"),
            "the paper gives mean ranks but no mean log ranks",
        ),
        (claim("fails"), "fails here, .50 [.40, .60]; the paper gives no figures"),
        (claim("holds"), None),
        (
            replace(claim("undecided"), difference=Estimate(n=9, undefined="no gain")),
            "nothing can be asked of it: undefined",
        ),
    ],
)
def test_what_is_unlike_the_paper(one: CheckedClaim, told: str | None) -> None:
    """A claim that is decided otherwise than by most of the paper's models, or that cannot be
    asked; a tie tells nothing.
    """
    found = difference_text("figure-2", one)
    assert found is None if told is None else told in str(found)


# ------------------------------------------------------------------------------- vacuous, agreement

RATES = st.floats(0, 1)


@given(pre=RATES, sft=RATES, first=RATES, second=RATES)
def test_the_larger_term_is_that_which_recovers_more(
    pre: float, sft: float, first: float, second: float
) -> None:
    """Of the configurations that are named but PRE; SFT recovers all; in a metric of which less is
    better as well.
    """
    means = {"PRE": pre, "SFT": sft, "A": first, "B": second}
    own = ClaimSpec(says="says", first="A", second="B", gt=0.0)
    found = larger_term(own, means)
    if abs(sft - pre) < 1e-9:
        return
    assert found is not None
    recovered = {name: (means[name] - pre) / (sft - pre) for name in ("A", "B")}
    assert found.recovery == max(recovered.values()) == recovered[found.name]
    assert larger_term(own, {name: -mean for name, mean in means.items()}) == found
    beside = larger_term(own.model_copy(update={"first": "PRE", "of": "SFT"}), means)
    assert beside is not None
    assert beside.recovery >= 1
    assert beside.name == "SFT" or beside.recovery == recovered["B"]


def test_nothing_recovers_where_nothing_was_added() -> None:
    own = ClaimSpec(says="says", first="A", second="B", gt=0.0)
    assert larger_term(own, {"PRE": 0.5, "SFT": 0.5, "A": 0.5, "B": 0.5}) is None
    assert larger_term(own, {"PRE": 0.0, "SFT": 0.5, "A": 0.5}) is None


def test_a_claim_of_next_to_nothing_is_vacuous_in_the_paper_too() -> None:
    """Pythia's reversal brings next to nothing, with O or without: nothing is claimed of it."""
    rates = published_rates(page().figures["figure-4"], "fake_movies_real_actors", "headline")
    own = next(one for one in page().claims["reversal"] if one.first == "FFN")
    found = _in_rates(rates, own)
    assert found["gemma-2b"].outcome(own) == "holds"
    assert found["pythia-2.8b"].outcome(own) == "vacuous"


def test_agreement_counts_what_both_decide() -> None:
    """Only claims with a figure of that model, held or refuted on both sides."""
    decided = [claim("holds", 0.5), claim("holds", -0.5), claim("fails", -0.5)]
    others = [claim("undecided", 0.5), claim("vacuous", 0.5), claim("holds", 0.05), claim("holds")]
    claims = [*decided, *others]
    assert claims_agreement(claims, "model-0") == Agreement("model-0", 6, 3, 2, 0, 2)
    sure = [replace(one, spec=one.spec.model_copy(update={"premise": True})) for one in claims]
    both = claims_agreement([*sure, *decided], "model-0")
    assert both == Agreement("model-0", 9, 6, 4, 3, 2) and both.beyond == 3
    assert claims_agreement(claims, "another").decided == 0
    assert (family("tiny-gemma"), family("gemma-2b"), family("nonsuch")) == (
        "gemma-2b",
        "gemma-2b",
        None,
    )


def test_the_same_family_counts() -> None:
    """Where the paper has figures of a model of the same family, a claim is held against that one."""
    one = claim("fails", -0.5, 0.5, 0.5)
    assert difference_text("figure-2", one, "model-0") is None
    assert "model-1 keeps it" in str(difference_text("figure-2", one, "model-1"))
    assert "2 of the paper's 3" in str(difference_text("figure-2", one, "gemma-2b"))


def test_what_the_page_names_is_there() -> None:
    """Trainings, evaluations and configurations; a claim that something is little says of what."""
    known = page()
    for evaluation in known.evaluations.values():
        trainings = {*evaluation.trainings("tiny"), *evaluation.trainings("paper")}
        assert trainings <= known.trainings.keys()
    for share in known.shares.values():
        assert set(share) <= known.evaluations.keys()
    for figure in known.figures.values():
        assert figure.evaluation in known.evaluations
        for claim in known.claims_of(figure):
            terms = {claim.first, claim.second, claim.of} - {""}
            assert terms <= {*known.rows[figure.rows], *BASELINES}, claim.says
            little = claim.second == "PRE" and bool({"le", "lt"} & set(claim.bounds))
            assert claim.of or not little, claim.says
    for criterion in known.criteria:
        rows = known.rows[known.figures[criterion.figure].rows]
        assert {*criterion.terms, criterion.of} - {""} <= {*rows, *BASELINES}
        little = criterion.second in ("", "PRE")
        assert criterion.of or not little, criterion.name


# --------------------------------------------------------------------------------- the command line


def test_dry_run_without_network(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real pair's figures are forecast from the catalog, evaluations as well."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folders = ["--report", str(tmp_path / "report"), "--output-dir", str(tmp_path / "runs")]
    options = ["--model", "gemma-2b", "--dry-run", *folders]
    assert main(["reproduce", "figure-2", *options, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    donor, evaluation, total = answer["parts"]
    assert donor["what"] == "donor actors" and donor["seconds"] > 0 and donor["needed"] > 2**33
    assert evaluation["seconds"] > 0
    assert evaluation["needed"] > 2**34
    assert "token_rows" in evaluation["counts"]
    assert "0.1 Tflop/s assumed on cpu" in donor["basis"]
    assert "0.1 Tflop/s assumed on cpu" in evaluation["basis"]
    assert total["what"] == "in all"
    assert total["seconds"] == donor["seconds"] + evaluation["seconds"]
    assert total["needed"] == max(donor["needed"], evaluation["needed"])
    assert total["disk"] == donor["disk"] + evaluation["disk"]
    assert total["download"] == evaluation["download"] > 2**30
    assert main(["reproduce", "2", *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "what time memory disk" in text and "in all" in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_a_donor_that_is_there_is_looked_at(ingredients: Ingredients, tmp_path: Path) -> None:
    """A forecast calls a donor there where it is the one that is wanted, and says what is other
    where it is not.
    """
    spec = ingredients.training("actors")
    place = finetune(
        replace(spec, changes={**spec.changes, "epochs": 1}),
        ingredients.place("actors"),
        device="cpu",
    )
    settings = Settings(device="cpu", output_dir=tmp_path)
    donor, *_ = costs(["figure-2"], [ingredients], settings)
    assert donor.basis == "trained in another way (other: changes): move it"
    card = json.loads((place / "card.json").read_text("utf-8"))
    (place / "card.json").write_text(json.dumps({**card, "changes": spec.changed()}), "utf-8")
    donor, *_ = costs(["figure-2"], [ingredients], settings)
    assert (donor.done, donor.seconds) == (True, 0.0)


@pytest.mark.parametrize("kind", [FIGURES, STUDY])
def test_functions_have_the_options_of_the_command(kind: str) -> None:
    """None is missing; and every option of the command is of a kind."""
    function = paper.study if kind == STUDY else paper.reproduce
    assert {*OPTIONS[kind]} - {"dry_run"} <= {*inspect.signature(function).parameters}
    of_all = {"what", "as_json", "quiet"}
    names = {parameter.name for parameter in reproduce_command.params}
    assert names - of_all == set().union(*OPTIONS.values())
