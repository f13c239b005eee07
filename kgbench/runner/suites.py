"""Suites: named sets of prompts and grafts, one YAML file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import yaml

from kgbench.errors import InputError, UnknownNameError
from kgbench.sites import BASELINES, Graft, complement_graft, parse_graft

__all__ = ["Suite", "configurations", "load_suite", "suites"]


@dataclass(frozen=True)
class Suite:
    """What is run unless told otherwise."""

    about: str
    prompts: tuple[str, ...]
    grafts: tuple[str, ...]


@cache
def _all() -> Mapping[str, Suite]:
    folder = files("kgbench").joinpath("suites")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    rows = {f.name.removesuffix(".yaml"): yaml.safe_load(f.read_text("utf-8")) for f in found}
    return {name: Suite(row["about"], tuple(row["prompts"]), tuple(row["grafts"])) for name, row in rows.items()}


def suites() -> Mapping[str, str]:
    """One line on each suite."""
    return {name: suite.about for name, suite in _all().items()}


def load_suite(name: str) -> Suite:
    """A suite by name.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _all():
        raise UnknownNameError("suite", name, _all())
    return _all()[name]


def configurations(grafts: tuple[str, ...], layers: str | None = None) -> dict[str, str | None]:
    """Everything to run for some grafts: `PRE`, `SFT`, `ALL`, the grafts, and the complements that necessity needs.

    Args:
        grafts: Graft expressions; `PRE` and `SFT` are run anyway.
        layers: Layers for every term that names none.

    Returns:
        Each configuration in canonical form with its complement, which is one of the others; None where it is not run or not one.

    Raises:
        GraftSyntaxError: A graft or the layers do not parse.
    """
    found: dict[str, str | None] = dict.fromkeys((*BASELINES, "ALL"))
    for graft in (_on_layers(parse_graft(text), layers) for text in grafts if text not in BASELINES):
        if str(graft) not in found:
            others = complement_graft(graft)
            found[str(graft)] = None if others is None else str(others)
    for name, opposite in [(g, o) for g, o in found.items() if o is not None]:
        found.setdefault(opposite, name)
    return found


def _on_layers(graft: Graft, layers: str | None) -> Graft:
    if layers is None:
        return graft
    outside = [t for t in graft.terms if t.layers is None and set(t.components or ()) & {"emb", "pos", "ln_f", "head"}]
    if outside:
        raise InputError(f"--layers {layers} does not go with the term '{outside[0]}', which lies outside the layers")
    (wanted,) = parse_graft(f"ALL@{layers}").terms
    return Graft(tuple(replace(t, layers=t.layers or wanted.layers) for t in graft.terms))
