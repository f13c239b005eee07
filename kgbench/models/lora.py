"""Low-rank donors: the recipient's weights plus an adapter's rows (LoRA, arXiv 2106.09685).

A donor shares all weights with the recipient and adds to some of its linear modules. The sum of a
base's weight and an adapter's rows (section 4.1) is never stored: a donor takes the memory of its
rows.

Adapters are read as PEFT stores them, `adapter_config.json` and `adapter_model.safetensors`, but
without PEFT. Which modules are adapted, and with which rank and scale, follows PEFT's rules for
names of modules. Refused are regular expressions in place of names, and adapters that compute
anything beyond low-rank rows, since a part of such an adapter is not its donor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError
from kgbench.models.tensors import put_weight, refuse_non_finite, shared_copy

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter."""

_PREFIX, _ALL_LINEAR = "base_model.model.", "all-linear"
_ROWS = re.compile(r"(?P<path>.+)\.lora_(?P<which>[AB])\.weight")
_LAYER, _ANY_LAYER = r"(?:^|.*?\.){}\.(?P<layer>\d+)\.", r".*?\.[^.]*\.(?P<layer>\d+)\."
"""Layer number in a path: after a list of layers of this name, or after any list."""
_NAME = re.compile(r"[\w.-]+")
"""A module's name or the end of its path.

PEFT reads some names as regular expressions; they are taken literally here, and anything else is
refused, since matching it could take arbitrarily long.
"""
Number = TypeVar("Number", int, float)
Rank = Annotated[int, Field(gt=0, le=65536)]
Alpha = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]

_OF_TRAINING = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
"""Settings of an adapter's training, which change no answer."""
_PLAIN_STARTS = (None, True, False, "eva", "gaussian", "orthogonal")
"""Ways to begin that leave the base's weights alone.

Others, such as PiSSA, train on a changed base that the adapter does not hold.
"""

_MERGE = (
    "merge it into its base (peft: merge_and_unload, save_pretrained) "
    "and give the merged checkpoint"
)


class AdapterConfig(BaseModel):
    """Settings of `adapter_config.json` that change answers.

    Unknown ones are kept, and refused unless they are empty or false.
    """

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
    """Whether weights are stored as [in, out]; the layout is read off the base's modules."""
    bias: Literal["none"] = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = None
    base_model_name_or_path: str | None = None
    peft_type: Literal["LORA"]

    def targets(self, paths: Iterable[str], linear: Iterable[str] = ()) -> set[str]:
        """Those of a model's modules that are adapted.

        Args:
            paths: All of its modules.
            linear: The modules of `all-linear`: all linear ones except the output embeddings.
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
        names = tuple(self.modules_to_save or ())
        return any(path[: match.start()].endswith(names) for match in re.finditer(r"\.|$", path))

    def rank(self, path: str) -> int:
        """Rank of a module's rows."""
        return _by_pattern(self.rank_pattern, path, self.r)

    def scale(self, path: str) -> float:
        """What a module's rows are multiplied with.

        Alpha / r (arXiv 2106.09685), or alpha / sqrt(r) (arXiv 2312.03732).
        """
        alpha, rank = _by_pattern(self.alpha_pattern, path, self.lora_alpha), self.rank(path)
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    def _aimed_at(self, path: str) -> bool:
        # A full path counts in any layer; layers select among modules named by their ends.
        if path in self.target_modules or not _ends(path, self.target_modules):
            return path in self.target_modules
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
    """By name in the base model.

    `PATH.lora_A.weight` [rank, in], `PATH.lora_B.weight` [out, rank], and whole weights.
    """

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Tensor]]:
        """`A` and `B` of each module that has rows."""
        rows: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self.tensors.items():
            if match := _ROWS.fullmatch(name):
                rows.setdefault(match["path"], {})[match["which"]] = tensor
        return rows

    @cached_property
    def whole(self) -> Mapping[str, Tensor]:
        """Weights that are stored as a whole."""
        whole = {}
        for name, tensor in self.tensors.items():
            if not _ROWS.fullmatch(name):
                whole[name.replace(".base_layer.", ".")] = tensor
        return whole


def read_adapter(folder: Path, origin: str) -> Adapter:
    """Read an adapter.

    Args:
        folder: Where its two files are.
        origin: What to call it in an error.

    Raises:
        ModelError: A file is missing or does not read, or the adapter is none of low-rank rows
            alone.
    """
    try:
        data = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{origin} is no adapter: its {ADAPTER_CONFIG} does not read ({error})"
        ) from error
    if not isinstance(data, dict):
        raise ModelError(f"{origin} is no adapter: its {ADAPTER_CONFIG} holds no object")
    config = adapter_config(data, origin)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"{origin} holds no {ADAPTER_WEIGHTS}; pickled weights are never loaded: save the "
            "adapter with save_pretrained"
        )
    try:
        stored = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{origin} does not load: {ADAPTER_WEIGHTS} is no safetensors file ({error})"
        ) from error
    return Adapter(config, named_tensors(stored, origin))


def named_tensors(stored: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Tensors of an adapter by their names in the base model.

    Args:
        stored: By their names in PEFT's files.
        origin: What to call the adapter in an error.

    Raises:
        ModelError: One is of no causal language model, or no finite weights of low-rank rows.
    """
    for name in stored:
        if not name.startswith(_PREFIX):
            raise ModelError(
                f"{origin} is no adapter of a causal language model: its tensor {name!r} does not "
                f"begin with {_PREFIX!r}"
            )
    tensors = {}
    for full_name, tensor in stored.items():
        name = full_name.removeprefix(_PREFIX)
        tensors[name] = tensor
        if not tensor.is_floating_point():
            raise ModelError(
                f"{origin} does not load: {name!r} is of type {tensor.dtype}; expected finite "
                "weights of a float type"
            )
        refuse_non_finite(name, tensor, origin)
        if "lora_" in name and not _ROWS.fullmatch(name):
            raise ModelError(
                f"{origin} holds {name!r}; only linear layers' lora_A.weight and lora_B.weight are "
                f"grafted: {_MERGE}"
            )
    return tensors


def adapter_config(data: Mapping[str, Any], origin: str) -> AdapterConfig:
    """The settings of an adapter that is low-rank rows alone.

    Args:
        data: The content of `adapter_config.json`.
        origin: What to call the adapter in an error.

    Raises:
        ModelError: A setting does not read, or the adapter is more than that.
    """
    if data.get("peft_type") != "LORA":
        raise ModelError(
            f"{origin} is an adapter of type {data.get('peft_type')!r}; only LORA is grafted as it "
            f"is: {_MERGE}"
        )
    try:
        config = AdapterConfig.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError(
            f"{origin} does not load: {ADAPTER_CONFIG}: {'.'.join(map(str, first['loc']))!r}: "
            f"{first['msg']}"
        ) from error
    beyond = {}
    for key, value in (config.model_extra or {}).items():
        if value and key not in _OF_TRAINING:
            beyond[key] = value
    if config.init_lora_weights not in _PLAIN_STARTS:
        beyond["init_lora_weights"] = config.init_lora_weights
    for key, value in beyond.items():
        raise ModelError(
            f"{origin} sets {key!r} to {json.dumps(value)[:60]}, so that it is more than low-rank "
            f"rows beside its base: {_MERGE}"
        )
    names = [*(config.rank_pattern or ()), *(config.alpha_pattern or ()), *config.layer_lists]
    expressions = [name for name in names if not _NAME.fullmatch(name)]
    if not config.is_all_linear and isinstance(config.target_modules, str):
        expressions.append(config.target_modules)
    if isinstance(config.exclude_modules, str):
        expressions.append(config.exclude_modules)
    for expression in expressions:
        shown = repr(expression if len(expression) <= 60 else f"{expression[:60]}...")
        raise ModelError(
            f"{origin} does not load: {ADAPTER_CONFIG}: {shown} is a regular expression; expected "
            f"names of modules, in lists (target_modules may be {_ALL_LINEAR!r}): list the names, "
            f"or {_MERGE}"
        )
    return config


def changes_base(data: Mapping[str, Any]) -> str:
    """The setting by which an adapter's training changed its base too, as text; or none."""
    if data.get("bias", "none") != "none":
        return f"bias={data['bias']!r}"
    if data.get("init_lora_weights") not in _PLAIN_STARTS:
        return f"init_lora_weights={data['init_lora_weights']!r}"
    return ""


Linear = nn.Linear | Conv1D


class LowRank(nn.Module):
    """A linear module W x + B A x, with weight W and bias of another module.

    Args:
        base: The module that holds W.
        a: The inward rows A.
        b: The outward rows B, the adapter's scale in them.
    """

    def __init__(
        self, base: Linear, a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"]
    ) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(a, requires_grad=False)
        self.b = nn.Parameter(b, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the merged module would compute, but for rounding."""
        y: Tensor = self.base(x)
        return y + linear(linear(x, self.a), self.b)

    @property
    def weight(self) -> nn.Parameter:
        """The merged weight W + B A, in the base's layout and type.

        Made anew each time, for what reads weights.
        """
        with torch.no_grad():
            change = self.b @ self.a
            if isinstance(self.base, Conv1D):
                change = change.T
            return nn.Parameter(self.base.weight + change, requires_grad=False)

    @property
    def bias(self) -> nn.Parameter | None:
        """The base's bias."""
        return self.base.bias

    @property
    def out_features(self) -> int:
        """Number of output columns."""
        return len(self.b)


def base_module(module: nn.Module) -> nn.Module:
    """The module itself, or the base of a low-rank one.

    Of one type and shape in all models of a pair.
    """
    return module.base if isinstance(module, LowRank) else module


def plain_names(module: nn.Module, plainly: str = "", here: str = "") -> dict[str, str]:
    """Names of a module's parameters, by their names in the module without adapters.

    For a low-rank module they are those of its base, because the derivative by the base's weight is
    that by the merged weight. `get_parameter` with the plain name returns the merged weight.

    Args:
        module: A module of any kind.
        plainly: What plain names begin with.
        here: What this module's own begin with.
    """
    if isinstance(module, LowRank):
        return plain_names(module.base, plainly, f"{here}base.")
    names = {}
    for name, _ in module.named_parameters(recurse=False):
        names[f"{plainly}{name}"] = f"{here}{name}"
    for name, child in module.named_children():
        names.update(plain_names(child, f"{plainly}{name}.", f"{here}{name}."))
    return names


def low_rank_donor(
    recipient: PreTrainedModel, adapter: Adapter, origin: str, note: str = ""
) -> PreTrainedModel:
    """The donor that an adapter makes of a recipient.

    Args:
        recipient: The model to whose weights the rows are added; it is left as it is.
        adapter: The adapter.
        origin: What to call it in an error.
        note: What to add where it does not fit.

    Raises:
        ModelError: It does not fit the recipient.
    """
    donor = shared_copy(recipient)
    try:
        with torch.no_grad():
            for path, module in _low_rank(donor, adapter):
                donor.set_submodule(path, module)
            ours = dict(recipient.named_parameters())
            for name, stored in adapter.whole.items():
                if name not in ours:
                    raise ModelError(f"it holds {name!r}, which the recipient does not have")
                if stored.shape != ours[name].shape:
                    raise ModelError(
                        f"{name} is {list(stored.shape)}, expected {list(ours[name].shape)}"
                    )
                tensor = _fitted(stored, ours[name], name)
                if adapter.config.saves(name.rpartition(".")[0]):
                    put_weight(donor, name, tensor)
                elif not torch.equal(tensor, ours[name]):
                    raise ModelError(
                        f"it holds other weights for {name!r}, which its modules_to_save do not "
                        "name"
                    )
            for name in ours:
                if adapter.config.saves(name.rpartition(".")[0]) and name not in adapter.whole:
                    raise ModelError(f"it lacks {name!r}, which its modules_to_save name")
    except ModelError as error:
        raise ModelError(f"{origin} does not fit the recipient: {error}{note}") from None
    donor.eval()
    return donor


def _low_rank(donor: PreTrainedModel, adapter: Adapter) -> Iterator[tuple[str, LowRank]]:
    """The modules to put in the place of the donor's linear ones."""
    modules, rows, head = dict(donor.named_modules()), adapter.rows, donor.get_output_embeddings()
    linear_paths = []
    for path, module in modules.items():
        if isinstance(module, Linear) and module is not head:
            linear_paths.append(path)
    targets = adapter.config.targets(modules, linear_paths)
    for path in rows:
        if path not in modules:
            raise ModelError(f"it adapts {path!r}, which the recipient does not have")
        if path not in targets:
            raise ModelError(f"it holds rows of {path!r}, which its target_modules do not name")
    for path in sorted(targets):
        module = modules[path]
        if not isinstance(module, Linear):
            raise ModelError(
                f"its target_modules name {path!r}, of type {type(module).__name__}; only linear "
                "modules are grafted with rows"
            )
        if missing := {"A", "B"} - {*rows.get(path, ())}:
            raise ModelError(
                f"it lacks {path}.lora_{min(missing)}.weight, the rows of a module that its "
                "target_modules name"
            )
        weight, rank = module.weight, adapter.config.rank(path)
        inputs, outputs = weight.shape if isinstance(module, Conv1D) else weight.shape[::-1]
        a, b = rows[path]["A"], rows[path]["B"]
        for which, tensor, expected in (("A", a, [rank, inputs]), ("B", b, [outputs, rank])):
            if list(tensor.shape) != expected:
                raise ModelError(
                    f"{path}.lora_{which}.weight is {list(tensor.shape)}, expected {expected}"
                )
        scaled = b.double() * adapter.config.scale(path)
        yield path, LowRank(module, _fitted(a, weight, path), _fitted(scaled, weight, path))


def _fitted(tensor: Tensor, like: Tensor, name: str) -> Tensor:
    """A tensor in the type and at the place of the base's."""
    fitted = tensor.to(like)
    if not fitted.isfinite().all():
        raise ModelError(
            f"{name} does not fit into {like.dtype}: some of it is too large; load the pair in "
            "another type"
        )
    return fitted
