"""The gated forward and its derivatives, against the engine, against models with other weights, and
against finite differences.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from laws import EVERYTHING, alone, families, pair_of, pool
from plain import run as run_by_hooks
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Engine, grafted_logits
from kgbench.engine.edits import Hook
from kgbench.engine.engine import choosing
from kgbench.engine.gated import Differentiable, Gates
from kgbench.engine.gradients import (
    graft_effects,
    head_effects,
    head_slots,
    patch_effects,
    weight_gradients,
)
from kgbench.engine.plan import Budget
from kgbench.engine.treatment import graft_treatments, n_heads, parse_configuration
from kgbench.engine.weights import parts
from kgbench.models.pair import ModelPair, weights_hash

pytestmark = pytest.mark.usefixtures("exact")

GRAFTS = (
    "NONE",
    "ALL",
    EVERYTHING,
    "FE:q+up; LT:v+o@1-2",
    "FE^C:ln+emb+k; LT:head",
    "LT:ln_f; ALL:down@0",
    "LT:o.h0@1; FE:q.h1+v.h0; ALL:k.h0@0; R:o.h1",
)
STEP = 1e-5


def prompts() -> list[Prompt]:
    """Three of different lengths, the longest first."""
    found = sorted(pool(), key=lambda p: -len(p.text))
    return [found[0], found[4], found[-1]]


def width(pair: ModelPair, some: Sequence[Prompt]) -> int:
    return max(len(pair.encode(p)) for p in some)


def gates_of(pair: ModelPair, some: Sequence[Prompt], graft: str) -> Gates:
    """1 where a graft gives the donor's weights, by head where it names heads."""
    treatments = graft_treatments(pair, some, parse_configuration(graft))
    sites = Differentiable(pair).wiring.slots.sites
    gates: dict[int, Tensor] = {}
    for row, tokens in enumerate(treatments):
        for token, treatment in enumerate(tokens):
            for slot, weight_set in enumerate(treatment.weights):
                shape = (len(some), width(pair, some))
                gate = gates.setdefault(slot, torch.zeros(shape, dtype=pair.dtype))
                gate[row, token] = weight_set
    for row, tokens in enumerate(treatments):
        for token, treatment in enumerate(tokens):
            for slot, head, weight_set in treatment.heads:
                if gates[slot].ndim == 2:
                    count = n_heads(pair, sites[slot][1])
                    gates[slot] = gates[slot][..., None].repeat(1, 1, count)
                gates[slot][row, token, head] = weight_set
    return gates


def random_gates(pair: ModelPair, some: Sequence[Prompt], seed: int = 0) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(Differentiable(pair).wiring.slots), len(some), width(pair, some))
    return dict(enumerate(torch.rand(shape, generator=generator, dtype=pair.dtype)))


def scored(pair: ModelPair, some: Sequence[Prompt], logits: Tensor) -> Tensor:
    """Log-probabilities of the targets, from logits [prompt, vocabulary]."""
    targets = torch.tensor([pair.encoded(p).target for p in some])
    return logits.log_softmax(-1)[torch.arange(len(some)), targets]


def slope(value: Callable[[float], float]) -> float:
    """Central difference at 0."""
    return (value(STEP) - value(-STEP)) / (2 * STEP)


# ------------------------------------------------------------------------------------------- values


@pytest.mark.sampled(10)
@families
@pytest.mark.parametrize("graft", GRAFTS)
def test_closed_and_open_gates_are_grafts(family: str, graft: str) -> None:
    """Gates of 0 and 1 give what the engine gives for the graft, the ones that are 0 or 1
    throughout included, with a graph or without.
    """
    pair, gates = pair_of(family), gates_of(pair_of(family), prompts(), graft)
    wanted = scored(pair, prompts(), grafted_logits(pair, prompts(), [graft])[:, 0])
    for given in (gates, {slot: gate.clone().requires_grad_() for slot, gate in gates.items()}):
        got = Differentiable(pair).logprobs(prompts(), given).detach()
        assert float((got - wanted).abs().max()) < 1e-9


@families
def test_a_gate_between_is_a_weight_between(family: str) -> None:
    """Gates of e at one slot are the model with W + e (W' - W) there, the slices of fused
    projections included.
    """
    pair, e = pair_of(family), 0.3
    some = prompts()[1:]
    model = Differentiable(pair)
    for slot in range(len(model.wiring.slots)):
        mixed = copy.deepcopy(pair.recipient)
        for part in parts(pair, slot):
            share = torch.zeros_like(mixed.get_parameter(part.name))
            share.index_fill_(
                part.dim,
                torch.arange(share.shape[part.dim]) if part.columns is None else part.columns,
                e,
            )
            mixed.get_parameter(part.name).data += share * (
                pair.donors["sft"].get_parameter(part.name) - mixed.get_parameter(part.name)
            )
        got = model.logprobs(
            some, {slot: torch.full((len(some), width(pair, some)), e, dtype=pair.dtype)}
        )
        wanted = scored(pair, some, alone(mixed, pair, some))
        assert float((got - wanted).abs().max()) < 1e-9, model.wiring.slots.sites[slot]


@families
def test_batches_and_padding(family: str) -> None:
    """A prompt's value depends neither on the others in its batch nor on the padding; batches hold
    each prompt once, within the budget.
    """
    pair, some = pair_of(family), prompts()
    gates = random_gates(pair, some)
    together = Differentiable(pair).logprobs(some, gates)
    for i, prompt in enumerate(some):
        single = {slot: gate[i : i + 1, : len(pair.encode(prompt))] for slot, gate in gates.items()}
        assert float((Differentiable(pair).logprobs([prompt], single) - together[i]).abs()) < 1e-9
    few = list(Differentiable(pair, Budget(tokens=100)).batches(pool()))
    assert sorted(i for batch in few for i in batch) == list(range(len(pool())))
    assert all(len(batch) * width(pair, [pool()[i] for i in batch]) <= 100 for batch in few)
    assert list(map(len, Differentiable(pair, Budget(prompts=1)).batches(some))) == [1, 1, 1]


# -------------------------------------------------------------------------------------- derivatives


@families
@pytest.mark.parametrize("at", [0.0, 0.37, 1.0])
def test_derivatives_by_gates(family: str, at: float) -> None:
    """Effects of grafts are the derivatives by the gates: along a random direction, and by each of
    some single gates.
    """
    pair, some = pair_of(family), prompts()
    model, slots, effects = (
        Differentiable(pair),
        pair.slots.default,
        graft_effects(pair, prompts(), at),
    )
    assert [effect.shape for effect in effects] == [(len(slots), len(pair.encode(p))) for p in some]
    directions = [
        torch.zeros(len(slots), len(some), width(pair, some), dtype=pair.dtype) for _ in range(9)
    ]
    directions[0] = torch.randn(
        directions[0].shape, generator=torch.Generator().manual_seed(1), dtype=pair.dtype
    )
    for i, direction in enumerate(directions[1:]):
        direction[3 * i + 1, i % 3, -1 - i if i % 3 == 0 else i] = 1

    def moved(direction: Tensor, by: float) -> float:
        return float(model.logprobs(some, dict(zip(slots, at + by * direction, strict=True))).sum())

    for direction in directions:
        predicted = sum(
            float((direction[:, row, : e.shape[1]].numpy() * e).sum())
            for row, e in enumerate(effects)
        )
        assert slope(lambda by, d=direction: moved(d, by)) == pytest.approx(
            predicted, rel=1e-6, abs=1e-8
        )


@families
def test_derivatives_by_heads(family: str) -> None:
    """Effects of heads are the derivatives by their gates, and those of q, k and v add up to the
    component's, as o's do but for its bias.
    """
    pair, some = pair_of(family), prompts()
    model, places, effects = Differentiable(pair), head_slots(pair), head_effects(pair, some)
    shape = (len(places), len(some), width(pair, some))
    direction = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=pair.dtype)

    def moved(by: float) -> float:
        of_slot: dict[int, list[Tensor]] = {}
        for (slot, _), gate in zip(places, by * direction, strict=True):
            of_slot.setdefault(slot, []).append(gate)
        gates = {slot: torch.stack(several, dim=-1) for slot, several in of_slot.items()}
        return float(model.logprobs(some, gates).sum())

    predicted = 0.0
    for row, effect in enumerate(effects):
        predicted += float((direction[:, row, : effect.shape[1]].numpy() * effect).sum())
    assert slope(moved) == pytest.approx(predicted, rel=1e-6, abs=1e-8)
    slots, sites = pair.slots.default, model.wiring.slots.sites
    for whole, parts_of in zip(graft_effects(pair, some), effects, strict=True):
        for slot in {slot for slot, _ in places}:
            own = [row for row, (each, _) in enumerate(places) if each == slot]
            o = pair.recipient.get_submodule(pair.family.path(*sites[slot]))
            if sites[slot][1] != "o" or getattr(o, "bias", None) is None:
                together = parts_of[own].sum(axis=0)
                np.testing.assert_allclose(together, whole[slots.index(slot)], atol=1e-9)


@families
def test_derivatives_between(family: str) -> None:
    """Derivatives by gates of any values, those of final norm and head included."""
    pair, some = pair_of(family), prompts()
    model, gates, direction = (
        Differentiable(pair),
        random_gates(pair, some),
        random_gates(pair, some, seed=1),
    )
    leaves = {slot: gate.clone().requires_grad_() for slot, gate in gates.items()}
    found = torch.autograd.grad(model.logprobs(some, leaves).sum(), list(leaves.values()))
    predicted = sum(
        float((g * direction[slot]).sum()) for slot, g in zip(leaves, found, strict=True)
    )

    def moved(by: float) -> float:
        return float(
            model.logprobs(
                some, {slot: gate + by * direction[slot] for slot, gate in gates.items()}
            ).sum()
        )

    assert slope(moved) == pytest.approx(predicted, rel=1e-6)


@pytest.mark.sampled(1)
@families
def test_derivatives_by_activations(family: str) -> None:
    """Effects of patches are ⟨∂m/∂h, h' - h⟩, with h and h' of the two models by themselves, read
    by PyTorch's own hooks.
    """
    pair, some = pair_of(family), prompts()
    hooks = [
        Hook(0, "resid_pre"),
        *(
            Hook(layer, point)
            for layer in range(3)
            for point in ("attn_out", "mlp_out", "resid_post")
        ),
    ]
    effects = patch_effects(pair, some, hooks)
    for prompt, effect in zip(some, effects, strict=True):
        ours, theirs = (
            run_by_hooks(model, pair.encode(prompt))
            for model in (pair.recipient, pair.donors["sft"])
        )
        assert effect.shape == (len(hooks), len(pair.encode(prompt)))
        for row, hook in enumerate(hooks):
            apart = theirs[hook.layer, hook.point] - ours[hook.layer, hook.point]
            for token in (0, 2, effect.shape[1] - 1):
                change = torch.zeros_like(apart)
                change[token] = apart[token]
                moved = partial(touched, pair, prompt, hook, change)
                assert slope(moved) == pytest.approx(float(effect[row, token]), rel=1e-5, abs=1e-8)


def touched(pair: ModelPair, prompt: Prompt, hook: Hook, change: Tensor, by: float) -> float:
    return float(Differentiable(pair).logprobs([prompt], touches={hook: lambda h: h + by * change}))


@families
@pytest.mark.parametrize("name", ["recipient", "sft", "task"])
def test_derivatives_by_weights(family: str, name: str) -> None:
    """Derivatives by a model's weights are those of a plain copy of it, batch by batch."""
    pair, some = pair_of(family), prompts()
    plain = copy.deepcopy(pair.donor(name)).requires_grad_()
    found = list(weight_gradients(pair, some, name, Budget(prompts=1)))
    (together,) = weight_gradients(pair, some, name)
    order = sorted(some, key=lambda p: len(pair.encode(p)))
    for prompt, gradient in zip(order, found, strict=True):
        logits = plain(input_ids=torch.tensor([pair.encode(prompt)])).logits[:, -1]
        wanted = torch.autograd.grad(scored(pair, [prompt], logits).sum(), list(plain.parameters()))
        for (parameter, _), tensor in zip(plain.named_parameters(), wanted, strict=True):
            assert float((gradient[parameter] - tensor).abs().max()) < 1e-9
    for parameter, tensor in together.items():
        assert float((tensor - sum(g[parameter] for g in found)).abs().max()) < 1e-9


# ------------------------------------------------------------------------------ what is left behind


def state(pair: ModelPair) -> list[object]:
    models = [pair.recipient, *pair.donors.values()]
    flags = [(p.requires_grad, p.grad is None) for m in models for p in m.parameters()]
    return [
        *map(weights_hash, models),
        flags,
        *(sorted(m.__dict__) for model in models for m in model.modules()),
    ]


def everything(pair: ModelPair) -> list[object]:
    hooks = [Hook(1, "attn_out"), Hook(2, "resid_pre")]
    return [
        graft_effects(pair, prompts(), 0.5),
        patch_effects(pair, prompts(), hooks),
        *weight_gradients(pair, prompts(), "sft"),
    ]


@families
def test_models_stay_as_they_are(family: str) -> None:
    """Nothing changes in the models, also when the forward breaks off in the middle."""
    pair = pair_of(family)
    before = state(pair)
    everything(pair)
    assert state(pair) == before

    def fail(_: Tensor) -> Tensor:
        raise ArithmeticError("enough")

    weights = {
        name: w.detach().requires_grad_() for name, w in pair.donors["sft"].named_parameters()
    }
    with pytest.raises(ArithmeticError, match="enough"):
        Differentiable(pair).logprobs(
            prompts(), random_gates(pair, prompts()), {Hook(1, "mlp_out"): fail}, weights
        )
    assert state(pair) == before


def test_no_graph_is_kept() -> None:
    """When the derivatives are there, nothing holds on to what the forward computed."""
    pair = pair_of("gemma")
    seen: list[weakref.ref[Tensor]] = []

    def note(h: Tensor) -> Tensor:
        seen.append(weakref.ref(h))
        return h

    gates = {slot: gate.requires_grad_() for slot, gate in random_gates(pair, prompts()).items()}
    torch.autograd.grad(
        Differentiable(pair).logprobs(prompts(), gates, {Hook(1, "mlp_out"): note}).sum(),
        list(gates.values()),
    )
    gc.collect()
    assert [ref() for ref in seen] == [None]
    before = graphs()
    everything(pair)
    assert graphs() <= before


def graphs() -> int:
    """How many tensors of the process have a graph."""
    gc.collect()
    return sum(type(t) is Tensor and t.grad_fn is not None for t in gc.get_objects())


def test_whatever_the_mode() -> None:
    """Derivatives are the same where the caller has switched autograd off."""
    pair = pair_of("gpt2")
    plain = graft_effects(pair, prompts())
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            again = graft_effects(pair, prompts())
        assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_method_s_own_engines_are_as_chosen() -> None:
    """Inside `choosing`, engines and differentiable forwards that are told nothing take the
    executor and the budget; afterwards not.
    """
    pair, budget = pair_of("llama"), Budget(tokens=64, prompts=3)
    with choosing("rows", budget):
        assert (Engine(pair).executor, Engine(pair).budget, Differentiable(pair).budget) == (
            "rows",
            budget,
            budget,
        )
        assert Engine(pair, "sequential", Budget()).executor == "sequential", (
            "who says otherwise is heard"
        )
    default = Budget.on(pair.device, pair.width)
    assert (Engine(pair).executor, Engine(pair).budget) == ("packed", default)
