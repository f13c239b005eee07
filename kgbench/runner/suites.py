"""Suites: named sets of prompts and configurations, one YAML file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from kgbench.errors import UnknownNameError

__all__ = ["Suite", "load_suite", "suites"]


@dataclass(frozen=True)
class Suite:
    """What is run unless told otherwise."""

    about: str
    prompts: tuple[str, ...]
    grafts: tuple[str, ...]
    """Of intervening methods."""
    budgets: tuple[float, ...]
    """Of rankings: per cent of all default components × tokens, ascending."""
    scan: bool = False
    """Whether intervening methods are made to rank sites, by their effect at each alone."""
    truth: bool = False
    """Whether rankings are compared with where facts were planted."""


@cache
def _all() -> Mapping[str, Suite]:
    folder = files("kgbench").joinpath("suites")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    rows = {f.name.removesuffix(".yaml"): yaml.safe_load(f.read_text("utf-8")) for f in found}
    return {name: _suite(**row) for name, row in rows.items()}


def _suite(
    about: str,
    prompts: Sequence[str],
    grafts: Sequence[str],
    budgets: Sequence[float],
    **flags: bool,
) -> Suite:
    return Suite(about, tuple(prompts), tuple(grafts), tuple(map(float, budgets)), **flags)


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
