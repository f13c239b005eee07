"""The laws of the engine, on random models of every family, random prompts and random grafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from grafts import grafts
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from kgbench.data import Prompt, load_prompts
from kgbench.engine import Budget, Engine, grafted_logits
from kgbench.engine.forward import Wiring, one_treatment, reading, treated
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.sites import CONFIGURATIONS
from kgbench.testing import PICO_FAMILIES, pico_pair

pytestmark = pytest.mark.usefixtures("exact")

FAMILIES = tuple(PICO_FAMILIES)
EXECUTORS = ("packed", "rows", "sequential")
EVERYTHING = "ALL:all+ln_f+head"
EXACT = 1e-10

kinds = pytest.mark.parametrize(
    ("family", "attention", "tied"), [(f, a, t) for f in FAMILIES for a in ("sdpa", "eager") for t in (True, False)]
)
families = pytest.mark.parametrize("family", FAMILIES)
executors = pytest.mark.parametrize("executor", EXECUTORS)


@cache
def pair_of(family: str, attention: str = "sdpa", tied: bool = True, dtype: torch.dtype = torch.float64) -> ModelPair:
    """A recipient and two donors; every test leaves them as they are."""
    return pico_pair(family, attention=attention, tied=tied, dtype=dtype, donors=("sft", "task"))


@cache
def pool(*names: str) -> tuple[Prompt, ...]:
    """Prompts of 24 to 45 tokens."""
    return tuple(load_prompts("fake_movies_fake_actors", names or ("headline", "qa", "control"), limit=3))


@cache
def copies(*pair: str | bool | torch.dtype) -> Callable[..., nn.Module]:
    """The oracle's models of a pair, each made once: what a token's copy holds does not depend on the token."""
    made: dict[oracle.Assignment, nn.Module] = {}

    def make(recipient: nn.Module, donors: Mapping[str, nn.Module], assignment: oracle.Assignment) -> nn.Module:
        if assignment not in made:
            made[assignment] = oracle.hybrid(recipient, donors, assignment)
        return made[assignment]

    return make


def audited(pair: ModelPair, prompt: Prompt, graft: str, readouts: Sequence[int] | None = None, make: Any = None) -> torch.Tensor:
    """The oracle's logits [readout, vocabulary]."""
    return oracle.graft_logits(pair.recipient, pair.donors, pair.encode(prompt), pair.regions(prompt), graft, readouts, make)


def alone(model: nn.Module, pair: ModelPair, prompts: Sequence[Prompt]) -> torch.Tensor:
    """Logits [prompt, vocabulary] of a model by itself, one prompt at a time."""
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([pair.encode(p)])).logits[0, -1] for p in prompts])


def examples(n: int) -> Any:
    """So many examples; a failing one is shown as it was drawn, since making it smaller would run the oracle for minutes."""
    return settings(max_examples=n, phases=(Phase.explicit, Phase.generate))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@st.composite
def cases(draw: st.DrawFn, pair: ModelPair, prompts: int = 2, configurations: int = 2) -> tuple[list[Prompt], list[str]]:
    """Some prompts, and grafts that name regions which all of them have."""
    some = draw(st.lists(st.sampled_from(pool()), min_size=1, max_size=prompts, unique_by=lambda p: p.text))
    shared = sorted(set.intersection(*({*pair.regions(p)} for p in some)))
    graft = grafts(shared, pair.family.components, ("sft", "task", "recipient"), pair.n_layers)
    return some, draw(st.lists(graft, min_size=1, max_size=configurations))


# ------------------------------------------------------------------------------------------------ everything and nothing


@kinds
def test_everything_is_the_donor_and_nothing_the_recipient(family: str, attention: str, tied: bool) -> None:
    """Grafting every component at every token gives the donor's own logits, grafting none the recipient's; so do SFT and PRE."""
    pair = pair_of(family, attention, tied)
    prompts = pool()[::2]
    sft, task, pre = (alone(model, pair, prompts) for model in (pair.donors["sft"], pair.donors["task"], pair.recipient))
    wanted = {EVERYTHING: sft, f"{EVERYTHING}=task": task, "SFT": sft, "NONE": pre, "PRE": pre, f"{EVERYTHING}=recipient": pre, "ALL^C": pre}
    for executor in EXECUTORS[:2]:
        got = grafted_logits(pair, prompts, list(wanted), executor)
        assert distance(got, torch.stack(list(wanted.values()), 1)) <= EXACT, executor
    got = grafted_logits(pair, prompts[:2], list(wanted)[:2], "sequential")
    assert distance(got, torch.stack(list(wanted.values())[:2], 1)[:2]) <= EXACT
    assert distance(sft, pre) > 0.1


@kinds
def test_everything_and_nothing_hold_in_single_precision(family: str, attention: str, tied: bool) -> None:
    """In float32 the same to 1e-4, and the same most likely token."""
    pair = pair_of(family, attention, tied, torch.float32)
    wanted = {EVERYTHING: pair.donors["sft"], f"{EVERYTHING}=task": pair.donors["task"], "SFT": pair.donors["sft"], "PRE": pair.recipient}
    own = torch.stack([alone(model, pair, pool()) for model in wanted.values()], 1)
    for executor in EXECUTORS[:2]:
        got = grafted_logits(pair, pool(), list(wanted), executor)
        assert distance(got, own) <= 1e-4
        assert torch.equal(got.argmax(-1), own.argmax(-1))


@families
def test_a_donor_that_is_the_recipient_changes_nothing(family: str) -> None:
    """Whatever is grafted from a donor with the recipient's weights, the answer is the recipient's."""
    pair = pair_of(family)
    same = ModelPair("same", pair.recipient, {"sft": pair.recipient}, pair.tokenizer, pair.family)
    for executor in EXECUTORS:
        got = grafted_logits(same, pool()[:3], ["FE", "LT:q+down@1", "(FE+LT)^C", EVERYTHING], executor)
        assert distance(got, alone(pair.recipient, pair, pool()[:3])[:, None]) <= EXACT


# ------------------------------------------------------------------------------------------------ executors and the oracle


@kinds
def test_executors_give_what_the_paper_s_algorithm_gives(family: str, attention: str, tied: bool) -> None:
    """Packed = rows = sequential = one overwritten copy per token, for any grafts of two donors on prompts of mixed length."""
    pair, make = pair_of(family, attention, tied), copies(family, attention, tied)

    @examples(3)
    @given(cases(pair))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case
        truth = torch.stack([torch.cat([audited(pair, p, g, make=make) for g in configurations]) for p in prompts])
        for executor in EXECUTORS:
            assert distance(grafted_logits(pair, prompts, configurations, executor), truth) <= EXACT, executor

    law()


@kinds
def test_the_pathways_give_what_the_paper_s_algorithm_gives(family: str, attention: str, tied: bool) -> None:
    """The nine configurations of the default suite, with a fresh deep copy of the recipient for every token, as published."""
    pair, prompt = pair_of(family, attention, tied), pool()[0]
    truth = torch.cat([audited(pair, prompt, g, make=copies(family, attention, tied)) for g in CONFIGURATIONS])
    for executor in EXECUTORS[:2]:
        assert distance(grafted_logits(pair, [prompt], CONFIGURATIONS, executor)[0], truth) <= EXACT
    assert distance(audited(pair, prompt, "FE+LT"), truth[CONFIGURATIONS.index("FE+LT")]) == 0


@families
def test_executors_agree_in_single_precision(family: str) -> None:
    """In float32: 1e-4, and the same most likely token."""
    pair, make = pair_of(family, "sdpa", True, torch.float32), copies(family, torch.float32)

    @examples(3)
    @given(cases(pair, prompts=1))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case
        truth = torch.stack([torch.cat([audited(pair, p, g, make=make) for g in configurations]) for p in prompts])
        for executor in EXECUTORS:
            got = grafted_logits(pair, prompts, configurations, executor)
            assert distance(got, truth) <= 1e-4
            assert torch.equal(got.argmax(-1), truth.argmax(-1))

    law()


@families
def test_several_positions_are_read_out(family: str) -> None:
    """Logits after any tokens of a prompt, in any order and twice if asked; final norm and head are grafted at the token that is read."""
    pair, make = pair_of(family), copies(family, "sdpa", True)

    @examples(5)
    @given(cases(pair), st.data())
    def law(case: tuple[list[Prompt], list[str]], data: st.DataObject) -> None:
        prompts, configurations = case
        n = data.draw(st.integers(1, 3))
        read = [data.draw(st.lists(st.integers(0, len(pair.encode(p)) - 1), min_size=n, max_size=n)) for p in prompts]
        configurations = [*configurations, "ALL:ln_f; LT:head"]
        truth = torch.stack([torch.stack([audited(pair, p, g, r, make) for g in configurations]) for p, r in zip(prompts, read, strict=True)])
        for executor in EXECUTORS:
            assert distance(grafted_logits(pair, prompts, configurations, executor, read), truth) <= EXACT, executor

    law()


# ------------------------------------------------------------------------------------------------ what must not matter


@families
def test_order_batch_and_chunks_do_not_matter(family: str) -> None:
    """A prompt's answer under a configuration is what it is alone: whatever runs beside it, in whatever order, in chunks of any size."""
    pair = pair_of(family)
    engines = st.builds(
        Budget,
        tokens=st.integers(20, 400),
        prompts=st.none() | st.integers(1, 4),
        tree=st.integers(1, 120),
        logits=st.integers(1, 20) | st.integers(300, 6000),
    )

    @examples(8)
    @given(cases(pair, prompts=5, configurations=5), engines, st.sampled_from(("packed", "rows")), st.randoms(use_true_random=False))
    def law(case: tuple[list[Prompt], list[str]], budget: Budget, executor: str, rng: Any) -> None:
        prompts, configurations = case
        singly = torch.stack([torch.cat([grafted_logits(pair, [p], [g], executor)[0] for g in configurations]) for p in prompts])
        rows, columns = (rng.sample(range(len(of)), len(of)) for of in (prompts, configurations))
        engine = Engine(pair, executor, budget)
        got = engine.logits(engine.plan([prompts[r] for r in rows], [configurations[c] for c in columns]))[:, :, 0]
        assert distance(got, singly[rows][:, columns]) <= EXACT
        part = columns[: rng.randint(1, len(columns))]
        assert distance(grafted_logits(pair, prompts, [configurations[c] for c in part], executor), singly[:, part]) <= EXACT

    law()


def test_chunks_keep_to_the_budget() -> None:
    """No forward holds more token rows, prompts or logits than the budget says, as long as one answer fits; every answer comes once."""
    pair = pair_of("gemma")
    vocabulary = pair.recipient.config.vocab_size
    for executor in ("packed", "rows"):
        for budget in (Budget(tokens=130), Budget(prompts=2), Budget(tree=60), Budget(logits=3 * vocabulary)):
            engine = Engine(pair, executor, budget)
            labels = []
            for chunk in engine.run(engine.plan(pool(), ["FE", "LT", "FE+LT"])):
                assert chunk.token_rows <= budget.tokens
                assert chunk.logits.numel() <= max(budget.logits, 3 * vocabulary)
                labels += list(zip(chunk.prompt.tolist(), chunk.configuration.tolist(), chunk.readout.tolist(), strict=True))
            assert sorted(labels) == [(p, c, 0) for p in range(len(pool())) for c in range(3)], (executor, budget)


# ------------------------------------------------------------------------------------------------ duality, order of terms


@kinds
def test_duality(family: str, attention: str, tied: bool) -> None:
    """Grafting S into PRE from SFT = grafting all but S, final norm and head included, into SFT from PRE."""
    pair = pair_of(family, attention, tied)
    swapped = ModelPair("swapped", pair.donors["sft"], {"sft": pair.recipient}, pair.tokenizer, pair.family)
    prompts = pool()[1::3]
    assert distance(grafted_logits(pair, prompts, ["FE"]), grafted_logits(swapped, prompts, ["FE^C; ALL:ln_f+head"])) <= EXACT
    assert distance(grafted_logits(pair, prompts, ["FE"]), grafted_logits(swapped, prompts, ["FE^C"])) > 1e-3
    one_donor = grafts(("FE", "LT", "R"), pair.family.components, ("sft", "recipient"), pair.n_layers)

    @examples(5)
    @given(st.lists(one_donor, min_size=1, max_size=4), st.sampled_from(("packed", "rows")))
    def law(some: list[str], executor: str) -> None:
        others = ["; ".join((EVERYTHING, *map(_exchanged, graft.split("; ")))) for graft in some]
        assert distance(grafted_logits(pair, prompts, some, executor), grafted_logits(swapped, prompts, others, executor)) <= EXACT

    law()


def _exchanged(term: str) -> str:
    """The same sites with the roles of recipient and donor exchanged."""
    return term.removesuffix("=recipient") if term.endswith("=recipient") else f"{term.removesuffix('=sft')}=recipient"


@families
@pytest.mark.parametrize("executor", ("packed", "rows"))
def test_later_terms_win(family: str, executor: str) -> None:
    """Whatever stands before a term that covers it does not matter; `recipient` puts everything back."""
    pair = pair_of(family)
    whatever = grafts(("FE", "LT", "R", "P"), pair.family.components, ("sft", "task", "recipient"), pair.n_layers)

    @examples(5)
    @given(whatever)
    def law(graft: str) -> None:
        covering = (f"{EVERYTHING}=task", f"{EVERYTHING}=recipient", EVERYTHING)
        got = grafted_logits(pair, pool()[:2], [*(f"{graft}; {last}" for last in covering)], executor)
        assert distance(got, grafted_logits(pair, pool()[:2], list(covering), executor)) <= EXACT

    law()
    overlapping = ["FE; FE+LT=task", "FE+LT; FE=task", "FE=task; LT"]
    got = grafted_logits(pair, pool()[:2], overlapping, executor)
    assert distance(got, grafted_logits(pair, pool()[:2], ["FE+LT=task", "LT; FE=task", "LT; FE=task"], executor)) <= EXACT


@families
@executors
def test_embeddings_never_change_a_tied_head(family: str, executor: str) -> None:
    """In a pair whose models tie head and embeddings, grafting the embeddings changes what goes in and nothing of what comes out."""
    pair = pair_of(family)
    before = pair.recipient.get_output_embeddings().weight.clone()
    (got,) = grafted_logits(pair, pool()[:1], ["ALL:emb"], executor)
    ids = torch.tensor([pair.encode(pool()[0])])
    with torch.no_grad():
        embedded = pair.donors["sft"].get_input_embeddings()(ids)
        wanted = pair.recipient(inputs_embeds=embedded).logits[0, -1]
    assert distance(got[0], wanted) <= EXACT
    assert torch.equal(pair.recipient.get_output_embeddings().weight, before)
    assert torch.equal(pair.recipient.get_input_embeddings().weight, before), "the pico pair was tied"


# ------------------------------------------------------------------------------------------------ the models are left alone


def state(model: nn.Module) -> tuple[str, list[str], bool]:
    """All that a block could leave behind: weights, forwards and hooks in modules' own dictionaries, the mode."""
    own = [f"{path}.{key}" for path, m in model.named_modules() for key in m.__dict__ if key == "forward" or (key.endswith("hooks") and m.__dict__[key])]
    return weights_hash(model), own, model.training


@kinds
def test_models_are_restored_bit_for_bit(family: str, attention: str, tied: bool) -> None:
    """After a run, all weights have the bytes they had, no module a forward of its own, and plain logits are equal bit for bit."""
    pair = pair_of(family, attention, tied)
    models = (pair.recipient, *pair.donors.values())
    before = [(state(m), alone(m, pair, pool()[:1])) for m in models]
    for executor in EXECUTORS:
        grafted_logits(pair, pool()[:2], ["FE", f"{EVERYTHING}; LT:q+emb+head=task", "PRE", "SFT"], executor)
        for model, (weights, logits) in zip(models, before, strict=True):
            assert state(model) == weights
            assert torch.equal(alone(model, pair, pool()[:1]), logits)
    assert all(not own for (_, own, _), _ in before)


@families
@executors
def test_models_are_restored_after_an_exception(family: str, executor: str) -> None:
    """The same when a module in the middle of the forward raises, in the recipient or in a donor."""
    pair = pair_of(family)
    before = [state(m) for m in (pair.recipient, *pair.donors.values())]
    for broken in (pair.recipient, pair.donors["sft"]):
        module = broken.get_submodule(f"{pair.family.layers}.1.{pair.family.inside['down'].module}")

        def explode(*_: object) -> None:
            raise ZeroDivisionError("in the middle")

        module.__dict__["forward"] = explode
        try:
            with pytest.raises(ZeroDivisionError, match="in the middle"):
                grafted_logits(pair, pool()[:2], ["FE", "SFT", "LT:down"], executor)
            assert module.__dict__["forward"] is explode
        finally:
            del module.__dict__["forward"]
        assert [state(m) for m in (pair.recipient, *pair.donors.values())] == before
    assert distance(grafted_logits(pair, pool()[:1], ["PRE"], executor)[:, 0], alone(pair.recipient, pair, pool()[:1])) <= EXACT


@families
@executors
def test_a_module_s_own_forward_is_used_and_put_back(family: str, executor: str) -> None:
    """A forward that someone had put on a module, as wrappers do, is what computes, and the same object stands there afterwards."""
    pair = pair_of(family)
    plain = grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor)
    modules = [pair.recipient.get_submodule(pair.family.path(layer, c)) for layer, c in ((1, "o"), (None, "head"), (None, "emb"))]
    forwards = []
    for module in modules:
        forwards.append(lambda *a, inner=module.forward: 2 * inner(*a))
        module.__dict__["forward"] = forwards[-1]
    try:
        changed = grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor)
        assert [m.__dict__["forward"] for m in modules] == forwards
        assert distance(changed, plain) > 1e-3
    finally:
        for module in modules:
            del module.__dict__["forward"]
    assert distance(grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor), plain) == 0


def test_blocks_restore_when_their_body_raises() -> None:
    """Every block of forward.py undoes itself when what stands in it raises."""
    pair = pair_of("gpt2")
    wiring = Wiring(pair)
    before = state(pair.recipient)
    table = np.array([[0] * len(wiring.slots), [1] * len(wiring.slots)], dtype=np.uint8)
    blocks = (
        lambda: treated(wiring, table, np.array([0, 1, 1]), torch.tensor([2])),
        lambda: one_treatment(wiring, table[1]),
        lambda: reading(wiring, torch.tensor([2])),
    )
    for block in blocks:
        with pytest.raises(KeyboardInterrupt), block() as model:
            assert state(model)[1], "the block does something"
            raise KeyboardInterrupt
        assert state(pair.recipient) == before


def test_an_abandoned_run_leaves_nothing_behind() -> None:
    """A caller who stops listening after the first chunk finds the models as they were."""
    pair = pair_of("gemma")
    before = state(pair.recipient)
    for executor in EXECUTORS:
        engine = Engine(pair, executor, Budget(prompts=1))
        next(engine.run(engine.plan(pool()[:3], ["FE", "LT"])))
        assert state(pair.recipient) == before
        assert not torch.is_inference_mode_enabled()


# ------------------------------------------------------------------------------------------------ what is computed


@families
def test_token_rows_are_the_distinct_prefixes(family: str) -> None:
    """The packed executor computes each distinct history of treatments of a prompt once: as many token rows as there are prefixes."""
    pair = pair_of(family)

    @examples(15)
    @given(cases(pair, prompts=3, configurations=8))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case
        assert _token_rows(pair, prompts, configurations) == sum(_prefixes(pair, p, configurations) for p in prompts)

    law()
    pathways = [c for c in CONFIGURATIONS if c != "ALL"]
    for prompt in pool():
        rows = _token_rows(pair, [prompt], pathways)
        assert rows == _prefixes(pair, prompt, pathways)
        assert rows < 0.65 * len(pathways) * len(pair.encode(prompt))
    sweep = [f"LT:{c}@{layer}" for layer in range(3) for c in pair.family.inside]
    assert _token_rows(pair, pool()[:1], sweep) == len(pair.encode(pool()[0])) - 1 + len(sweep)


def _token_rows(pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[str]) -> int:
    engine = Engine(pair, "packed", Budget(tree=10**6, tokens=10**6))
    return sum(chunk.token_rows for chunk in engine.run(engine.plan(prompts, configurations)))


def _prefixes(pair: ModelPair, prompt: Prompt, configurations: Sequence[str]) -> int:
    """Distinct prefixes, without places that the model does not have, and final norm and head where nothing is read."""
    n = len(pair.encode(prompt))
    found = set()
    for graft in configurations:
        history: tuple[object, ...] = ()
        for token, assignment in enumerate(oracle.assignments(graft, pair.regions(prompt), n, pair.n_layers)):
            idle = () if token == n - 1 else ("ln_f", "head")
            real = frozenset((p, d) for p, d in assignment if p not in idle and oracle.weights(pair.recipient, p))
            history = (*history, real)
            found.add(history)
    return len(found)
