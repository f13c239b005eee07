"""The suite of plants: rankings against the truth, from plants whose places are known and small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_plants import write_plant

from kgbench.cli import main
from kgbench.cli.eval import write_pictures
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.models import catalog
from kgbench.records import Planted, Record
from kgbench.report import to_text
from kgbench.report.run_report import record_report
from kgbench.runner import Pairs, Run, Settings, Spec, load_prompts, run_job
from kgbench.runner.job import split_facts
from kgbench.runner.lookup import planted_models
from kgbench.sites import Site, block_of, parse_graft
from kgbench.stats.ranking_quality import average_precision, chance_precision
from kgbench.stats.summary import _pathway

WEIGHTS, DECOY, POSITION = "ALL:o+ffn@second_half", "ALL:o+ffn@first_half", "LT:o+ffn@second_half"
PLANTED = {"weights": WEIGHTS, "position": POSITION}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A weight plant with a decoy."""
    return str(write_plant(tmp_path_factory.mktemp("plants") / "weights", WEIGHTS, DECOY))


@pytest.fixture(scope="module")
def position(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A position plant without one."""
    return str(write_plant(tmp_path_factory.mktemp("plants") / "position", POSITION))


@pytest.fixture(scope="module")
def places(weights: str, position: str) -> dict[str, str]:
    return {"weights": weights, "position": position}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(output_dir=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.fixture(scope="module")
def runs(weights: str, position: str, settings: Settings) -> dict[tuple[str, str], Run]:
    """Runs by plant and localizer."""
    pairs = Pairs()
    cases = [
        (plant, name)
        for plant in (weights, position)
        for name in ("oracle", "weight_delta", "dynamic_graft")
    ]
    specs = {
        (Path(plant).name, name): Spec(model=plant, localizer=name, suite="planted")
        for plant, name in cases
    }
    return {key: run_job(spec, settings, pairs=pairs) for key, spec in specs.items()}


def planted_of(record: Record) -> Planted:
    assert record.planted is not None
    return record.planted


# ------------------------------------------------------------------------------------------ figures


@pytest.mark.sampled(1)
@pytest.mark.parametrize("plant", ["weights", "position"])
def test_the_oracle_is_perfect(
    runs: dict[tuple[str, str], Run], places: dict[str, str], settings: Settings, plant: str
) -> None:
    """Told the truth, a ranking has 1 everywhere; its best sites are the truth itself, so that what
    they carry is what the plant does.
    """
    record = runs[plant, "oracle"].record
    found = planted_of(record)
    assert found.average_precision.value == 1 and found.average_precision.low is None
    rows = {(r.prompt, r.graft): r for r in record.rows}
    spec = Spec(model=places[plant], grafts=(PLANTED[plant],), localizer="dynamic_graft")
    graft = {(r.prompt, r.graft): r for r in run_job(spec, settings).record.rows}
    for prompt in ("headline", "qa"):
        assert rows[prompt, "top k"].top5 == graft[prompt, PLANTED[plant]].top5
        np.testing.assert_allclose(
            rows[prompt, "top k"].logprob.value,
            graft[prompt, PLANTED[plant]].logprob.value,
            atol=1e-4,
        )
        assert rows[prompt, "top k"].complement == "(top k)^C"
    assert record.identity.localizer.parameters == {"truth": PLANTED[plant]}
    assert record.identity.truth is not None and record.identity.truth.plant == PLANTED[plant]


def test_places(runs: dict[tuple[str, str], Run], places: dict[str, str]) -> None:
    """Blocks are judged, each with the best score of its sites, by region where positions were
    planted; of what changed only.
    """
    for name, plant in places.items():
        record = runs[name, "weight_delta"].record
        found, pair = planted_of(record), load_pair(plant)
        prompts = load_prompts("tiny_movies", ["headline", "qa"], 6)
        sites, true = all_sites(pair, prompts), graft_sites(pair, prompts, parse_graft(found.plant))
        scores = {(s.layer, s.component, s.region): s.score for s in record.scores or ()}
        assert set(scores) == set(map(tuple, sites)) and found.k == len(true)
        moved = [site for site in sites if scores[site] > 0]  # as weight_delta has it
        by_region = name == "position"

        def unit(site: Site, by_region: bool = by_region) -> object:
            block = block_of((site.layer, site.component))
            return (block, site.region) if by_region else block

        units = list(dict.fromkeys(map(unit, moved)))
        values = np.array([max(scores[s] for s in moved if unit(s) == one) for one in units])
        truth = np.array([any(unit(s) == one for s in true) for one in units])
        assert found.units == ("block and region" if by_region else "block")
        assert (found.n_units, found.n_true) == (len(units), int(truth.sum()))
        assert 0 < found.n_true < found.n_units
        assert found.average_precision == average_precision(values, truth).rounded()
        assert found.chance == pytest.approx(chance_precision(truth), rel=1e-5)


def test_sufficiency_is_pooled_by_fact(runs: dict[tuple[str, str], Run]) -> None:
    """Over all prompts, sufficiency is the ratio of means over all prompts, where facts tell the
    gain; each prompt's is its row's.
    """
    record = runs["weights", "dynamic_graft"].record
    found = planted_of(record)
    rows = {(r.prompt, r.graft): r for r in record.rows}
    total = {
        g: sum(rows[p, g].top5.value or 0 for p in ("headline", "qa"))
        for g in ("PRE", "SFT", "top k", "(top k)^C")
    }
    gain = total["SFT"] - total["PRE"]
    if found.effect.sufficiency.value is None:
        assert "not significantly better" in (found.effect.sufficiency.undefined or "")
        assert found.effect.necessity.value is None
    else:
        assert found.effect.sufficiency.value == pytest.approx(
            (total["top k"] - total["PRE"]) / gain
        )
        assert found.effect.necessity.value == pytest.approx(
            1 - (total["(top k)^C"] - total["PRE"]) / gain
        )
    assert {p: e.sufficiency for p, e in found.prompts.items()} == {
        p: rows[p, "top k"].sufficiency for p in ("headline", "qa")
    }
    assert max(row.n for row in record.rows) == 6 and record.identity.dataset.n == 6


def test_pathways(runs: dict[tuple[str, str], Run]) -> None:
    """Where positions were planted, an intervening method is asked for the pathways too."""
    found = planted_of(runs["position", "dynamic_graft"].record)
    assert found.pathways is not None and set(found.pathways) == {"headline", "qa"}
    assert {(p.planted, p.other) for p in found.pathways.values()} == {("LT", "FE")}
    assert planted_of(runs["weights", "dynamic_graft"].record).pathways is None
    assert planted_of(runs["position", "oracle"].record).pathways is None


@pytest.mark.parametrize(
    ("mine", "theirs", "outcome"),
    [
        ((0.95, 0.91, 1.1), (0.02, -0.1, 0.09), "identified"),
        ((0.95, 0.7, 1.1), (0.02, -0.1, 0.09), "undecided"),
        ((0.8, 0.7, 0.95), (0.02, -0.1, 0.09), "undecided"),
        ((0.5, 0.3, 0.7), (0.02, -0.1, 0.09), "not identified"),
        ((0.95, 0.91, 1.1), (0.6, 0.4, 0.8), "not identified"),
        (None, (0.02, -0.1, 0.09), "undecided"),
    ],
)
def test_outcome_of_a_pathway(runs, mine, theirs, outcome: str) -> None:
    """A pathway is identified where both whole intervals are on their sides, not identified where
    one lies beyond, undecided else. Earlier records say told.
    """
    rows = {r.graft: r for r in runs["position", "dynamic_graft"].record.rows if r.prompt == "qa"}

    def estimate(of: tuple[float, float, float] | None) -> Estimate:
        return (
            Estimate(n=6, undefined="why")
            if of is None
            else Estimate(value=of[0], low=of[1], high=of[2], n=6)
        )

    made = [
        rows[g].model_copy(update={"sufficiency": estimate(of)})
        for g, of in (("LT", mine), ("FE", theirs))
    ]
    pathway = _pathway(*made)
    assert pathway.outcome == outcome
    fields = pathway.model_dump(mode="json")
    earlier = {"told": fields.pop("outcome").replace("identified", "told"), "found": None}
    assert type(pathway).model_validate({**fields, **earlier}) == pathway


def test_another_metric(runs: dict[tuple[str, str], Run], weights: str, settings: Settings) -> None:
    """On another metric the shares change and the ranking's figures do not; nothing is computed."""
    before = runs["weights", "weight_delta"]
    after = run_job(
        Spec(model=weights, localizer="weight_delta", suite="planted", metric="logprob"), settings
    )
    assert after.reused
    found, was = planted_of(after.record), planted_of(before.record)
    assert found.average_precision == was.average_precision
    assert found.effect != was.effect
    assert found.prompts != was.prompts
    assert after.record.verdict.count("an average precision") == 1
    assert after.record.verdict.endswith("(logprob).")


def test_the_map_is_the_mean_of_the_halves(
    runs: dict[tuple[str, str], Run], position: str, tmp_path: Path
) -> None:
    """The halves of a plant's facts are its own facts only."""
    facts = catalog.entry(position).facts
    assert facts is not None
    prompts = {"qa": [p for p in load_prompts("tiny_movies", ["qa"], 10) if p.fact.id in facts]}
    halves = split_facts(prompts, 0)
    assert sorted(f for half in halves for f in half) == sorted(facts)
    record = runs["position", "oracle"].record
    assert record.ranking is not None and record.ranking.facts == (3, 3)
    pictures = [path.name for path in write_pictures(record, tmp_path)]
    assert {"map.png", "map.svg"} <= set(pictures)


# ---------------------------------------------------------------------------------- what is printed


def test_tables(runs: dict[tuple[str, str], Run]) -> None:
    """A run's table has its ranking against the truth, with what random is expected to get, in at
    most 100 columns.
    """
    for name in ("oracle", "dynamic_graft"):
        for plant in ("weights", "position"):
            record = runs[plant, name].record
            text = to_text(record_report(record))
            assert max(map(len, text.splitlines())) <= 100 and "chance" in text
            assert f"planted at {planted_of(record).plant}" in text


def test_json(
    runs: dict[tuple[str, str], Run],
    weights: str,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With --json, the figures against the truth are the record's."""
    line = ["eval", "--suite", "planted", "--model", weights, "--json", "-q"]
    line += ["--output-dir", str(settings.output_dir)]
    assert main([*line, "--localizer", "oracle"]) == 0
    answer = json.loads(capsys.readouterr().out)
    planted = answer["planted"]
    assert (answer["localizer"], answer["model"]) == ("oracle", "weights")
    assert {"average_precision", "chance", "sufficiency", "necessity"} <= set(planted)
    assert (planted["expression"], planted["decoy"]) == (WEIGHTS, DECOY)
    truth = planted_of(runs["weights", "oracle"].record)
    assert planted["average_precision"] == truth.average_precision.answer()
    assert set(planted["prompts"]["qa"]) == {"sufficiency", "necessity"}
    assert planted["pathways"] is None
    assert main([*line, "--localizer", "oracle,weight_delta"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert [entry["localizer"] for entry in both["runs"]] == ["oracle", "weight_delta"]


def test_plants_of_one_pair() -> None:
    """A pair's plants are those that were made from it; a plant has none of its own."""
    own = planted_models("tiny-gemma")
    assert own
    for name in own:
        folder = catalog.zoo_path(f"zoo:plants/{name}")
        assert folder is not None
        assert catalog.read_plant(folder)["base"] == "tiny-gemma"
    assert {*own, *planted_models("tiny-gpt2")} < set(planted_models())
    assert not planted_models(own[0])


def test_other_facts_have_no_truth(weights: str, settings: Settings) -> None:
    """Where the facts are not those that were planted, nothing is judged by the plant."""
    for localizer in ("oracle", "weight_delta"):
        with pytest.raises(InputError, match=r"leave out --dataset|must know where"):
            run_job(
                Spec(model=weights, suite="planted", dataset="tiny_movies", localizer=localizer),
                settings,
            )
