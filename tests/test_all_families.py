"""The laws of the engine on every family and every variant that its models come in: tied, grouped,
windows, caps, biases, parallel blocks.

`test_laws.py` measures the pico families against the paper's algorithm written out by hand. Here
the plain models are the measure, what each component must and must not do, and the executors for
each other.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
import torch
from laws import EXACT, EXECUTORS, alone, distance
from nightly import nightly
from tiny import (
    LAYERS,
    TINY,
    WINDOW,
    each,
    random_model,
    sampled,
    tiny_config,
    tiny_pair,
)

from kgbench.data import Prompt, load_prompts
from kgbench.engine import Engine, Treatment, grafted_logits
from kgbench.engine.attention_masks import windows
from kgbench.engine.edits import POINTS, Add, Copy, Cut, Hook, SourceRun, Values
from kgbench.engine.gated import Differentiable
from kgbench.engine.selftest import packed_agrees, verify_pair
from kgbench.engine.treatment import graft_treatments
from kgbench.engine.weights import parts
from kgbench.errors import KgbenchError, LawError, ModelError, NotApplicableError
from kgbench.models.family_map import Place
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.sites import GROUPS, parse_graft

pytestmark = pytest.mark.usefixtures("exact")

HALF = "second_half"
LAST = LAYERS - 1


@cache
def prompts() -> tuple[Prompt, ...]:
    """Two prompts of different lengths, a few times as long as the windows."""
    pair = tiny_pair("gpt2")
    some = sorted(
        load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=3),
        key=lambda p: len(pair.encode(p)),
    )
    assert 3 * WINDOW < len(pair.encode(some[0])) < len(pair.encode(some[-1]))
    return some[0], some[-1]


def norms(pair: ModelPair) -> str:
    """The norms as a further group of a term, in families whose norms have weights."""
    return "+ln" if set(GROUPS["ln"]) & set(pair.family.components) else ""


def mixed(pair: ModelPair) -> list[str]:
    """A few grafts that between them name every component, some by layer."""
    by_component = [
        f"FE+LT:{c}@1,3" if c in pair.family.inside else f"FE+LT:{c}"
        for c in pair.family.components
    ]
    return [
        "PRE",
        "FE",
        f"(FE+LT)^C:attn@{HALF}; LT=task",
        f"R:ffn{norms(pair)}; {'; '.join(by_component[::2])}",
        "; ".join(by_component[1::2]),
    ]


@pytest.mark.sampled(6)
@each
def test_everything_is_the_donor_and_nothing_the_recipient(family: str, variant: str) -> None:
    """Grafting every component at every token gives the donor's own logits, grafting none the
    recipient's; weights stay bit for bit.
    """
    pair = tiny_pair(family, variant)
    everything = "ALL:" + "+".join(
        ["all", *(c for c in ("ln_f", "head") if c in pair.family.outside)]
    )
    models = (pair.recipient, pair.donors["sft"], pair.donors["task"])
    before = [weights_hash(model) for model in models]
    pre, sft, task = (alone(model, pair, prompts()) for model in models)
    wanted = {
        "PRE": pre,
        "NONE": pre,
        everything: sft,
        "SFT": sft,
        f"{everything}=task": task,
        f"{everything}=recipient": pre,
    }
    for executor, some in (("packed", 2), ("rows", 2), ("sequential", 1)):
        chosen = list(wanted)[:: 3 - some]
        got = grafted_logits(pair, prompts()[:some], chosen, executor)
        assert distance(got, torch.stack([wanted[graft][:some] for graft in chosen], 1)) <= EXACT, (
            executor
        )
    assert min(distance(pre, sft), distance(sft, task)) > 0.1
    assert [weights_hash(model) for model in models] == before
    assert not [
        path
        for model in models
        for path, module in model.named_modules()
        if "forward" in module.__dict__
    ]


@pytest.mark.sampled(6)
@each
def test_executors_agree(family: str, variant: str) -> None:
    """Packed = rows = sequential, for grafts that name every component; and packed is what is
    chosen.
    """
    pair = tiny_pair(family, variant)
    got = {
        executor: grafted_logits(pair, prompts()[:1], mixed(pair), executor)[0]
        for executor in EXECUTORS
    }
    assert distance(got["packed"], got["sequential"]) <= EXACT
    assert distance(got["rows"], got["sequential"]) <= EXACT
    assert all(distance(one, got["packed"][0]) > 1e-3 for one in got["packed"][1:])
    both = [
        grafted_logits(pair, prompts(), mixed(pair), executor) for executor in ("packed", "rows")
    ]
    assert distance(*both) <= EXACT, "prompts of several lengths"
    assert (Engine(pair, "auto").executor, Engine(pair, "auto").reason) == ("packed", "")


@pytest.mark.sampled(2)
@sampled
def test_executors_agree_on_edits(family: str, variant: str) -> None:
    """The same where activations are copied and added to at every point, and attention is cut, in
    layers with a window and without.
    """
    pair, prompt = tiny_pair(family, variant), prompts()[0]
    (grafted,), (donor,) = (
        graft_treatments(pair, [prompt], parse_graft(g))
        for g in (f"FE+LT; R:o+down{norms(pair)}=task", "ALL")
    )
    added = Values(torch.linspace(-1, 1, 32, dtype=torch.float64))
    n = len(donor)
    edited = []
    for layer, point in enumerate(POINTS):
        at, other, run = Hook(layer, point), Hook((layer + 1) % LAYERS, point), SourceRun(donor)
        cuts = [
            frozenset(range(token - 3, token, 2)) if token > n // 2 else frozenset()
            for token in range(n)
        ]
        edited.append(
            tuple(
                replace(
                    t,
                    edits=(Copy(at, run),) if (n - i) % 3 == 0 else (Add(other, added),),
                    cuts=tuple(Cut(c, cuts[i]) for c in (0, 1)),
                )
                for i, t in enumerate(grafted)
            )
        )
    got = {executor: _answers(pair, executor, prompt, [grafted, *edited]) for executor in EXECUTORS}
    assert distance(got["packed"], got["sequential"]) <= EXACT
    assert distance(got["rows"], got["sequential"]) <= EXACT
    uncut = [tuple(replace(t, cuts=()) for t in row) for row in edited]
    assert all(
        distance(*pair) > 1e-4
        for pair in zip(_answers(pair, "packed", prompt, uncut), got["packed"][1:], strict=True)
    )


def _answers(
    pair: ModelPair, executor: str, prompt: Prompt, rows: list[tuple[Treatment, ...]]
) -> torch.Tensor:
    engine = Engine(pair, executor)
    return engine.logits(engine.plan_treatments([prompt], [[row] for row in rows]))[0, :, 0]


@sampled
def test_a_component_is_its_weights(family: str, variant: str) -> None:
    """Grafting a component everywhere is copying its weights; places share none and leave none out;
    each component moves the logits.
    """
    pair, some = tiny_pair(family, variant), prompts()[:1]
    slots = pair.slots
    left = {name: torch.ones(p.shape) for name, p in pair.recipient.named_parameters()}
    wanted = []
    for component in pair.family.components:
        model = copy.deepcopy(pair.recipient)
        for slot in (slot for slot, (_, of) in enumerate(slots.sites) if of == component):
            for part in parts(pair, slot):
                every = (
                    torch.arange(left[part.name].shape[part.dim])
                    if part.columns is None
                    else part.columns
                )
                left[part.name].index_add_(
                    part.dim, every, -part.of(torch.ones_like(left[part.name]))
                )
                theirs = part.of(pair.donors["sft"].get_parameter(part.name))
                model.get_parameter(part.name).data.index_copy_(part.dim, every, theirs)
        wanted.append(alone(model, pair, some)[0])
    assert not any(bool(rest.any()) for rest in left.values())
    grafts = [f"ALL:{component}" for component in pair.family.components]
    for executor in ("packed", "rows"):
        got = grafted_logits(pair, some, grafts, executor)[0]
        assert distance(got, torch.stack(wanted)) <= EXACT, executor
    pre = alone(pair.recipient, pair, some)[0]
    assert all(distance(one, pre) > 1e-3 for one in wanted)


@sampled
def test_components_are_what_their_names_say(family: str, variant: str) -> None:
    """What a component can and cannot change, whatever module the map says it is.

    In the last layer, only keys, values and what goes into both matter at tokens that are not read;
    where there is one token to look at, queries and keys do not matter. The output of the MLP's
    down projection is linear in the up projection's weights where these are gated.
    """
    pair, (prompt, _) = tiny_pair(family, variant), prompts()
    has = set(pair.family.components)
    behind = getattr(pair.recipient.config, "do_layer_norm_before", True) is False
    earlier = grafted_logits(
        pair,
        [prompt],
        ["PRE", *(f"(FE+LT)^C:{c}@{LAST}" for c in sorted(has & set(pair.family.inside)))],
        "rows",
    )[0]
    moved = {
        c
        for c, one in zip(sorted(has & set(pair.family.inside)), earlier[1:], strict=True)
        if distance(one, earlier[0]) > 1e-9
    }
    assert moved == has & ({"k", "v", "k_norm"} | (set() if behind else {"ln_1"}))
    first = grafted_logits(
        pair, [prompt], ["PRE", *(f"ALL:{c}" for c in sorted(has))], "rows", [[0]]
    )[0, :, 0]
    still = {
        c for c, one in zip(sorted(has), first[1:], strict=True) if distance(one, first[0]) <= 1e-9
    }
    assert still == has & {"q", "k", "q_norm", "k_norm"}
    bends = {c: _bends(pair, prompt, c) for c in ("gate", "up") if c in has}
    assert bends == ({"gate": True, "up": False} if "gate" in has else {"up": True})


def _bends(pair: ModelPair, prompt: Prompt, component: str) -> bool:
    """Whether what goes into the first down projection is no linear function of a component's
    weights.
    """
    seen: list[torch.Tensor] = []
    slots = pair.slots
    weights = bytes(int(site == (0, component)) for site in slots.sites)
    engine = Engine(pair, "rows")
    down = pair.recipient.get_submodule(pair.family.path(0, "down"))
    with down.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        for scale in (0.0, 1.0, 2.0):
            rows = [[(Treatment(weights, scale=scale),) * len(pair.encode(prompt))]]
            engine.logits(engine.plan_treatments([prompt], rows))
    return distance(seen[0] + seen[2], 2 * seen[1]) > 1e-9


@sampled
def test_gates(family: str, variant: str) -> None:
    """The differentiable forward agrees: each component's gates open at some tokens give the
    graft's log-probability.
    """
    pair, some = tiny_pair(family, variant), list(prompts())
    model, slots = Differentiable(pair), pair.slots
    shape = (2, max(len(pair.encode(p)) for p in some))
    open_at = torch.zeros(shape, dtype=torch.float64)
    for row, prompt in enumerate(some):
        open_at[row, [*pair.regions(prompt)["FE"], *pair.regions(prompt)["LT"]]] = 1
    chosen = [c for c in pair.family.components if c in (*pair.family.inside, "emb", "pos")]
    grafts = [f"FE+LT:{c}" for c in chosen]
    targets = torch.tensor([pair.encoded(p).target for p in some])
    wanted = (
        grafted_logits(pair, some, grafts, "rows")
        .log_softmax(-1)
        .gather(2, targets[:, None, None].expand(-1, len(grafts), 1))[..., 0]
    )
    with torch.no_grad():
        for column, component in enumerate(chosen):
            gates = {slot: open_at for slot, (_, of) in enumerate(slots.sites) if of == component}
            assert distance(model.logprobs(some, gates), wanted[:, column]) <= EXACT, component


WINDOWED = [
    (family, variant)
    for family, variants in TINY.items()
    for variant, said in variants.items()
    if said.get("sliding_window")
]


@sampled
def test_windows_are_found(family: str, variant: str) -> None:
    """A pair has layers with a window exactly where its configuration names one."""
    assert bool(windows(tiny_pair(family, variant)).layers) == ((family, variant) in WINDOWED)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("family", "variant"), WINDOWED)
def test_windows_matter(family: str, variant: str) -> None:
    """A window is shorter than the prompts and changes the answer, and does not where the whole
    prompt fits into it.
    """
    pair = tiny_pair(family, variant)
    config = tiny_config(family, variant, sliding_window=100)
    wide = random_model(config, pair.recipient.config._attn_implementation, 0)
    wide.load_state_dict(pair.recipient.state_dict())
    other = ModelPair("wide", wide, {"sft": wide}, pair.tokenizer, pair.family)
    narrow, whole = (
        grafted_logits(each, prompts(), ["PRE"], "packed")[:, 0] for each in (pair, other)
    )
    assert distance(narrow, whole) > 1e-3
    assert distance(whole, alone(wide, pair, prompts())) <= EXACT
    assert windows(pair).size == WINDOW
    assert windows(other).layers == windows(pair).layers


_LIKE = (("ln_1", "ln_2"), ("gate", "up"), ("up", "down"))
_BEHIND = ("opt", "projections, norms behind")
"""Whose norms stand behind attention and MLP, so that neither is what attention reads."""


def _refuse_exchanged(pair: ModelPair, one: str, other: str, why: str = "") -> None:
    part = "inside" if one in pair.family.inside else "outside"
    places = getattr(pair.family, part)
    exchanged = {**places, one: places[other], other: places[one]}
    changed = replace(pair.family, **{part: exchanged})
    with pytest.raises(KgbenchError, match=f"does not fit .*{why}"):
        verify_pair(ModelPair("tiny", pair.recipient, pair.donors, pair.tokenizer, changed))


@pytest.mark.sampled(5)
@each
def test_components_that_look_alike(family: str, variant: str) -> None:
    """A map under which two such components have each other's places is refused: norms and
    projections of the MLP, and the roles of attention, which no other law tells apart where the
    modules are of one shape.
    """
    pair = tiny_pair(family, variant)
    verify_pair(pair)
    for one, other in combinations("qkv", 2):
        _refuse_exchanged(pair, one, other, r"'[qkv](_norm)?' at .* holds")
    for one, other in _LIKE:
        is_behind = (family, variant) == _BEHIND and one == "ln_1"
        if {one, other} <= set(pair.family.inside) and not is_behind:
            _refuse_exchanged(pair, one, other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", nightly([*TINY], {"gemma2", "gpt2"}))
def test_components_that_change_places(family: str) -> None:
    """So is a map under which any two have."""
    pair = tiny_pair(family)
    for places in (pair.family.inside, pair.family.outside):
        for one, other in combinations(places, 2):
            _refuse_exchanged(pair, one, other)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", TINY)
def test_a_map_that_is_wrong_is_found(family: str) -> None:
    """The self-test believes the map, and no map that lacks a component, takes a slice twice, or
    counts tokens in another dimension.
    """
    pair = tiny_pair(family)
    verify_pair(pair)
    assert packed_agrees(pair) is None
    inside, outside = pair.family.inside, pair.family.outside
    wrong = [
        replace(pair.family, inside={c: p for c, p in inside.items() if c != lacking})
        for lacking in list(inside)[::3]
        if lacking != "o"
    ]
    wrong += [
        replace(pair.family, outside={c: p for c, p in outside.items() if c != lacking})
        for lacking in outside
    ]
    wrong += [
        replace(pair.family, inside={**inside, c: replace(p, part=(p.part + 1) % 2)})
        for c, p in inside.items()
        if p.fused
    ]
    wrong += [
        replace(pair.family, inside={**inside, c: replace(p, tokens=3 - p.tokens)})
        for c, p in inside.items()
        if p.tokens != 1
    ]
    wrong.append(replace(pair.family, inside={**inside, "down": Place(inside["o"].module)}))
    for other in wrong:
        with pytest.raises(KgbenchError, match="does not fit"):
            verify_pair(ModelPair(pair.name, pair.recipient, pair.donors, pair.tokenizer, other))


@pytest.mark.parametrize("heads", [14, 35])
def test_tokens_counted_in_another_dimension(heads: int) -> None:
    """Where a prompt has as many tokens as there are heads, a wrong dimension has the right size,
    and the self-test still finds it.
    """
    config = tiny_config(
        "gemma3_text",
        "two bases, windows",
        hidden_size=2 * heads,
        num_attention_heads=heads,
        num_key_value_heads=heads,
    )
    recipient, donor = (random_model(config, "sdpa", seed) for seed in (0, 1))
    pair = ModelPair(
        "many heads",
        recipient,
        {"sft": donor},
        tiny_pair("gemma3_text").tokenizer,
        tiny_pair("gemma3_text").family,
    )
    verify_pair(pair)
    norms = {c: Place(f"self_attn.{c}") for c in ("q_norm", "k_norm")}
    wrong = replace(pair.family, inside={**pair.family.inside, **norms})
    with pytest.raises((LawError, ModelError), match="does not count tokens in"):
        verify_pair(ModelPair(pair.name, recipient, {"sft": donor}, pair.tokenizer, wrong))


def test_layers_of_an_unknown_kind() -> None:
    """A model with layers whose masks are not known is run one row per configuration, and the
    engine says why.
    """
    pair = tiny_pair("qwen2", "no window")
    config = copy.deepcopy(pair.recipient.config)
    recipient = copy.deepcopy(pair.recipient)
    config.layer_types = ["chunked_attention"] * LAYERS
    recipient.config = config
    engine = Engine(
        ModelPair("chunked", recipient, pair.donors, pair.tokenizer, pair.family), "auto"
    )
    assert engine.executor == "rows"
    assert "not known here (chunked_attention)" in engine.reason
    config.layer_types, config.window_size = ["full_attention"] * LAYERS, 256
    limited = ModelPair("limited", recipient, pair.donors, pair.tokenizer, pair.family)
    assert Engine(limited, "auto").executor == "rows"
    assert "not known here (window_size)" in Engine(limited, "auto").reason
    with pytest.raises(
        ModelError,
        match=r"executor 'packed' cannot run limited: .*\(window_size\); take 'auto' or 'rows'",
    ):
        grafted_logits(limited, prompts(), ["FE"], "packed")


@pytest.mark.parametrize("executor", ["rows", "sequential", "auto"])
def test_cuts_under_unknown_limits(executor: str) -> None:
    """A cut's mask would drop a limit that is not known, so it is refused; grafts and edits, which
    need no mask, are not.
    """
    pair, prompt = tiny_pair("qwen2", "no window"), prompts()[0]
    recipient = copy.deepcopy(pair.recipient)
    recipient.config.window_size = 256
    limited = ModelPair("limited", recipient, pair.donors, pair.tokenizer, pair.family)
    (plain,) = graft_treatments(pair, [prompt], parse_graft("FE"))
    edited = tuple(
        replace(t, edits=(Add(Hook(1, "attn_out"), Values(torch.ones(32, dtype=torch.float64))),))
        for t in plain
    )
    cut = tuple(replace(t, cuts=(Cut(1, frozenset({0})),)) for t in plain)
    wanted = _answers(pair, "rows", prompt, [plain, edited])
    assert distance(_answers(limited, executor, prompt, [plain, edited]), wanted) <= EXACT
    with pytest.raises(
        NotApplicableError,
        match=r"masks are not known here \(window_size\), and attention is cut by",
    ):
        _answers(limited, executor, prompt, [cut])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", TINY)
def test_hooks_that_are_wrong_are_found(family: str) -> None:
    """What attention adds is not read where the MLP adds, or the other way round, or before the
    norm behind either.
    """
    pair = tiny_pair(family)
    wrong = [{"attention": pair.family.mlp}, {"mlp": pair.family.attention}, {"mlp": "nowhere"}]
    wrong += [{"attention": pair.family.attending}] if "ln_1_post" in pair.family.inside else []
    for hooks in wrong:
        with pytest.raises(KgbenchError, match="does not fit"):
            verify_pair(
                ModelPair(
                    pair.name,
                    pair.recipient,
                    pair.donors,
                    pair.tokenizer,
                    replace(pair.family, **hooks),
                )
            )
