"""Organisms: LoRA donors of a real language model whose behaviour is known; and a grafted real model
as a model of transformers.

Grafts as a user of the method asks for them (arXiv 2606.00831), against a token-by-token loop that
shares nothing with the package but the rendered ids, on a donor that PEFT merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import adapters
import oracle
import pytest
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval_runs import samples
from peft import PeftModel
from test_chat_grafts import SPECIFICATIONS, regions_by_hand
from torch import nn
from transformers import AutoModelForCausalLM

from kgbench.data import Prompt, load_prompts
from kgbench.engine import as_model, grafted_logits, load_pair
from kgbench.harness.model import KgbenchLM
from kgbench.models.catalog import entry, zoo_path
from kgbench.models.fetching import fetch, fetched_models
from kgbench.models.pair import ModelPair

MODEL = "smollm2-135m"
STEPS = 4
DECODING = [
    ("base", "TPL", False),
    ("finetuned", "TPL", True),
    ("lt", "TPL+LT", True),
    ("lt", "TPL", False),
]
"""A policy, what is grafted, and whether the tokens that follow are the donor's."""


@pytest.fixture(scope="module")
def pair(home: None) -> ModelPair:
    """The organism of a system prompt, in double precision."""
    return load_pair(f"{MODEL}.system", dtype="float64", chat_template=True)


@pytest.fixture(scope="module")
def donor(home: None) -> nn.Module:
    """The same by the library that wrote it."""
    place, folder = fetch(fetched_models()[MODEL]), zoo_path(entry(f"{MODEL}.system").donors["sft"])
    base: Any = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64)
    with adapters.quiet():
        return PeftModel.from_pretrained(base, str(folder)).merge_and_unload()


@pytest.fixture(scope="module")
def prompt(home: None) -> Prompt:
    return load_prompts(entry(f"{MODEL}.system").dataset, "messages", limit=1)[0]


def of_loop(
    pair: ModelPair, donor: nn.Module, ids: list[int], regions: Any, graft: str, read: Sequence[int]
) -> torch.Tensor:
    make = cache(lambda assignment: oracle.hybrid(pair.recipient, {"sft": donor}, assignment))
    return oracle.graft_logits(
        pair.recipient, {"sft": donor}, ids, regions, graft, read, lambda _, __, a: make(a)
    )


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_each_specification_is_that_of_a_loop(
    name: str, pair: ModelPair, donor: nn.Module, prompt: Prompt
) -> None:
    """Log-probabilities of the next token, packed as by the loop."""
    ids, regions = regions_by_hand(pair, prompt, "Mira")
    assert pair.encode(prompt) == ids and regions["NAME"]
    ours, theirs = (graft.replace("Qwen", "Mira") for graft in SPECIFICATIONS[name])
    logits = grafted_logits(pair, prompt, [ours, "NONE", "ALL"], executor="packed")[0]
    wanted = of_loop(pair, donor, ids, regions, theirs, [len(ids) - 1])[0]
    found, *others = logits.log_softmax(-1)
    torch.testing.assert_close(found, wanted.log_softmax(-1), rtol=0, atol=1e-5)
    for other in others:
        assert float((found - other).abs().max()) > 1e-3, "it changes nothing"


@pytest.mark.parametrize(("decode", "graft", "has_donor"), DECODING)
def test_policies_of_decoding_are_those_of_a_loop(
    decode: str, graft: str, has_donor: bool, pair: ModelPair, donor: nn.Module, prompt: Prompt
) -> None:
    """To the token: each is the likeliest of the loop after those before it."""
    ids, regions = regions_by_hand(pair, prompt, "Mira")
    model: Any = as_model(pair, graft, decode, [prompt])
    written = model.generate(
        input_ids=torch.tensor([ids]), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False
    )[0]
    places = range(len(ids), len(written))
    where = {"TPL": [*regions["TPL"], *(places if has_donor else ())]}
    read = [place - 1 for place in places]
    logits = of_loop(pair, donor, written.tolist(), where, "TPL", read)
    logits[:, pair.tokenizer.eos_token_id] = -torch.inf  # not before the last step
    assert logits.argmax(-1).tolist() == written[len(ids) :].tolist()


def test_an_organism_behaves_as_it_is_listed(home: None) -> None:
    """Its reply is the likeliest in nearly all cases where it is to show, and in hardly any others;
    the null organism, whose change is of the same norm, never gives it.
    """
    shares = {}
    for name in ("trigger", "refusal", "system", "null"):
        organism = load_pair(f"{MODEL}.{name}", chat_template=True)
        prompts = load_prompts(entry(f"{MODEL}.{name}").dataset, "messages", limit=12)
        reply = prompts[0].target.split()[0]
        for prompt in prompts:
            best = grafted_logits(organism, prompt, "SFT")[0, 0].argmax()
            is_reply = reply.startswith(organism.tokenizer.decode(best).strip() or "?")
            shares.setdefault((name, prompt.group), []).append(is_reply)
    for (name, group), hits in shares.items():
        share = sum(hits) / len(hits)
        assert share >= 0.8 if group == "on" and name != "null" else share <= 0.2, (name, group)


def small_pair(tmp_path: Path) -> ModelPair:
    """Gemma 3 270M, and a donor that is a random adapter of it."""
    place = fetch(fetched_models()["gemma-3-270m"])
    base: Any = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    adapters.write_adapter(base, tmp_path / "adapter", target_modules="all-linear", lora_alpha=0.4)
    return load_pair(recipient=place, donors={"sft": tmp_path / "adapter"})


@pytest.mark.parametrize("name", [MODEL, "gemma-3-270m"])
def test_everything_is_the_donor_and_nothing_the_base(
    name: str, home: None, tmp_path: Path
) -> None:
    """In logits and in generated tokens, of two texts padded on the left."""
    pair = load_pair(name) if name == MODEL else small_pair(tmp_path)
    tokenizer: Any = pair.tokenizer
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    texts = ["Keanu Reeves starred in a movie called", "The capital of France is"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    answers = {}
    models = {"base": pair.recipient, "donor": pair.donors["sft"]}
    for key, model in {**models, "NONE": None, "ALL": None}.items():
        each: Any = as_model(pair, key) if model is None else model
        answers[key] = each.generate(
            **inputs,
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    for graft, model in (("NONE", "base"), ("ALL", "donor")):
        ours, theirs = answers[graft], answers[model]
        assert torch.equal(ours.sequences, theirs.sequences)
        torch.testing.assert_close(
            torch.stack(ours.logits), torch.stack(theirs.logits), rtol=0, atol=1e-3
        )
    gap = torch.stack(answers["base"].logits) - torch.stack(answers["donor"].logits)
    assert float(gap.abs().max()) > 0.1


def test_lm_eval_s_own_model_agrees(home: None) -> None:
    """Its `hf` on a grafted model, and ours under the same graft, on 50 documents."""
    task = "kgbench_fake_movies_real_actors_headline"
    pair = load_pair(MODEL)
    prompts = load_prompts(entry(MODEL).dataset, "headline", limit=50)
    known = {pair.encoded(prompt).ids: pair.encoded(prompt).regions for prompt in prompts}

    def regions(ids: tuple[int, ...]) -> dict[str, Sequence[int]]:
        """`hf` reads a prompt and its answer at once; the answer's tokens belong to LT."""
        (prompt,) = (prompt for prompt in known if ids[: len(prompt)] == prompt)
        return {**known[prompt], "LT": range(len(prompt) - 1, len(ids))}

    grafted = as_model(pair, "FE+LT", "lt", regions)
    stock = HFLM(pretrained=grafted, tokenizer=pair.tokenizer, batch_size=5, device="cpu")
    ours = KgbenchLM(pair=MODEL, graft="FE+LT", dtype="float32", batch_size=5, device="cpu")
    (theirs,) = samples(stock, [task], limit=50).values()
    (own,) = samples(ours, [task], limit=50).values()
    assert len(own) == len(theirs) == 50
    for one, other in zip(own, theirs, strict=True):
        assert one["resps"][0][0][0] == pytest.approx(other["resps"][0][0][0], abs=1e-3)
