"""Every localizer keeps the contract, and `kgbench check-localizer` says so, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import cycle
from types import MappingProxyType

import pytest
from commands import Call
from interventions import KINDS
from nightly import nightly

from kgbench.localizers import COSTS, AbstractLocalizer, create, names
from kgbench.testing import PICO_FAMILIES, check_localizer

QUICK = {"steps": 1, "draws": 2}
"""Parameters that make a method short, where it has them; the laws hold whatever the parameters."""


def quick(name: str, arguments: Mapping[str, str] = MappingProxyType({})) -> AbstractLocalizer:
    """A localizer that does not take long, with these parameters."""
    known = {field.name for field in fields(create(name, {}, seed=0))}
    short = {key: str(value) for key, value in QUICK.items() if key in known}
    return create(name, {**short, **arguments}, seed=0)


EVERY = [(name, family) for name in names() for family in PICO_FAMILIES]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "family"), nightly(EVERY, {*zip(names(), cycle(PICO_FAMILIES), strict=False)})
)
def test_every_localizer_keeps_the_contract(name: str, family: str) -> None:
    """All laws hold of every localizer, built in or installed: daily on one family, nightly on all."""
    assert {
        verdict.name: verdict.reason
        for verdict in check_localizer(quick(name), [family])
        if not verdict.holds
    } == {}


PARAMETERS = (
    *(kind for kind in KINDS if kind[1] and ("directions", "fact") not in kind[1]),
    ("activation_patch", (("point", "resid_post"),)),
    ("graft_attribution", (("steps", "3"),)),
)
"""Directions of a fact need several prompts of it, which the contract does not have."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "arguments"),
    nightly(PARAMETERS, {name: (name, said) for name, said in PARAMETERS}.values()),
    ids=str,
)
def test_the_contract_holds_of_other_parameters(
    name: str, arguments: tuple[tuple[str, str], ...]
) -> None:
    """All laws hold whatever the parameters."""
    verdicts = check_localizer(quick(name, dict(arguments)), ["llama"])
    assert {verdict.name: verdict.reason for verdict in verdicts if not verdict.holds} == {}


# ------------------------------------------------------------------------------------- command line


def test_localizers_are_listed_with_what_they_take(run: Call) -> None:
    """`kgbench ls localizers` gives kind, needs, cost and paper of each, and says what the classes
    of cost are.
    """
    out = " ".join(run("ls localizers").out.split())
    assert out.startswith("localizer kind needs cost paper from what it is")
    assert "arguments: at=recipient (recipient, sft), per_weight=false" in out
    assert all(f"{cost}, {meaning}" in out for cost, meaning in COSTS.items())
