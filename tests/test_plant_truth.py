"""Graded truth: what each changed place brings alone and what is lost without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from toy_plants import toy_pair

from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.models import catalog
from kgbench.models.plant_truth import GradedTruth, Place, parse_relevance, read_truth
from kgbench.runner.training.hit_rates import PROMPTS, configuration_hits
from kgbench.zoo.truth import graded_truth, orders, truth_card

# ---------------------------------------------------------------------------- known by construction


def relevance(pushes: dict[int, float], by_region: bool = False) -> dict[Place, float]:
    """Of a toy with a change in layer 2 that nothing reads."""
    pair, prompts = toy_pair(pushes, idle=[2])
    found = graded_truth(pair, prompts, by_region)
    assert isinstance(found, GradedTruth)
    return dict(found.relevance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("pushes", "expected"),
    [
        ({0: 2.0}, {0: 1.0}),
        ({0: 2.0, 1: 2.0}, {0: 0.5, 1: 0.5}),
        ({0: 0.6, 1: 0.6}, {0: 0.5, 1: 0.5}),
        ({0: 2.0, 1: -0.5}, {0: 1.0, 1: 0.0}),
        ({0: 1.2, 1: -1.5, 2: 1.5}, {0: 2 / 3, 1: -1 / 3, 2: 2 / 3}),
    ],
    ids=[
        "one place",
        "either suffices",
        "both are needed",
        "a brake that is too weak",
        "a brake that makes both needed",
    ],
)
def test_relevance(pushes: dict[int, float], expected: dict[int, float]) -> None:
    """A place that does it by itself has 1, two of which either or only both do have .5 each; no
    effect is 0, all together are 1.
    """
    found = relevance(pushes)
    assert found == pytest.approx(
        {**{(layer, "down"): value for layer, value in expected.items()}, (2, "v"): 0.0}
    )


@pytest.mark.parametrize("count", [1, 3, 4, 5, 30])
def test_orders(count: int) -> None:
    """Each is an order of all places, with each its reverse is there, and they are the same every
    time.
    """
    found = [tuple(order) for order in orders(count)]
    assert all(sorted(order) == list(range(count)) for order in found)
    assert {order[::-1] for order in found} == set(found)
    assert found == [tuple(order) for order in orders(count)]


def test_by_region() -> None:
    """Where positions were planted, a place is a region too; these pushes are read at the last
    token only.
    """
    found = relevance({0: 2.0, 1: 2.0}, by_region=True)
    assert {place for place, value in found.items() if value} == {
        (0, "down", "LT"),
        (1, "down", "LT"),
    }
    assert {place[:2] for place in found} == {(0, "down"), (1, "down"), (2, "v")}
    assert {place[2] for place in found} > {"FE", "LT", "REST"}


def test_without_a_gain_there_is_no_truth() -> None:
    """A donor that answers no better, and one with the recipient's weights, have a reason in place
    of a truth.
    """
    for pushes in ({0: 0.5}, {}):
        pair, prompts = toy_pair(pushes)
        assert isinstance(graded_truth(pair, prompts, by_region=False), str)


# ------------------------------------------------------------------------------------------- plants


def truth_of(name: str) -> GradedTruth:
    truth = catalog.entry(name).truth
    assert truth is not None
    return truth


def smallest(by_region: bool) -> str:
    """The shipped plant with the fewest places."""
    return min(
        (n for n in catalog.plants() if truth_of(n).by_region == by_region),
        key=lambda n: len(truth_of(n).places),
    )


@pytest.mark.parametrize("by_region", [False, True])
def test_grafts_say_the_same(by_region: bool) -> None:
    """Alone is the recovery of the graft of one place; left out is what a graft of all else, final
    norm and head included, lacks.
    """
    name = smallest(by_region)
    truth, entry, pair = truth_of(name), catalog.entry(name), load_pair(name)
    planted = load_dataset(entry.dataset).subset(entry.facts or ())
    place = max(truth.places, key=lambda p: truth.relevance[p])
    layer, component, region = (*place, "ALL")[:3]
    assert region in ("ALL", "FE", "LT")
    alone = f"{region}:{component}" + ("" if layer is None else f"@{layer}")
    asked = ("PRE", "SFT", alone, f"ALL:all+ln_f+head; {alone}=recipient")
    shares = np.sum(
        [list(configuration_hits(pair, planted, prompt, asked).values()) for prompt in PROMPTS],
        axis=0,
    )
    pre, sft, one, rest = shares
    np.testing.assert_allclose(
        truth.places[place].alone.value, (one - pre) / (sft - pre), atol=1e-3
    )
    np.testing.assert_allclose(
        truth.places[place].left_out.value, (sft - rest) / (sft - pre), atol=1e-3
    )


@pytest.mark.parametrize("name", catalog.plants())
def test_shipped_plants_have_their_truth(name: str) -> None:
    """Every place that changed and no other, read from the card as it was written; its text reads
    back.
    """
    truth = truth_of(name)
    assert truth.n == len(catalog.entry(name).facts or ())
    card = json.loads((catalog.zoo_path(f"zoo:plants/{name}") / "card.json").read_text("utf-8"))  # type: ignore[operator]
    assert truth_card(truth) == card["truth"] and read_truth(card) == truth
    assert truth.by_region == (not catalog.entry(name).plant.startswith("ALL"))  # type: ignore[union-attr]
    known = {place: round(value, 4) for place, value in truth.relevance.items() if round(value, 4)}
    assert parse_relevance(truth.relevance_text) == known
    assert set(truth.pathways) == set(PROMPTS) and all(
        set(own) == {"FE", "LT", "FE+LT"} for own in truth.pathways.values()
    )


@pytest.mark.nightly
def test_a_build_measures_what_is_shipped(tmp_path: Path) -> None:
    """The command that made a plant, given again, puts it on a card that has none, as it is on the
    shipped one.
    """
    name = smallest(by_region=False)
    pair, _, level = name.partition(".")
    shutil.copytree(catalog.zoo_path(f"zoo:plants/{name}"), tmp_path / "plant")  # type: ignore[arg-type]
    path = tmp_path / "plant" / "card.json"
    card = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({key: value for key, value in card.items() if key != "truth"}))
    assert catalog.entry(str(path.parent)).truth is None
    command = ["zoo", "build", pair, "--level", level, "--output-dir", str(path.parent), "-q"]
    assert main(command) == 0
    assert json.loads(path.read_text("utf-8")) == card
