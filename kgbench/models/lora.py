"""Adapted donors: the recipient's weights plus what a PEFT adapter adds (LoRA, arXiv 2106.09685).

PEFT itself reads an adapter: which modules are adapted, with which rank and scale. A plain linear
layer becomes rows next to the base's weight, whose sum is never stored, so that a donor takes the
memory of its rows. Any other layer, such as DoRA's (arXiv 2402.09353), is merged by PEFT. All other
weights are the recipient's own tensors.

Of the files `adapter_config.json` and `adapter_model.safetensors` only the settings named here
reach PEFT. Refused are settings with which an adapter is more than its layers, and regular
expressions in place of names, since matching them could take arbitrarily long. A model in memory is
taken as its layers are, whatever its settings; what no weights express is found when the pair
is verified.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError, first_fault, first_line
from kgbench.extras import install_command
from kgbench.models.catalog import read_object
from kgbench.models.tensors import (
    load_tensors,
    put_weight,
    refuse_non_finite,
    same_bits,
    shared_copy,
)

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The two files of an adapter."""

_PREFIX = "base_model.model."
_OF_TRAINING = {
    "auto_mapping",
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
_BY_PEFT = (
    "have PEFT read it (peft: PeftModel.from_pretrained(MODEL, FOLDER)), and give that model from "
    "Python as the donor"
)

Name = Annotated[str, Field(pattern=r"^[\w.-]+$")]
"""A module's name or the end of its path; PEFT reads some of them as regular expressions."""
Rank = Annotated[int, Field(gt=0, le=65536)]
Alpha = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]


# -------------------------------------------------------------------------------- low-rank modules


class LowRank(nn.Module):
    """A linear module W x + B A x, with weight W and bias of another module.

    The rows may be of a wider type than W, as PEFT stores them: nothing of them is rounded.

    Args:
        base: The module that holds W.
        a: The inward rows A.
        b: The outward rows B, the adapter's scale in them.
    """

    def __init__(
        self, base: nn.Linear | Conv1D, a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"]
    ) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(a, requires_grad=False)
        self.b = nn.Parameter(b, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the merged module would compute, but for rounding."""
        y: Tensor = self.base(x)
        return (y + linear(linear(x.to(self.a), self.a), self.b)).to(y)

    def directions(
        self, which: range
    ) -> tuple[Float[Tensor, "direction in"], Float[Tensor, "out direction"]]:
        """Inward and outward rows of some singular directions of B A, the largest being number 0."""
        outward, inward, (u, sizes, v) = row_singular_values(self.a, self.b)
        some = slice(which.start, which.stop)
        wide = torch.promote_types(self.a.dtype, torch.float32)
        return (v[some] @ inward.T).to(wide), (outward @ (u[:, some] * sizes[some])).to(wide)

    @property
    def weight(self) -> nn.Parameter:
        """The merged weight W + B A, in the base's layout and type.

        Made again each time, for what reads weights.
        """
        with torch.no_grad():
            change = self.b @ self.a
            if isinstance(self.base, Conv1D):
                change = change.T
            merged = (self.base.weight + change).to(self.base.weight)
            return nn.Parameter(merged, requires_grad=False)

    @property
    def bias(self) -> nn.Parameter | None:
        """The base's bias."""
        return self.base.bias

    @property
    def out_features(self) -> int:
        """Number of output columns."""
        return len(self.b)


def row_singular_values(
    a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Orthonormal columns of B and of Aᵀ, and the decomposition of B A in these, in float64.

    By the singular values of the product of two triangles: B = Q R and Aᵀ = P S give
    B A = Q (R Sᵀ) Pᵀ, so that no matrix of the weight's size is made.
    """
    outward, upper = torch.linalg.qr(b.detach().double())
    inward, lower = torch.linalg.qr(a.detach().double().T)
    return outward, inward, tuple(torch.linalg.svd(upper @ lower.T, full_matrices=False))


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


# ---------------------------------------------------------------------------------------- settings


class BaseSettings(BaseModel):
    """Settings with which training leaves the base's weights alone.

    Others, such as PiSSA, train on a changed base that the adapter does not hold.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    bias: Literal["none"] = "none"
    init_lora_weights: bool | Literal["eva", "gaussian", "orthogonal"] | None = None


class LayerSettings(BaseModel):
    """Settings of `adapter_config.json` that reach PEFT."""

    model_config = ConfigDict(strict=True, frozen=True)

    r: Rank
    lora_alpha: Alpha
    target_modules: list[str] | Annotated[str, Field(pattern="^(?i)all-linear$")]
    exclude_modules: list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: Name | list[Name] | None = None
    rank_pattern: dict[Name, Rank] | None = None
    alpha_pattern: dict[Name, Alpha] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    modules_to_save: list[str] | None = None


class AdapterSettings(BaseSettings, LayerSettings):
    """All settings of a stored adapter that is no more than its layers."""

    model_config = ConfigDict(extra="forbid")

    peft_type: Literal["LORA"]
    base_model_name_or_path: str | None = None


def stored_settings(folder: Path, origin: str) -> AdapterSettings:
    """The settings of an adapter's folder, all names in them literal.

    Raises:
        ModelError: They do not read, or the adapter is more than its layers.
    """
    data = read_object(folder / ADAPTER_CONFIG, f"{origin} is no adapter")
    named = AdapterSettings.model_fields.keys()
    # What a later version of PEFT adds is off unless it has a value.
    settings = {k: v for k, v in data.items() if k in named or (v and k not in _OF_TRAINING)}
    try:
        return AdapterSettings.model_validate_json(json.dumps(settings))
    except ValidationError as error:
        raise ModelError(
            f"{origin} does not load: {ADAPTER_CONFIG}: {first_fault(error, 'the whole')}; from "
            "files only layers of LoRA are read, whose modules are named without regular "
            f"expressions, in lists: list the names, or {_BY_PEFT}"
        ) from error


# -------------------------------------------------------------------------------- stored adapters


def stored_donor(
    recipient: PreTrainedModel, settings: AdapterSettings, folder: Path, origin: str
) -> tuple[PreTrainedModel, PeftModel, int]:
    """The donor that a stored adapter makes of a recipient, PEFT's own model of both, and a number.

    It is that of tokens which the adapter has beyond the recipient's vocabulary, and which are left
    out.

    Args:
        recipient: The model that the adapter is added to; it is left as it is.
        settings: The adapter's settings.
        folder: Where its files are.
        origin: What to call it in an error.

    Raises:
        ModelError: A file does not read, the adapter does not fit the recipient, or PEFT is missing.
    """
    if find_spec("peft") is None:
        raise ModelError(f"{origin} is an adapter, which takes PEFT: {install_command('lora')}")
    from peft import LoraConfig, PeftModel, set_peft_model_state_dict

    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(
            f"{origin} holds no {ADAPTER_WEIGHTS}; pickled weights are never loaded: save the "
            "adapter with save_pretrained"
        )
    stored = load_tensors(folder / ADAPTER_WEIGHTS, origin)
    for name, tensor in stored.items():
        if not tensor.is_floating_point():
            raise ModelError(
                f"{origin} does not load: {_plain(name)!r} is of type {tensor.dtype}; expected "
                "finite weights of a float type"
            )
        refuse_non_finite(_plain(name), tensor, origin)
    fields = settings.model_dump(include={*LayerSettings.model_fields}, exclude_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice for training
        try:
            # First without storage: settings may name a rank that memory has no room for.
            config = LoraConfig(**fields, inference_mode=True)
            empty = PeftModel(shared_copy(recipient), config, low_cpu_mem_usage=True)
            tensors, cut = _own_tensors(empty, stored, recipient)
            model = PeftModel(shared_copy(recipient), LoraConfig(**fields, inference_mode=True))
            set_peft_model_state_dict(model, tensors)
        except ModelError as error:
            raise ModelError(f"{origin} does not fit the recipient: {error}") from None
        except Exception as error:  # PEFT raises what it likes on an adapter of another model
            raise ModelError(f"{origin} does not fit the recipient: {first_line(error)}") from error
        donor = shared_copy(recipient)
        put_adapters(donor, adapter_layers(model.get_base_model()), origin)
        return donor, model, cut


def _plain(name: str) -> str:
    """A stored tensor's name in the base model."""
    return name.removeprefix(_PREFIX)


def _own_tensors(
    model: PeftModel, stored: Mapping[str, Tensor], recipient: PreTrainedModel
) -> tuple[dict[str, Tensor], int]:
    """The stored tensors of an adapter's layers: all of them, and equal weights elsewhere.

    Rows of tokens beyond the recipient's vocabulary are left out, and counted.

    Raises:
        ModelError: One is missing, of another shape, or of no layer.
    """
    from peft import get_peft_model_state_dict

    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights, words, most = recipient.state_dict(), recipient.config.vocab_size, 0
    tensors: dict[str, Tensor] = {}
    for name in sorted(stored, key=lambda name: name not in expected):
        # Of embeddings that were resized PEFT stores whole modules twice, and those of the base.
        copied = name.replace(".modules_to_save.", ".")
        plain = re.sub(r"\.(base_layer|original_module)\.", ".", _plain(copied))
        like = expected.get(name, tensors.get(copied, weights.get(plain)))
        if like is None:
            raise ModelError(f"it holds {plain!r}, which its settings do not name")
        rows = stored[name]
        if like.ndim and len(like) == words < len(rows):
            most, rows = max(most, len(rows) - words), rows[:words].contiguous()
        if rows.shape != like.shape:
            raise ModelError(f"{plain} is {list(stored[name].shape)}, expected {list(like.shape)}")
        if name in expected:
            tensors[name] = rows
        elif not torch.equal(rows.to(like), like):
            raise ModelError(
                f"it holds other weights for {plain!r}, which its modules_to_save do not name"
            )
    for name in expected:
        if name not in tensors:
            raise ModelError(f"it lacks {_plain(name)}, which its settings name")
    return tensors, most


# ---------------------------------------------------------------------------------------- layers


def is_peft(model: object) -> bool:
    """Whether a model or a module is one of PEFT's, which is not imported for the question."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("peft.") for kind in kinds)


def adapter_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The modules that PEFT put in the place of others, outermost only."""
    layers: list[tuple[str, Any]] = []
    for path, module in model.named_modules():
        inside = bool(layers) and path.startswith(f"{layers[-1][0]}.")  # what is in one follows it
        if is_peft(module) and not inside:
            layers.append((path, module))
    return layers


def put_adapters(model: PreTrainedModel, layers: Sequence[tuple[str, Any]], origin: str) -> None:
    """Put into a base what the layers of its adapters add to it, as they are.

    Adapters that are off are left out, those that are on are scaled as their layers scale them.

    Args:
        model: The base, ready for a pair; changed in place, its tensors are not.
        layers: PEFT's layers, by their paths in the base.
        origin: What to call the adapted model in an error.

    Raises:
        ModelError: A layer has no weights that answer as it does, or does not fit the base's type.
    """
    with torch.no_grad():
        for path, layer in layers:
            names = active_adapters(layer)
            if not names:
                continue
            low_rank = _low_rank(model.get_submodule(path), layer, names)
            if low_rank is not None:
                model.set_submodule(path, low_rank)
                for name, rows in low_rank.named_parameters(recurse=False):
                    refuse_non_finite(f"{path}.{name}", rows, origin)
                continue
            try:
                merged = dict(_merged(layer, names).named_parameters())
                weights = {leaf: model.get_parameter(f"{path}.{leaf}") for leaf in merged}
            except Exception as error:  # PEFT says by any exception that it cannot merge a layer
                raise ModelError(
                    f"{origin}: {path} cannot be merged ({first_line(error)}), and a graft takes "
                    "weights; give a donor that was trained without this setting of the adapter"
                ) from error
            for leaf, weight in merged.items():
                fitted = weight.detach().to(weights[leaf])
                refuse_non_finite(f"{path}.{leaf}", fitted, origin)
                if not same_bits(fitted, weights[leaf]):
                    put_weight(model, f"{path}.{leaf}", fitted)
    model.eval()


def active_adapters(layer: Any) -> list[str]:
    """The adapters that a layer of PEFT adds to its base now."""
    there = layer._get_available_adapters()
    return [] if layer.disable_adapters else [n for n in layer.active_adapters if n in there]


def _low_rank(base: nn.Module, layer: Any, names: Sequence[str]) -> LowRank | None:
    """The base and the rows of some adapters, in the wider of their types.

    None where a layer of PEFT does not add rows to a linear module, and nothing else.
    """
    from peft.tuners.lora.layer import Linear

    kind = type(layer)
    if kind is not Linear or not isinstance(base, nn.Linear | Conv1D):
        return None
    more = {**layer.lora_variant, **{name: bias for name, bias in layer.lora_bias.items() if bias}}
    if any(name not in layer.lora_A or more.get(name) for name in names):
        return None
    inward = [layer.lora_A[name].weight for name in names]
    scaled = [layer.lora_B[name].weight.double() * layer.scaling[name] for name in names]
    a = inward[0] if len(names) == 1 else torch.cat(inward)
    like = base.weight.new_empty(0, dtype=torch.promote_types(a.dtype, base.weight.dtype))
    return LowRank(base, a.detach().to(like), torch.cat(scaled, dim=1).detach().to(like))


def _merged(layer: Any, names: Sequence[str]) -> nn.Module:
    """The module that PEFT makes of a copy of its layer."""
    copy = deepcopy(layer)
    if hasattr(copy, "unload_and_optionally_merge_module"):
        module: nn.Module = copy.unload_and_optionally_merge_module(
            merge=True, safe_merge=True, adapter_names=list(names)
        )
        return module
    copy.merge(safe_merge=True, adapter_names=list(names))
    base: nn.Module = copy.get_base_layer()
    return base
