"""What sweeps of interventions cost here and with other tools, whose answers are the same.

Each tool runs one forward of all prompts for each intervention, as its users write it; a few of
these are timed, since they are all alike. TransformerLens is its `TransformerBridge`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config
from works import scanned

from kgbench.data import Prompt, load_prompts
from kgbench.engine import Engine, Plan, load_pair
from kgbench.engine.edits import Copy, Hook, SourceRun, Treatment
from kgbench.engine.gradients import patch_effects
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers import create
from kgbench.localizers._base import Unit
from kgbench.models.pair import ModelPair, prepare
from kgbench.sites import RECIPIENT

# Other libraries warn of much.
pytestmark = pytest.mark.filterwarnings("ignore")

N_PROMPTS = 8
TIMED = 8
"""Interventions of a sweep that a tool is timed on."""
ROUNDING = 1e-4
"""Largest distance of two tools' figures, in units of the spread of these."""

Place = tuple[int, int]
"""Layer and position."""
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """Prompts of one length, which need no padding, on a pair."""

    pair: ModelPair
    prompts: Sequence[Prompt]

    @cached_property
    def ids(self) -> Tensor:
        return torch.tensor([self.pair.encode(prompt) for prompt in self.prompts])

    @cached_property
    def layers(self) -> nn.ModuleList:
        return self.pair.recipient.get_submodule(self.pair.family.layers)  # type: ignore[return-value]

    @cached_property
    def places(self) -> list[Place]:
        return [(layer, at) for layer in range(len(self.layers)) for at in range(self.ids.shape[1])]

    @cached_property
    def bridges(self) -> dict[str, Any]:
        """The models in TransformerLens."""
        from transformer_lens.model_bridge import TransformerBridge

        boot = TransformerBridge.boot_transformers
        found = {}
        for name in (RECIPIENT, "sft"):
            tokenizer = copy.deepcopy(self.pair.tokenizer)
            model = self.pair.shared_copy(name)
            found[name] = boot(self.pair.name, hf_model=model, tokenizer=tokenizer)
        return found

    @cached_property
    def traced(self) -> dict[str, Any]:
        """The models in nnsight."""
        from nnsight import NNsight

        return {name: NNsight(self.pair.shared_copy(name)) for name in (RECIPIENT, "sft")}


def few(items: Sequence[Any]) -> list[int]:
    """Indices of those that a tool is timed on, spread over all."""
    return list(range(0, len(items), max(1, len(items) // TIMED)))


def same(ours: Tensor, theirs: Tensor) -> None:
    """Two tools' figures agree to rounding."""
    assert ours.shape == theirs.shape
    distance = float((ours - theirs).abs().max() / theirs.std())
    assert distance < ROUNDING, f"figures differ by {distance:.1e} of their spread"


@pytest.fixture(scope="module")
def small_gpt2() -> ModelPair:
    """GPT-2's smallest size, 124 M weights, at random; the donor's layers are others."""
    tiny = load_pair("tiny-gpt2")
    torch.manual_seed(0)
    recipient = AutoModelForCausalLM.from_config(GPT2Config())
    donor = copy.deepcopy(recipient)
    with torch.no_grad():
        for parameter in donor.transformer.h.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    donors = {"sft": prepare(donor)}
    return ModelPair("gpt2", prepare(recipient), donors, tiny.tokenizer, tiny.family)


@pytest.fixture(scope="module")
def cases(tiny: ModelPair, small_gpt2: ModelPair) -> dict[str, Case]:
    found = {}
    for name, pair in {"tiny": tiny, "124 M": small_gpt2}.items():
        by_length: dict[int, list[Prompt]] = {}
        for prompt in load_prompts("tiny_movies", ["headline"], limit=64):
            by_length.setdefault(len(pair.encode(prompt)), []).append(prompt)
        alike = max(by_length.values(), key=len)[:N_PROMPTS]
        assert len(alike) == N_PROMPTS
        found[name] = Case(pair, alike)
    return found


# ------------------------------------------------------------------------------ activation patching


def patches(case: Case) -> Plan:
    """The donor's input of each layer at each position, copied into the recipient's run."""
    plain, donor = (graft_treatments(case.pair, case.prompts, c) for c in ("PRE", "SFT"))

    def patched(prompt: int, layer: int, position: int) -> tuple[Treatment, ...]:
        copied = Copy(Hook(layer, "resid_pre"), SourceRun(donor[prompt]))
        row = list(plain[prompt])
        row[position] = replace(row[position], edits=(copied,))
        return tuple(row)

    treatments = []
    for place in case.places:
        treatments.append([patched(prompt, *place) for prompt in range(len(case.prompts))])
    return Engine(case.pair, "packed").plan_treatments(case.prompts, treatments)


def ours(case: Case, plan: Callable[[Case], Plan]) -> Callable[[], Tensor]:
    """Logits [intervention, prompt, vocabulary], planning included."""
    engine = Engine(case.pair, "packed")
    return lambda: engine.logits(plan(case))[:, :, 0].transpose(0, 1)


@torch.inference_mode()
def hook_patches(case: Case, places: Sequence[Place], **read: int) -> Tensor:
    """The same with PyTorch's hooks."""
    recipient, donor = case.pair.recipient, case.pair.donors["sft"]
    states = donor(case.ids, output_hidden_states=True, use_cache=False).hidden_states

    def put(at: int, state: Tensor, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        patched = args[0].clone()
        patched[:, at] = state[:, at]
        return (patched, *args[1:])

    found = []
    for layer, at in places:
        hook = partial(put, at, states[layer])
        with case.layers[layer].register_forward_pre_hook(hook):
            found.append(recipient(case.ids, use_cache=False, **read).logits[:, -1])
    return torch.stack(found)


@torch.no_grad()
def lens_patches(case: Case, places: Sequence[Place]) -> Tensor:
    """The same with TransformerLens."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(len(case.layers))]
    _, states = case.bridges["sft"].run_with_cache(case.ids, names_filter=names)

    def put(state: Tensor, hook: Any, name: str, at: int) -> Tensor:
        state[:, at] = states[name][:, at]
        return state

    found = []
    for layer, at in places:
        hooks = [(names[layer], partial(put, name=names[layer], at=at))]
        found.append(case.bridges[RECIPIENT].run_with_hooks(case.ids, fwd_hooks=hooks)[:, -1])
    return torch.stack(found)


@torch.no_grad()
def nnsight_patches(case: Case, places: Sequence[Place]) -> Tensor:
    """The same with nnsight."""
    layers, model = case.pair.family.layers, case.pair.recipient
    head = next(n for n, each in model.named_modules() if each is model.get_output_embeddings())
    recipient, donor = case.traced[RECIPIENT], case.traced["sft"]
    states = []
    with donor.trace(case.ids):
        for layer in range(len(case.layers)):
            states.append(donor.get(f"{layers}.{layer}").input.save())
    found = []
    for layer, at in places:
        with recipient.trace(case.ids):
            recipient.get(f"{layers}.{layer}").input[:, at] = states[layer][:, at]
            logits = recipient.get(head).output[:, -1].save()
        found.append(logits)
    return torch.stack(found)


PATCHING = {
    "TransformerLens": (lens_patches, {"124 M": 4}),
    "nnsight": (nnsight_patches, {"124 M": 3.5}),
    "PyTorch hooks": (hook_patches, {"tiny": 2, "124 M": 4.5}),
    "PyTorch hooks, head at the last token": (partial(hook_patches, logits_to_keep=1), {}),
}
"""Tools, and how much longer each takes by size, at least."""


@pytest.mark.parametrize("size", ["tiny", "124 M"])
@group("activation patching, every layer and position")
def test_patching(
    size: str, cases: dict[str, Case], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A sweep of the residual stream over all layers and positions."""
    case = cases[size]
    sample = few(case.places)
    places = [case.places[i] for i in sample]
    work, tools = ours(case, patches), dict[str, Work]()
    answers = work()[sample]
    for name, (patch, _) in PATCHING.items():
        tools[name] = partial(patch, case, places)
        same(answers, tools[name]())
    rounds = {"tiny": 10, "124 M": 3}[size]
    ratios = in_turns(benchmark, work, tools, rounds)
    for name, (_, bounds) in PATCHING.items():
        ratio = ratios[name].inverse().scaled(len(case.places) / len(places))
        least = bounds.get(size)
        bound = "" if least is None else f"≥ {least}"
        holds = least is None or ratio.value >= least
        claim(f"{size}: patching sweep, {name} ÷ ours", ratio, bound, holds)


# ----------------------------------------------------------------- other methods in TransformerLens


def against_lens(
    what: str,
    least: float,
    work: Work,
    lens: Work,
    benchmark: BenchmarkFixture,
    claim: Callable[..., None],
    scale: float = 1,
) -> None:
    """Note how much longer TransformerLens takes for the same answers."""
    ratio = in_turns(benchmark, work, {"lens": lens}, 4)["lens"].inverse().scaled(scale)
    claim(f"124 M: {what}, TransformerLens ÷ ours", ratio, f"≥ {least}", ratio.value >= least)


def lens_effects(case: Case, hooks: Sequence[Hook]) -> Tensor:
    """⟨∂m/∂h, h' - h⟩ [prompt, hook, token], m the targets' log-probability."""
    of = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}
    names = [f"blocks.{hook.layer}.{of[hook.point]}" for hook in hooks]
    with torch.no_grad():
        _, theirs = case.bridges["sft"].run_with_cache(case.ids, names_filter=names)
    seen: dict[str, Tensor] = {}

    def see(state: Tensor, hook: Any, name: str) -> Tensor:
        seen[name] = state if state.requires_grad else state.detach().requires_grad_()
        return seen[name]

    hooked = [(name, partial(see, name=name)) for name in names]
    logits = case.bridges[RECIPIENT].run_with_hooks(case.ids, fwd_hooks=hooked)[:, -1]
    targets = torch.tensor([case.pair.encoded(prompt).target for prompt in case.prompts])
    score = logits.log_softmax(-1).gather(1, targets[:, None]).sum()
    gradients = torch.autograd.grad(score, [seen[name] for name in names])
    effects = []
    for name, gradient in zip(names, gradients, strict=True):
        effects.append(((theirs[name] - seen[name].detach()) * gradient).sum(-1))
    return torch.stack(effects, dim=1)


@group("attribution patching")
def test_attribution_patching(
    cases: dict[str, Case], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """First-order effects at the outputs of attention and MLP of all layers; gradients of weights
    are left out.
    """
    case = cases["124 M"]
    hooks = [Hook(0, "resid_pre")]
    for layer in range(len(case.layers)):
        hooks += [Hook(layer, "attn_out"), Hook(layer, "mlp_out")]
    work = partial(patch_effects, case.pair, case.prompts, hooks)
    lens = partial(lens_effects, case, hooks)
    same(torch.stack([torch.as_tensor(effect) for effect in work()]).float(), lens())
    against_lens("attribution patching", 1.3, work, lens, benchmark, claim)


def scan(method: Any, case: Case) -> Plan:
    _, treatments = scanned(method, case.pair, case.prompts)
    return Engine(case.pair, "packed").plan_treatments(case.prompts, treatments)


@torch.no_grad()
def lens_knockout(case: Case, treatments: Sequence[Any]) -> Tensor:
    """The donor's logits with the edges cut that each treatment names."""
    length = case.ids.shape[1]

    def cut(scores: Tensor, hook: Any, edges: Tensor) -> Tensor:
        return scores.masked_fill(edges[:, None], -torch.inf)

    found = []
    for rows in treatments:
        by_layer: dict[int, Tensor] = {}
        for prompt, row in enumerate(rows):
            for token, treatment in enumerate(row):
                for edge in treatment.cuts:
                    empty = torch.zeros(len(rows), length, length, dtype=torch.bool)
                    edges = by_layer.setdefault(edge.layer, empty)
                    edges[prompt, token, list(edge.keys)] = True
        hooks = []
        for layer, edges in by_layer.items():
            name = f"blocks.{layer}.attn.hook_attn_scores"
            hooks.append((name, partial(cut, edges=edges)))
        found.append(case.bridges["sft"].run_with_hooks(case.ids, fwd_hooks=hooks)[:, -1])
    return torch.stack(found)


@group("attention knockout")
def test_attention_knockout(
    cases: dict[str, Case], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A scan of attention knockout, edges to each region in each layer."""
    case, method = cases["124 M"], create("attention_knockout", {}, 0)
    _, treatments = scanned(method, case.pair, case.prompts)
    sample = few(treatments)
    work = ours(case, partial(scan, method))
    lens = partial(lens_knockout, case, [treatments[i] for i in sample])
    same(work()[sample], lens())
    scale = len(treatments) / len(sample)
    against_lens("attention knockout", 6, work, lens, benchmark, claim, scale)


@torch.no_grad()
def lens_paths(case: Case, units: Sequence[Unit]) -> Tensor:
    """Direct effects on the logits from two cached runs: the last token's final residual stream
    with one output exchanged, normed and unembedded.
    """
    last = len(case.layers) - 1
    names = ["blocks.0.hook_resid_pre", f"blocks.{last}.hook_resid_post"]
    for layer in range(len(case.layers)):
        names += [f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"]
    runs = []
    for name in (RECIPIENT, "sft"):
        _, cache = case.bridges[name].run_with_cache(case.ids, names_filter=names)
        runs.append(cache)
    plain, donor = runs
    streams = []
    for unit in units:
        stream = plain[names[1]][:, -1]
        site = unit.sites[0]
        if str(unit.graft) != "NONE":
            point = "mlp" if site.component in ("ln_2", "gate", "up", "down") else "attn"
            inside = f"blocks.{site.layer}.hook_{point}_out"
            sender = names[0] if site.layer is None else inside
            stream = stream + donor[sender][:, -1] - plain[sender][:, -1]
        streams.append(stream)
    bridge = case.bridges[RECIPIENT]
    return bridge.unembed(bridge.ln_final(torch.stack(streams)))


@group("path patching to the logits")
def test_path_patching(
    cases: dict[str, Case], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A scan of path patching, each sender at the last token; TransformerLens needs two forwards
    for all.
    """
    case, method = cases["124 M"], create("path_patch", {}, 0)
    units, _ = scanned(method, case.pair, case.prompts)
    work, lens = ours(case, partial(scan, method)), partial(lens_paths, case, units)
    same(work(), lens())
    against_lens("path patching to the logits", 1, work, lens, benchmark, claim)
