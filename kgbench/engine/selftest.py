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
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from kgbench.engine.attention_masks import windows
from kgbench.engine.batch_rows import run_rows
from kgbench.engine.forward import Wiring
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Budget, Chunk, Plan, Request
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

Law = Callable[[ModelPair], str | None]
"""A check of a family map on a pair: how it is violated, or None."""

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
            check_law(pair, law)


def check_law(pair: ModelPair, law: Law) -> None:
    """Check one law of a family map.

    Raises:
        LawError: It is violated.
    """
    if broken := law(pair):
        raise LawError(
            f"the family map {pair.family.model_type!r} does not fit {pair.name}: {broken}"
        )


@once_for_each
def _laws_hold(pair: ModelPair) -> None:
    verify_pair(pair)


def _everything_is_the_donor(pair: ModelPair) -> str | None:
    """Compare what is grafted with what each model answers by itself, at each token of the probe.

    A model that was given in another form than the pair has answered before it was taken apart.
    """
    wiring, ids = Wiring(pair), list(pair.probe)
    everything = _numbered(len(pair.donors) + 1, len(wiring.slots))
    request = Request(tuple(ids), _numbered(len(everything), len(ids)), tuple(range(len(ids))))
    plan = Plan(everything.astype(np.uint8), (request,))
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
        return (
            f"{what}: logits differ by {difference:.3g}; "
            "a component is missing from the map or misplaced"
        )
    return None


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
    plan = _plan(pair, table, treatments, (0, 2))
    reference = _logits(run_packed(Wiring(pair), plan, Budget()))
    return _departure(pair, Wiring(pair, staged=True), plan, reference) is None


@once_for_each
@torch.inference_mode()
def packed_agrees(pair: ModelPair) -> str | None:
    """Reason why the packed executor cannot run a pair; None if it agrees with `rows`."""
    if unknown := windows(pair).unknown:
        return (
            "the model has layers of a kind, or a limit to attention, whose masks are not known "
            f"here ({', '.join(unknown)})"
        )
    wiring, n = Wiring(pair), len(_ids(pair))
    table = np.minimum(_numbered(2, len(wiring.slots)), len(pair.donors))
    treatments = np.array([[0] * n, [1] * n, np.arange(n) % 2, [0] * (n - 1) + [1]])
    plan = _plan(pair, table, treatments, (0, 2))
    return _departure(pair, wiring, plan, _logits(run_rows(wiring, plan, Budget())))


def _departure(pair: ModelPair, wiring: Wiring, plan: Plan, reference: Tensor) -> str | None:
    """How the packed executor's answers to a plan differ from a reference; None if they agree."""
    try:
        got = _logits(run_packed(wiring, plan, Budget()))
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        # Models raise any of these for a mask of unexpected shape.
        return f"the model refuses a 4-D mask ({str(error).splitlines()[0]})"
    if (difference := _largest(got, reference)) <= tolerance(pair, reference):
        return None
    return f"logits differ by {difference:.3g} from one row per configuration"


def _both_ends_are_named(pair: ModelPair) -> str | None:
    outside, model = pair.family.outside, pair.recipient
    if "head" not in outside:
        return "it does not say where the component 'head' is"
    ends = {"emb": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    for name, end in ends.items():
        if name in outside and model.get_submodule(outside[name].module) is not end:
            return f"{name!r} is not at {outside[name].module!r}"
    return None


def _slices_partition(pair: ModelPair) -> str | None:
    for socket in Wiring(pair).sockets:
        if socket.columns:
            covered = torch.cat(socket.columns).sort().values
            if not torch.equal(covered, torch.arange(socket.width, device=covered.device)):
                return "the slices of a fused projection do not partition its output"
    return None


def _attention_has_its_roles(pair: ModelPair) -> str | None:
    """Check queries, keys and values by derivatives of the last layer's attention output.

    The derivatives are of the output at the last token by each column of the map's queries, keys
    and values. With one token, attention returns its value: values matter, queries and keys do not.
    With several, earlier tokens' keys matter and their queries do not. The norm before the MLP
    never matters. This holds for any weights.
    """
    if not {"q", "k", "v", "o"} <= set(pair.family.inside):
        return None  # missing components violate another law
    at = {name: f"{name!r} at {place.module!r}" for name, place in pair.family.inside.items()}
    ids = _ids(pair)
    alone, several = _derivatives(pair, ids[:1]), _derivatives(pair, ids)
    if not (alone and several):
        return f"{at['o']} reads no values"
    if "ln_2" in several and float(several.pop("ln_2").max()) > 0:
        return (
            f"attention reads {at['ln_2']}, which is the norm before "
            "the MLP; the norm before attention is 'ln_1'"
        )
    earlier = {name: float(rows[:-1].max()) for name, rows in several.items()}
    value = float(alone["v"].max())
    if not value > 0:
        return f"{at['v']} holds no values"
    for name in alone.keys() - {"v", "ln_2"}:
        if not float(alone[name].max()) <= _NEXT_TO_NOTHING * value:
            return f"{at[name]} holds values"
    for queries, keys in (("q", "k"), ("q_norm", "k_norm")):
        if keys in earlier and not earlier[keys] > 0:
            return f"{at[keys]} holds no keys"
        if queries in earlier and not earlier[queries] <= _NEXT_TO_NOTHING * earlier["k"]:
            return f"{at[queries]} holds keys"
    return None


def _derivatives(pair: ModelPair, ids: Sequence[int]) -> dict[str, Float[Tensor, "token column"]]:
    """Absolute derivatives of the input of the last layer's `o` at the last token, by component.

    There are none where the input depends on no component.
    """
    family, layer = pair.family, pair.n_layers - 1
    outputs: dict[str, Tensor] = {}
    mixed: list[Tensor] = []
    names = [name for name in ("q", "k", "v", "q_norm", "k_norm", "ln_2") if name in family.inside]
    paths = {name: family.path(layer, name) for name in names}
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
            return {}
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


def _the_gate_passes_the_activation(pair: ModelPair) -> str | None:
    """Check that the MLP is linear in `up`, and so that the activation is of `gate`.

    In the last layer, -2 times the output of `up` makes the input of `down` as many times as large.
    Of an MLP without a gate, check that `up` comes before `down`.
    """
    family, layer = pair.family, pair.n_layers - 1
    if not {"up", "down"} <= set(family.inside):
        return None
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
        return f"'down' at {family.inside['down'].module!r} comes before 'up'"
    first, other = seen[0].reshape(2, -1).float()
    departure = float((other + 2 * first).abs().max())
    if "gate" in family.inside and not departure <= _LINEAR * float(first.abs().max()):
        return (
            f"the MLP is not linear in 'up' at {place.module!r}; 'gate' is the "
            "projection that passes the activation, and 'up' the one that is multiplied by it"
        )
    return None


def _components_matter(pair: ModelPair) -> str | None:
    wiring = Wiring(pair, [lambda path: _Perturbed(pair.recipient.get_submodule(path))])
    components = pair.family.components
    # Row 0 perturbs nothing, row i + 1 component i in all layers.
    table = np.zeros((len(components) + 1, len(wiring.slots)), dtype=np.uint8)
    for slot, (_, component) in enumerate(wiring.slots.sites):
        table[components.index(component) + 1, slot] = 1
    plan = _plan(pair, table, _numbered(len(table), len(_ids(pair))))
    logits = _logits(run_rows(wiring, plan, Budget()))
    for component, moved in zip(
        components, (logits[1:] - logits[0]).abs().amax(dim=-1).tolist(), strict=True
    ):
        if not moved > 1e-6:
            return f"component {component!r} does not move the logits when it is perturbed"
    return None


def _tokens_are_independent(pair: ModelPair) -> str | None:
    wiring = Wiring(pair)
    plan = _plan(pair, _numbered(2, len(wiring.slots)), np.arange(len(_ids(pair)))[None] % 2)
    together = _logits(run_rows(wiring, plan, Budget()))
    apart = _logits(run_sequential(wiring, plan, Budget()))
    if (difference := _largest(together, apart)) <= tolerance(pair, apart):
        return None
    return (
        f"grafting every other token is not the same for all tokens at once as "
        f"for one at a time: logits differ by {difference:.3g}; the input of a module does not "
        "count tokens in the dimension that the map says"
    )


def _hooks_are_what_is_added(pair: ModelPair) -> str | None:
    family = pair.family
    paths = {name: place.module for name, place in family.inside.items()}
    for name, hook, norm, last, other in (
        ("attention", family.attention, "ln_1_post", "o", "down"),
        ("mlp", family.mlp, "ln_2_post", "down", "o"),
    ):
        added, without = paths.get(norm, paths.get(last, "")), paths.get(other, "")
        if _holds(hook, added) and not _holds(hook, without):
            continue
        expected = f"{added!r} or one that holds it, and not {without!r}"
        if norm in paths:
            expected = f"the norm {added!r}"
        return (
            f"{name!r} is {hook!r}, where it should be the module whose output is added to the "
            f"stream: {expected}"
        )
    return None


def _holds(module: str, part: str) -> bool:
    return f"{part}.".startswith(f"{module}.")


LAWS: Mapping[str, Law] = {
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


def _numbered(rows: int, columns: int) -> Int[np.ndarray, "row column"]:
    """The number of its row in each cell."""
    numbers: np.ndarray = np.indices((rows, columns))[0]
    return numbers


def _plan(
    pair: ModelPair, table: np.ndarray, treatments: np.ndarray, shorter: Sequence[int] = (0,)
) -> Plan:
    """The probe under some treatments [configuration, token], each time shorter by some tokens."""
    requests = []
    for n in (treatments.shape[1] - less for less in shorter):
        requests.append(Request(tuple(_ids(pair)[:n]), treatments[:, :n], (n - 1,)))
    return Plan(table.astype(np.uint8), tuple(requests))


def _logits(chunks: Iterator[Chunk]) -> Float[Tensor, "answer vocabulary"]:
    """Logits of all answers in the order of prompt and configuration."""
    logits: list[Tensor] = []
    labels: list[tuple[int, int]] = []
    for chunk in chunks:
        part = chunk.answers()
        logits.append(part.logits)
        labels += zip(part.prompt.tolist(), part.configuration.tolist(), strict=True)
    return torch.cat(logits)[sorted(range(len(labels)), key=labels.__getitem__)]


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
