"""LoRA adapters as PEFT stores them, `adapter_config.json` and `adapter_model.safetensors`.

They are read without PEFT. Which modules are adapted, and with which rank and scale, follows
PEFT's rules for names of modules. Refused are regular expressions in place of names, and adapters
that compute anything beyond low-rank rows, since a part of such an adapter is not its donor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kgbench.errors import ModelError
from kgbench.models.sharing import refuse_non_finite

__all__ = ["CONFIG", "WEIGHTS", "Adapter", "AdapterConfig", "read_adapter"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter."""

_PREFIX, _ALL_LINEAR = "base_model.model.", "all-linear"
_ROWS = re.compile(r"(?P<path>.+)\.lora_(?P<which>[AB])\.weight")
_LAYER, _ANY_LAYER = r"(?:^|.*?\.){}\.(?P<layer>\d+)\.", r".*?\.[^.]*\.(?P<layer>\d+)\."
"""Layer number in a path: after a list of layers of this name, or after any list."""
_NAME = re.compile(r"[\w.-]+")
"""A module's name or the end of its path. PEFT reads some names as regular expressions; they are
taken literally here, and anything else is refused, since matching it could take arbitrarily long."""
Number = TypeVar("Number", int, float)
Rank = Annotated[int, Field(gt=0, le=65536)]
Alpha = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]

_OF_TRAINING = {
    *(
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
    ),
    *(
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    ),
}
"""What a configuration says of how the adapter was made; it changes no answer."""
_PLAIN_STARTS = (None, True, False, "eva", "gaussian", "orthogonal")
"""Ways to begin that leave the base's weights alone; others, such as PiSSA, train on a changed base that the adapter does not hold."""

_MERGE = "merge it into its base (peft: merge_and_unload, save_pretrained) and give the merged checkpoint"


class AdapterConfig(BaseModel):
    """What `adapter_config.json` says that matters; what is not known here is kept, and refused unless it says no."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    r: Rank
    lora_alpha: Alpha
    target_modules: str | list[str]
    exclude_modules: str | list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Alpha] | None = None
    use_rslora: bool = False
    fan_in_fan_out: bool = False
    """Whether weights are stored as [in, out]; the base's modules tell that themselves."""
    bias: Literal["none"] = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = None
    base_model_name_or_path: str | None = None
    peft_type: Literal["LORA"]

    def targets(self, paths: Iterable[str], linear: Iterable[str] = ()) -> set[str]:
        """Those of a model's modules that are adapted.

        Args:
            paths: All of its modules.
            linear: Those that the word `all-linear` stands for: the linear ones but the output embeddings.
        """
        aimed_at = linear if self.is_all_linear else filter(self._aimed_at, paths)
        excluded = self.exclude_modules or ()
        return {path for path in aimed_at if not (self.saves(path) or _ends(path, excluded))}

    @property
    def is_all_linear(self) -> bool:
        """Whether the target is the word `all-linear`, in any spelling."""
        return isinstance(self.target_modules, str) and self.target_modules.lower() == _ALL_LINEAR

    def saves(self, path: str) -> bool:
        """Whether a module, or one that it is a part of, is replaced as a whole."""
        owners = [path[: match.start()] for match in re.finditer(r"\.|$", path)]
        return any(owner.endswith(name) for owner in owners for name in self.modules_to_save or ())

    def rank(self, path: str) -> int:
        """Rank of a module's rows."""
        return _by_pattern(self.rank_pattern, path, self.r)

    def scale(self, path: str) -> float:
        """What a module's rows are multiplied with: alpha / r (arXiv 2106.09685), or alpha / sqrt(r) (arXiv 2312.03732)."""
        alpha, rank = _by_pattern(self.alpha_pattern, path, self.lora_alpha), self.rank(path)
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    def _aimed_at(self, path: str) -> bool:
        # A full path is taken in whatever layer it is; layers choose among those that are named by their ends.
        return path in self.target_modules or (
            _ends(path, self.target_modules) and self._in_layers(path)
        )

    def _in_layers(self, path: str) -> bool:
        layers = self.layers_to_transform
        if layers is None or layers == []:
            return True
        patterns = [_LAYER.format(re.escape(name)) for name in self.layer_lists] or [_ANY_LAYER]
        for pattern in patterns:
            if match := re.match(pattern, path):
                return int(match["layer"]) in (layers if isinstance(layers, list) else [layers])
        return False

    @property
    def layer_lists(self) -> list[str]:
        """Names of the lists of layers that `layers_to_transform` counts in; empty for any list."""
        lists = self.layers_pattern or []
        return [lists] if isinstance(lists, str) else lists


def _ends(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.endswith(f".{name}") for name in names)


def _by_pattern(patterns: Mapping[str, Number] | None, path: str, otherwise: Number) -> Number:
    """The figure of the first name that a path ends with."""
    for name, figure in (patterns or {}).items():
        if _ends(path, [name]):
            return figure
    return otherwise


@dataclass(frozen=True)
class Adapter:
    """An adapter as stored."""

    config: AdapterConfig
    tensors: Mapping[str, Tensor]
    """By name in the base model, `PATH.lora_A.weight` [rank, in], `PATH.lora_B.weight` [out, rank], and whole weights."""

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Tensor]]:
        """`A` and `B` of each module that has rows."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.tensors.items():
            if match := _ROWS.fullmatch(name):
                found.setdefault(match["path"], {})[match["which"]] = tensor
        return found

    @cached_property
    def whole(self) -> Mapping[str, Tensor]:
        """Weights that are stored as a whole."""
        return {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in self.tensors.items()
            if not _ROWS.fullmatch(name)
        }


def read_adapter(folder: Path, origin: str) -> Adapter:
    """Read an adapter.

    Args:
        folder: Where its two files are.
        origin: What to call it in an error.

    Raises:
        ModelError: A file is missing or does not read, or the adapter is none of low-rank rows alone.
    """
    config = _config(folder / CONFIG, origin)
    if not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{origin} holds no {WEIGHTS}; pickled weights are never loaded: save the adapter with save_pretrained"
        )
    try:
        stored = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{origin} does not load: {WEIGHTS} is no safetensors file ({error})"
        ) from error
    if other := next((name for name in stored if not name.startswith(_PREFIX)), None):
        raise ModelError(
            f"{origin} is no adapter of a causal language model: its tensor {other!r} does not begin with {_PREFIX!r}"
        )
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items()}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ModelError(
                f"{origin} does not load: {name!r} is of type {tensor.dtype}; expected finite weights of a float type"
            )
        refuse_non_finite(name, tensor, origin)
        if "lora_" in name and not _ROWS.fullmatch(name):
            raise ModelError(
                f"{origin} holds {name!r}; only linear layers' lora_A.weight and lora_B.weight are grafted: {_MERGE}"
            )
    return Adapter(config, tensors)


def _config(path: Path, origin: str) -> AdapterConfig:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{origin} is no adapter: its {CONFIG} does not read ({error})") from error
    if not isinstance(data, dict):
        raise ModelError(f"{origin} is no adapter: its {CONFIG} holds no object")
    if data.get("peft_type") != "LORA":
        raise ModelError(
            f"{origin} is an adapter of type {data.get('peft_type')!r}; only LORA is grafted as it is: {_MERGE}"
        )
    try:
        config = AdapterConfig.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError(
            f"{origin} does not load: {CONFIG}: {'.'.join(map(str, first['loc']))!r}: {first['msg']}"
        ) from error
    unknown = {
        key: value
        for key, value in (config.model_extra or {}).items()
        if key not in _OF_TRAINING and value
    }
    if config.init_lora_weights not in _PLAIN_STARTS:
        unknown["init_lora_weights"] = config.init_lora_weights
    for key, value in unknown.items():
        raise ModelError(
            f"{origin} sets {key!r} to {json.dumps(value)[:60]}, so that it is more than low-rank rows beside its base: {_MERGE}"
        )
    _refuse_expressions(config, f"{origin} does not load: {CONFIG}: ")
    return config


def _refuse_expressions(config: AdapterConfig, where: str) -> None:
    """Refuse regular expressions in place of module names."""
    names = [*(config.rank_pattern or ()), *(config.alpha_pattern or ()), *config.layer_lists]
    expressions = [name for name in names if not _NAME.fullmatch(name)]
    for modules in (config.target_modules, config.exclude_modules):
        if isinstance(modules, str) and not (
            modules is config.target_modules and config.is_all_linear
        ):
            expressions.append(modules)
    for expression in expressions:
        shown = repr(expression if len(expression) <= 60 else f"{expression[:60]}...")
        raise ModelError(
            f"{where}{shown} is a regular expression; expected names of modules, in lists "
            f"(target_modules may be {_ALL_LINEAR!r}): list the names, or {_MERGE}"
        )
