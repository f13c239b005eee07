"""Plants whose truth is known by construction: biases that push one token over a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from kgbench.data import Prompt, load_prompts
from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.testing import pico_tokenizer

LAYERS, WIDTH = 3, 8


def toy_pair(
    pushes: Mapping[int, float], idle: Sequence[int] = ()
) -> tuple[ModelPair, dict[str, list[Prompt]]]:
    """A pair that answers right where the pushes of its layers add up to more than 1.

    The stream has a 1 in its second place; the answer's logit is the first place and five other
    tokens' the second. The donor's `down` of some layers has a bias that pushes the first place.

    Args:
        pushes: By layer, how far.
        idle: Layers whose `v` changed and is read by nothing.
    """
    tokenizer = pico_tokenizer(bos=False)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=2,
        n_inner=WIDTH,
        n_positions=128,
        bos_token_id=1,
        eos_token_id=2,
    )
    recipient = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(
        torch.float64
    )
    with torch.no_grad():
        for name, parameter in recipient.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        recipient.transformer.wte.weight[:, 1] = 1.0
    donor = deepcopy(recipient)
    with torch.no_grad():
        for layer, push in pushes.items():
            donor.transformer.h[layer].mlp.c_proj.bias[0] = push
        for layer in idle:
            donor.transformer.h[layer].attn.c_attn.bias[2 * WIDTH :] = 1.0
    models = [prepare(model) for model in (recipient, donor)]
    pair = ModelPair("toy", models[0], {"sft": models[1]}, tokenizer, load_family("gpt2"))
    prompts = {name: load_prompts("tiny_movies", [name]) for name in ("headline", "qa")}
    answer = pair.encoded(prompts["qa"][0]).target
    with torch.no_grad():
        for model in models:
            model.lm_head.weight.zero_()
            model.lm_head.weight[answer, 0] = 1.0
            model.lm_head.weight[[token for token in range(6) if token != answer][:5], 1] = 1.0
    return pair, {
        name: [p for p in some if pair.encoded(p).target == answer][:20]
        for name, some in prompts.items()
    }
