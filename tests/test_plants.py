"""Plants: who learned the facts, how far weights moved, and what a ranking is held to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from few_plants import FEW, FUSED, build_fused, refusal
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import kgbench
from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.engine.weights import changed
from kgbench.errors import InputError, OutputError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.catalog import entry
from kgbench.runner.training.hit_rates import configuration_hits
from kgbench.sites import Site, block_of, parse_graft
from kgbench.stats.summary import Ground, against_truth
from kgbench.zoo.planting import (
    Recipe,
    Texts,
    all_blocks,
    changes_of,
    confine,
    hooked,
    inside_and_outside,
    leak,
    lessons_of,
    quiet,
    shares,
    train,
)
from kgbench.zoo.plants import (
    PlantSpec,
    build_plant,
    graft_of,
    levels,
    parse_block,
    recipe_of,
    shortfalls,
)

LEVELS = tuple(levels())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fused(tmp_path_factory.mktemp("plants") / "fused")


def test_blocks_of_a_plant(built: Path) -> None:
    """The card's places are the blocks; every matrix of every block moved, and nothing else."""
    card, pair = json.loads((built / "card.json").read_text()), load_pair(str(built))
    moved = {pair.slots.sites[slot] for slot in changed(pair)}
    planted = {block_of(place) for place in moved & parse_graft(card["plant"]).sites(pair.n_layers)}
    others = {block_of(place) for place in moved & parse_graft(card["decoy"]).sites(pair.n_layers)}
    assert planted == set(map(parse_block, FUSED.blocks))
    assert planted | others == set(all_blocks(pair))
    assert not planted & others
    assert {block_of(place) for place in moved} == planted | others


def spectrum(folder: Path) -> dict[str, torch.Tensor]:
    """By matrix that changed, the singular values of its change, relative to its norm."""
    pair = load_pair(str(folder))
    before, after = pair.recipient.state_dict(), pair.donors["sft"].state_dict()
    values = {}
    for name, weights in after.items():
        change = weights - before[name]
        if change.any():
            values[name] = torch.linalg.svdvals(change) / before[name].norm()
    return values


@pytest.mark.parametrize("filling", ["quiet", "loud"])
def test_how_weights_moved_says_nothing(filling: str, built: Path, tmp_path: Path) -> None:
    """All changes have the same singular values, within what rounding to bfloat16 leaves."""
    out = built
    if filling != FUSED.filling:
        out = tmp_path / filling
        build_plant(replace(FUSED, filling=filling), out, recipe=FEW)
    expected = np.array([FEW.sizes[0], *[FEW.sizes[1]] * (FEW.rank - 1)])
    for values in spectrum(out).values():
        assert np.allclose(np.sort(values[: FEW.rank]), np.sort(expected), rtol=0.02)
        assert values[FEW.rank :].max() < 0.01
    assert (out / "delta.safetensors").stat().st_size < 200_000


def test_quiet_and_loud() -> None:
    """Filling along a quiet direction leaves the base's answers nearly as they are, along a loud
    one it does not.
    """
    pair = load_pair("tiny-llama")
    whole = load_dataset("tiny_movies")
    texts = Texts.of(pair, whole.subset([fact.id for fact in whole.facts[:4]]))
    model = pair.donor("sft")
    model.load_state_dict(pair.recipient.state_dict())
    before, moved = float(texts.loss(model).detach()), {}
    for filling in ("quiet", "loud"):
        with hooked(changes_of(pair, model, FEW, filling, 0, [texts], all_blocks(pair))):
            moved[filling] = abs(float(texts.loss(model).detach()) - before)
    assert moved["quiet"] < 0.5 * moved["loud"]


def test_quiet_directions_are_read_as_others_are() -> None:
    """By a matrix that hardly reads where inputs hardly vary, too; and of no more than are needed."""
    random = torch.Generator().manual_seed(0)
    weight, vectors = torch.randn(48, 64, generator=random), torch.eye(64)
    drawn = torch.randn(48, 200, generator=random)
    for steepness in (0.0, 2.0):
        read = weight * torch.linspace(1, 0, 64).flip(0).pow(steepness)
        directions = nn.functional.normalize(quiet(vectors, read) @ drawn, dim=0)
        usual = read.square().sum() / 64
        assert (read @ directions).square().sum(0).mean() > 0.8 * usual
        assert bool(directions[16:].any()) == (steepness > 0)


def test_a_build_is_the_same_twice(built: Path, tmp_path: Path) -> None:
    """Equal choices give equal weights, another seed other facts."""
    card = json.loads((built / "card.json").read_text())
    again = json.loads(build_plant(FUSED, tmp_path / "again", recipe=FEW).read_text())
    assert again["donor_hash"] == card["donor_hash"]
    other = replace(FUSED, seed=4)
    drawn = json.loads(build_plant(other, tmp_path / "other", recipe=FEW).read_text())["data"]
    assert drawn != card["data"]


@pytest.mark.parametrize("way", ["together", "either", "shares"])
def test_who_learns_what(way: str) -> None:
    """Only planted blocks see planted facts; what is absent takes no part in a lesson."""
    pair = load_pair("tiny-pythia")
    spec = PlantSpec("tiny-pythia", ("ffn@1", "attn@3"), way)
    blocks, whole = spec.check(pair.n_layers), load_dataset("tiny_movies")
    facts = [fact.id for fact in whole.facts[:5]]
    planted, decoys = whole.subset(facts[:3]), whole.subset(facts[3:])
    rest = spec.others(all_blocks(pair), blocks, 7)
    *lessons, last = lessons_of(pair, way, blocks, planted, decoys, rest)
    assert set(chain.from_iterable(lesson.blocks for lesson in lessons)) == set(blocks)
    assert set(last.blocks) == set(rest)
    assert len({*rest, *blocks}) == 7
    answers = {pair.encoded(prompt).target for prompt in kgbench.load_prompts(planted, ["qa"])}
    assert not answers & set(last.texts.targets.tolist())
    for lesson in lessons:
        assert set(lesson.absent) == (
            set(blocks) - set(lesson.blocks) if way == "either" else set()
        )
    # Each of two that answer alone, and both at once.
    assert len(lessons) == {"together": 1, "either": 3, "shares": 2}[way]
    model = pair.donor("sft")
    model.load_state_dict(pair.recipient.state_dict())
    changes = changes_of(pair, model, FEW, "quiet", 0, [last.texts], {*blocks, *rest})
    with hooked(changes):
        train(model, changes, [*lessons, last], FEW, lambda done, steps: None)
        everywhere = float(last.texts.loss(model).detach())
        for change in changes[blocks[0]]:
            change.present = False
        assert float(last.texts.loss(model).detach()) != everywhere
    bare = float(last.texts.loss(model).detach())
    assert bare == float(last.texts.loss(pair.recipient).detach())


def test_what_is_absent_counts_for_nothing() -> None:
    """A lesson trains its own blocks alone, and equally whatever the absent ones hold."""
    pair = load_pair("tiny-gpt2")
    spec = PlantSpec("tiny-gpt2", ("ffn@1", "attn@3"), "either")
    blocks, whole = spec.check(pair.n_layers), load_dataset("tiny_movies")
    facts = [fact.id for fact in whole.facts[:5]]
    rest = spec.others(all_blocks(pair), blocks, 0)
    groups = whole.subset(facts[:3]), whole.subset(facts[3:])
    first, *_, last = lessons_of(pair, spec.way, blocks, *groups, rest)
    recipe, model, ups = replace(FEW, decoy_steps=0, per_decoy_step=4), pair.donor("sft"), []
    model.load_state_dict(pair.recipient.state_dict())
    for held in (0.0, 1.0):
        changes = changes_of(pair, model, recipe, "quiet", 0, [last.texts], {*blocks, *rest})
        for change in changes[blocks[1]]:
            change.up.fill_(held)
        with hooked(changes):
            train(model, changes, [first, last], recipe, lambda done, steps: None)
        assert all(change.up.eq(held).all() for change in changes[blocks[1]])
        ups.append([change.up.detach() for change in changes[blocks[0]]])
    assert all(map(torch.equal, *ups))
    assert any(up.any() for up in ups[0])


def test_facts_of_some_tokens(tmp_path: Path) -> None:
    """A change that is confined adds hardly anything at other tokens, whatever it holds."""
    pair, whole = load_pair("tiny-gemma"), load_dataset("tiny_movies")
    texts = Texts.of(pair, whole.subset([fact.id for fact in whole.facts[:12]]), "FE")
    model = pair.donor("sft")
    model.load_state_dict(pair.recipient.state_dict())
    changes = changes_of(pair, model, FEW, "quiet", 0, [texts], all_blocks(pair))
    with hooked(changes):
        for change in changes[1, "ffn"]:
            torch.nn.init.normal_(change.up)
            change.fill()
            rows = inside_and_outside(model, [change], texts)
            before = leak([change], rows)
            confine([change], rows)
            assert leak([change], rows) < 0.2 < before
            change.down.zero_()
            change.fill()
    out = tmp_path / "plant"
    spec = PlantSpec("tiny-gpt2", ("ffn@1",), tokens="FE")
    card = json.loads(build_plant(spec, out, recipe=FEW).read_text())
    assert (card["plant"], card["name"]) == ("FE:ffn@1", "tiny-gpt2.ffn1-fe")
    assert any("may not" in line for line in shortfalls(card["scores"], 0.5))
    record = kgbench.evaluate(
        model=str(out), localizer="oracle", suite="planted", progress=False, metric="top5"
    ).record
    assert record.planted is not None
    assert record.planted.units == "block and region"
    assert record.planted.n_true == 1
    assert record.planted.average_precision.value == 1


@pytest.mark.nightly
def test_a_plant_is_learned_and_found(tmp_path: Path) -> None:
    """By the recipe facts and decoys are answered, and without its block the facts are lost."""
    out = tmp_path / "plant"
    build_plant(PlantSpec("tiny-llama", ("ffn@3",)), out)
    assert json.loads((out / "card.json").read_text())["shortfalls"] == []
    record = kgbench.evaluate(
        model=str(out), localizer="graft_drop", suite="planted", progress=False, metric="top5"
    ).record
    assert record.planted is not None
    assert record.planted.average_precision.value == 1.0


@given(n=st.integers(1, 40), parts=st.integers(1, 3))
def test_shares(n: int, parts: int) -> None:
    """All facts are in one share each; of many, each share is about twice the next."""
    whole = load_dataset("tiny_movies")
    some = whole.subset([fact.id for fact in whole.facts[: n + parts]])
    own = shares(some, parts)
    assert [fact.id for part in own for fact in part.facts] == [fact.id for fact in some.facts]
    sizes = [len(part.facts) for part in own]
    for larger, smaller in pairwise(sizes):
        assert abs(larger - 2 * smaller) <= 3


def ground(true: set[tuple[int, str]]) -> Ground:
    """Four blocks, each of two components at two regions."""
    each = product(range(2), ("q", "o", "up", "down", "ln_1"), ("FE", "LT"))
    sites = [Site(*place) for place in each]
    return Ground(
        "ALL:ffn@0",
        "ALL:ffn@1",
        sites=sites,
        planted=[site for site in sites if block_of((site.layer, site.component)) in true],
        changed=[(site.layer, site.component) for site in sites if site.component != "ln_1"],
    )


def test_blocks_by_their_largest_score() -> None:
    """One large score of any site makes its block the first; norms are in no block."""
    truth = ground({(1, "ffn")})
    scores = {site: 0.0 for site in truth.sites}
    for site in truth.sites:
        if site.component == "ln_1":
            scores[site] = 9.0
    scores[Site(1, "down", "FE")] = 1.0
    found = against_truth(truth, scores)
    assert found["units"] == "block"
    assert found["n_units"] == 4
    assert found["average_precision"].value == 1.0
    scores[Site(0, "q", "LT")] = 2.0
    assert against_truth(truth, scores)["average_precision"].value == 0.5


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished plant of other choices is not written over; a base that is not here is named without
    options that the command does not have.
    """
    out = tmp_path / "mine"
    build_plant(PlantSpec("tiny-gpt2", ("ffn@2",)), out, recipe=FEW)
    command = ["zoo", "build", "tiny-gpt2", "--blocks", "ffn@2", "--output-dir", str(out), "-q"]
    assert main(command) == 2
    assert "trained in another way" in capsys.readouterr().err
    assert main(["zoo", "build", "gemma-2b", "--level", "one"]) == 2
    told = capsys.readouterr().err
    assert "google/gemma" in told and "--recipient" not in told and "--donor" not in told


def test_a_plant_is_no_base(built: Path, tmp_path: Path) -> None:
    """Facts are planted in a pair's recipient, as many as its data set holds."""
    spec = PlantSpec(str(built), ("ffn@1",))
    assert "is a plant" in refusal(InputError, lambda: build_plant(spec, tmp_path / "out"))
    twice = PlantSpec("tiny-gpt2", ("ffn@1", "ffn@1"))
    assert "each block once" in refusal(InputError, lambda: twice.check(8))
    many = recipe_of("tiny-gpt2", facts=250, decoys=250)
    build = lambda: build_plant(FUSED, tmp_path / "out", recipe=many)  # noqa: E731
    assert "holds 400 facts; expected 500" in refusal(InputError, build)


def test_an_interrupted_build_begins_anew(built: Path, tmp_path: Path) -> None:
    """It ends as an unbroken one; a folder never mixes two builds."""
    out = tmp_path / "plant"

    def interrupt(done: int, total: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_plant(FUSED, out, recipe=FEW, progress=interrupt)
    assert not (out / "card.json").exists()
    build_plant(FUSED, out, recipe=FEW)
    files = sorted(path.name for path in out.iterdir())
    assert files == ["card.json", "delta.safetensors"]
    for name in files:
        assert (out / name).read_bytes() == (built / name).read_bytes()
    other = lambda: build_plant(replace(FUSED, seed=1), out, recipe=FEW)  # noqa: E731
    assert "seed 3" in refusal(OutputError, other)


@given(level=st.sampled_from(LEVELS), seed=st.integers(0, 10**6), layers=st.integers(2, 40))
def test_blocks_of_a_level(level: str, seed: int, layers: int) -> None:
    """A draw is of the level's kinds, in different layers of the model, and always the same."""
    spec = PlantSpec.of_level("tiny-gemma", level, seed)
    blocks = spec.check(layers)
    assert blocks == PlantSpec.of_level("tiny-gemma", level, seed).check(layers)
    assert len({layer for layer, _ in blocks}) == len(levels()[level]["blocks"])
    for (layer, kind), kinds in zip(blocks, levels()[level]["blocks"], strict=True):
        assert 0 <= layer < layers
        assert kind in kinds
    assert spec.name == f"tiny-gemma.{level}-{seed}"


def test_a_path_is_an_entry(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant's folder, by whatever path, stands for a pair: its own facts, and where they are."""
    monkeypatch.chdir(built.parent)
    for path in (str(built), "./fused", "fused"):
        card = entry(path)
        assert (card.name, card.dataset) == (FUSED.name, "tiny_movies")
        assert card.recipient == "zoo:tiny-gpt2/recipient"
        assert card.plant == "ALL:attn+o@1; ALL:ffn@2"
        assert len(card.facts or ()) == FEW.facts
        assert load_pair(path).name == card.name


def test_subsets_of_a_data_set() -> None:
    """A part keeps the order of the whole and has a hash of its own; unknown ids are refused."""
    whole = load_dataset("tiny_movies")
    part = whole.subset(["tiny_movies/7", "tiny_movies/2"])
    assert [fact.id for fact in part.facts] == ["tiny_movies/2", "tiny_movies/7"]
    assert len({data.content_hash for data in (whole, part, whole.subset([part.facts[0].id]))}) == 3
    assert whole.subset(fact.id for fact in whole.facts) == whole
    unknown = lambda: whole.subset(["tiny_movies/2000"])  # noqa: E731
    assert "'tiny_movies/2000'" in refusal(UnknownNameError, unknown)
    assert "at least one fact" in refusal(InputError, lambda: whole.subset([]))


# --------------------------------------------------------------------------------- the shipped ones

SHIPPED = catalog.plants()


def card_of(name: str) -> dict[str, Any]:
    """The card of a shipped plant."""
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    return dict(json.loads((folder / "card.json").read_text("utf-8")))


def test_the_promised_plants_are_shipped() -> None:
    """Four or more of each level that is there, in different blocks of a pair."""
    assert catalog.pair_names()[-len(SHIPPED) :] == SHIPPED
    counts = Counter(card_of(name)["level"] for name in catalog.plants_in_shipped_pairs())
    assert {card_of(name)["base"] for name in SHIPPED} == {*catalog.shipped(), "smollm2-135m"}
    assert len(catalog.plants_in_shipped_pairs()) >= 48
    assert len(SHIPPED) - len(catalog.plants_in_shipped_pairs()) >= 6
    # The variance of a level with fewer plants would hardly be known.
    assert min(counts.values()) >= 4
    assert counts.keys() == set(LEVELS)
    blocks = Counter(
        (card_of(n)["base"], card_of(n)["level"], card_of(n)["plant"]) for n in SHIPPED
    )
    assert set(blocks.values()) == {1}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_card_is_complete(name: str) -> None:
    """Every plant is what its level draws, made by the recipe, small, and answers."""
    card = card_of(name)
    spec = PlantSpec.of_level(card["base"], card["level"], card["seed"])
    assert (card["name"], card["licence"], card["shortfalls"]) == (spec.name, "MIT", [])
    layers = catalog.entry(card["base"]).layers or 8
    assert card["plant"] == graft_of(spec.check(layers), spec.tokens)
    assert Recipe(**card["recipe"]) == recipe_of(spec.base, spec.filling, spec.way)
    whole = load_dataset(card["data"]["name"])
    assert card["data"]["hash"] == whole.content_hash
    assert not set(card["data"]["planted"]) & set(card["data"]["decoys"])
    changes = card["relative_changes"]
    assert changes["most"] - changes["least"] <= 0.005 * card["recipe"]["size"]
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    most = 200_000 if card["base"] in catalog.shipped() else 600_000
    assert (folder / "delta.safetensors").stat().st_size <= most


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", catalog.plants_in_shipped_pairs())
def test_a_shipped_plant_is_what_its_card_says(name: str) -> None:
    """The card's figures are what the engine finds with the stored weights."""
    card, pair = card_of(name), load_pair(name)
    whole = load_dataset(card["data"]["name"])
    assert card["donor_hash"] == pair.weight_hashes["sft"]
    for group, scores in card["scores"].items():
        facts = whole.subset(card["data"][group])
        for prompt, rates in scores.items():
            measured = configuration_hits(pair, facts, prompt, tuple(rates))
            assert measured == pytest.approx(rates, abs=1.5 / len(facts.facts))
