"""The laws of the engine, on random models of every family, random prompts and random grafts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import oracle
import pytest
import torch
from grafts import grafts
from hypothesis import given
from hypothesis import strategies as st
from laws import (
    EVERYTHING,
    EXACT,
    EXECUTORS,
    alone,
    attentions,
    audited,
    cases,
    copies,
    distance,
    examples,
    executors,
    families,
    kinds,
    pair_of,
    pool,
    two_families,
)

from kgbench.data import Prompt
from kgbench.engine import Budget, Engine, grafted_logits
from kgbench.engine.treatment import graft_treatments, n_heads
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair
from kgbench.sites import CONFIGURATIONS, parse_graft

pytestmark = pytest.mark.usefixtures("exact")


# --------------------------------------------------------------------------- everything and nothing


@kinds
def test_everything_is_the_donor_and_nothing_the_recipient(
    family: str, attention: str, tied: bool
) -> None:
    """Grafting every component at every token gives the donor's own logits, grafting none the
    recipient's; so do SFT and PRE.
    """
    pair = pair_of(family, attention, tied)
    prompts = pool()[::2]
    sft, task, pre = (
        alone(model, pair, prompts)
        for model in (pair.donors["sft"], pair.donors["task"], pair.recipient)
    )
    wanted = {
        EVERYTHING: sft,
        f"{EVERYTHING}=task": task,
        "SFT": sft,
        "NONE": pre,
        "PRE": pre,
        f"{EVERYTHING}=recipient": pre,
        "ALL^C": pre,
    }
    for executor in EXECUTORS[:2]:
        got = grafted_logits(pair, prompts, list(wanted), executor)
        assert distance(got, torch.stack(list(wanted.values()), 1)) <= EXACT, executor
    got = grafted_logits(pair, prompts[:2], list(wanted)[:2], "sequential")
    assert distance(got, torch.stack(list(wanted.values())[:2], 1)[:2]) <= EXACT
    assert distance(sft, pre) > 0.1


@executors
def test_sizes_are_those_of_the_chunks(executor: str) -> None:
    """Of each chunk the token rows are known before it is computed."""
    pair = pair_of("llama")
    engine = Engine(pair, executor, Budget(tokens=200, tree=90))
    plan = engine.plan(pool()[::4], CONFIGURATIONS)
    sizes = engine.sizes(plan)
    assert sizes == [chunk.token_rows for chunk in engine.run(plan)] and len(sizes) > 2


@pytest.mark.sampled(1)
@families
def test_a_donor_that_is_the_recipient_changes_nothing(family: str) -> None:
    """Whatever is grafted from a donor with the recipient's weights, the answer is the recipient's."""
    pair = pair_of(family)
    same = ModelPair("same", pair.recipient, {"sft": pair.recipient}, pair.tokenizer, pair.family)
    for executor in EXECUTORS:
        got = grafted_logits(
            same, pool()[:3], ["FE", "LT:q+down@1", "(FE+LT)^C", EVERYTHING], executor
        )
        assert distance(got, alone(pair.recipient, pair, pool()[:3])[:, None]) <= EXACT


@families
def test_one_weight_and_one_epsilon_are_told_apart(family: str) -> None:
    """Where donor and recipient differ in the last weight of a component alone, or in the epsilon
    of a norm, its graft is the donor.
    """
    pair = pair_of(family)
    for component in ("ln_1", "q", "o", "down"):
        donor = deepcopy(pair.recipient)
        module = donor.get_submodule(pair.family.path(1, component))
        if component == "ln_1":
            for name, value in list(vars(module).items()):
                if isinstance(value, float):
                    setattr(module, name, 10 * value + 1)
        else:
            with torch.no_grad():
                weight = oracle.weights(donor, f"1.{component}")[0]
                weight[(-1,) * weight.ndim] += 3
        changed = ModelPair("one", pair.recipient, {"sft": donor}, pair.tokenizer, pair.family)
        got = grafted_logits(changed, pool()[:2], [f"ALL:{component}@1", "PRE"])
        assert distance(got[:, 0], alone(donor, pair, pool()[:2])) <= EXACT
        assert distance(got[:, 0], got[:, 1]) > 1e-6


# ------------------------------------------------------------------------- executors and the oracle


@pytest.mark.sampled(2)
@kinds
def test_executors_give_what_the_paper_s_algorithm_gives(
    family: str, attention: str, tied: bool
) -> None:
    """Packed = rows = sequential = one overwritten copy per token, for any grafts of two donors on
    prompts of mixed length.
    """
    pair, make = pair_of(family, attention, tied), copies(family, attention, tied)

    @examples(3, family, attention, tied)
    @given(cases(pair))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case
        truth = torch.stack(
            [torch.cat([audited(pair, p, g, make=make) for g in configurations]) for p in prompts]
        )
        for executor in EXECUTORS:
            assert (
                distance(grafted_logits(pair, prompts, configurations, executor), truth) <= EXACT
            ), executor

    law()


@pytest.mark.sampled(2)
@kinds
def test_the_pathways_give_what_the_paper_s_algorithm_gives(
    family: str, attention: str, tied: bool
) -> None:
    """The nine configurations of the default suite, with a fresh deep copy of the recipient for
    every token, as published.
    """
    pair, prompt = pair_of(family, attention, tied), pool()[0]
    truth = torch.cat(
        [audited(pair, prompt, g, make=copies(family, attention, tied)) for g in CONFIGURATIONS]
    )
    for executor in EXECUTORS[:2]:
        assert distance(grafted_logits(pair, [prompt], CONFIGURATIONS, executor)[0], truth) <= EXACT
    assert distance(audited(pair, prompt, "FE+LT"), truth[CONFIGURATIONS.index("FE+LT")]) == 0


@pytest.mark.sampled(1)
@families
@attentions
def test_every_component_alone_gives_what_the_paper_s_algorithm_gives(
    family: str, attention: str
) -> None:
    """Each component by itself, in one layer and at some tokens, is the component of that name,
    whatever module computes it.
    """
    pair, prompt = pair_of(family, attention), pool()[1]
    alone = [
        f"FE+LT:{c}@1" if c in pair.family.inside else f"FE+LT:{c}" for c in pair.family.components
    ]
    truth = torch.cat(
        [audited(pair, prompt, g, make=copies(family, attention, True)) for g in alone]
    )
    for executor in EXECUTORS[:2]:
        assert distance(grafted_logits(pair, [prompt], alone, executor)[0], truth) <= EXACT, (
            executor
        )
    pre = audited(pair, prompt, "PRE")
    assert all(distance(one, pre[0]) > 1e-6 for one in truth), "each moves the logits"


@pytest.mark.sampled(1)
@families
@attentions
def test_every_head_gives_what_the_paper_s_algorithm_gives(family: str, attention: str) -> None:
    """A head of `q`, `k` and `v` is a slice of their outputs, one of `o` of its inputs; all heads
    of `q` are `q`, and what a later term says of the whole holds for its heads.
    """
    pair, prompt = pair_of(family, attention), pool()[1]
    heads = [f"{name}.h{n}" for name in ("q", "k", "v", "o") for n in range(n_heads(pair, name))]
    grafts = [f"FE+LT:{head}@1" for head in heads]
    grafts += ["FE:attn@0-1; FE+LT:q.h0+o.h1@1=task", "FE; FE+LT:v.h0+o.h0=recipient"]
    grafts += ["LT:o.h1@1; LT:o@1=task", "LT:q@1", f"LT:{'+'.join(heads[: n_heads(pair, 'q')])}@1"]
    truth = torch.cat(
        [audited(pair, prompt, g, make=copies(family, attention, True)) for g in grafts]
    )
    for executor in EXECUTORS:
        got = grafted_logits(pair, [prompt], grafts, executor)[0]
        assert distance(got, truth) <= EXACT, executor
    assert distance(truth[-1], truth[-2]) <= EXACT
    pre = audited(pair, prompt, "PRE")
    assert all(distance(one, pre[0]) > 1e-7 for one in truth), "each moves the logits"


@families
def test_a_head_that_is_not_there(family: str) -> None:
    """The message names the heads that there are."""
    pair = pair_of(family)
    count = n_heads(pair, "k")
    with pytest.raises(InputError, match=rf"head {count} of k .* the model has {count}, 0-"):
        grafted_logits(pair, pool()[:1], [f"LT:k.h{count}@1"])


@two_families
def test_executors_agree_in_single_precision(family: str) -> None:
    """In float32, everything and nothing included: 1e-4, and the same most likely token."""
    pair, make = pair_of(family, "sdpa", True, torch.float32), copies(family, torch.float32)

    @examples(3, family)
    @given(cases(pair, prompts=1))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case[0], [*case[1], EVERYTHING, f"{EVERYTHING}=task", "NONE"]
        truth = torch.stack(
            [torch.cat([audited(pair, p, g, make=make) for g in configurations]) for p in prompts]
        )
        for executor in EXECUTORS:
            got = grafted_logits(pair, prompts, configurations, executor)
            assert distance(got, truth) <= 1e-4
            assert torch.equal(got.argmax(-1), truth.argmax(-1))

    law()


@two_families
def test_several_positions_are_read_out(family: str) -> None:
    """Logits after any tokens of a prompt, in any order and twice if asked; final norm and head are
    grafted at the token that is read.
    """
    pair, make = pair_of(family), copies(family, "sdpa", True)

    @examples(3, family)
    @given(cases(pair), st.data())
    def law(case: tuple[list[Prompt], list[str]], data: st.DataObject) -> None:
        prompts, configurations = case
        n = data.draw(st.integers(1, 3))
        read = [
            data.draw(st.lists(st.integers(0, len(pair.encode(p)) - 1), min_size=n, max_size=n))
            for p in prompts
        ]
        configurations = [*configurations, "ALL:ln_f; LT:head"]
        truth = torch.stack(
            [
                torch.stack([audited(pair, p, g, r, make) for g in configurations])
                for p, r in zip(prompts, read, strict=True)
            ]
        )
        for executor in EXECUTORS:
            assert (
                distance(grafted_logits(pair, prompts, configurations, executor, read), truth)
                <= EXACT
            ), executor

    law()


def test_the_text_of_a_graft_is_the_graft() -> None:
    """Of a graft's text come its treatments, never those of the finetuned model."""
    pair, prompts = pair_of("gemma"), pool()[:2]
    for text in ("NONE", "FE+LT", "LT:o"):
        made = graft_treatments(pair, prompts, text)
        assert made == graft_treatments(pair, prompts, parse_graft(text))
        assert made != graft_treatments(pair, prompts, "SFT")
    with pytest.raises(InputError, match="FEE"):
        graft_treatments(pair, prompts, "FEE")


def test_readouts_that_are_no_tokens() -> None:
    """A place outside the prompt is refused, counted from the end too: it would be read with other
    weights than asked for.
    """
    pair, prompts = pair_of("gemma"), pool()[:2]
    n = len(pair.encode(prompts[0]))
    for wrong in ([[-1], [0]], [[n], [0]], [[], [0]], [[0]]):
        with pytest.raises(InputError, match="readouts"):
            grafted_logits(pair, prompts, ["FE"], readouts=wrong)
    for nothing in (([], ["FE"]), (prompts, [])):
        with pytest.raises(InputError, match="at least one prompt and one configuration"):
            grafted_logits(pair, *nothing)


# ----------------------------------------------------------------------------- what must not matter


@pytest.mark.sampled(1)
@families
def test_order_batch_and_chunks_do_not_matter(family: str) -> None:
    """A prompt's answer under a configuration is what it is alone: whatever runs beside it, in
    whatever order, in chunks of any size.
    """
    pair = pair_of(family)
    engines = st.builds(
        Budget,
        tokens=st.integers(20, 400),
        prompts=st.none() | st.integers(1, 4),
        tree=st.integers(1, 120),
        logits=st.integers(1, 20) | st.integers(300, 6000),
    )

    @examples(5, family)
    @given(
        cases(pair, prompts=5, configurations=5),
        engines,
        st.sampled_from(("packed", "rows")),
        st.randoms(use_true_random=False),
    )
    def law(case: tuple[list[Prompt], list[str]], budget: Budget, executor: str, rng: Any) -> None:
        prompts, configurations = case
        singly = torch.stack(
            [
                torch.cat([grafted_logits(pair, [p], [g], executor)[0] for g in configurations])
                for p in prompts
            ]
        )
        rows, columns = (rng.sample(range(len(of)), len(of)) for of in (prompts, configurations))
        engine = Engine(pair, executor, budget)
        got = engine.logits(
            engine.plan([prompts[r] for r in rows], [configurations[c] for c in columns])
        )[:, :, 0]
        assert distance(got, singly[rows][:, columns]) <= EXACT
        part = columns[: rng.randint(1, len(columns))]
        assert (
            distance(
                grafted_logits(pair, prompts, [configurations[c] for c in part], executor),
                singly[:, part],
            )
            <= EXACT
        )

    law()


def test_chunks_keep_to_the_budget() -> None:
    """No forward holds more token rows, prompts or logits than the budget says, as long as one
    answer fits; every answer comes once.
    """
    pair = pair_of("gemma")
    vocabulary = pair.recipient.config.vocab_size
    for executor in ("packed", "rows"):
        for budget in (
            Budget(tokens=130),
            Budget(prompts=2),
            Budget(tree=60),
            Budget(logits=3 * vocabulary),
        ):
            engine = Engine(pair, executor, budget)
            labels = []
            for chunk in engine.run(engine.plan(pool(), ["FE", "LT", "FE+LT"])):
                assert chunk.token_rows <= budget.tokens
                assert chunk.logits.numel() <= max(budget.logits, 3 * vocabulary)
                labels += list(
                    zip(
                        chunk.prompt.tolist(),
                        chunk.configuration.tolist(),
                        chunk.readout.tolist(),
                        strict=True,
                    )
                )
            assert sorted(labels) == [(p, c, 0) for p in range(len(pool())) for c in range(3)], (
                executor,
                budget,
            )


# -------------------------------------------------------------------------- duality, order of terms


@kinds
def test_duality(family: str, attention: str, tied: bool) -> None:
    """Grafting S into PRE from SFT = grafting all but S, final norm and head included, into SFT
    from PRE.
    """
    pair = pair_of(family, attention, tied)
    swapped = ModelPair(
        "swapped", pair.donors["sft"], {"sft": pair.recipient}, pair.tokenizer, pair.family
    )
    prompts = pool()[1::3]
    assert (
        distance(
            grafted_logits(pair, prompts, ["FE"]),
            grafted_logits(swapped, prompts, ["FE^C; ALL:ln_f+head"]),
        )
        <= EXACT
    )
    assert (
        distance(grafted_logits(pair, prompts, ["FE"]), grafted_logits(swapped, prompts, ["FE^C"]))
        > 1e-3
    )
    one_donor = grafts(
        ("FE", "LT", "R"), pair.family.components, ("sft", "recipient"), pair.n_layers
    )

    @examples(3, family, attention, tied)
    @given(st.lists(one_donor, min_size=1, max_size=4), st.sampled_from(("packed", "rows")))
    def law(some: list[str], executor: str) -> None:
        others = ["; ".join((EVERYTHING, *map(_exchanged, graft.split("; ")))) for graft in some]
        assert (
            distance(
                grafted_logits(pair, prompts, some, executor),
                grafted_logits(swapped, prompts, others, executor),
            )
            <= EXACT
        )

    law()


def _exchanged(term: str) -> str:
    """The same sites with the roles of recipient and donor exchanged."""
    return (
        term.removesuffix("=recipient")
        if term.endswith("=recipient")
        else f"{term.removesuffix('=sft')}=recipient"
    )


@pytest.mark.sampled(1)
@families
@pytest.mark.parametrize("executor", ("packed", "rows"))
def test_later_terms_win(family: str, executor: str) -> None:
    """Whatever stands before a term that covers it does not matter; `recipient` puts everything
    back.
    """
    pair = pair_of(family)
    whatever = grafts(
        ("FE", "LT", "R", "P"), pair.family.components, ("sft", "task", "recipient"), pair.n_layers
    )

    @examples(5, family, executor)
    @given(whatever)
    def law(graft: str) -> None:
        covering = (f"{EVERYTHING}=task", f"{EVERYTHING}=recipient", EVERYTHING)
        got = grafted_logits(
            pair, pool()[:2], [*(f"{graft}; {last}" for last in covering)], executor
        )
        assert distance(got, grafted_logits(pair, pool()[:2], list(covering), executor)) <= EXACT

    law()
    overlapping = ["FE; FE+LT=task", "FE+LT; FE=task", "FE=task; LT"]
    got = grafted_logits(pair, pool()[:2], overlapping, executor)
    assert (
        distance(
            got,
            grafted_logits(
                pair, pool()[:2], ["FE+LT=task", "LT; FE=task", "LT; FE=task"], executor
            ),
        )
        <= EXACT
    )


@families
@executors
def test_embeddings_never_change_a_tied_head(family: str, executor: str) -> None:
    """In a pair whose models tie head and embeddings, grafting the embeddings changes what goes in
    and nothing of what comes out.
    """
    pair = pair_of(family)
    before = pair.recipient.get_output_embeddings().weight.clone()
    (got,) = grafted_logits(pair, pool()[:1], ["ALL:emb"], executor)
    ids = torch.tensor([pair.encode(pool()[0])])
    with torch.no_grad():
        embedded = pair.donors["sft"].get_input_embeddings()(ids)
        wanted = pair.recipient(inputs_embeds=embedded).logits[0, -1]
    assert distance(got[0], wanted) <= EXACT
    assert torch.equal(pair.recipient.get_output_embeddings().weight, before)
    assert torch.equal(pair.recipient.get_input_embeddings().weight, before), (
        "the pico pair was tied"
    )


# --------------------------------------------------------------------------------- what is computed


@two_families
def test_token_rows_are_the_distinct_prefixes(family: str) -> None:
    """The packed executor computes each distinct history of treatments of a prompt once: as many
    token rows as there are prefixes.
    """
    pair = pair_of(family)

    @examples(6, family)
    @given(cases(pair, prompts=3, configurations=8))
    def law(case: tuple[list[Prompt], list[str]]) -> None:
        prompts, configurations = case
        assert _token_rows(pair, prompts, configurations) == sum(
            _prefixes(pair, p, configurations) for p in prompts
        )

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
    """Distinct prefixes, without places that the model does not have, and final norm and head where
    nothing is read.
    """
    n = len(pair.encode(prompt))
    found = set()
    for graft in configurations:
        history: tuple[object, ...] = ()
        for token, assignment in enumerate(
            oracle.assignments(graft, pair.regions(prompt), n, pair.n_layers)
        ):
            idle = () if token == n - 1 else ("ln_f", "head")
            real = frozenset(
                (p, d) for p, d in assignment if p not in idle and oracle.weights(pair.recipient, p)
            )
            history = (*history, real)
            found.add(history)
    return len(found)
