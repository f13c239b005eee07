"""Laws of edits and cuts: what they do to a run is the same whoever carries them out, and as the
words say.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import EXACT, EXECUTORS, distance, examples, families, pair_of, pool
from plain import Case
from plain import run as run_by_hooks

from kgbench.data import Prompt
from kgbench.engine import Budget, Engine
from kgbench.engine.edits import (
    POINTS,
    Add,
    Copy,
    Cut,
    Edit,
    Hook,
    SourceRun,
    Treatment,
    Values,
    Write,
)
from kgbench.engine.plan import Plan
from kgbench.engine.treatment import graft_treatments, n_heads, parse_configuration
from kgbench.errors import NotApplicableError
from kgbench.localizers.activation_patch import ActivationPatch
from kgbench.models.pair import ModelPair
from kgbench.sites import parse_graft

WIDTH, LAYERS = 32, 3
Treated = Sequence[Sequence[Treatment]]


def values(seed: int, *shape: int) -> Values:
    return Values(
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )


def basis(seed: int, k: int = 2) -> Values:
    return Values(torch.linalg.qr(values(seed, WIDTH, k).tensor).Q.T)


hooks = st.builds(Hook, st.integers(0, LAYERS - 1), st.sampled_from(POINTS))


@st.composite
def treatments(
    draw: st.DrawFn, pair: ModelPair, prompt: Prompt, depth: int = 2
) -> tuple[Treatment, ...]:
    """A run over a prompt: weights from grafts, and at some tokens edits that may copy from other
    such runs, and cuts.
    """
    graft = draw(st.sampled_from(["PRE", "SFT", "FE", "LT", "FE^C:ffn@1", "LT:attn=task"]))
    (base,) = graft_treatments(pair, [prompt], parse_configuration(graft))
    runs = (
        [
            SourceRun(draw(treatments(pair, prompt, depth - 1)))
            for _ in range(draw(st.integers(1, 2)))
        ]
        if depth
        else []
    )
    changes = st.one_of(
        *[
            st.builds(
                Copy,
                hooks,
                st.sampled_from(runs),
                st.one_of(st.none(), st.builds(basis, st.integers(0, 3))),
            )
        ]
        * bool(runs),
        st.builds(Write, hooks, st.builds(values, st.integers(0, 3), st.just(WIDTH))),
        st.builds(Add, hooks, st.builds(values, st.integers(0, 3), st.just(WIDTH))),
    )
    n = len(base)
    cuts = st.builds(
        Cut, st.integers(0, LAYERS - 1), st.frozensets(st.integers(0, n - 1), max_size=n)
    )
    found = list(base)
    for token in draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)):
        some = tuple(draw(st.lists(changes, max_size=2)))
        found[token] = Treatment(base[token].weights, some, tuple(draw(st.lists(cuts, max_size=1))))
    return tuple(found)


def answers(
    pair: ModelPair,
    executor: str,
    prompts: Sequence[Prompt],
    configurations: Sequence[Treated],
    **budget: int,
) -> torch.Tensor:
    engine = Engine(pair, executor, Budget(**budget))
    return engine.logits(engine.plan_treatments(prompts, configurations))[:, :, 0]


@pytest.mark.sampled(1)
@families
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.usefixtures("exact")
def test_executors_agree_on_edits(family: str, attention: str) -> None:
    """Packed, in rows and token by token, whatever is copied, written, added or cut, from runs that
    copy from runs; so are the activations at every hook and token.
    """
    pair = pair_of(family, attention)
    everywhere = [Hook(layer, point) for layer in range(LAYERS) for point in POINTS]

    @examples(6, family, attention)
    @given(st.data())
    def law(data: st.DataObject) -> None:
        prompts = list(pool()[:2])
        configurations = [[data.draw(treatments(pair, p)) for p in prompts] for _ in range(2)]
        expected = answers(pair, "sequential", prompts, configurations)
        assert distance(answers(pair, "packed", prompts, configurations), expected) < EXACT
        assert distance(answers(pair, "rows", prompts, configurations), expected) < EXACT
        small = answers(pair, "packed", prompts, configurations, tokens=32, tree=32)
        assert distance(small, expected) < EXACT, "however little is computed at once"
        got, rows = (
            Engine(pair, executor).activations(prompts, configurations[0], everywhere)
            for executor in ("packed", "rows")
        )
        for one, other in zip(got, rows, strict=True):
            assert distance(one, other) < EXACT

    law()


def hooked(pair: ModelPair, prompt: Prompt, at: Hook, change: torch.Tensor, token: int) -> Any:
    """Logits of the recipient with one activation replaced, by hooks of PyTorch alone."""

    def replaced(h: torch.Tensor) -> torch.Tensor:
        h[token] = change
        return h

    case = Case(pair.recipient, pair.donors, pair.encode(prompt), pair.regions(prompt), "NONE")
    return case.answer(run_by_hooks(pair.recipient, case.ids, {(at.layer, at.point): replaced}))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.usefixtures("exact")
def test_constants_are_told_apart(executor: str) -> None:
    """Two configurations that write different constants at one place, asked together, are as each
    is alone.
    """
    pair, prompt = pair_of("gpt2"), pool()[0]
    (plain,) = graft_treatments(pair, [prompt], "PRE")

    def written(seed: int) -> tuple[Treatment, ...]:
        return (
            *plain[:-1],
            Treatment(plain[-1].weights, (Write(Hook(1, "resid_post"), values(seed, WIDTH)),)),
        )

    assert len({values(1, WIDTH), values(2, WIDTH), values(1, WIDTH)}) == 2
    together = answers(pair, executor, [prompt], [[written(1)], [written(2)]])[0]
    for got, seed in zip(together, (1, 2), strict=True):
        assert distance(got, answers(pair, executor, [prompt], [[written(seed)]])[0, 0]) < EXACT


@pytest.mark.crossed
@families
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.usefixtures("exact")
def test_a_written_activation_is_what_a_hook_writes(family: str, executor: str, point: str) -> None:
    """At each point of each family: written by the engine, and by a hook on the library's own
    module.
    """
    pair, prompt = pair_of(family), pool()[0]
    (plain,) = graft_treatments(pair, [prompt], "PRE")
    at, token, change = Hook(1, point), len(plain) - 3, values(7, WIDTH)
    edited = tuple(
        Treatment(t.weights, (Write(at, change),) if i == token else ())
        for i, t in enumerate(plain)
    )
    got = answers(pair, executor, [prompt], [[edited]])[0, 0]
    assert distance(got, hooked(pair, prompt, at, change.tensor, token)) < EXACT
    assert distance(got, hooked(pair, prompt, at, change.tensor, token - 1)) > 1e-3


@pytest.mark.crossed
@families
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.usefixtures("exact")
def test_all_copied_is_the_source(family: str, executor: str) -> None:
    """The donor's last hidden states in the recipient's run, under the recipient's head; a basis of
    the whole space copies all.
    """
    pair, prompts = pair_of(family), list(pool()[:3])
    whole = Values(torch.eye(WIDTH, dtype=torch.float64))
    for span in (None, whole):
        configuration = []
        for plain, donor in zip(
            *(graft_treatments(pair, prompts, c) for c in ("PRE", "SFT")), strict=True
        ):
            copy: tuple[Edit, ...] = (Copy(Hook(LAYERS - 1, "resid_post"), SourceRun(donor), span),)
            configuration.append(tuple(Treatment(t.weights, copy) for t in plain))
        everything = Engine(pair, executor).plan(prompts, ["ALL"])
        expected = Engine(pair, executor).logits(everything)[:, 0, 0]
        assert distance(answers(pair, executor, prompts, [configuration])[:, 0], expected) < EXACT


@families
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.usefixtures("exact")
def test_a_cut_token_is_as_if_it_were_not_there(family: str, executor: str) -> None:
    """Where no token attends to the first one in any layer, what the first one is does not matter."""
    pair, prompt = pair_of(family), pool()[0]
    (plain,) = graft_treatments(pair, [prompt], "PRE")
    cuts = tuple(Cut(layer, frozenset({0})) for layer in range(LAYERS))
    noise = Add(Hook(0, "resid_pre"), values(1, WIDTH))
    cut = tuple(Treatment(t.weights, (), cuts) for t in plain)
    other = (Treatment(plain[0].weights, (noise,), cuts), *cut[1:])
    logits = answers(
        pair,
        executor,
        [prompt],
        [[cut], [other], [plain], [(Treatment(plain[0].weights, (noise,)), *plain[1:])]],
    )[0]
    assert distance(logits[0], logits[1]) < EXACT
    assert distance(logits[2], logits[3]) > 1e-3
    assert distance(logits[0], logits[2]) > 1e-3


@families
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.usefixtures("exact")
def test_scaled_weights(family: str, executor: str) -> None:
    """Half of the way to the donor is the model of the mean weights; the whole way the donor, none
    of it the recipient.
    """
    pair, prompt = pair_of(family), pool()[0]
    (donor,) = graft_treatments(pair, [prompt], "SFT")
    scaled = [
        [tuple(Treatment(t.weights, scale=scale) for t in donor)] for scale in (0.0, 0.5, 1.0)
    ]
    none, half, whole = answers(pair, executor, [prompt], scaled)[0]
    mean = deepcopy(pair.recipient)
    with torch.no_grad():
        for ours, theirs in zip(mean.parameters(), pair.donors["sft"].parameters(), strict=True):
            ours.lerp_(theirs, 0.5)
        ids = torch.tensor([pair.encode(prompt)])
        expected = [
            m(input_ids=ids).logits[0, -1] for m in (pair.recipient, mean, pair.donors["sft"])
        ]
    for got, model in zip((none, half, whole), expected, strict=True):
        assert distance(got, model) < EXACT


@families
@pytest.mark.usefixtures("exact")
def test_activations_are_the_models_own(family: str) -> None:
    """What is read at the points is what hooks of PyTorch read there."""
    pair, prompts = pair_of(family), list(pool()[:3])
    points = [Hook(layer, point) for layer in range(LAYERS) for point in POINTS]
    found = Engine(pair).activations(prompts, graft_treatments(pair, prompts, "SFT"), points)
    for prompt, activations in zip(prompts, found, strict=True):
        own = run_by_hooks(pair.donors["sft"], pair.encode(prompt))
        for hook, activation in zip(points, activations, strict=True):
            # Of the last layer's MLP the engine computes what is read out, the last token.
            is_pruned = hook.layer == LAYERS - 1 and hook.point in ("mlp_out", "resid_post")
            tokens = slice(-1 if is_pruned else 0, None)
            assert distance(activation[tokens], own[hook.layer, hook.point][tokens]) < EXACT


def test_a_sweep_shares_what_comes_before() -> None:
    """Patching layer by layer at the last token costs the donor's run, the recipient's, and one
    token a layer.
    """
    pair, prompt = pair_of("llama"), pool()[0]
    (plain,), (donor,) = (graft_treatments(pair, [prompt], c) for c in ("PRE", "SFT"))
    sweep = [
        [
            (
                *plain[:-1],
                Treatment(plain[-1].weights, (Copy(Hook(layer, "resid_pre"), SourceRun(donor)),)),
            )
        ]
        for layer in range(LAYERS)
    ]
    engine = Engine(pair, "packed", Budget(tokens=4096, tree=4096))
    plan: Plan = engine.plan_treatments([prompt], sweep)
    assert sum(chunk.token_rows for chunk in engine.run(plan)) == 2 * len(plain) - 1 + LAYERS


@pytest.mark.sampled(1)
@families
@pytest.mark.usefixtures("exact")
def test_a_layer_computes_the_rows_that_differ_up_to_there(family: str) -> None:
    """In a sweep over layers, a configuration has a row of its own from its layer on; before that,
    one row does for all that are to differ later.
    """
    pair, prompt = pair_of(family), pool()[0]
    (plain,), (donor,) = (graft_treatments(pair, [prompt], c) for c in ("PRE", "SFT"))
    written = [
        [
            (
                *plain[:-1],
                replace(plain[-1], edits=(Write(Hook(layer, "mlp_out"), values(0, WIDTH)),)),
            )
        ]
        for layer in range(LAYERS)
    ]
    copied = [
        [(*plain[:-1], replace(plain[-1], edits=(Copy(Hook(layer, "mlp_out"), SourceRun(donor)),)))]
        for layer in range(LAYERS)
    ]
    rows: dict[int, int] = {}

    def count(layer: int, module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        rows[layer] = output.shape[:-1].numel()

    for sweep, source in ((written, 0), (copied, len(plain))):
        handles = []
        for layer in range(LAYERS):
            mlp = pair.recipient.get_submodule(f"{pair.family.layers}.{layer}.{pair.family.mlp}")
            handles.append(mlp.register_forward_hook(partial(count, layer)))
        got = answers(pair, "packed", [prompt], sweep)
        for handle in handles:
            handle.remove()
        shared = source + len(plain) - 1
        for layer in range(LAYERS):
            later = layer < LAYERS - 1
            assert rows[layer] == shared + (layer + 1) + later
        assert distance(got, answers(pair, "sequential", [prompt], sweep)) < EXACT


@pytest.mark.parametrize("executor", ["packed", "rows"])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_what_is_held_does_not_grow_with_the_number_of_sites(executor: str, layers: int) -> None:
    """A sweep of layers, points and tokens never computes more token rows at once than the budget
    says, and answers everything.
    """
    pair, prompt = pair_of("gpt2"), pool()[0]
    (plain,), (donor,) = (graft_treatments(pair, [prompt], c) for c in ("PRE", "SFT"))
    places = [
        (Hook(layer, point), token)
        for layer in range(layers)
        for point in POINTS
        for token in range(len(plain))
    ]

    def patched(hook: Hook, token: int) -> tuple[Treatment, ...]:
        return tuple(
            Treatment(t.weights, (Copy(hook, SourceRun(donor)),) if i == token else ())
            for i, t in enumerate(plain)
        )

    budget = Budget(
        tokens=4 * len(plain), tree=4 * len(plain), logits=8 * pair.recipient.config.vocab_size
    )
    engine = Engine(pair, executor, budget)
    answered = 0
    for chunk in engine.run(
        engine.plan_treatments([prompt], [[patched(*place)] for place in places])
    ):
        assert chunk.token_rows <= budget.tokens
        assert chunk.logits.numel() <= budget.logits
        answered += len(chunk.logits)
    assert answered == len(places)


@pytest.mark.sampled(4)
@families
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.usefixtures("exact")
def test_copies_of_copies(family: str, executor: str) -> None:
    """What is copied from a run that copies at the same hook itself is what that run has after its
    copy, however long the chain.
    """
    pair, prompt = pair_of(family), pool()[0]
    (plain,), (donor,) = (graft_treatments(pair, [prompt], c) for c in ("PRE", "SFT"))
    hook, token = Hook(1, "resid_post"), len(plain) - 1

    def copying(source: Sequence[Treatment]) -> tuple[Treatment, ...]:
        return tuple(
            Treatment(t.weights, (Copy(hook, SourceRun(source)),)) if i == token else t
            for i, t in enumerate(plain)
        )

    once = copying(donor)
    logits = answers(
        pair, executor, [prompt], [[once], [copying(once)], [copying(copying(once))], [plain]]
    )[0]
    assert distance(logits[0], logits[3]) > 1e-3
    assert max(distance(logits[0], logits[1]), distance(logits[0], logits[2])) < EXACT


@pytest.mark.sampled(1)
@families
@pytest.mark.usefixtures("exact")
def test_a_patched_head_is_what_a_hook_patches(family: str) -> None:
    """What heads hand to `o` at some tokens is the donor's, all else the recipient's; a patch of
    all heads is one of their outputs side by side.
    """
    pair, prompt = pair_of(family), pool()[1]
    ids, layer = torch.tensor([pair.encode(prompt)]), 1
    patch = ActivationPatch(point="heads")
    paths = {model: pair.family.path(layer, "o") for model in ("recipient", "sft")}
    handed: list[torch.Tensor] = []
    donor = pair.donors["sft"].get_submodule(paths["sft"])
    handle = donor.register_forward_pre_hook(lambda _, inputs: handed.append(inputs[0]))
    with torch.no_grad():
        pair.donors["sft"](input_ids=ids, use_cache=False)
    handle.remove()
    count, tokens = n_heads(pair, "o"), list(pair.regions(prompt)["FE"])
    width = handed[0].shape[-1] // count
    for text, heads in (("FE:o.h1@1", [1]), ("FE:o.h0+o.h2@1", [0, 2]), ("FE:o@1", range(count))):

        def replaced(_: object, inputs: tuple[torch.Tensor], heads=heads) -> tuple[torch.Tensor]:
            x = inputs[0].clone()
            for head in heads:
                inside = slice(head * width, (head + 1) * width)
                x[:, tokens, inside] = handed[0][:, tokens, inside]
            return (x,)

        own = pair.recipient.get_submodule(paths["recipient"])
        handle = own.register_forward_pre_hook(replaced)
        with torch.no_grad():
            expected = pair.recipient(input_ids=ids, use_cache=False).logits[:, -1]
        handle.remove()
        treated = [patch.treat(pair, [prompt], parse_graft(text))]
        for executor in EXECUTORS:
            assert distance(answers(pair, executor, [prompt], treated)[0], expected) < EXACT
    with pytest.raises(NotApplicableError, match="LT:q@1' names other components"):
        patch.treat(pair, [prompt], parse_graft("LT:q@1"))
    with pytest.raises(NotApplicableError, match=r"cannot tell the heads in 'LT:o\.h1@1' apart"):
        ActivationPatch().treat(pair, [prompt], parse_graft("LT:o.h1@1"))
