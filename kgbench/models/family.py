"""Families: where each component lives in the modules of a model type, as data in `families/*.json`.

A family file maps a component to a module path, relative to the layer for components inside the layers. Where one module computes
several components (fused projections), the entry says which slice of the module's *output* is the component's: part `part` of `of` equal
parts, of the whole output or, with `per` naming a number of blocks in the model's configuration, of each block (a head, say).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
from torch import nn

from kgbench.errors import ModelError, UnknownNameError
from kgbench.sites import COMPONENTS, GROUPS, OUTSIDE, Graft

__all__ = ["Family", "Place", "family_names", "load_family", "module_at"]


@dataclass(frozen=True)
class Place:
    """Where a component lives: a module, and the slice of its output that is the component's."""

    module: str
    part: int = 0
    of: int = 1
    per: str | None = None

    def columns(self, width: int, config: object) -> torch.Tensor:
        """Output columns of the component, an index tensor [width / of], for a module whose output has `width` columns."""
        blocks = getattr(config, self.per) if self.per else 1
        return torch.arange(width).reshape(blocks, self.of, -1)[:, self.part].reshape(-1)


@dataclass(frozen=True)
class Family:
    """The map of one model type."""

    model_type: str
    layers: str
    """Path of the module list that holds the layers."""
    attention: str
    """Module, relative to the layer, whose output attention adds to the stream."""
    mlp: str
    """Module, relative to the layer, whose output the MLP adds to the stream."""
    outside: Mapping[str, Place]
    inside: Mapping[str, Place]

    @property
    def components(self) -> tuple[str, ...]:
        """Components that the family has, in the order of computation."""
        return tuple(c for c in COMPONENTS if c in self.outside or c in self.inside)

    def path(self, layer: int | None, component: str) -> str:
        """Full path of the module that computes a component; layer None is outside the layers."""
        return self.outside[component].module if layer is None else f"{self.layers}.{layer}.{self.inside[component].module}"

    def place(self, component: str) -> Place:
        """Module and slice of a component."""
        return self.outside[component] if component in OUTSIDE else self.inside[component]

    def check(self, graft: Graft) -> None:
        """Refuse a graft that names a component or a group of which the family has nothing.

        Raises:
            UnknownNameError: The family has no such component.
        """
        for term in graft.terms:
            for name in term.components or ():
                if not set(GROUPS.get(name, (name,))) & set(self.components):
                    raise UnknownNameError(f"component of model type {self.model_type!r} in the graft '{graft}':", name, self.components)


def family_names() -> tuple[str, ...]:
    """Model types that have a map."""
    folder = files(__package__).joinpath("families")
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


@cache
def load_family(model_type: str) -> Family:
    """Read the map of a model type.

    Raises:
        ModelError: There is none, or it does not read; the message says how to add one.
    """
    if model_type not in family_names():
        raise ModelError(
            f"model type {model_type!r} has no family map; there are maps for {', '.join(family_names())}. To add one, write "
            f"kgbench/models/families/{model_type}.json after the pattern of llama.json: module paths of each component"
        )
    return _read(json.loads(files(__package__).joinpath("families", f"{model_type}.json").read_text("utf-8")))


def _read(data: Mapping[str, object]) -> Family:
    outside, inside = (
        {c: Place(p) if isinstance(p, str) else Place(**p) for c, p in data[part].items()}  # type: ignore[attr-defined]  # JSON object
        for part in ("outside", "inside")
    )
    unknown = [c for c in (*outside, *inside) if c not in COMPONENTS]
    if unknown:
        raise ModelError(f"family map {data['model_type']!r} names unknown components {unknown}; known: {', '.join(COMPONENTS)}")
    names = {key: str(data[key]) for key in ("model_type", "layers", "attention", "mlp")}
    return Family(**names, outside=outside, inside=inside)


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path.

    Raises:
        ModelError: The model has no such module, so the family map does not fit it.
    """
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f"the family map does not fit this model: it has no module {path!r}") from error
