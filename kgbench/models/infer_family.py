"""Proposing a family map for an architecture that has none, from what its modules do.

Names are no evidence: models give the same name to different modules. So a small random model is
run, and each module is identified by its input, by the use of its output, and by derivatives that
vanish: queries do not matter to later tokens, and with a single token neither queries nor keys
matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError
from kgbench.models.family_map import Family, Place
from kgbench.sites import COMPONENTS

VOCABULARY, WINDOW, MOST_LAYERS = 300, 5, 8
_ROWS, _TOKENS = 2, 7
_GROUPS = ("num_key_value_heads", "num_kv_heads")
_NOTHING = 1e-9
"""A derivative is none if it is less than this share of the greatest one."""


@dataclass(frozen=True)
class _Call:
    """What a module was called with in the probe, and what it gave."""

    path: str
    module: nn.Module
    input: Tensor
    name: str | None
    """The keyword that the input came by, if it was not the first argument."""
    output: Tensor
    gradient: Tensor
    """Of the last tokens' logits, by the output."""

    def place(self, **slices: Any) -> Place:
        """The place of a component that this module computes."""
        shape = self.input.shape
        tokens = 2 if len(shape) == 4 and shape[1] != _TOKENS and shape[2] == _TOKENS else 1
        return Place(self.path, tokens=tokens, input=self.name, **slices)


def infer_family(model: PreTrainedModel) -> Family:
    """Propose a map of a model type.

    Args:
        model: A small random model of the type in float64.

    Raises:
        ModelError: No map can describe it.
    """
    layers = _layers(model)
    last = f"{layers}.{model.config.num_hidden_layers - 1}"
    calls = _probed(model, _TOKENS)
    inside = _inside(model, calls, _probed(model, 1), last)
    parts = []
    for norm, projection in (("ln_1_post", "o"), ("ln_2_post", "down")):
        # What is added to the stream: the norm behind it, or what holds the last projection.
        within = inside[projection].module
        parts.append(inside[norm].module if norm in inside else within.rpartition(".")[0] or within)
    outside = _outside(model, calls, layers)
    # In the order of computation.
    outside = {name: outside[name] for name in COMPONENTS if name in outside}
    inside = {name: inside[name] for name in COMPONENTS if name in inside}
    attention, mlp = parts
    return Family(model.config.model_type, layers, attention, mlp, outside, inside)


def _projections(calls: Iterable[_Call]) -> list[_Call]:
    return [call for call in calls if isinstance(call.module, nn.Linear | Conv1D)]


def _paths(calls: Iterable[_Call]) -> list[str]:
    return [call.path for call in calls]


# ---------------------------------------------------------------------- running the model


def _units(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that families name: projections, embeddings, and norms with weights."""
    units: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        weighs = next(module.parameters(), None) is not None
        named = isinstance(module, nn.Linear | Conv1D | nn.Embedding) or (
            "norm" in type(module).__name__.lower() and weighs
        )
        if named and not any(path.startswith(f"{other}.") for other in units):
            units[path] = module
    return units


def _probed(model: PreTrainedModel, n_tokens: int) -> list[_Call]:
    """All calls of units in order, in one forward of random tokens."""
    shape, generator = (_ROWS, n_tokens), torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, shape, generator=generator)
    positions = torch.arange(n_tokens).expand_as(ids)
    calls: list[dict[str, Any]] = []

    def see(
        path: str,
        module: nn.Module,
        inputs: tuple[Any, ...],
        options: Mapping[str, Any],
        output: Tensor,
    ) -> None:
        is_float = not isinstance(module, nn.Embedding)  # embeddings take indices
        arguments: list[tuple[str | None, Any]] = [(None, x) for x in inputs[:1]]
        for name, x in (*arguments, *options.items()):
            is_input = isinstance(x, Tensor) and x.is_floating_point() == is_float
            if is_input and x.numel() >= ids.numel():
                call = {"path": path, "module": module, "input": x, "name": name, "output": output}
                calls.append(call)
                return
        raise ModelError(f"the module {path!r} takes no input that identifies its tokens")

    with ExitStack() as hooks, torch.enable_grad():
        for path, module in _units(model).items():
            handle = module.register_forward_hook(partial(see, path), with_kwargs=True)
            hooks.callback(handle.remove)
        try:
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, -1]
        except Exception as error:  # models raise what they like
            raise ModelError(
                f"a model of type {model.config.model_type!r} cannot be run plainly: {error}"
            ) from error
    weights = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
    gradients = torch.autograd.grad(
        (logits * weights).sum(),
        [call["output"] for call in calls],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return [_Call(**call, gradient=each) for call, each in zip(calls, gradients, strict=True)]


def _layers(model: PreTrainedModel) -> str:
    """Path of the list of layers, which hold projections and norms only.

    Raises:
        ModelError: There is none, or layers hold something else.
    """
    n = model.config.num_hidden_layers
    lists: list[str] = []
    for path, module in model.named_modules():
        is_list = path and isinstance(module, nn.ModuleList) and len(module) == n
        if is_list and len(_units(model.get_submodule(f"{path}.0"))) > 3:
            lists.append(path)
    if not lists:
        raise ModelError(f"a model of type {model.config.model_type!r} has no list of {n} layers")
    layers = min(lists, key=len)
    if any(weight.ndim > 2 for weight in model.get_submodule(layers).parameters()):
        raise ModelError(
            f"models of type {model.config.model_type!r} have no map: "
            "their layers have weights of three dimensions, such as experts or convolutions"
        )
    return layers


# ---------------------------------------------------------------------- outside the layers


def _outside(model: PreTrainedModel, calls: Sequence[_Call], layers: str) -> dict[str, Place]:
    names: dict[nn.Module, str] = {module: path for path, module in model.named_modules()}
    emb, head = names[model.get_input_embeddings()], names[model.get_output_embeddings()]
    in_layers = [i for i, call in enumerate(calls) if call.path.startswith(f"{layers}.")]
    before, after = calls[: in_layers[0]], calls[in_layers[-1] + 1 :]
    positions = [c for c in before if isinstance(c.module, nn.Embedding) and c.path != emb]
    norms = [c for c in after if not isinstance(c.module, nn.Linear | Conv1D | nn.Embedding)]
    single = {emb, head, *_paths((*positions[:1], *norms[:1]))}
    places = {
        "emb": Place(emb, also=tuple(c.path for c in before if c.path not in single)),
        "head": Place(head, also=tuple(c.path for c in after if c.path not in single)),
    }
    if positions:
        places["pos"] = positions[0].place()
    if norms:
        places["ln_f"] = norms[0].place()
    return places


# ---------------------------------------------------------------------- inside the layers


def _inside(
    model: PreTrainedModel, calls: Sequence[_Call], single_calls: Sequence[_Call], layer: str
) -> dict[str, Place]:
    """Places of a layer's components, by all calls with several tokens and with a single one."""
    children = model.get_submodule(layer).named_children()
    attentions = [path for path, each in children if "attention" in type(each).__name__.lower()]
    if len(attentions) != 1:
        raise ModelError(
            f"a layer has {len(attentions)} modules of attention, expected one whose class is "
            f"called so: {attentions}"
        )
    attending, rest = list[_Call](), list[_Call]()
    for call in calls:
        _, within, path = call.path.partition(f"{layer}.")
        if within:
            part = attending if path.startswith(f"{attentions[0]}.") else rest
            part.append(replace(call, path=path))
    projections, mlp = map(_projections, (attending, rest))
    if len(projections) < 2 or len(mlp) not in (2, 3):
        raise ModelError(
            f"attention has the projections {_paths(projections)} and the MLP "
            f"{_paths(mlp)}; expected at least two "
            "in attention and two or three in the MLP: mixtures of experts have no map"
        )
    o, down = projections[-1], mlp[-1]
    alone = {call.module: call.gradient for call in single_calls}
    places = {"o": o.place(), "down": down.place()}
    places |= _attention(model.config, [c for c in attending if c is not o], alone)
    places |= _feed_forward(mlp)
    norms = [c for c in rest if c not in mlp]
    return places | _norms(norms, projections, mlp)


def _attention(
    config: PreTrainedConfig, calls: Sequence[_Call], alone: Mapping[nn.Module, Tensor]
) -> dict[str, Place]:
    """Places of the components of attention, by what the output columns of its modules matter to.

    Queries matter to the last token alone, and with a single token neither queries nor keys matter.

    Args:
        config: The model's configuration.
        calls: Calls of the modules.
        alone: Gradients of modules with a single token.
    """
    components: dict[str, Place] = {}
    for call in calls:
        tokens = call.place().tokens if call.gradient.ndim == 4 else 1
        matters = _nonzero(call.gradient.movedim(tokens, 1)[:, :-1])
        alone_matters = _nonzero(alone[call.module])
        columns = {"q": ~matters, "k": matters & ~alone_matters, "v": alone_matters}
        roles = {role: c.nonzero()[:, 0] for role, c in columns.items() if c.any()}
        if isinstance(call.module, nn.Linear | Conv1D):
            places = {role: call.place() for role in roles}
            if len(roles) > 1:
                places = _sliced(config, call, roles)
        else:
            places = {f"{role}_norm": call.place() for role in roles if role != "v"}
        components |= places
    return components


def _nonzero(gradient: Tensor) -> Tensor:
    """Which columns [..., column] have any derivative."""
    sizes = gradient.abs().flatten(0, -2).amax(0)
    return sizes > _NOTHING


def _sliced(config: PreTrainedConfig, call: _Call, roles: Mapping[str, Tensor]) -> dict[str, Place]:
    """The slices of a fused projection that have the columns that were found."""
    order = sorted(roles, key=lambda role: int(roles[role][0]))
    ways: list[int | tuple[int | str, ...]] = [len(roles)]
    for number in (*_GROUPS, 1):
        ways.append(tuple("num_attention_heads" if role == "q" else number for role in order))
    # As many blocks as a number of the configuration, or as many as there are.
    blocks = int((roles[order[0]].diff() > 1).sum()) + 1
    for of, per in product(ways, (None, "num_attention_heads", *_GROUPS, blocks)):
        slices: dict[tuple[int, ...], Place] = {}
        try:
            for part in range(of if isinstance(of, int) else len(of)):
                place = call.place(part=part, of=of, per=per)
                slices[tuple(place.columns(call.output.shape[-1], config).tolist())] = place
        except (ModelError, RuntimeError):
            # No such number in the configuration, or one that does not divide the width.
            continue
        columns = {role: tuple(numbers.tolist()) for role, numbers in roles.items()}
        if slices.keys() >= set(columns.values()):
            return {role: slices[numbers] for role, numbers in columns.items()}
    raise ModelError(
        f"the columns of {' and '.join(roles)} in the output of {call.path!r} lie as no map can say"
    )


def _feed_forward(mlp: Sequence[_Call]) -> dict[str, Place]:
    """Places of the projections into the MLP; where there are two, `up` is the linear one."""
    *ups, down = mlp
    outputs = [call.output for call in ups]
    if len(ups) == 1 and outputs[0].shape[-1] == down.input.shape[-1]:
        return {"up": ups[0].place()}
    places = [call.place() for call in ups]
    if len(ups) == 1:
        places = [ups[0].place(part=0, of=2), ups[0].place(part=1, of=2)]
    slopes = torch.autograd.grad(down.input.sum(), outputs, retain_graph=True)
    # What is linear in a number is its slope times the number.
    lines = torch.cat([slope * x for slope, x in zip(slopes, outputs, strict=True)], -1)
    straight = []
    for line in lines.chunk(2, -1):
        alike = line.shape == down.input.shape
        straight.append(alike and torch.allclose(line, down.input, rtol=1e-9, atol=1e-12))
    if sorted(straight) != [False, True]:
        raise ModelError(
            f"of {_paths(ups)} one should gate the other, in whose output the MLP is linear"
        )
    up = straight.index(True)
    return {"gate": places[1 - up], "up": places[up]}


def _norms(
    norms: Sequence[_Call], attention: Sequence[_Call], mlp: Sequence[_Call]
) -> dict[str, Place]:
    """Norms of a layer, identified by the module whose input or output they norm.

    All others take the names that are left.
    """
    sides = {
        "ln_1": attention[0].input,
        "ln_2": mlp[0].input,
        "ln_1_post": attention[-1].output,
        "ln_2_post": mlp[-1].output,
    }
    places: dict[str, Place] = {}
    left = list(norms)
    for name, side in sides.items():
        for call in left:
            normed = call.input if name.endswith("post") else call.output
            if torch.equal(normed.flatten(), side.flatten()):
                places[name] = call.place()
                left.remove(call)
                break
    free = [name for name in sides if name not in places]
    places.update(zip(free, (call.place() for call in left), strict=False))
    return places


# ---------------------------------------------------------------------- small random models


def _sizes(heads: int, groups: int, inner: int, head: int) -> dict[str, int]:
    """Settings of a small model, in place of those that a configuration has.

    No two are alike, so that none can be taken for another.

    Args:
        heads: Number of heads.
        groups: Heads of keys and values, where there are fewer than of queries.
        inner: Width of the MLP.
        head: Width of a head where the configuration sets one; elsewhere it is 8.
    """
    names = {
        "hidden_size n_embd d_model": 8 * heads,
        "num_attention_heads n_head n_heads num_heads": heads,
        " ".join(_GROUPS): groups,
        "intermediate_size ffn_dim n_inner ffn_hidden_size": inner,
        "head_dim query_pre_attn_scalar": head,
        "word_embed_proj_dim": 4 * heads,
        "pad_token_id bos_token_id eos_token_id": 2,
        "rotary_dim": 4,
        "vocab_size": VOCABULARY,
        "sliding_window": WINDOW,
    }
    settings: dict[str, int] = {}
    for several, size in names.items():
        settings |= dict.fromkeys(several.split(), size)
    return settings


PROBES = (
    _sizes(heads=8, groups=2, inner=112, head=12),
    _sizes(heads=12, groups=3, inner=80, head=10),
)
"""Two small models of one architecture: numbers of a map must hold in both."""

_EQUALS = {**dict.fromkeys(_GROUPS, "num_attention_heads"), "word_embed_proj_dim": "hidden_size"}
"""Settings that are the same in a small model where they are in the large one."""
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_DROPPED = ("dtype", "transformers_version", "architectures", "rope_scaling")
"""Settings that a small model does not take over."""


def reduced_config(
    config: dict[str, Any], probe: Mapping[str, int] = PROBES[0]
) -> PreTrainedConfig:
    """The configuration of a small model of the same architecture.

    It has the first layers, enough for one of each kind, and plain rotary embeddings of the same
    share of a head.

    Args:
        config: A checkpoint's `config.json`.
        probe: The sizes.

    Raises:
        ModelError: The library does not know the architecture, or takes no such small one.
    """
    try:
        large = AutoConfig.for_model(**config)
        _layers(_empty_model(large))
        settings = large.to_dict()
        kinds = settings.get("layer_types") or []
        firsts = [kinds.index(kind) + 1 for kind in kinds]
        n = min(large.num_hidden_layers, MOST_LAYERS, max([3, *firsts]))
        sizes = {**probe, **dict.fromkeys(_DEPTHS, n)}
        for key, like in _EQUALS.items():
            if settings.get(key) == getattr(large, like, None):
                sizes[key] = sizes[like]
        for key, value in settings.items():
            if isinstance(value, list) and len(value) == large.num_hidden_layers:
                settings[key] = value[:n]
        for key, size in sizes.items():
            if settings.get(key) is not None:
                settings[key] = size
        if settings.get("rope_parameters"):
            settings["rope_parameters"] = _plain_rotary(settings["rope_parameters"])
        small = {key: value for key, value in settings.items() if key not in _DROPPED}
        reduced = AutoConfig.for_model(**small)
        _empty_model(reduced)
        return reduced
    except Exception as error:  # the library raises anything on an unknown configuration
        raise ModelError(
            f"no small model of type {config.get('model_type')!r} can be made: "
            f"{' '.join(str(error).split())}"
        ) from error


def _empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model without storage."""
    config._attn_implementation = None  # see `read_model_config`
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def _plain_rotary(rope: dict[str, Any]) -> dict[str, Any]:
    if all(isinstance(each, dict) for each in rope.values()):
        return {kind: _plain_rotary(each) for kind, each in rope.items()}
    plain = {"rope_type": "default", "rope_theta": rope.get("rope_theta") or 10000.0}
    if rope.get("partial_rotary_factor"):
        plain["partial_rotary_factor"] = rope["partial_rotary_factor"]
    return plain


def random_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A model in float64 whose weights, norms and biases are all random."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.25 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return model
