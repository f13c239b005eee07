"""The built-in localizers and how they are made."""

from __future__ import annotations

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
class Needy(Knobs):
    layer: int | None = None

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


@pytest.fixture
def knobs(tmp_path: Path) -> str:
    (tmp_path / "knobs.py").write_text(PLUGIN)
    return f"{tmp_path / 'knobs.py'}:Knobs"


def test_arguments_are_read_as_their_defaults_are(knobs: str) -> None:
    """Text becomes a number, a truth value or stays text, as the parameter's default is; others
    keep their defaults.
    """
    assert create(knobs, {}, seed=9).parameters() == {
        "steps": 3,
        "rate": 0.5,
        "fast": False,
        "mode": "mean",
    }
    given = {"steps": "7", "rate": "1e-2", "fast": "True", "mode": "max"}
    assert create(knobs, given, seed=9).parameters() == {
        "steps": 7,
        "rate": 0.01,
        "fast": True,
        "mode": "max",
    }
    assert create("random", {"seed": "4"}, seed=9) == create("random", {}, seed=4)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layer=3", 3),
        ("layer=none", None),
        ("share=2", 2.0),
        ("layers=1, 2,3", (1, 2, 3)),
        ("layers=4", (4,)),
        ("names=a,b", ("a", "b")),
        ("names=None", None),
    ],
)
def test_arguments_are_read_as_annotated(knobs: str, text: str, value: object) -> None:
    """A number that may be none, a float whose default is whole, and tuples are read by their
    annotations.
    """
    key, _, given = text.partition("=")
    found = getattr(create(knobs.replace(":Knobs", ":Typed"), {key: given}, seed=0), key)
    assert found == value and type(found) is type(value)


def test_an_annotation_that_does_not_resolve(knobs: str) -> None:
    """Where a name in the annotations is not known at run time, the default's type decides."""
    assert (
        create(
            knobs.replace(":Knobs", ":Unresolved"), {"pair": "4", "steps": "5"}, seed=0
        ).parameters()["pair"]
        == 4
    )


def test_needs() -> None:
    """What a method must be told is known by its name."""
    assert "truth" in localizers.needs("oracle") and "truth" not in localizers.needs("random")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"stepps": "1"}, "Did you mean 'steps'"),
        ({"steps": "1.5"}, "steps is a whole number such as 3, not '1.5'"),
        ({"rate": "fast"}, "rate is a number such as 0.5, not 'fast'"),
        ({"fast": "yes"}, "fast is true or false, not 'yes'"),
    ],
)
def test_arguments_that_do_not_read(knobs: str, arguments: dict[str, str], said: str) -> None:
    """An unknown parameter or a value of another kind is refused in one line."""
    with pytest.raises(InputError) as caught:
        create(knobs, arguments, seed=0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parameter_without_a_default(knobs: str) -> None:
    """A parameter that must be given, and is not, is refused in one line."""
    demanding = knobs.replace(":Knobs", ":Demanding")
    assert create(demanding, {"target": "x"}, seed=0).parameters()["target"] == "x"
    with pytest.raises(InputError, match="target"):
        create(demanding, {}, seed=0)


def test_names() -> None:
    """The baselines stand on every board; an unknown name is refused with the nearest."""
    assert {"dynamic_graft", "none", "all", "random"} <= set(localizers.names())
    with pytest.raises(UnknownNameError, match="Did you mean 'random'"):
        create("randon", {}, seed=0)
    assert all(issubclass(type(create(n, {}, 0)), AbstractLocalizer) for n in localizers.names())
