"""Plain plants: who learned the facts, how far weights moved, and what a ranking is held to."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from few_plants import refusal
from hypothesis import given
from hypothesis import strategies as st

import kgbench
from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.engine.weights import changed
from kgbench.errors import InputError, UnknownNameError
from kgbench.models.catalog import entry
from kgbench.sites import Site, block_of, parse_graft
from kgbench.stats.ranking_quality import expected_precision
from kgbench.stats.summary import Ground, against_truth
from kgbench.zoo import plant
from kgbench.zoo.plain_plants import (
    PlainSpec,
    all_blocks,
    build_plain,
    changes_of,
    hooked,
    lessons_of,
    parse_block,
    plain_recipe,
    shares,
    train,
)

FEW = plain_recipe(facts=3, decoys=2, decoy_steps=1, steps=4, per_decoy_step=2)
FUSED = PlainSpec("tiny-gpt2", ("attn@1", "ffn@2"), "shares", seed=3)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain plant of a few steps, in a model with fused projections."""
    out = tmp_path_factory.mktemp("plain") / "plant"
    build_plain(FUSED, out, recipe=FEW)
    return out


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


def test_how_far_weights_moved_says_nothing(built: Path) -> None:
    """All changes have one rank and one relative size, within what rounding to bfloat16 leaves."""
    pair, sizes = load_pair(str(built)), []
    before, after = pair.recipient.state_dict(), pair.donors["sft"].state_dict()
    for name, weights in after.items():
        change = weights - before[name]
        if change.any():
            sizes.append(float(change.norm() / before[name].norm()))
            singular = torch.linalg.svdvals(change)
            assert int((singular > 1e-3 * singular[0]).sum()) <= FEW.rank
    assert np.allclose(sizes, FEW.size, rtol=5e-3)
    assert (built / "delta.safetensors").stat().st_size < 200_000


def test_a_build_is_the_same_twice(built: Path, tmp_path: Path) -> None:
    """Equal choices give equal weights, another seed other facts."""
    card = json.loads((built / "card.json").read_text())
    again = json.loads(build_plain(FUSED, tmp_path / "again", recipe=FEW).read_text())
    assert again["donor_hash"] == card["donor_hash"]
    other = PlainSpec(FUSED.base, FUSED.blocks, FUSED.way, seed=4)
    drawn = json.loads(build_plain(other, tmp_path / "other", recipe=FEW).read_text())["data"]
    assert drawn != card["data"]


@pytest.mark.parametrize("way", ["together", "either", "shares"])
def test_who_learns_what(way: str) -> None:
    """Only planted blocks see planted facts; what is absent takes no part in a lesson."""
    pair = load_pair("tiny-pythia")
    spec = PlainSpec("tiny-pythia", ("ffn@1", "attn@3"), way)
    blocks, whole = spec.check(pair.n_layers), load_dataset("tiny_movies")
    facts = [fact.id for fact in whole.facts[:5]]
    planted, decoys = whole.subset(facts[:3]), whole.subset(facts[3:])
    *lessons, last = lessons_of(pair, spec, blocks, planted, decoys)
    assert set(chain.from_iterable(lesson.blocks for lesson in lessons)) == set(blocks)
    assert set(last.blocks) == set(all_blocks(pair)) - set(blocks)
    answers = {pair.encoded(prompt).target for prompt in kgbench.load_prompts(planted, ["qa"])}
    assert not answers & set(last.texts.targets.tolist())
    for lesson in lessons:
        assert set(lesson.absent) == (
            set(blocks) - set(lesson.blocks) if way == "either" else set()
        )
    model = pair.donor("sft")
    model.load_state_dict(pair.recipient.state_dict())
    changes = changes_of(pair, model, FEW, 0, [last.texts])
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
    spec = PlainSpec("tiny-gpt2", ("ffn@1", "attn@3"), "either")
    blocks, whole = spec.check(pair.n_layers), load_dataset("tiny_movies")
    facts = [fact.id for fact in whole.facts[:5]]
    first, _, last = lessons_of(
        pair, spec, blocks, whole.subset(facts[:3]), whole.subset(facts[3:])
    )
    recipe, model, ups = replace(FEW, decoy_steps=0, per_decoy_step=4), pair.donor("sft"), []
    model.load_state_dict(pair.recipient.state_dict())
    for held in (0.0, 1.0):
        changes = changes_of(pair, model, recipe, 0, [last.texts])
        for change in changes[blocks[1]]:
            change.up.fill_(held)
        with hooked(changes):
            train(model, changes, [first, last], recipe, lambda done, steps: None)
        assert all(change.up.eq(held).all() for change in changes[blocks[1]])
        ups.append([change.up.detach() for change in changes[blocks[0]]])
    assert all(map(torch.equal, *ups))
    assert any(up.any() for up in ups[0])


@pytest.mark.nightly
def test_a_plant_is_learned_and_found(tmp_path: Path) -> None:
    """By the recipe facts and decoys are answered, and without its block the facts are lost."""
    out = tmp_path / "plant"
    build_plain(PlainSpec("tiny-llama", ("ffn@3",)), out)
    assert json.loads((out / "card.json").read_text())["shortfalls"] == []
    record = kgbench.evaluate(
        model=str(out), localizer="graft_drop", suite="planted", progress=False, metric="top5"
    ).record
    assert record.planted is not None
    assert record.planted.graded_precision.value == 1.0


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


def test_a_ranking_is_held_to_blocks(built: Path) -> None:
    """A block takes its largest score; the blocks that learned the facts come first or they do not."""
    pair, card = load_pair(str(built)), entry(str(built))
    assert card.by_block
    assert card.truth is None
    record = kgbench.evaluate(
        model=str(built), localizer="oracle", suite="planted", progress=False, metric="top5"
    ).record
    assert record.planted is not None
    assert record.planted.units == "block"
    assert record.planted.n_units == 2 * pair.n_layers
    assert record.planted.n_true == len(FUSED.blocks)
    assert record.planted.graded_precision.value == 1.0
    assert record.planted.chance == pytest.approx(
        expected_precision(2 * pair.n_layers, len(FUSED.blocks)), abs=1e-6
    )
    assert "that learned the facts" in record.verdict


def ground(true: set[tuple[int, str]]) -> Ground:
    """Four blocks, each of two components at two regions."""
    each = product(range(2), ("q", "o", "up", "down", "ln_1"), ("FE", "LT"))
    sites = [Site(*place) for place in each]
    return Ground(
        "ALL:ffn@0",
        "ALL:ffn@1",
        sites=sites,
        planted=[site for site in sites if block_of((site.layer, site.component)) in true],
        decoys=[],
        changed=[(site.layer, site.component) for site in sites if site.component != "ln_1"],
        by_block=True,
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
    assert found["graded_precision"].value == 1.0
    scores[Site(0, "q", "LT")] = 2.0
    assert against_truth(truth, scores)["graded_precision"].value == 0.5


def test_what_is_no_block() -> None:
    """Bad blocks, ways and combinations are refused before anything is trained."""
    cases = {
        ("ffn5",): "is no block",
        ("ffn@99",): "has the layers 0 to 7",
        ("ffn@1", "ffn@1"): "each block once",
    }
    assert main(["zoo", "build", "tiny-gemma", "--blocks", ",", "-q"]) == 2  # builds no pair
    for blocks, message in cases.items():
        given = lambda blocks=blocks: plant("tiny-gemma", blocks=blocks)  # noqa: E731
        assert message in refusal(InputError, given)
    wrong = lambda: plant("tiny-gemma", blocks=["ffn@1", "ffn@2"], way="eiter")  # noqa: E731
    assert "either" in refusal(UnknownNameError, wrong)
    both = lambda: plant("tiny-gemma", "ALL:ffn@1", blocks=["ffn@1"])  # noqa: E731
    assert "one of them" in refusal(InputError, both)
    decoy = lambda: plant("tiny-gemma", blocks=["ffn@1"], decoy="ALL:ffn@2")  # noqa: E731
    assert "all other blocks" in refusal(InputError, decoy)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished plant is not trained again; what contradicts itself is refused."""
    out = tmp_path / "mine"
    build_plain(PlainSpec("tiny-gpt2", ("ffn@2",)), out, recipe=FEW)
    command = ["zoo", "build", "tiny-gpt2", "--blocks", "ffn@2", "--output-dir", str(out), "-q"]
    assert main(command) == 2
    assert "trained in another way" in capsys.readouterr().err
    assert main(["zoo", "build", "tiny-gpt2", "--way", "either"]) == 2
    assert "add --blocks" in capsys.readouterr().err
    assert main(["zoo", "build", "tiny-gpt2", "--blocks", "ffn@2", "--level", "tight"]) == 2
    assert "leave out --plant and --level" in capsys.readouterr().err
