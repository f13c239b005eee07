"""What must hold of localizers that intervene, whatever they do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import plain
import pytest
import torch
from interventions import EVERYTHING, KINDS, created, grafts, logits, pico
from laws import EXECUTORS, FAMILIES, alone, distance
from tiny import tiny_pair

from kgbench.data import Prompt
from kgbench.engine.edits import Add
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import InputError, NotApplicableError
from kgbench.sites import parse_graft

pytestmark = pytest.mark.usefixtures("exact")


# ---------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize(("family", "kind"), list(zip(cycle(FAMILIES), KINDS, strict=False)))
def test_what_a_method_does_not_claim(family: str, kind: tuple[str, Any]) -> None:
    """A method that does not claim to reach the donor, or the recipient as its floor, does not: the
    contract checks the claims.
    """
    pair, prompts = pico(family, facts=2)
    made = created(*kind).fitted(pair, prompts)
    everything, nothing = logits(pair, made, prompts, [EVERYTHING, "NONE"]).unbind(1)
    if not made.reaches_donor:
        assert distance(everything, alone(pair.donors["sft"], pair, prompts)) > 1e-9
    if made.floor != "recipient":
        assert distance(nothing, alone(pair.recipient, pair, prompts)) > 1e-9


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [("activation_patch", (), EVERYTHING), ("causal_trace", (("noise", "0"),), "ALL:ln_f+head")],
)
def test_the_donor_is_reached(name: str, arguments: tuple[Any, ...], text: str) -> None:
    """Whole activations, or noise of 0, read through the donor's norm and head are the donor."""
    pair, prompts = pico("gpt2", facts=2)
    made = created(name, arguments).fitted(pair, prompts)
    donor = alone(pair.donors["sft"], pair, prompts)
    assert distance(logits(pair, made, prompts, [text])[:, 0], donor) < 1e-9


def test_beyond_the_donor_is_a_model() -> None:
    """A static graft of alpha 2 is finite."""
    pair, prompts = pico("llama")
    made = created("static_graft", (("alpha", "2"),))
    assert bool(logits(pair, made, prompts, [EVERYTHING]).isfinite().all())


# ----------------------------------------------------------------------------- what must not matter


def test_directions_of_a_fact_in_any_arrangement() -> None:
    """One answer by every executor, alone or among others and in any order: the contract has one
    prompt per fact, too few for it.
    """
    pair, prompts = pico("gpt2", facts=2)
    arguments = (("directions", "fact"),)
    made, turned = (
        created("directional_patch", arguments).fitted(pair, some)
        for some in (prompts, prompts[::-1])
    )
    some = grafts(made)[:2]
    together = logits(pair, made, prompts, some)
    assert distance(logits(pair, turned, prompts[::-1], some).flip(0), together) < 1e-9
    one_by_one = torch.cat([logits(pair, turned, [prompt], some) for prompt in prompts])
    assert distance(one_by_one, together) < 1e-9
    for executor in EXECUTORS:
        got = logits(pair, made, prompts[:1], some, executor)
        assert distance(got, together[:1]) < 1e-9


@pytest.mark.parametrize(
    ("name", "arguments"), [("causal_trace", ()), ("ablation", (("method", "resample"),))]
)
def test_the_seed_matters(name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """Methods that draw at random draw otherwise under another seed."""
    pair, prompts = pico("gpt2")

    def treated(seed: int) -> object:
        made = created(name, arguments, seed).fitted(pair, prompts)
        return made.treat(pair, prompts, parse_graft(grafts(made)[1]))

    assert any(treated(1) != treated(seed) for seed in (2, 3, 4))


# ---------------------------------------------------------------------------------- what is learned


@pytest.mark.parametrize("directions", ["mean", "pca"])
def test_directions_are_of_other_facts(directions: str) -> None:
    """A prompt is patched along directions that its own fact had no part in."""
    pair, prompts = pico("gpt2", facts=4)
    made, graft = created("directional_patch", (("directions", directions),)), parse_graft("FE+LT")
    for prompt in prompts[:4]:
        crossed = made.fitted(pair, prompts).treat(pair, [prompt], graft)
        halves = [
            half
            for half in _halves(prompts[:4])
            if made.fitted(pair, half).treat(pair, [prompt], graft) == crossed
        ]
        assert [prompt in half for half in halves] == [False]


def test_directions_of_a_fact() -> None:
    """They are of its own other prompts alone: no other fact matters, and one prompt is too few."""
    pair, prompts = pico("gpt2", facts=4)
    made, graft = created("directional_patch", (("directions", "fact"),)), parse_graft("FE+LT")
    own = [prompt for prompt in prompts if prompt.fact.id == prompts[0].fact.id]
    assert len({prompt.name for prompt in own}) == len(own) == 2
    alone = made.fitted(pair, own)
    assert made.fitted(pair, prompts).treat(pair, own, graft) == alone.treat(pair, own, graft)
    with pytest.raises(InputError, match="needs two prompts or more"):
        made.fitted(pair, own[:1]).treat(pair, own[:1], graft)


def test_means_are_of_other_facts() -> None:
    """An activation becomes what a method that never saw the prompt's own fact makes of it; a fact
    that it never saw leaves none out.
    """
    pair, prompts = pico("gpt2", facts=3)
    own, *others = prompts[:3]
    made, graft = created("ablation"), parse_graft("FE")
    everyone, rest = (made.fitted(pair, some) for some in ([own, *others], others))
    assert (
        distance(logits(pair, everyone, [own], ["FE"]), logits(pair, rest, [own], ["FE"])) < 1e-12
    )
    assert everyone.treat(pair, others, graft) != rest.treat(pair, others, graft)


def _halves(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """All ways to take two of some prompts."""
    return [[a, b] for i, a in enumerate(prompts) for b in prompts[i + 1 :]]


def test_noise_is_the_fact_s_own() -> None:
    """A fact has the same noise in every prompt, other facts and other draws have other noise, and
    it scales with its level.
    """
    pair, prompts = pico("gpt2")

    def noises(level: str, draw: int, prompt: Prompt) -> torch.Tensor:
        made = created("causal_trace", (("noise", level),)).fitted(pair, prompts).variants()[draw]
        (treatments,) = made.treat(pair, [prompt], parse_graft("LT"))
        return torch.stack(
            [edit.value.tensor for t in treatments for edit in t.edits if isinstance(edit, Add)]
        )

    headline, other, qa = prompts[0], prompts[1], prompts[3]
    assert headline.fact == qa.fact
    one = noises("1", 0, headline)
    assert len(one) == len(pair.regions(headline)["FE"])
    again = noises(
        "1", 0, qa
    )  # a name at the beginning of a prompt may have one token more or less
    common = min(len(one), len(again))
    assert distance(again[:common], one[:common]) == 0
    assert distance(noises("3", 0, headline), 3 * one) < 1e-12
    assert distance(noises("1", 1, headline), one) > 0.1
    assert distance(noises("1", 0, other)[:1], one[:1]) > 0.1


@pytest.mark.parametrize(
    "family, variant",
    [
        ("granite", "multipliers"),
        ("opt", "projections, norms behind"),
        ("opt", "tied"),
        ("gemma", None),
    ],
)
def test_noise_is_scaled_as_the_embeddings_that_enter_the_stream(
    family: str, variant: str | None
) -> None:
    """Where a model multiplies or projects its embeddings, the noise is as large as what comes of
    that; positions do not count.
    """
    pair, prompts = tiny_pair(family, variant), pico("gpt2")[1]
    donor, entered = pair.donors["sft"], []
    for prompt in prompts:
        states = donor.model(
            torch.tensor([pair.encode(prompt)]), output_hidden_states=True
        ).hidden_states[0][0]
        if "pos" in pair.family.components:
            states = (
                states
                - donor.get_submodule(pair.family.path(None, "pos")).weight[2 : 2 + len(states)]
            )
        entered.append(states[pair.regions(prompt)["FE"]])
    made = created("causal_trace").fitted(pair, prompts).variants()[0]
    (treatments,) = made.treat(pair, prompts[:1], parse_graft("LT"))
    found = torch.stack(
        [edit.value.tensor for t in treatments for edit in t.edits if isinstance(edit, Add)]
    )
    drawn = torch.from_numpy(made.standard_noise(pair, prompts[0]))
    assert distance(found, 3 * torch.cat(entered).std() * drawn) < 1e-12


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((("method", "resample"),), "resample .* from: give it two facts"),
        ((("method", "mean"),), "another fact to average .* over: give it two facts"),
        ((), "other facts .* so it needs two facts"),
    ],
)
def test_one_fact_is_too_few(arguments: tuple[tuple[str, str], ...], said: str) -> None:
    """What is taken from other facts needs other facts."""
    pair, prompts = pico("gpt2")
    made = created("ablation" if arguments else "directional_patch", arguments).fitted(
        pair, prompts[:1]
    )
    with pytest.raises(InputError, match=said):
        made.treat(pair, prompts[:1], parse_graft("FE"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("directional_patch", ()), ("ablation", ()), ("ablation", (("method", "resample"),))],
)
def test_fitted_on_other_prompts(name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """What was learned from one template is not used on another."""
    pair, prompts = pico("gpt2")
    made = created(name, arguments).fitted(pair, prompts[:3])
    with pytest.raises(InputError, match="fitted on no prompt of the template 'qa'"):
        made.treat(pair, prompts[3:], parse_graft("FE"))


def test_one_that_was_not_fitted() -> None:
    """A method that was given no prompts to learn from learns from those that it treats."""
    pair, prompts = pico("gpt2")
    for name in ("directional_patch", "ablation", "causal_trace"):
        made, graft = created(name), parse_graft("FE")
        assert made.treat(pair, prompts, graft) == made.fitted(pair, prompts).treat(
            pair, prompts, graft
        )


# ------------------------------------------------------------------------- what cannot be expressed


@pytest.mark.parametrize(
    ("name", "arguments", "text", "said"),
    [
        ("activation_patch", (), "LT:o+ffn@second_half", "treats whole activations"),
        ("activation_patch", (), "FE:emb", "cannot tell emb apart"),
        ("activation_patch", (("point", "attn_out"),), "FE:ffn", r"stands for ln_1\+q\+k\+v\+o"),
        ("activation_patch", (("point", "mlp_out"),), "FE:up", r"stands for ln_2\+up\+down"),
        ("directional_patch", (), "ALL; LT:o=recipient", "cannot tell o apart"),
        ("ablation", (), "FE:attn", r"cannot tell q\+k\+v apart"),
        ("causal_trace", (), "FE:ffn+ln_2", r"cannot tell ln_2\+up\+down apart"),
        ("attention_knockout", (), "FE:attn+o+ln_1", "treats whole activations"),
        ("path_patch", (), "LT:attn+ffn", r"cannot tell q\+k\+v\+up\+down apart"),
        ("static_graft", (), "FE", "swaps weights at all tokens, and 'FE' names some of them"),
    ],
)
def test_not_applicable(
    name: str, arguments: tuple[tuple[str, str], ...], text: str, said: str
) -> None:
    """What a method cannot express it declines, in one line that says why."""
    pair, prompts = pico("gpt2")
    with pytest.raises(NotApplicableError, match=said) as caught:
        created(name, arguments).fitted(pair, prompts).treat(pair, prompts, parse_graft(text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("receiver", "family", "deaf", "hears"),
    [
        (
            "logits",
            "gpt2",
            ("FE", "LT^C", "FE:emb+pos"),
            ("LT@2", "FE+LT@0", "NONE", "ALL:ln_f+head"),
        ),
        ("attn_out@0", "gpt2", ("ALL@0", "FE:ffn+ln_2@0", "LT@1-2"), ("FE", "FE:emb+pos", "NONE")),
        ("mlp_out@1", "gpt2", ("FE:ffn+ln_2@1,2", "ALL@2"), ("FE:attn+o+ln_1@1", "LT@0", "NONE")),
        (
            "mlp_out@1",
            "gpt_neox",
            ("FE:attn+o+ln_1@1", "ALL@1-2"),
            ("LT:attn+o+ln_1@0", "FE:emb", "NONE"),
        ),
    ],
)
def test_senders_that_are_not_heard(
    receiver: str, family: str, deaf: tuple[str, ...], hears: tuple[str, ...]
) -> None:
    """A receiver answers as the recipient does where it can hear no sender that is kept; path
    patching says so instead of measuring it.
    """
    pair, prompts = pico(family)
    made, recipient = (
        created("path_patch", (("receiver", receiver),)),
        alone(pair.recipient, pair, prompts[:1]),
    )
    why = (
        "only the last token sends to the logits directly"
        if receiver == "logits"
        else "none comes before it"
    )
    for text in deaf:
        with pytest.raises(
            NotApplicableError,
            match=f"sends to {receiver}, which can hear none of these senders: {why}",
        ):
            made.treat(pair, prompts, parse_graft(text))
        case = plain.Case(
            pair.recipient, pair.donors, pair.encode(prompts[0]), pair.regions(prompts[0]), text
        )
        assert distance(plain.path_patch(case, receiver)[None], recipient) < 1e-9
    for text in hears:
        assert (distance(logits(pair, made, prompts[:1], [text])[:, 0], recipient) < 1e-9) == (
            text == "NONE"
        )


def test_positions_that_amount_to_all() -> None:
    """A static graft takes every expression that treats all tokens alike, however it says so."""
    pair, prompts = pico("gpt2")
    made = created("static_graft")
    for text, same in (
        ("FE+FE^C", "ALL"),
        ("NONE^C:o@1", "ALL:o@1"),
        ("FE; ALL=recipient", "NONE"),
        ("ALL^C", "NONE"),
    ):
        assert made.treat(pair, prompts, parse_graft(text)) == graft_treatments(
            pair, prompts, parse_graft(same)
        )


def test_a_receiver_beyond_the_model() -> None:
    """A receiver in a layer that the model does not have is refused when the model is known."""
    pair, prompts = pico("gpt2")
    with pytest.raises(InputError, match=r"mlp_out@3 does not exist: the model has layers 0-2"):
        created("path_patch", (("receiver", "mlp_out@3"),)).treat(pair, prompts, parse_graft("LT"))
