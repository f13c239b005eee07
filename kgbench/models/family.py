"""Families: where each component lives in the modules of a model type, as data in `families/*.json`.

A family file maps a component to a module path, relative to the layer for components inside the layers, or to an object with the fields of
`Place`. Where one module computes several components (fused projections), the entry says which slice of the module's *output* is the
component's: part `part` of `of` equal parts, or of parts as wide as some numbers of the model's configuration are large; of the whole
output or, with `per` naming a number of blocks in the configuration, of each block (a head, say).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import nn

from kgbench.errors import ModelError, UnknownNameError
from kgbench.sites import COMPONENTS, GROUPS, OUTSIDE, PER_LAYER, Graft

__all__ = ["FAMILY_FILE", "Family", "Place", "family_names", "load_family", "module_at", "read_family", "written"]

FAMILY_FILE = "kgbench_family.json"
"""A map that a checkpoint's folder may hold; it goes before the one that comes with the package."""


@dataclass(frozen=True)
class Place:
    """Where a component lives: a module, and the slice of its output that is the component's."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    module: str
    part: int = 0
    of: int | tuple[str, ...] = 1
    """How many equal parts, or for each part the number of the configuration that its share goes by."""
    per: str | None = None
    tokens: int = 1
    """Which dimension of the module's input counts tokens; the first counts prompts."""
    input: str | None = None
    """The keyword argument that holds the module's input, where it is not the first argument."""
    optional: bool = False
    """Whether models of this type may lack the component."""
    also: tuple[str, ...] = ()
    """Further modules of the component, in models that have them."""

    @property
    def fused(self) -> bool:
        """Whether the module computes other components too."""
        return self.of != 1

    def columns(self, width: int, config: object) -> torch.Tensor:
        """Output columns of the component, an index tensor, for a module whose output has `width` columns."""
        shares = [1] * self.of if isinstance(self.of, int) else [getattr(config, number) for number in self.of]
        blocks = getattr(config, self.per) if self.per else 1
        first, last = (sum(shares[:n]) * width // (blocks * sum(shares)) for n in (self.part, self.part + 1))
        return torch.arange(width).reshape(blocks, -1)[:, first:last].reshape(-1)


@dataclass(frozen=True)
class Family:
    """The map of one model type."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model_type: str
    layers: str
    """Path of the module list that holds the layers."""
    attention: str
    """Module, relative to the layer, whose output attention adds to the stream; where that is normed first, the norm."""
    mlp: str
    """Module, relative to the layer, whose output the MLP adds to the stream; where that is normed first, the norm."""
    outside: Mapping[str, Place]
    inside: Mapping[str, Place]

    @property
    def components(self) -> tuple[str, ...]:
        """Components that the family has, in the order of computation."""
        return tuple(c for c in COMPONENTS if c in self.outside or c in self.inside)

    def path(self, layer: int | None, component: str) -> str:
        """Full path of the module that computes a component; layer None is outside the layers."""
        return self.outside[component].module if layer is None else f"{self.layers}.{layer}.{self.inside[component].module}"

    def paths(self, layer: int | None, component: str) -> tuple[str, ...]:
        """Full paths of all modules of a component."""
        own = self.path(layer, component)
        return own, *(own.removesuffix(self.place(component).module) + other for other in self.place(component).also)

    @property
    def attending(self) -> str:
        """Module, relative to the layer, that computes attention: the one that the output projection is a part of."""
        return self.inside["o"].module.rpartition(".")[0]

    def fitted(self, model: nn.Module) -> Family:
        """The map without what this model lacks of what models of its type may lack."""

        def kept(places: Mapping[str, Place], within: str) -> dict[str, Place]:
            present = {c: p for c, p in places.items() if not p.optional or _has(model, within + p.module)}
            return {c: replace(p, also=tuple(path for path in p.also if _has(model, within + path))) for c, p in present.items()}

        return replace(self, outside=kept(self.outside, ""), inside=kept(self.inside, f"{self.layers}.0."))

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
    """The map of a model type that comes with the package.

    Raises:
        ModelError: There is none; the message says how to make one.
    """
    if model_type not in family_names():
        raise ModelError(
            f"model type {model_type!r} has no family map; there are maps for {', '.join(family_names())}. To have one proposed and "
            f"tried, run 'kgbench family infer DIR', and put it into the checkpoint's folder as {FAMILY_FILE}; or write "
            f"kgbench/models/families/{model_type}.json after the pattern of llama.json: module paths of each component"
        )
    return read_family(files(__package__).joinpath("families", f"{model_type}.json").read_text("utf-8"), f"families/{model_type}.json")


def read_family(text: str, source: str) -> Family:
    """Read a family map.

    Args:
        text: A JSON object with the fields of `Family`; a place that is a module's whole output is the module's path.
        source: Where the text is from, for messages.

    Raises:
        ModelError: It does not read; the message says what is wrong where.
    """
    try:
        data = json.loads(text)
        for part in ("outside", "inside"):
            if isinstance(data, dict) and isinstance(data.get(part), dict):
                data[part] = {c: {"module": place} if isinstance(place, str) else place for c, place in data[part].items()}
        family = TypeAdapter(Family).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ModelError(f"the family map {source} does not read: {where}: {first['msg']}") from error
    except ValueError as error:
        raise ModelError(f"the family map {source} does not read: {error}") from error
    for part, found, known in (("outside", family.outside, OUTSIDE), ("inside", family.inside, PER_LAYER)):
        if unknown := [c for c in found if c not in known]:
            raise ModelError(f"the family map {source} has {unknown[0]!r} {part} the layers; components there are {', '.join(known)}")
    if "o" not in family.inside:
        raise ModelError(f"the family map {source} lacks the component 'o', attention's output projection")
    return family


def written(family: Family) -> dict[str, Any]:
    """A map as JSON has it, which `read_family` reads."""

    def place(of: Place) -> Any:
        said = {f.name: value for f in fields(Place) if (value := getattr(of, f.name)) != f.default}
        return of.module if len(said) == 1 else {name: list(v) if isinstance(v, tuple) else v for name, v in said.items()}

    parts = {name: {c: place(p) for c, p in getattr(family, name).items()} for name in ("outside", "inside")}
    return {name: getattr(family, name) for name in ("model_type", "layers", "attention", "mlp")} | parts


def _has(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path.

    Raises:
        ModelError: The model has no such module, so the family map does not fit it.
    """
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f"the family map does not fit this model: it has no module {path!r}") from error
