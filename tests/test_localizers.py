"""The built-in localizers and how they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgbench import localizers
from kgbench.data import load_prompts
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import InputError, UnknownNameError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, ScoringLocalizer, create
from kgbench.sites import parse_graft
from kgbench.testing import pico_pair

PAIR = pico_pair("gpt2", donors=("sft", "task"))
PROMPTS = load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=2)
GRAFTS = (
    "FE",
    "LT:o+ffn@second_half",
    "ALL; LT:o=recipient",
    "FE=task; LT",
    "NONE",
    "ALL:ln_f+head",
)

every = pytest.mark.parametrize("name", localizers.names())


@every
def test_declarations_are_listed(name: str) -> None:
    """What a localizer declares is what the listing shows, with the package that it is from."""
    made = create(name, {}, seed=5)
    declared = {
        "kind": made.kind,
        "needs": sorted(made.needs),
        "cost": made.cost,
        "paper": made.paper,
        "about": made.about,
    }
    origin = "kgbench-direct-logit" if name == "direct_logit" else "kgbench"
    parameters = localizers.parameters_of(name)
    assert {*parameters} == {*made.parameters()}
    described = {**declared, "from": origin, "parameters": parameters}
    assert localizers.describe()[name] == described


@every
def test_what_is_listed_of_a_parameter_is_what_it_takes(name: str) -> None:
    """The default and each choice that is listed make a method; another text is refused."""
    needed = {"truth": "FE"} if "truth" in localizers.needs(name) else {}
    for parameter, listed in localizers.parameters_of(name).items():
        made = create(name, {parameter: listed["default"], **needed}, seed=0)
        if needed or parameter == "seed":
            continue
        assert made == create(name, {}, seed=0)
        if type(getattr(made, parameter)) is str and parameter != "receiver":
            assert listed["default"] in listed["values"].split(", ")
            for choice in listed["values"].split(", "):
                assert getattr(create(name, {parameter: choice}, seed=0), parameter) == choice
            with pytest.raises(
                UnknownNameError, match=f"unknown {parameter} of {name} 'none such'"
            ):
                create(name, {parameter: "none such"}, seed=0)


@pytest.mark.parametrize(
    ("name", "instead"), [("dynamic_graft", None), ("none", "NONE"), ("all", "ALL")]
)
@pytest.mark.parametrize("graft", GRAFTS)
def test_interventions(name: str, instead: str | None, graft: str) -> None:
    """Dynamic grafting does what the expression says, `none` nothing and `all` everything, whatever
    it says.
    """
    made = create(name, {}, seed=0)
    assert isinstance(made, InterventionLocalizer)
    assert made.treat(PAIR, PROMPTS, parse_graft(graft)) == graft_treatments(
        PAIR, PROMPTS, parse_graft(instead or graft)
    )


def test_random_scores() -> None:
    """Numbers in [0, 1) of which no two are equal, and others under another seed: what the contract
    does not have.
    """
    scores = []
    for seed in (1, 2):
        made = create("random", {}, seed)
        assert isinstance(made, ScoringLocalizer)
        scores.append(np.array([*made.scores(PAIR, PROMPTS).values()]))
    one, other = scores
    assert ((one >= 0) & (one < 1)).all()
    assert len({*one}) == len(one)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.3


# ---------------------------------------------------------------------------------------- arguments

PLUGIN = """
from __future__ import annotations
from dataclasses import dataclass
from kgbench.localizers import ScoringLocalizer

@dataclass(frozen=True)
class Knobs(ScoringLocalizer):
    name = "knobs"
    about = "with parameters of every kind"
    steps: int = 3
    rate: float = 0.5
    fast: bool = False
    mode: str = "mean"

    def scores(self, pair, prompts):
        return {}

@dataclass(frozen=True)
class Typed(Knobs):
    layer: int | None = None
    share: float = 1
    layers: tuple[int, ...] = ()
    names: tuple[str, ...] | None = None

@dataclass(frozen=True)
class Unresolved(Knobs):
    pair: ModelPair = 3

@dataclass(frozen=True, kw_only=True)
class Demanding(Knobs):
    target: str
"""


Knobs = Callable[..., AbstractLocalizer]


@pytest.fixture
def knobs(tmp_path: Path) -> Knobs:
    """Makes one of these methods with arguments that are texts."""
    file = tmp_path / "knobs.py"
    file.write_text(PLUGIN)
    return lambda kind, **arguments: create(f"{file}:{kind}", arguments, seed=9)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("Knobs", "steps=7", 7),
        ("Knobs", "rate=1e-2", 0.01),
        ("Knobs", "fast=True", True),
        ("Knobs", "mode=max", "max"),
        ("Typed", "layer=3", 3),
        ("Typed", "layer=none", None),
        ("Typed", "share=2", 2.0),
        ("Typed", "layers=1, 2,3", (1, 2, 3)),
        ("Typed", "layers=4", (4,)),
        ("Typed", "names=a,b", ("a", "b")),
        ("Typed", "names=None", None),
        ("Unresolved", "pair=4", 4),
        ("Demanding", "target=x", "x"),
    ],
)
def test_arguments_are_read_as_annotated(knobs: Knobs, kind: str, text: str, value: object) -> None:
    """A text becomes a number, a truth value, none or a tuple as the annotation says, or as the
    default is where a name of the annotation is not known at run time; others keep their defaults.
    """
    key, _, given = text.partition("=")
    parameters = knobs(kind, **{key: given}).parameters()
    assert parameters[key] == value and type(parameters[key]) is type(value)
    kept = {"steps": 3, "rate": 0.5, "fast": False, "mode": "mean"}
    assert {**kept, key: value}.items() <= parameters.items()


def test_a_seed_is_given_or_the_run_s() -> None:
    """An argument counts more than the seed of the run."""
    assert create("random", {"seed": "4"}, seed=9) == create("random", {}, seed=4)


def test_needs() -> None:
    """What a method must be told is known by its name."""
    assert "truth" in localizers.needs("oracle") and "truth" not in localizers.needs("random")


def test_a_parameter_without_a_default(knobs: Knobs) -> None:
    """A parameter that must be given, and is not, is refused in one line."""
    with pytest.raises(InputError, match="target"):
        knobs("Demanding")
