"""Self-test of a model pair: laws that its family map must satisfy before the pair is used."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from kgbench.engine.batch_rows import run_rows
from kgbench.engine.forward import Wiring
from kgbench.engine.masks import windows
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Answers, Budget, Plan, Request
from kgbench.engine.sequential import run_sequential
from kgbench.engine.weights import changed
from kgbench.errors import KgbenchError, LawError, ModelError, python_names
from kgbench.models.catalog import is_plant, read_plant, zoo_path
from kgbench.models.in_memory import answers
from kgbench.models.loading import (
    Donors,
    Source,
    forward_difference,
    named_donors,
    pair_name,
    pair_sources,
    read_pair,
)
from kgbench.models.pair import ModelPair, once_for_each
from kgbench.models.placement import DeviceMap
from kgbench.sites import RECIPIENT, parse_graft

_TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-3}
_ROUNDINGS = 2
"""Roundings of each of two logits: the head's output, and the model's operation on it."""
_TEXT = "Two people star in a film."
_TOKENS = 7
_NEXT_TO_NOTHING = 0.05
"""A derivative counts as zero below this share of the reference; nonzero ones have its size."""
_LINEAR = 0.01
"""Departure from linearity that the rounding of half precision explains, as a share."""


def tolerance(pair: ModelPair, logits: Tensor) -> float:
    """Largest difference of logits that rounding explains.

    Models compute attention weights in float32, also in float64 models. The tolerance grows with
    the spread of the logits, and with their magnitude: a constant added to all logits changes no
    probability, but increases the rounding error of each.
    """
    spread = float(logits.float().std())
    largest = float(logits.float().nan_to_num(0, 0, 0).abs().max())
    rounding = _ROUNDINGS * torch.finfo(pair.dtype).eps * largest
    return _TOLERANCES.get(pair.dtype, 0.1) * max(1.0, spread) + rounding


@torch.inference_mode()
def verify_pair(pair: ModelPair) -> None:
    """Check the family map on the pair's models.

    The laws: grafting everything is the donor, grafting nothing the recipient; the slices of a
    fused projection partition its output; queries, keys and values have their roles in attention;
    attention does not read `ln_2`; `gate` alone passes the activation; every component moves the
    logits when it alone is perturbed; tokens with different treatments in one forward compute the
    same as one at a time; the modules of attention and MLP are those whose outputs are added to the
    residual stream.

    Raises:
        LawError: A law is violated; the message names it.
    """
    with pair.lock:
        for law in LAWS.values():
            law(pair)


@once_for_each
def _laws_hold(pair: ModelPair) -> None:
    verify_pair(pair)


def _everything_is_the_donor(pair: ModelPair) -> None:
    """Compare what is grafted with what each model answers by itself, at each token of the probe.

    A model that was given in another form than the pair has answered before it was taken apart.
    """
    wiring, ids = Wiring(pair), list(pair.probe)
    everything = np.arange(len(pair.donors) + 1, dtype=np.uint8)[:, None].repeat(
        len(wiring.slots), axis=1
    )
    treatments = np.arange(len(everything))[:, None].repeat(len(ids), axis=1)
    plan = Plan(everything, (Request(tuple(ids), treatments, tuple(range(len(ids)))),))
    got = _logits(run_rows(wiring, plan, Budget())).reshape(len(everything), len(ids), -1)
    for part, ours in zip((RECIPIENT, *pair.donors), got, strict=True):
        model = pair.donor(part)
        who = RECIPIENT if part == RECIPIENT else f"donor {part!r}"
        alone = answers(model, ids, who)
        answer = pair.answers.get(part, alone)
        if not alone.isfinite().all():
            kind = str(pair.dtype).removeprefix("torch.")
            raise ModelError(
                f"{who} answers with logits that are not finite in {kind}"
                f"{_not_finite(model)}; give a model without, or another --dtype"
            )
        if not _largest(answer, alone) <= tolerance(pair, answer):
            raise ModelError(
                f"{who} does not answer as its weights do: logits differ by "
                f"{_largest(answer, alone):.3g}; a graft takes weights, and what makes this "
                "difference is none, such as a setting of its adapter, or a function that was "
                "replaced: take it out, or give another model"
            )
        difference = _largest(answer, ours)
        if difference <= tolerance(pair, answer):
            continue
        grafted = {socket.path for socket in wiring.sockets}
        if other := forward_difference(pair.recipient, model, grafted):
            raise ModelError(
                f"recipient and donor {part!r} differ in {other}; a graft is computed by the "
                "recipient's forward pass, which would be another than the donor's"
            )
        what = (
            "grafting nothing is not the recipient"
            if part == RECIPIENT
            else f"grafting everything is not the donor {part!r}"
        )
        raise LawError(
            f"{_map(pair)}: {what}: logits differ by {difference:.3g}; "
            "a component is missing from the map or misplaced"
        )


def _largest(first: Tensor, other: Tensor) -> float:
    return float((first.to(other.device) - other).abs().max())


def _not_finite(model: nn.Module) -> str:
    """The first number of a module that is not finite, as a part of a sentence."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and not math.isfinite(value):
                return f", since {path}.{name} is {value}"
    return ""


@once_for_each
@torch.inference_mode()
def stages_agree(pair: ModelPair) -> bool:
    """Whether the packed executor may compute other rows in other layers of a pair's models."""
    slots, ids, layers = pair.slots, _ids(pair), pair.n_layers
    # The recipient, the donor in the last layer, and the donor in the upper half: in this order
    # other tokens are at the same place in the trees of different layers.
    table = np.zeros((3, len(slots)), dtype=np.uint8)
    for slot, (layer, _) in enumerate(slots.sites):
        for treatment, first in ((1, layers - 1), (2, layers // 2)):
            within = layer is not None and layer >= first
            table[treatment, slot] = within and min(1, len(pair.donors))
    n = len(ids)
    treatments = np.array([[0] * n, [1] * n, [2] * n, np.arange(n) % 3])
    requests = []
    for length in (n, n - 2):
        requests.append(Request(tuple(ids[:length]), treatments[:, :length], (length - 1,)))
    plan = Plan(table, tuple(requests))
    try:
        got = _logits(run_packed(Wiring(pair, staged=True), plan, Budget()))
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError):
        return False
    reference = _logits(run_packed(Wiring(pair), plan, Budget()))
    return float((got - reference).abs().max()) <= tolerance(pair, reference)


@once_for_each
@torch.inference_mode()
def packed_agrees(pair: ModelPair) -> str | None:
    """Reason why the packed executor cannot run a pair; None if it agrees with `rows`."""
    if unknown := windows(pair).unknown:
        return (
            "the model has layers of a kind, or a limit to attention, whose masks are not known "
            f"here ({', '.join(unknown)})"
        )
    wiring = Wiring(pair)
    ids = _ids(pair)
    table = np.array([[0], [min(1, len(pair.donors))]], dtype=np.uint8).repeat(
        len(wiring.slots), axis=1
    )
    n = len(ids)
    treatments = np.array([[0] * n, [1] * n, np.arange(n) % 2, [0] * (n - 1) + [1]])
    plan = Plan(
        table,
        (
            Request(tuple(ids), treatments, (len(ids) - 1,)),
            Request(tuple(ids[:-2]), treatments[:, :-2], (len(ids) - 3,)),
        ),
    )
    reference = _logits(run_rows(wiring, plan, Budget()))
    try:
        got = _logits(run_packed(wiring, plan, Budget()))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        # Models raise any of these for a mask of unexpected shape.
        return f"the model refuses a 4-D mask ({str(error).splitlines()[0]})"
    difference = float((got - reference).abs().max())
    return (
        None
        if difference <= tolerance(pair, reference)
        else f"logits differ by {difference:.3g} from one row per configuration"
    )


def _both_ends_are_named(pair: ModelPair) -> None:
    outside, model = pair.family.outside, pair.recipient
    if "head" not in outside:
        raise LawError(f"{_map(pair)}: it does not say where the component 'head' is")
    for name, end in (
        ("emb", model.get_input_embeddings()),
        ("head", model.get_output_embeddings()),
    ):
        if name in outside and model.get_submodule(outside[name].module) is not end:
            raise LawError(f"{_map(pair)}: {name!r} is not at {outside[name].module!r}")


def _slices_partition(pair: ModelPair) -> None:
    for socket in Wiring(pair).sockets:
        if socket.columns:
            covered = torch.cat(socket.columns).sort().values
            if not torch.equal(covered, torch.arange(socket.width, device=covered.device)):
                raise LawError(
                    f"{_map(pair)}: the slices of a fused projection do not partition its output"
                )


def _attention_has_its_roles(pair: ModelPair) -> None:
    """Check queries, keys and values by derivatives of the last layer's attention output.

    The derivatives are of the output at the last token by each column of the map's queries, keys
    and values. With one token, attention returns its value: values matter, queries and keys do not.
    With several, earlier tokens' keys matter and their queries do not. The norm before the MLP
    never matters. This holds for any weights.
    """
    if not {"q", "k", "v", "o"} <= set(pair.family.inside):
        return  # missing components violate another law
    ids = _ids(pair)
    alone, several = _derivatives(pair, ids[:1]), _derivatives(pair, ids)
    if "ln_2" in several and float(several.pop("ln_2").max()) > 0:
        raise LawError(
            f"{_map(pair)}: attention reads 'ln_2' at {_at(pair, 'ln_2')}, which is the norm before "
            "the MLP; the norm before attention is 'ln_1'"
        )
    earlier = {name: float(rows[:-1].max()) for name, rows in several.items()}
    value = float(alone["v"].max())
    if not value > 0:
        raise LawError(f"{_map(pair)}: 'v' at {_at(pair, 'v')} holds no values")
    for name in alone.keys() - {"v", "ln_2"}:
        if not float(alone[name].max()) <= _NEXT_TO_NOTHING * value:
            raise LawError(f"{_map(pair)}: {name!r} at {_at(pair, name)} holds values")
    for queries, keys in (("q", "k"), ("q_norm", "k_norm")):
        if keys in earlier and not earlier[keys] > 0:
            raise LawError(f"{_map(pair)}: {keys!r} at {_at(pair, keys)} holds no keys")
        if queries in earlier and not earlier[queries] <= _NEXT_TO_NOTHING * earlier["k"]:
            raise LawError(f"{_map(pair)}: {queries!r} at {_at(pair, queries)} holds keys")


def _derivatives(pair: ModelPair, ids: Sequence[int]) -> dict[str, Float[Tensor, "token column"]]:
    """Absolute derivatives of the input of the last layer's `o` at the last token, by component."""
    family, layer = pair.family, pair.n_layers - 1
    outputs: dict[str, Tensor] = {}
    mixed: list[Tensor] = []
    paths = {}
    for name in ("q", "k", "v", "q_norm", "k_norm", "ln_2"):
        if name in family.inside:
            paths[name] = family.path(layer, name)
    last = pair.recipient.get_submodule(family.path(layer, "o"))

    def see(path: str, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        outputs[path] = output if output.requires_grad else output.detach().requires_grad_()
        return outputs[path].clone()  # models may change it in place

    with ExitStack() as hooks, torch.inference_mode(mode=False), torch.enable_grad():
        for path in dict.fromkeys(paths.values()):
            module = pair.recipient.get_submodule(path)
            hooks.callback(module.register_forward_hook(partial(see, path)).remove)
        hooks.callback(
            last.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0])).remove
        )
        pair.recipient(input_ids=torch.tensor([list(ids)], device=pair.device), use_cache=False)
        if not mixed[0].requires_grad:
            raise LawError(f"{_map(pair)}: 'o' at {_at(pair, 'o')} reads no values")
        ours = mixed[0].reshape(-1, mixed[0].shape[-1])[-1]
        # Positive weights: contributions of one value through several heads must not cancel.
        weights = 1 + torch.rand(ours.shape, generator=torch.Generator().manual_seed(0))
        gradients = torch.autograd.grad(
            (ours * weights.to(ours)).sum(),
            list(outputs.values()),
            allow_unused=True,
            materialize_grads=True,
        )
    sizes = dict(zip(outputs, gradients, strict=True))
    by_token = {}
    for name, path in paths.items():
        by_token[name] = _by_token(pair, name, sizes[path].detach().abs().float().cpu())
    return by_token


def _by_token(pair: ModelPair, name: str, sizes: Tensor) -> Float[Tensor, "token column"]:
    place = pair.family.inside[name]
    rows = sizes.movedim(place.tokens, 1) if sizes.ndim == 4 else sizes
    if place.fused:
        rows = rows[..., place.columns(rows.shape[-1], pair.recipient.config)]
    tokens = rows.shape[1] if rows.ndim > 2 else len(rows)
    return rows.reshape(tokens, -1)


def _at(pair: ModelPair, name: str) -> str:
    return repr(pair.family.inside[name].module)


def _the_gate_passes_the_activation(pair: ModelPair) -> None:
    """Check that the MLP is linear in `up`, and so that the activation is of `gate`.

    In the last layer, -2 times the output of `up` makes the input of `down` as many times as large.
    Of an MLP without a gate, check that `up` comes before `down`.
    """
    family, layer = pair.family, pair.n_layers - 1
    if not {"up", "down"} <= set(family.inside):
        return
    place, seen, before = family.inside["up"], list[Tensor](), list[str]()
    ups = pair.recipient.get_submodule(family.path(layer, "up"))
    down = pair.recipient.get_submodule(family.path(layer, "down"))

    def change(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
        changed = output.clone(memory_format=torch.contiguous_format)
        second = changed.reshape(2, -1, changed.shape[-1])[1]
        columns = place.columns(changed.shape[-1], pair.recipient.config) if place.fused else ...
        second[:, columns] *= -2
        if not seen:
            before.append("up")
        return changed

    with ExitStack() as hooks:
        hooks.callback(ups.register_forward_hook(change).remove)
        hooks.callback(
            down.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])).remove
        )
        pair.recipient(
            input_ids=torch.tensor([_ids(pair)] * 2, device=pair.device), use_cache=False
        )
    if not before:
        raise LawError(f"{_map(pair)}: 'down' at {_at(pair, 'down')} comes before 'up'")
    first, other = seen[0].reshape(2, -1).float()
    departure = float((other + 2 * first).abs().max())
    if "gate" in family.inside and not departure <= _LINEAR * float(first.abs().max()):
        raise LawError(
            f"{_map(pair)}: the MLP is not linear in 'up' at {_at(pair, 'up')}; 'gate' is the "
            "projection that passes the activation, and 'up' the one that is multiplied by it"
        )


def _components_matter(pair: ModelPair) -> None:
    ids = _ids(pair)
    wiring = Wiring(pair, [lambda path: _Perturbed(pair.recipient.get_submodule(path))])
    components = pair.family.components
    # Row 0 perturbs nothing, row i + 1 component i in all layers.
    table = np.zeros((len(components) + 1, len(wiring.slots)), dtype=np.uint8)
    for slot, (_, component) in enumerate(wiring.slots.sites):
        table[components.index(component) + 1, slot] = 1
    logits = _logits(run_rows(wiring, _plan(ids, table), Budget()))
    for component, moved in zip(
        components, (logits[1:] - logits[0]).abs().amax(dim=-1).tolist(), strict=True
    ):
        if not moved > 1e-6:
            raise LawError(
                f"{_map(pair)}: component {component!r} does not move the logits "
                "when it is perturbed"
            )


def _tokens_are_independent(pair: ModelPair) -> None:
    wiring, ids = Wiring(pair), _ids(pair)
    table = np.array([[0], [1]], dtype=np.uint8).repeat(len(wiring.slots), axis=1)
    plan = Plan(table, (Request(tuple(ids), np.arange(len(ids))[None] % 2, (len(ids) - 1,)),))
    together = _logits(run_rows(wiring, plan, Budget()))
    apart = _logits(run_sequential(wiring, plan, Budget()))
    difference = float((together - apart).abs().max())
    if not difference <= tolerance(pair, apart):
        raise LawError(
            f"{_map(pair)}: grafting every other token is not the same for all tokens at once as "
            f"for one at a time: logits differ by {difference:.3g}; the input of a module does not "
            "count tokens in the dimension that the map says"
        )


def _hooks_are_what_is_added(pair: ModelPair) -> None:
    family = pair.family
    for name, hook, norm, last, other in (
        ("attention", family.attention, "ln_1_post", "o", "down"),
        ("mlp", family.mlp, "ln_2_post", "down", "o"),
    ):
        added = norm if norm in family.inside else last
        within = family.inside[added].module if added in family.inside else ""
        without = family.inside[other].module if other in family.inside else ""
        if not _holds(hook, within) or _holds(hook, without):
            raise LawError(
                f"{_map(pair)}: {name!r} is {hook!r}, where it should be the module whose output "
                "is added to the stream: "
                + (
                    f"the norm {within!r}"
                    if norm in family.inside
                    else f"{within!r} or one that holds it, and not {without!r}"
                )
            )


def _holds(module: str, part: str) -> bool:
    return f"{part}.".startswith(f"{module}.")


LAWS: Mapping[str, Callable[[ModelPair], None]] = {
    "embeddings and head are named": _both_ends_are_named,
    "slices partition what is fused": _slices_partition,
    "grafting everything is the donor, grafting nothing the recipient": _everything_is_the_donor,
    "each component moves the logits": _components_matter,
    "tokens are independent": _tokens_are_independent,
    "queries, keys, values and norms have their roles": _attention_has_its_roles,
    "the gate passes the activation": _the_gate_passes_the_activation,
    "attention and MLP are read where they add to the stream": _hooks_are_what_is_added,
}
"""What `verify_pair` checks, in order."""


class _Perturbed(nn.Module):
    """A module with noise on each output feature; a constant shift of keys cancels in softmax."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.forward

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        y: Tensor = self.inner(*inputs, **options)
        noise = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(0)).to(y)
        return y * (1 + 0.5 * noise) + 0.1 * y.std() * noise


def _ids(pair: ModelPair) -> list[int]:
    """A few tokens of the pair's vocabulary, with BOS where the tokenizer adds one."""
    ids = pair.encode(_TEXT)
    return (ids * _TOKENS)[: max(_TOKENS, min(len(ids), 2 * _TOKENS))]


def _plan(ids: Sequence[int], table: np.ndarray) -> Plan:
    """One prompt with one configuration per row of the table, the same at all tokens."""
    treatments = np.arange(len(table))[:, None].repeat(len(ids), axis=1)
    return Plan(table, (Request(tuple(ids), treatments, (len(ids) - 1,)),))


def _logits(answers: Iterator[Answers]) -> Float[Tensor, "answer vocabulary"]:
    """Logits of all answers in the order of prompt and configuration."""
    logits: list[Tensor] = []
    labels: list[tuple[int, int]] = []
    for chunk in answers:
        logits.append(chunk.logits)
        labels += zip(chunk.prompt.tolist(), chunk.configuration.tolist(), strict=True)
    return torch.cat(logits)[sorted(range(len(labels)), key=labels.__getitem__)]


def _map(pair: ModelPair) -> str:
    return f"the family map {pair.family.model_type!r} does not fit {pair.name}"


# --------------------------------------------------------------------------------------- loading


@python_names()
def load_pair(
    name: str | os.PathLike[str] | None = None,
    *,
    recipient: Source | None = None,
    donors: Donors = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    revision: str | None = None,
    chat_template: bool = False,
    attention: str = "auto",
    share: bool = True,
    device_map: DeviceMap | None = None,
) -> ModelPair:
    """Load a model pair and verify its family map on its own weights.

    Models in memory are read where they are, and left as they are: the pair computes with copies
    that share their tensors. A pair is of the weights that they have now; load it again when they
    have changed. It answers as the models do, adapters as they are; a model that answers by
    something else than its weights is refused, but for hooks, which are left out with a warning.

    Args:
        name: A name in the catalog, or the directory of a plant.
        recipient: Directory or Hub id of the model before finetuning, or the model itself. Of a
            PEFT model it is the model with the adapter off; by default that of such a donor.
        donors: Directory or Hub id of each finetuned model, or the model itself (PEFT's with its
            active adapters), by name; a single one needs no name, and is `sft`.
        tokenizer: The tokenizer of models in memory; else by default the recipient's.
        dtype: Weight type by name; by default float32 on a CPU alone, and elsewhere the widest that
            a checkpoint is stored in. Models in memory keep theirs.
        device: A torch device. Models in memory stay where they are.
        revision: Commit, tag or branch of Hub ids.
        chat_template: Put prompts into the tokenizer's chat template.
        attention: `sdpa`, `eager`, or `auto` for sdpa where a model can be computed by it.
        share: Hold parameters of a donor that equal the recipient's once.
        device_map: In the place of `device`: `auto`, `balanced`, `sequential`.

    Raises:
        UnknownNameError: There is no pair of this name, or `dtype` or `attention` is unknown.
        ModelError: A checkpoint is missing, the models do not fit each other, or one in memory
            cannot be used where it is.
        InputError: Hooks at all modules, or torch's autocast, would change what models compute.
        LawError: The family map does not fit the models.
    """
    name, donors = pair_name(name), named_donors(donors)
    loaded = read_pair(
        name,
        recipient=recipient,
        donors=donors,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        revision=revision,
        chat_template=chat_template,
        attention=attention,
        share=share,
        device_map=device_map,
    )
    try:
        _laws_hold(loaded)
        loaded.answers = {}  # of no use any more
    except KgbenchError:
        raise
    except Exception as error:  # with a wrong map, a model may raise anything
        raise ModelError(
            f"the family map of {loaded.family.model_type!r} cannot be tried: "
            f"{type(error).__name__}: {error}"
        ) from error
    _, sources = pair_sources(name, recipient, donors)
    for donor in loaded.donors:
        source = sources[donor]
        if isinstance(source, str | os.PathLike):
            text = os.fspath(source)
            folder = zoo_path(text) or Path(text).expanduser()
            if is_plant(folder):
                _check_plant(loaded, donor, read_plant(folder))
    return loaded


def _check_plant(pair: ModelPair, donor: str, card: Mapping[str, Any]) -> None:
    """Check that a plant's weights differ from the recipient's exactly at the sites of its card.

    Raises:
        ModelError: They differ elsewhere too, or not at all at the plant or at the decoy.
    """
    places = filter(None, (card["plant"], card.get("decoy")))
    at = {place: parse_graft(place).sites(pair.n_layers) for place in places}
    in_pair = pair.slots.sites
    moved = {in_pair[slot] for slot in changed(pair, donor)}
    elsewhere = sorted(moved - set().union(*at.values()), key=in_pair.index)
    if not elsewhere and all(moved & sites for sites in at.values()):
        return
    expected = " and ".join(at)
    where = ", ".join(
        component if layer is None else f"{component}@{layer}" for layer, component in elsewhere[:3]
    )
    difference = (
        f"its weights differ from the recipient's at {where} too"
        if elsewhere
        else "its weights do not differ from the recipient's there"
    )
    raise ModelError(
        f"donor {donor!r} ({pair.origins[donor]}): its card says that it was planted at "
        f"{expected}, and {difference}"
    )
