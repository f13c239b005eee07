"""A pair under a graft as a transformers model: it generates what a token-by-token pass gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from laws import pool
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel, pipeline

from kgbench.data import Prompt
from kgbench.engine import Budget, Engine, as_model, load_pair
from kgbench.engine.plan import make_plan
from kgbench.engine.treatment import token_treatments
from kgbench.errors import InputError, ModelError, RegionError, UnknownNameError
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.runner import load_prompts
from kgbench.sites import REGIONS
from kgbench.testing import PICO_FAMILIES, pico_pair

pytestmark = pytest.mark.usefixtures("exact")
TINY = ("tiny-gemma", "tiny-gpt2", "tiny-llama", "tiny-pythia")
STEPS = 6


def batch(pair: ModelPair, texts: Sequence[str]) -> dict[str, Any]:
    """Texts as a batch, padded on the left."""
    tokenizer = pair.tokenizer
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return dict(tokenizer(list(texts), return_tensors="pt", padding=True))


def generated(model: PreTrainedModel, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens [text, step], and logits [text, step, vocabulary]."""
    answer = model.generate(
        **inputs,
        max_new_tokens=STEPS,
        min_new_tokens=STEPS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return answer.sequences[:, -STEPS:], torch.stack(answer.logits, dim=1)


@pytest.mark.parametrize("name", TINY)
def test_everything_is_the_donor_and_nothing_the_base(name: str) -> None:
    """In logits and in generated tokens, of a padded batch; the pair is left as it was."""
    pair = load_pair(name)
    inputs = batch(
        pair, [prompt.text for prompt in load_prompts("tiny_movies", ["headline", "qa"], 3)]
    )
    hashes = pair.weight_hashes
    for graft, model in (
        ("NONE", pair.recipient),
        ("PRE", pair.recipient),
        ("ALL", pair.donors["sft"]),
        ("SFT", pair.donors["sft"]),
    ):
        (tokens, logits), (wanted, exact) = (
            generated(each, inputs) for each in (as_model(pair, graft), model)
        )
        assert torch.equal(tokens, wanted), graft
        assert torch.allclose(logits, exact, atol=1e-5)
    assert not pair.changed() and pair.weight_hashes == hashes


@pytest.mark.crossed
@pytest.mark.parametrize("decode", ["base", "finetuned", "lt", "last"])
@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_each_step_is_that_of_a_token_by_token_pass(family: str, decode: str) -> None:
    """Under a graft with terms, complements, components and heads, for each policy of decoding."""
    pair, prompts = pico_pair(family), pool()[:4]
    graft = "FE+R; LT^C:ffn@1; LT:q.h0+o"
    model = as_model(pair, graft, decode, prompts)
    for prompt in prompts:
        encoded = pair.encoded(prompt)
        tokens, logits = generated(model, {"input_ids": torch.tensor([encoded.ids])})
        ids = (*encoded.ids, *tokens[0, :-1].tolist())
        last = len(encoded.ids) - 1
        treatments = list(token_treatments(pair, encoded.regions, last + 1, graft))
        treatments += [after(pair, prompt, graft, decode)] * (len(ids) - last - 1)
        plan = make_plan(
            pair.slots,
            [Encoded(ids, encoded.regions, 0)],
            [[tuple(treatments)]],
            [range(last, len(ids))],
        )
        wanted = Engine(pair, "sequential", Budget()).logits(plan)[0, 0]
        assert torch.allclose(logits[0], wanted, atol=1e-9)


def after(pair: ModelPair, prompt: Prompt, graft: str, decode: str) -> Any:
    """The treatment of a token after the prompt, written out."""
    regions = dict(pair.encoded(prompt).regions)
    if decode in ("base", "finetuned"):
        return token_treatments(pair, regions, 1, {"base": "NONE", "finetuned": "ALL"}[decode])[0]
    names = {"LT"}
    if decode == "last":
        last = len(pair.encoded(prompt).ids) - 1
        ends = {n: max([t for t in regions[n] if t < last], default=-1) for n in regions}
        del ends["LT"]
        ends.pop("BOS", None)
        names = {name for name, end in ends.items() if end == max(ends.values())}
    alone: dict[str, tuple[int, ...]] = {name: () for name in (*REGIONS, *regions)}
    return token_treatments(pair, alone | dict.fromkeys(names, (0,)), 1, graft)[0]


def test_a_batch_is_its_texts_one_by_one() -> None:
    """Prompts of other lengths and regions beside it change nothing of a text."""
    pair = load_pair("tiny-llama")
    prompts = load_prompts("tiny_movies", ["headline", "qa"], 3)
    model = as_model(pair, "FE+LT", "last", prompts)
    together, _ = generated(model, batch(pair, [prompt.text for prompt in prompts]))
    for row, prompt in enumerate(prompts):
        alone, _ = generated(model, batch(pair, [prompt.text]))
        assert torch.equal(together[row], alone[0])


def test_it_goes_where_models_go() -> None:
    """A pipeline generates with it; lm-eval's `hf` scores with it as with the donor itself."""
    pair = load_pair("tiny-gemma")
    prompt = load_prompts("tiny_movies", ["headline"], 1)[0]
    write = pipeline("text-generation", as_model(pair, "LT"), tokenizer=pair.tokenizer)
    steps = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}
    (answer,) = write(prompt.text, return_full_text=False, **steps)
    tokens, _ = generated(as_model(pair, "LT"), batch(pair, [prompt.text]))
    assert answer["generated_text"] == pair.tokenizer.decode(tokens[0], skip_special_tokens=True)
    scores = []
    for model in (as_model(pair, "ALL"), pair.donors["sft"]):
        lm = HFLM(pretrained=model, tokenizer=pair.tokenizer, batch_size=8, device="cpu")
        requests = [
            Instance("loglikelihood", {}, (each.text, f" {each.target}"), i)
            for i, each in enumerate(load_prompts("tiny_movies", ["headline"], 50))
        ]
        scores.append(lm.loglikelihood(requests, disable_tqdm=True))
    assert scores[0] == scores[1]


def test_wrong_input_is_refused_by_name() -> None:
    """An unknown policy, a region that a prompt lacks, and embeddings in place of tokens."""
    pair = load_pair("tiny-gemma")
    with pytest.raises(UnknownNameError, match="decode policy"):
        as_model(pair, "LT", "greedy")
    inputs = batch(pair, ["Alan Collins stars in a movie alongside"])
    with pytest.raises(RegionError, match=r"'FE.LT': FE follows.* give prompts="):
        as_model(pair, "FE+LT")
    other = load_prompts("tiny-gemma", ["qa"], 1)
    with pytest.raises(
        RegionError, match=r"'FE.LT' on the prompt .*Alan Collins.* has no region FE"
    ):
        as_model(pair, "FE+LT", prompts=other).generate(**inputs, max_new_tokens=1)
    with pytest.raises(ModelError, match=r"got 'tiny-gemma'; load it first"):
        as_model("tiny-gemma", "LT")  # type: ignore[arg-type]
    with pytest.raises(RegionError, match="no region before its last token"):
        as_model(pair, "LT", "last").generate(**inputs, max_new_tokens=1)
    with pytest.raises(InputError, match="give input_ids"):
        as_model(pair, "LT")(inputs_embeds=torch.zeros(1, 2, pair.width))
