"""Families: where each component is in the modules of a model type, as `families/*.json`.

A family file maps a component to a module path, relative to the layer for components inside the
layers, or to an object with the fields of `Place`. Where one module computes several components
(fused projections), the entry gives the slice of the module's *output* that is the component's:
part `part` of `of` equal parts, or of parts as wide as given numbers; of the whole output or, with
`per`, of each of that many blocks, such as heads. A number is an integer or the name of one in the
model's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import nn
from transformers.pytorch_utils import Conv1D

from kgbench.data.rows import unique_fields
from kgbench.errors import ModelError, UnknownNameError, first_fault, first_line
from kgbench.sites import COMPONENTS, GROUPS, HEADED, OUTSIDE, Graft, head_of

FAMILY_FILE = "kgbench_family.json"
"""A map that a checkpoint's folder may hold, for a model type of which the package has none."""

ModulePath = Annotated[str, Field(min_length=1)]
Parts = Annotated[int, Field(ge=1, le=64)]
Number = Annotated[int, Field(ge=1, le=1024)] | str
"""A number, or the name of one."""


@dataclass(frozen=True)
class Place:
    """Where a component lives: a module, and the slice of its output that is the component's."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    module: ModulePath
    part: Annotated[int, Field(ge=0)] = 0
    of: Parts | Annotated[tuple[Number, ...], Field(min_length=1, max_length=64)] = 1
    """How many equal parts, or for each part the number that its share goes by."""
    per: Number | None = None
    """How many blocks have such parts; by default the output is one block."""
    tokens: Annotated[int, Field(ge=1, le=2)] = 1
    """Which dimension of the module's input counts tokens; the first counts prompts."""
    input: str | None = None
    """The keyword argument that holds the module's input, where it is not the first argument."""
    optional: bool = False
    """Whether models of this type may lack the component."""
    also: tuple[ModulePath, ...] = ()
    """Further modules of the component, in models that have them."""

    @property
    def fused(self) -> bool:
        """Whether the module computes other components too."""
        return self.of != 1

    def columns(self, width: int, config: object) -> torch.Tensor:
        """Output columns of the component [column], for an output of `width` columns.

        Raises:
            ModelError: The configuration has no such positive number.
        """
        blocks = 1 if self.per is None else _number(config, self.per)
        numbers = (1,) * self.of if isinstance(self.of, int) else self.of
        shares = [_number(config, number) for number in numbers]
        pieces = blocks * sum(shares)
        first = sum(shares[: self.part]) * width // pieces
        last = sum(shares[: self.part + 1]) * width // pieces
        return torch.arange(width).reshape(blocks, -1)[:, first:last].reshape(-1)


@dataclass(frozen=True)
class Family:
    """The map of one model type."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model_type: str
    layers: ModulePath
    """Path of the module list that holds the layers."""
    attention: ModulePath
    """Module, relative to the layer, whose output attention adds to the stream.

    Where that is normed first, the norm.
    """
    mlp: ModulePath
    """Module, relative to the layer, whose output the MLP adds to the stream.

    Where that is normed first, the norm.
    """
    outside: Mapping[str, Place]
    inside: Mapping[str, Place]

    @property
    def components(self) -> tuple[str, ...]:
        """Components that the family has, in the order of computation."""
        return tuple(c for c in COMPONENTS if c in self.outside or c in self.inside)

    def path(self, layer: int | None, component: str) -> str:
        """Full path of the module that computes a component; layer None is outside the layers."""
        if layer is None:
            return self.outside[component].module
        return f"{self.layers}.{layer}.{self.inside[component].module}"

    def paths(self, layer: int | None, component: str) -> tuple[str, ...]:
        """Full paths of all modules of a component."""
        first, place = self.path(layer, component), self.place(component)
        within = first.removesuffix(place.module)
        return first, *(within + further for further in place.also)

    @property
    def attending(self) -> str:
        """Module, relative to the layer, that computes attention.

        The one that the output projection is a part of.
        """
        return self.inside["o"].module.rpartition(".")[0]

    def fitted(self, model: nn.Module) -> Family:
        """The map of this model: optional components that it lacks are removed.

        Raises:
            ModelError: The map does not fit the model.
        """

        def kept(places: Mapping[str, Place], within: str) -> dict[str, Place]:
            present = {}
            for component, place in places.items():
                if not place.optional or _has(model, within + place.module):
                    also = tuple(path for path in place.also if _has(model, within + path))
                    present[component] = replace(place, also=also)
            return present

        layers = self._module(model, self.layers)
        if not isinstance(layers, nn.ModuleList) or not len(layers):
            kind = type(layers).__name__
            raise self._misfit(f"{self.layers!r} is no list of layers, but {kind}")
        fitted = replace(
            self,
            outside=kept(self.outside, ""),
            inside=kept(self.inside, f"{self.layers}.0."),
        )
        for number in range(len(layers)):
            for path in (self.attention, self.mlp):
                self._module(model, f"{self.layers}.{number}.{path}")
        sites: list[tuple[int | None, str]] = [(None, component) for component in fitted.outside]
        sites += product(range(len(layers)), fitted.inside)
        for layer, component in sites:
            place = fitted.place(component)
            module, *_ = [self._module(model, path) for path in fitted.paths(layer, component)]
            misfit = fitted._misplaced(component, module)
            if place.fused and not misfit:
                try:
                    place.columns(output_width(module), model.config)
                except (ModelError, RuntimeError, AttributeError) as error:  # of a norm
                    misfit = f"its parts are none of its columns ({first_line(error)})"
            if misfit:
                at = fitted.path(layer, component)
                raise self._misfit(f"{component!r} at {at!r}: {misfit}")
        return fitted

    def _misplaced(self, component: str, module: nn.Module) -> str | None:
        """Why a module can be no such component, by its type and by where it is; or None."""
        module = getattr(module, "base", module)
        kind = "norm" if "ln_" in component or "norm" in component else "projection"
        kind = "embedding" if component in OUTSIDE[:2] else kind
        type_kind = "projection" if isinstance(module, nn.Linear | Conv1D) else "norm"
        type_kind = "embedding" if isinstance(module, nn.Embedding) else type_kind
        if kind != type_kind:
            return f"it is no {kind}, being of type {type(module).__name__}"
        if "o" not in self.inside or component in OUTSIDE:
            return None
        attention, inner, _ = self.inside["o"].module.partition(".")
        is_within = self.inside[component].module.startswith(f"{attention}.")
        if inner and is_within != (component in (*HEADED, *GROUPS["attn"])):
            return f"it is {'' if is_within else 'not '}in {attention!r}, where attention is"
        return None

    def _misfit(self, reason: str) -> ModelError:
        file = f"families/{self.model_type}.json" if self.shipped else FAMILY_FILE
        return ModelError(
            f"the family map {file} of {self.model_type!r} does not fit this model: {reason}"
        )

    @property
    def shipped(self) -> bool:
        """Whether the package has a map of this model type, so that none is taken from a folder."""
        return self.model_type in family_names()

    def _module(self, model: nn.Module, path: str) -> nn.Module:
        if not _has(model, path):
            raise self._misfit(f"it has no module {path!r}")
        return model.get_submodule(path)

    def place(self, component: str) -> Place:
        """Module and slice of a component."""
        return self.outside[component] if component in OUTSIDE else self.inside[component]

    def check(self, graft: Graft) -> None:
        """Refuse a graft that names a component or a group of which the family has nothing.

        Raises:
            UnknownNameError: The family has no such component.
        """
        for term in graft.terms:
            for name, _ in map(head_of, term.components or ()):
                if not set(GROUPS.get(name, (name,))) & set(self.components):
                    raise UnknownNameError(
                        f"component of model type {self.model_type!r} in the graft '{graft}':",
                        name,
                        self.components,
                    )


@dataclass(frozen=True)
class Slots:
    """The slots of a model: its (layer, component) places, in a fixed order.

    A treatment has one weight set per slot.
    """

    family: Family
    n_layers: int

    @cached_property
    def sites(self) -> tuple[tuple[int | None, str], ...]:
        """All (layer, component); layer None is outside the layers."""
        inside = [c for c in self.family.components if c not in OUTSIDE]
        sites: list[tuple[int | None, str]] = []
        sites += [(None, c) for c in OUTSIDE[:2] if c in self.family.outside]
        sites += product(range(self.n_layers), inside)
        sites += [(None, c) for c in OUTSIDE[2:] if c in self.family.outside]
        return tuple(sites)

    @cached_property
    def index(self) -> dict[tuple[int | None, str], int]:
        """Slot of each (layer, component)."""
        return {site: i for i, site in enumerate(self.sites)}

    @cached_property
    def readout(self) -> tuple[int, ...]:
        """Final norm and head: slots with an effect at readout tokens only."""
        sites = ((None, "ln_f"), (None, "head"))
        return tuple(self.index[site] for site in sites if site in self.index)

    @cached_property
    def default(self) -> range:
        """Slots of the default components: all but final norm and head, which are last."""
        return range(len(self) - len(self.readout))

    def __len__(self) -> int:
        return len(self.sites)


def family_names() -> tuple[str, ...]:
    """Model types that have a map."""
    folder = Path(str(files(__package__).joinpath("families")))
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


@cache
def load_family(model_type: str) -> Family:
    """The map of a model type that comes with the package.

    Raises:
        ModelError: There is none.
    """
    if model_type not in family_names():
        raise ModelError(
            f"model type {model_type!r} has no family map; there are maps for "
            f"{', '.join(family_names())}. To have one proposed and "
            "tried, run 'kgbench family infer DIR', and put it into the checkpoint's folder as "
            f"{FAMILY_FILE}; or write "
            f"kgbench/models/families/{model_type}.json after the pattern of llama.json: module "
            "paths of each component"
        )
    file = files(__package__).joinpath("families", f"{model_type}.json")
    return read_family(file.read_text("utf-8"), f"families/{model_type}.json")


def family_in(folder: Path, model_type: str, origin: str) -> Family:
    """The map for a checkpoint: the package's, or for a model type without one, the folder's.

    Args:
        folder: The checkpoint's directory.
        model_type: As its configuration names it.
        origin: What to call the checkpoint in an error.

    Raises:
        ModelError: There is no map, or the one in the folder cannot be read, is of another type, or
            differs from the package's.
    """
    file, source = folder / FAMILY_FILE, f"{origin}/{FAMILY_FILE}"
    if not file.is_file():
        return load_family(model_type)
    family = read_family(file.read_text("utf-8", errors="replace"), source)
    if family.model_type != model_type:
        raise ModelError(
            f"the family map {source} is of {family.model_type!r}, the checkpoint of {model_type!r}"
        )
    if family.shipped and family != load_family(model_type):
        raise ModelError(
            f"the family map {source} differs from the one that kgbench has for {model_type!r}, "
            "which it would use; remove it"
        )
    return family


def read_family(text: str, source: str) -> Family:
    """Read a family map.

    Args:
        text: A JSON object with the fields of `Family`; a place that is a module's whole output is
            the module's path.
        source: Where the text is from, for messages.

    Raises:
        ModelError: It does not read.
    """
    try:
        data = json.loads(text, object_pairs_hook=unique_fields)
        for part in ("outside", "inside"):
            if isinstance(data, dict) and isinstance(data.get(part), dict):
                for component, place in data[part].items():
                    if isinstance(place, str):
                        data[part][component] = {"module": place}
        family = TypeAdapter(Family).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise ModelError(
            f"the family map {source} does not read: {first_fault(error, 'the whole')}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the family map {source} does not read: {error}") from error
    if "o" not in family.inside:
        raise ModelError(
            f"the family map {source} lacks the component 'o', attention's output projection"
        )
    return family


def written(family: Family) -> dict[str, Any]:
    """A map as JSON has it, which `read_family` reads.

    A place has the fields that differ from their default; that of a module's whole output is the
    path alone.
    """
    adapter = TypeAdapter(Family)
    content: dict[str, Any] = adapter.dump_python(family, mode="json", exclude_defaults=True)
    for places in (content["outside"], content["inside"]):
        for component, place in places.items():
            if len(place) == 1:
                places[component] = place["module"]
    return content


def _number(config: object, number: int | str) -> int:
    """A number, or the positive one of this name in the configuration."""
    value = getattr(config, number, None) if isinstance(number, str) else number
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"the model's configuration has no positive number {number!r}")
    return value


def output_width(module: nn.Module) -> int:
    """Number of output columns of a linear module."""
    width: Any = module.nf if isinstance(module, Conv1D) else module.out_features
    return int(width)


def _has(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True
