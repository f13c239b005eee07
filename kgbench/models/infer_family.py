"""Proposing a family map for an architecture that has none, from what its modules do.

Names are no evidence: models give the same name to different modules. So a small random model is
run, and each module is identified by its input, by the use of its output, and by derivatives that
vanish: queries do not matter to later tokens, and with a single token neither queries nor keys
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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

    def place(self, **slices: Any) -> Place:
        """The place of a component that this module computes."""
        shape = self.input.shape
        tokens = 2 if len(shape) == 4 and shape[1] != _TOKENS and shape[2] == _TOKENS else 1
        return Place(self.path, tokens=tokens, input=self.name, **slices)


def infer_family(models: Sequence[PreTrainedModel]) -> Family:
    """Propose a map of a model type.

    Args:
        models: Small random models of the type in float64, of different sizes.

    Raises:
        ModelError: No map can describe the models.
    """
    family, *others = map(_inferred, models)
    for other in others:
        for component, place in {**family.outside, **family.inside}.items():
            if other.place(component) != place:
                raise ModelError(
                    f"the columns of {component!r} in the output of {place.module!r} lie as no map "
                    "can say: "
                    f"in models with other numbers of heads they are {_slice_text(place)} and "
                    f"{_slice_text(other.place(component))}"
                )
    return family


def _slice_text(place: Place) -> str:
    return f"part {place.part} of {place.of} per {place.per or 'the whole'}"


def _inferred(model: PreTrainedModel) -> Family:
    """The map that fits one small model."""
    layers = _layers(model)
    _refuse_cubes(model, layers)
    calls = _probed(model)
    last = f"{layers}.{model.config.num_hidden_layers - 1}"
    first_calls, last_calls = _calls_within(calls, f"{layers}.0"), _calls_within(calls, last)
    if _paths(first_calls) != _paths(last_calls):
        raise ModelError(
            f"the first layer has other modules than the last one: {_paths(first_calls)} and "
            f"{_paths(last_calls)}"
        )
    inside = _inside(model, last_calls, last)
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


def _refuse_cubes(model: PreTrainedModel, layers: str) -> None:
    """Refuse layers that hold more than projections and norms.

    Raises:
        ModelError: They do.
    """
    if any(weight.ndim > 2 for weight in model.get_submodule(layers).parameters()):
        raise ModelError(
            f"models of type {model.config.model_type!r} have no map: "
            "their layers have weights of three dimensions, such as experts or convolutions"
        )


def _calls_within(calls: Sequence[_Call], path: str) -> list[_Call]:
    """Calls of the modules below a path, by their paths relative to it."""
    within = []
    for call in calls:
        if call.path.startswith(f"{path}."):
            within.append(replace(call, path=call.path.removeprefix(f"{path}.")))
    return within


def _paths(calls: Iterable[_Call]) -> list[str]:
    return [call.path for call in calls]


def _projections(calls: Iterable[_Call]) -> list[_Call]:
    return [call for call in calls if isinstance(call.module, nn.Linear | Conv1D)]


# ---------------------------------------------------------------------- running the model


def _ids(tokens: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (_ROWS, tokens), generator=torch.Generator().manual_seed(0))


def _run(model: PreTrainedModel, ids: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    try:
        logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    except Exception as error:  # models raise what they like
        raise ModelError(
            f"a model of type {model.config.model_type!r} cannot be run plainly: {error}"
        ) from error
    return logits


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


@contextmanager
def _watching(
    modules: Mapping[str, nn.Module], see: Callable[..., Tensor | None]
) -> Iterator[None]:
    """Call a function at each call of some modules; it may replace the output.

    Args:
        modules: The modules by path.
        see: Called with path, module, arguments, keyword arguments and output.
    """
    with ExitStack() as hooks:
        for path, module in modules.items():
            handle = module.register_forward_hook(partial(see, path), with_kwargs=True)
            hooks.callback(handle.remove)
        yield


def _probed(model: PreTrainedModel) -> list[_Call]:
    """All calls of units in order."""
    calls: list[_Call] = []

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
            if is_input and x.numel() >= _ROWS * _TOKENS:
                calls.append(_Call(path, module, x, name, output))
                return
        raise ModelError(f"the module {path!r} takes no input by which its tokens could be told")

    with torch.no_grad(), _watching(_units(model), see):
        _run(model, _ids(_TOKENS))
    return calls


def _layers(model: PreTrainedModel) -> str:
    n = model.config.num_hidden_layers
    lists: list[str] = []
    for path, module in model.named_modules():
        is_list = path and isinstance(module, nn.ModuleList) and len(module) == n
        if is_list and len(_units(model.get_submodule(f"{path}.0"))) > 3:
            lists.append(path)
    if not lists:
        raise ModelError(f"a model of type {model.config.model_type!r} has no list of {n} layers")
    return min(lists, key=len)


# ---------------------------------------------------------------------- outside the layers


def _outside(model: PreTrainedModel, calls: Sequence[_Call], layers: str) -> dict[str, Place]:
    names: dict[nn.Module, str] = {module: path for path, module in model.named_modules()}
    emb, head = names[model.get_input_embeddings()], names[model.get_output_embeddings()]
    in_layers = [i for i, call in enumerate(calls) if call.path.startswith(f"{layers}.")]
    before, after = calls[: in_layers[0]], calls[in_layers[-1] + 1 :]
    positions = [c for c in before if isinstance(c.module, nn.Embedding) and c.path != emb]
    norms = [c for c in after if not isinstance(c.module, nn.Linear | Conv1D | nn.Embedding)]
    if len(positions) > 1 or len(norms) > 1:
        raise ModelError(
            "a map holds one module for positions and one final norm; here are "
            f"{_paths((*positions, *norms))}"
        )
    single = {emb, head, *_paths((*positions, *norms))}
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


def _inside(model: PreTrainedModel, calls: Sequence[_Call], layer: str) -> dict[str, Place]:
    """Places of a layer's components, by its calls."""
    attentions = []
    for path, child in model.get_submodule(layer).named_children():
        if "attention" in type(child).__name__.lower():
            attentions.append(path)
    if len(attentions) != 1:
        raise ModelError(
            f"a layer has {len(attentions)} modules of attention, expected one whose class is "
            f"called so: {attentions}"
        )
    attending = [c for c in calls if c.path.startswith(f"{attentions[0]}.")]
    projections = _projections(attending)
    rest = [c for c in calls if c not in attending]
    mlp = _projections(rest)
    if len(projections) < 2 or len(mlp) not in (2, 3):
        raise ModelError(
            f"attention has the projections {_paths(projections)} and the MLP "
            f"{_paths(mlp)}; expected at least two "
            "in attention and two or three in the MLP: mixtures of experts have no map"
        )
    o, down = projections[-1], mlp[-1]
    places = {"o": o.place(), "down": down.place()}
    places |= _attention(model, [c for c in attending if c is not o], layer)
    places |= _feed_forward(model, mlp, layer)
    norms = [c for c in rest if c not in mlp]
    return places | _norms(norms, projections, mlp)


def _attention(model: PreTrainedModel, calls: Sequence[_Call], layer: str) -> dict[str, Place]:
    """Places of the components of attention, by what the output columns of its modules matter to.

    Queries matter to the last token alone, and with a single token neither queries nor keys matter.
    """
    components: dict[str, Place] = {}
    modules = {c.path: model.get_submodule(f"{layer}.{c.path}") for c in calls}
    many, single = (
        _derivatives(model, modules, _ids(_TOKENS)),
        _derivatives(model, modules, _ids(1)),
    )
    for call in calls:
        earlier = many[call.path]
        tokens = call.place().tokens if earlier.ndim == 4 else 1
        matters = _nonzero(earlier.movedim(tokens, 1)[:, :-1])
        alone = _nonzero(single[call.path])
        columns = {"q": ~matters, "k": matters & ~alone, "v": alone}
        roles = {role: c.nonzero()[:, 0] for role, c in columns.items() if c.any()}
        if isinstance(call.module, nn.Linear | Conv1D):
            places = {role: call.place() for role in roles}
            if len(roles) > 1:
                places = _sliced(model, call, roles)
        elif set(roles) in ({"q"}, {"k"}):
            places = {f"{next(iter(roles))}_norm": call.place()}
        else:
            raise ModelError(
                f"the module {call.path!r} is a norm of {' and '.join(roles)}, for which there is "
                "no component"
            )
        if twice := set(places) & set(components):
            raise ModelError(
                f"{call.path!r} computes {twice.pop()!r}, which another module of attention "
                "computes too"
            )
        components |= places
    return components


def _nonzero(gradient: Tensor) -> Tensor:
    """Which columns [..., column] have any derivative."""
    sizes = gradient.abs().flatten(0, -2).amax(0)
    return sizes > _NOTHING


def _derivatives(
    model: PreTrainedModel, modules: Mapping[str, nn.Module], ids: Tensor
) -> dict[str, Tensor]:
    """Of the last tokens' logits, by the outputs of some modules."""
    outputs: dict[str, Tensor] = {}

    def see(path: str, module: nn.Module, inputs: object, options: object, output: Tensor) -> None:
        outputs[path] = output

    with torch.enable_grad(), _watching(modules, see):
        logits = _run(model, ids)[:, -1]
        weights = torch.randn(
            logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype
        )
        gradients = torch.autograd.grad(
            (logits * weights).sum(),
            list(outputs.values()),
            allow_unused=True,
            materialize_grads=True,
        )
    return dict(zip(outputs, gradients, strict=True))


def _sliced(model: PreTrainedModel, call: _Call, roles: Mapping[str, Tensor]) -> dict[str, Place]:
    """The slices of a fused projection that have the columns that were found."""
    order = sorted(roles, key=lambda role: int(roles[role][0]))
    ways: list[int | tuple[int | str, ...]] = [len(roles)]
    for number in (*_GROUPS, 1):
        ways.append(tuple("num_attention_heads" if role == "q" else number for role in order))
    # As many blocks as a number of the configuration, or as many as there are.
    blocks = int((roles[order[0]].diff() > 1).sum()) + 1
    for of, per in product(ways, (None, "num_attention_heads", *_GROUPS, blocks)):
        parts = range(of if isinstance(of, int) else len(of))
        slices = [call.place(part=part, of=of, per=per) for part in parts]
        try:
            each = [place.columns(call.output.shape[-1], model.config) for place in slices]
        except (ModelError, RuntimeError):
            # No such number in the configuration, or one that does not divide the width.
            continue
        places: dict[str, Place] = {}
        for role, columns in roles.items():
            for place, part in zip(slices, each, strict=True):
                if torch.equal(part, columns):
                    places.setdefault(role, place)
        if len(places) == len(roles):
            return places
    raise ModelError(
        f"the columns of {' and '.join(roles)} in the output of {call.path!r} lie as no map can say"
    )


def _feed_forward(model: PreTrainedModel, mlp: Sequence[_Call], layer: str) -> dict[str, Place]:
    *ups, down = mlp
    if len(ups) == 1 and ups[0].output.shape[-1] == down.input.shape[-1]:
        return {"up": ups[0].place()}
    places = [call.place() for call in ups]
    if len(ups) == 1:
        places = [ups[0].place(part=0, of=2), ups[0].place(part=1, of=2)]
    straight = [_is_linear(model, place, down, layer) for place in places]
    if sorted(straight) != [False, True]:
        raise ModelError(
            f"of {_paths(ups)} one should gate the other, in whose output the MLP is linear"
        )
    up = straight.index(True)
    return {"gate": places[1 - up], "up": places[up]}


def _is_linear(model: PreTrainedModel, place: Place, down: _Call, layer: str) -> bool:
    """Whether twice a component's output is twice what goes into the down projection."""

    def doubled(
        path: str, module: nn.Module, inputs: object, options: object, output: Tensor
    ) -> Tensor:
        output = output.clone()
        output[..., place.columns(output.shape[-1], model.config)] *= 2
        return output

    with _watching({"up": model.get_submodule(f"{layer}.{place.module}")}, doubled):
        calls = _calls_within(_probed(model), layer)
    (then,) = (call.input for call in calls if call.path == down.path)
    return torch.allclose(then, 2 * down.input, rtol=1e-9, atol=1e-12)


def _norms(
    norms: Sequence[_Call], attention: Sequence[_Call], mlp: Sequence[_Call]
) -> dict[str, Place]:
    """Norms of a layer, identified by the module whose input or output they norm.

    All others take the names that are left.
    """
    sides = {
        "ln_1": attention[0].input,
        "ln_1_post": attention[-1].output,
        "ln_2": mlp[0].input,
        "ln_2_post": mlp[-1].output,
    }
    places: dict[str, Place] = {}
    left = []
    for call in norms:
        for name, side in sides.items():
            normed = call.input if name.endswith("post") else call.output
            if name not in places and torch.equal(normed.flatten(), side.flatten()):
                places[name] = call.place()
                break
        else:
            left.append(call)
    free = [name for name in ("ln_1", "ln_2", "ln_1_post", "ln_2_post") if name not in places]
    if len(left) > len(free):
        raise ModelError(f"a layer has more norms than there are components: {_paths(norms)}")
    for name, call in zip(free, left, strict=False):
        places[name] = call.place()
    return places


# ---------------------------------------------------------------------- small random models


@dataclass(frozen=True)
class Probe:
    """Sizes of a small model, no two of which are alike, so that none can be taken for another."""

    heads: int
    groups: int
    """Heads of keys and values, where there are fewer than of queries."""
    inner: int
    """Width of the MLP."""
    head: int
    """Width of a head where the configuration sets one; elsewhere it is 8."""

    @property
    def hidden(self) -> int:
        """Width of the stream."""
        return 8 * self.heads

    def sizes(self) -> dict[str, int]:
        """Settings of a small model, in place of those that a configuration has."""
        settings = {"rotary_dim": 4, "vocab_size": VOCABULARY, "sliding_window": WINDOW}
        for names, size in (
            (("hidden_size", "n_embd", "d_model"), self.hidden),
            (("num_attention_heads", "n_head", "n_heads", "num_heads"), self.heads),
            (("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), self.inner),
            (("head_dim", "query_pre_attn_scalar"), self.head),
            (("pad_token_id", "bos_token_id", "eos_token_id"), 2),
        ):
            settings |= dict.fromkeys(names, size)
        return settings


PROBES = (
    Probe(heads=8, groups=2, inner=112, head=12),
    Probe(heads=12, groups=3, inner=80, head=10),
)
"""Two small models of one architecture: numbers of a map must hold in both."""

_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_DROPPED = ("dtype", "transformers_version", "architectures", "rope_scaling")
"""Settings that a small model does not take over."""


def reduced_config(config: dict[str, Any], probe: Probe = PROBES[0]) -> PreTrainedConfig:
    """The configuration of a small model of the same architecture.

    It has the first layers, enough for one of each kind; as many heads of keys as of queries only
    where the model has; and plain rotary embeddings of the same share of a head.

    Args:
        config: A checkpoint's `config.json`.
        probe: The sizes.

    Raises:
        ModelError: The library does not know the architecture, or takes no such small one.
    """
    large: PreTrainedConfig | None = None
    try:
        large = AutoConfig.for_model(**config)
        settings = large.to_dict()
        for key in _DROPPED:
            settings.pop(key, None)
        kinds = settings.get("layer_types") or []
        firsts = [kinds.index(kind) + 1 for kind in kinds]
        n = min(large.num_hidden_layers, MOST_LAYERS, max([3, *firsts]))
        small = dict(settings)
        for key, value in settings.items():
            if isinstance(value, list) and len(value) == large.num_hidden_layers:
                small[key] = value[:n]
        for key, size in probe.sizes().items():
            if settings.get(key) is not None:
                small[key] = size
        for key in _GROUPS:
            if settings.get(key) is not None:
                as_queries = settings[key] == large.num_attention_heads
                small[key] = probe.heads if as_queries else probe.groups
        if "word_embed_proj_dim" in settings:
            as_stream = settings["word_embed_proj_dim"] == large.hidden_size
            small["word_embed_proj_dim"] = probe.hidden if as_stream else probe.hidden // 2
        if isinstance(rope := settings.get("rope_parameters"), dict):
            small["rope_parameters"] = _plain_rotary(rope)
        for key in _DEPTHS:
            if key in settings:
                small[key] = n
        return AutoConfig.for_model(**small)
    except Exception as error:  # the library raises anything on an unknown configuration
        if large is not None:
            with suppress(RuntimeError, ValueError, TypeError), torch.device("meta"):
                model = AutoModelForCausalLM.from_config(large)
                _refuse_cubes(model, _layers(model))
        raise ModelError(
            f"no small model of type {config.get('model_type')!r} can be made: "
            f"{' '.join(str(error).split())}"
        ) from error


def _plain_rotary(rope: dict[str, Any]) -> dict[str, Any]:
    if rope and all(isinstance(each, dict) for each in rope.values()):
        return {kind: _plain_rotary(each) for kind, each in rope.items()}
    plain = {"rope_type": "default", "rope_theta": rope.get("rope_theta") or 10000.0}
    if rope.get("partial_rotary_factor"):
        plain["partial_rotary_factor"] = rope["partial_rotary_factor"]
    return plain


def random_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A model in float64 whose weights, norms and biases are all random.

    Raises:
        ModelError: The library makes no causal language model of this configuration.
    """
    config._attn_implementation = None  # see `read_model_config`
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).double().eval()
    except Exception as error:  # as above
        raise ModelError(
            f"no small model of type {config.model_type!r} can be made: "
            f"{' '.join(str(error).split())}"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.25 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return model
