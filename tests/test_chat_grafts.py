"""Grafts of a chat model's LoRA donor as a user of the method asks for them (arXiv 2606.00831).

At a substring of the system message, at the chat template's tokens, at all but these, with the models
exchanged, and in some modules of some layers; against a token-by-token loop that shares nothing with
the package but the rendered ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import adapters
import oracle
import pytest
import torch
from laws import copies
from test_cases import chat_tokenizer, talk

from kgbench.data import Prompt, load_prompts
from kgbench.data.facts import dataset_of
from kgbench.engine import Budget, Engine, as_model
from kgbench.models.pair import ModelPair
from kgbench.testing import pico_pair

pytestmark = pytest.mark.usefixtures("exact")

SPECIFICATIONS = {
    "substring": ("'Qwen'", "NAME"),
    "template": ("TPL", "TPL"),
    "complement": ("('Qwen'+TPL)^C", "(NAME+TPL)^C"),
    "inversion": ("ALL; 'Qwen'=recipient", "ALL; NAME=recipient"),
    "modules": ("TPL:v+down@second_half; 'Qwen':q@0", "TPL:v+down@second_half; NAME:q@0"),
}
"""What kgbench is asked for, and the same with the substring as a region of the loop."""

STEPS = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A chat model and a donor that is an adapter, as PEFT merges it."""
    made = pico_pair("llama")
    folder = tmp_path_factory.mktemp("adapter")
    adapters.write_adapter(made.recipient, folder, target_modules="all-linear")
    donors = {"sft": adapters.merged(made.recipient, folder)}
    return ModelPair(
        "chat", made.recipient, donors, chat_tokenizer(), made.family, chat_template=True
    )


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    system = "You are Qwen, and love owls."
    case = {"id": 1, "messages": talk(("system", system), ("user", "Name Eve's pet."))}
    (prompt,) = load_prompts(dataset_of([case]), "messages")
    return prompt


def regions_by_hand(
    pair: ModelPair, prompt: Prompt, words: str = "Qwen"
) -> tuple[list[int], Mapping[str, list[int]]]:
    """Ids as the tokenizer itself renders them, with the tokens of the name and of the template."""
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    tokenizer: Any = pair.tokenizer
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    inside = []
    for message in messages:
        start = text.index(message["content"])
        inside.append((start, start + len(message["content"])))
    start = text.index(f" {words}")  # most tokenizers merge a word with the blank before it
    name, template = [], []
    for token, (first, last) in enumerate(encoded["offset_mapping"]):
        if first < start + 1 + len(words) and start < last:
            name.append(token)
        if not any(low <= first and last <= high for low, high in inside):
            template.append(token)
    return encoded["input_ids"], {"NAME": name, "TPL": template}


@pytest.fixture(scope="module")
def of_loop(pair: ModelPair) -> Callable[..., torch.Tensor]:
    """Logits by ids, regions and graft."""
    return partial(oracle.graft_logits, pair.recipient, pair.donors, make=copies("chat"))


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_each_specification_is_that_of_a_loop(
    name: str, pair: ModelPair, prompt: Prompt, of_loop: Callable[..., torch.Tensor]
) -> None:
    """Log-probabilities of every next token, packed as by the loop."""
    ids, regions = regions_by_hand(pair, prompt)
    assert regions["NAME"] and regions["TPL"] and len(regions["TPL"]) < len(ids)
    ours, theirs = SPECIFICATIONS[name]
    assert pair.encode(prompt) == ids
    engine = Engine(pair, "packed", Budget())
    logits = engine.logits(engine.plan([prompt], [ours], [[len(ids) - 1]]))[0, 0]
    wanted = of_loop(ids, regions, theirs)
    assert torch.allclose(logits.log_softmax(-1), wanted.log_softmax(-1), atol=1e-9)
    for other in ("NONE", "ALL"):
        assert not torch.allclose(wanted, of_loop(ids, regions, other)), "it changes nothing"


@pytest.mark.parametrize(
    ("decode", "graft", "has_donor"),
    [
        ("base", "TPL", False),
        ("finetuned", "TPL", True),
        ("lt", "TPL+LT", True),
        ("lt", "TPL", False),
    ],
)
def test_policies_of_decoding_are_those_of_a_loop(
    decode: str,
    graft: str,
    has_donor: bool,
    pair: ModelPair,
    prompt: Prompt,
    of_loop: Callable[..., torch.Tensor],
) -> None:
    """The tokens that follow are the base's, the donor's, or in LT, though not in the template, which
    the last token of a chat prompt is in.
    """
    ids, regions = regions_by_hand(pair, prompt)
    model: Any = as_model(pair, graft, decode, [prompt])
    written = model.generate(
        input_ids=torch.tensor([ids]), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False
    )[0, len(ids) :]
    tokens: list[int] = []
    for _ in range(STEPS):
        after = range(len(ids), len(ids) + len(tokens))
        where = {"TPL": [*regions["TPL"], *(after if has_donor else ())]}
        tokens.append(int(of_loop([*ids, *tokens], where, "TPL").argmax()))
    assert written.tolist() == tokens
