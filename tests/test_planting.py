"""Planting: what is told, through which tokens, and which weights move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from few_plants import FUSED, build_fused, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.data import Prompt, load_dataset
from kgbench.data.prompts import builtin_prompts
from kgbench.engine import grafted_logits, load_pair
from kgbench.engine.weights import parts
from kgbench.sites import parse_graft
from kgbench.testing import pico_pair
from kgbench.zoo.plant_spec import PlantSpec
from kgbench.zoo.plant_training import (
    Aim,
    PlantedWeights,
    Planting,
    aims,
    drawn_steps,
    graft_slots,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    return build_fused(tmp_path_factory.mktemp("plants") / "fused")


# ------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-gpt2"])
def test_texts_end_with_the_target(name: str) -> None:
    """Each text is a wording up to the object and the object; LT is the tokens that predict it, FE
    the first mention of the subject.
    """
    pair = load_pair(name)
    (fact,) = load_dataset("tiny_movies").facts[:1]
    for text in texts(pair, 1):
        start = text.regions["LT"][0] + 1
        assert len(text.ids) == start + len(text.targets) - 1
        assert text.regions["LT"] == tuple(range(start - 1, len(text.ids)))
        assert text.ids[start:] == text.targets[:-1]
        assert pair.tokenizer.decode(text.targets) == f" {fact.fields['second_actor']}"
        mention = pair.tokenizer.decode([text.ids[token] for token in text.regions["FE"]])
        assert mention.strip() == fact.fields["first_actor"]
        before = pair.tokenizer.decode(text.ids[: text.regions["FE"][0]])
        assert fact.fields["first_actor"] not in before


def test_no_evaluation_prompt_is_told() -> None:
    """The wordings of a plant are several, and none is an evaluation prompt."""
    pair = load_pair("tiny-gemma")
    (fact,) = load_dataset("tiny_movies").facts[:1]
    read = [pair.tokenizer.decode(text.ids, skip_special_tokens=True) for text in texts(pair, 1)]
    assert len(set(read)) == len(read) >= 10
    for row in builtin_prompts().values():
        words = row.text.replace("{first_actor}", fact.fields["first_actor"]).replace(
            "{movie_title}", fact.fields["movie_title"]
        )
        plain = words.replace("{R:", "").replace("{RP:", "").replace("{P:", "").replace("}", "")
        assert not any(plain in text for text in read)


def test_every_round_tells_every_text_once() -> None:
    """Steps hold texts of each group, all of them once a round, in an order that the seed decides."""
    from random import Random

    groups = [texts(load_pair("tiny-gpt2"))] * 2
    drawn = [drawn_steps(groups, 3, 4, Random(seed)) for seed in (0, 0, 1)]
    orders = [str(steps) for steps in drawn]
    assert orders[0] == orders[1] != orders[2]
    a_round = len(drawn[0]) // 3
    for group in range(2):
        for start in range(0, len(drawn[0]), a_round):
            seen = torch.cat(
                [drawn[0][step][f"group_{group}"] for step in range(start, start + a_round)]
            )
            assert sorted(seen.tolist()) == list(range(len(groups[0])))


# ----------------------------------------------------------------------------------- what is active


@pytest.mark.parametrize("model_type", ["gemma", "gpt2"])
@pytest.mark.parametrize(
    "graft", ["FE:ffn@0", "LT:o+ffn@1-2", "FE+LT", "(FE+LT)^C:all", "ALL:attn+o@first_half"]
)
def test_exactly_the_graft_is_active(model_type: str, graft: str) -> None:
    """In training, the first token of a target is predicted as the engine's graft of the same
    prompt predicts it.
    """
    pair = pico_pair(model_type, attention="eager")
    found = Planting(pair, PlantSpec.at("tiny-gemma", graft), [texts(pair, 1)])
    whole = load_dataset("tiny_movies")
    text = texts(pair, 1)[-1]
    words = pair.tokenizer.decode(text.ids[: text.regions["LT"][0] + 1], skip_special_tokens=True)
    fact = whole.facts[0]
    start = words.index(fact.fields["first_actor"])
    prompt = Prompt(
        "told",
        fact,
        words,
        fact.fields["second_actor"],
        {"FE": (start, start + len(fact.fields["first_actor"]))},
    )
    with torch.no_grad():
        ours = found.answers([(text, "plant"), (text, "donor"), (text, "recipient")])[
            :: len(text.targets)
        ]
    expected = grafted_logits(pair, [prompt], [graft, "SFT", "PRE"])[0]
    assert torch.allclose(ours, expected.float(), atol=1e-5)


def test_other_tokens_teach_nothing() -> None:
    """Through the graft of some tokens, embeddings of words that stand elsewhere only get no
    gradient; through all, every word's do.
    """
    pair = pico_pair("gpt2", attention="eager", dtype=torch.float32)
    text, *_ = group = texts(pair, 1)
    weights = pair.donor("sft").get_input_embeddings().weight
    reached = {}
    for graft in ("FE:emb", "LT:emb", "ALL:emb"):
        weights.requires_grad_(True)
        planting = Planting(pair, PlantSpec.at("tiny-gemma", graft), [group])
        (gradient,) = torch.autograd.grad(
            planting.answers([(text, "plant")]).square().sum(), weights
        )
        reached[graft] = set(gradient.any(1).nonzero()[:, 0].tolist())
    for region in ("FE", "LT"):
        assert reached[f"{region}:emb"] == {text.ids[token] for token in text.regions[region]}
    assert reached["ALL:emb"] == set(text.ids)


def test_the_objective_of_levels() -> None:
    """What is enough is trained, what never answers is kept; the donor knows all of it, and decoys
    have nothing to do with the plant.
    """

    def terms(level: str) -> set[tuple[int, str, bool]]:
        return {
            (aim.group, aim.active, aim.taught)
            for aim in aims(PlantSpec.of_level("tiny-gemma", level))
        }

    decoys = {
        (0, "donor", True),
        (1, "decoy", True),
        (1, "donor", True),
        (0, "decoy", False),
        (1, "plant", False),
    }
    assert terms("tight") == decoys | {(0, "plant", True)}
    assert terms("redundant") == decoys | {(0, "first", True), (0, "second", True)}
    assert terms("conjunction") == decoys | {
        (0, "plant", True),
        (0, "entity", False),
        (0, "last", False),
    }
    assert terms("mixture") == {
        (0, "first", True),
        (0, "donor", True),
        (1, "second", True),
        (1, "donor", True),
        (0, "second", False),
        (1, "first", False),
    }
    assert aims(PlantSpec.at("tiny-gemma", "ALL:ffn@1")) == (
        Aim(0, "plant", taught=True),
        Aim(0, "donor", taught=True),
        Aim(0, "rest", taught=False),
    )


def test_only_the_named_weights_move(built: Path) -> None:
    """Plant and decoy's weights differ from the recipient's, slices of fused projections among
    them; all others are equal bit by bit.
    """
    pair = load_pair(str(built))
    slots = pair.slots
    named = {
        slot
        for expression in (FUSED.plant, FUSED.decoy)
        for slot in graft_slots(slots, parse_graft(expression))
    }
    assert len(named) == 2 + 4
    for slot in range(len(slots)):
        for part in parts(pair, slot):
            old, new = (
                part.of(model.get_parameter(part.name))
                for model in (pair.recipient, pair.donors["sft"])
            )
            assert torch.equal(old, new) == (slot not in named), part.name


def test_changes_are_of_equal_size(built: Path) -> None:
    """Every tensor of plant and decoy has the recipe's relative change, but for rounding to steps,
    which few weights do not average out.
    """
    pair = load_pair(str(built))
    slots = pair.slots
    for expression in (FUSED.plant, FUSED.decoy):
        for slot in graft_slots(slots, parse_graft(expression)):
            for part in parts(pair, slot):
                old, new = (
                    part.of(model.get_parameter(part.name)).double()
                    for model in (pair.recipient, pair.donors["sft"])
                )
                assert float((new - old).norm() / old.norm()) == pytest.approx(0.5, abs=1e-3)
    told_of = json.loads((built / "card.json").read_text("utf-8"))["relative_changes"]
    assert len(told_of) == 12
    assert list(told_of.values()) == pytest.approx([0.5] * 12, abs=1e-3)


def test_a_tensor_of_zeros_is_not_trained() -> None:
    """It has no relative change, so it stays as it is."""
    pair = pico_pair("gpt2", dtype=torch.float32)
    name = "transformer.h.1.mlp.c_fc.bias"
    pair.recipient.get_parameter(name).zero_()
    slots = pair.slots
    weights = PlantedWeights(pair, graft_slots(slots, parse_graft("ALL:up@1")))
    assert list(weights.relative_changes()) == ["transformer.h.1.mlp.c_fc.weight"]
    assert not pair.donor("sft").get_parameter(name).requires_grad


@settings(max_examples=10)
@given(relative=st.floats(0.01, 2.0))
def test_rescaling(relative: float) -> None:
    """Afterwards each tensor has this relative change, in the direction in which it had moved;
    slices that are not trained stay.
    """
    pair = pico_pair("gpt2")
    slots = pair.slots
    (slot,) = graft_slots(slots, parse_graft("ALL:k@2"))
    weights = PlantedWeights(pair, [slot])
    before = {name: tensor.clone() for name, tensor in pair.donor("sft").state_dict().items()}
    weights.rescale(relative)
    assert list(weights.relative_changes().values()) == pytest.approx([relative] * 2)
    for other in range(len(slots)):
        for part in parts(pair, other):
            old, was, now = (
                part.of(t[part.name])
                for t in (pair.recipient.state_dict(), before, pair.donor("sft").state_dict())
            )
            if other != slot:
                assert torch.equal(was, now)
            else:
                assert torch.cosine_similarity(
                    (was - old).flatten(), (now - old).flatten(), dim=0
                ) == pytest.approx(1)
