"""On a real pretrained language model: it is read as it was written, its shipped finetuned model
gives the published ranks, and the engine's laws hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import oracle
import pyarrow.compute as pc
import pytest
import torch
from known_names import FILE, known_names
from lm_eval.models.huggingface import HFLM
from lm_eval_runs import samples
from peft import PeftModel
from transformers import AutoModelForCausalLM

import kgbench
from kgbench.data import Dataset, Prompt, load_prompts
from kgbench.engine import grafted_logits, load_pair
from kgbench.harness.model import KgbenchLM
from kgbench.models.catalog import entry, zoo_path
from kgbench.models.fetching import fetch, fetched_models
from kgbench.models.pair import ModelPair
from kgbench.paper.pair_rows import read_measured

MODEL = "smollm2-135m"
ROWS = Path(__file__).parents[2] / "leaderboard" / "reproductions" / MODEL / "rows.parquet"
PROMPTS = ("headline", "qa", "movie_title", "new_film")
PATHWAYS = ("PRE", "SFT", "ALL", "FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
NOVEL = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife. However little known the feelings or views of such a man may be "
    "on his first entering a neighbourhood, this truth is so well fixed in the minds of the "
    "surrounding families, that he is considered as the rightful property of some one or other "
    "of their daughters."
)
"""Jane Austen, Pride and Prejudice, 1813."""


@pytest.fixture(scope="module")
def pair(home: None) -> ModelPair:
    """Base and shipped finetuned model."""
    return load_pair(MODEL)


@pytest.fixture(scope="module")
def prompts(facts: Dataset) -> list[Prompt]:
    """Of two facts."""
    return load_prompts(facts, PROMPTS, limit=2)


def test_weights_are_read_as_they_were_written(pair: ModelPair) -> None:
    """Perplexity of a known text, norms of some weights, and no other order of the rotary rows
    reads as well.

    Dequantised once by llama.cpp's description of the format, these were 28.93, 720.18 and 43.84;
    with the rows of each head in the file's order the perplexity was 111.8.
    """
    model = pair.recipient
    ids = torch.tensor([pair.tokenizer(NOVEL)["input_ids"]])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss
    assert ids.shape == (1, 77)
    assert float(loss.exp()) == pytest.approx(28.93, rel=0.005)
    weights = model.state_dict()
    assert float(weights["model.embed_tokens.weight"].norm()) == pytest.approx(720.176, abs=0.01)
    assert float(weights["model.norm.weight"].norm()) == pytest.approx(43.838, abs=0.01)


def test_ranks_are_the_published_ones(tmp_path: Path, facts: Dataset) -> None:
    """Of twelve facts on four prompts under nine configurations."""
    run = kgbench.evaluate(MODEL, prompts=list(PROMPTS), limit=12, output_dir=tmp_path)
    own = {(r["prompt"], r["graft"], r["fact"]): r["rank"] for r in run.facts.to_pylist()}
    table = read_measured(ROWS).table
    table = table.filter(
        pc.and_(pc.equal(table["seed"], 0), pc.equal(table["evaluation"], "actors"))
    )
    published = {
        (row["prompt"], row["configuration"], row["fact"]): row["rank"] for row in table.to_pylist()
    }
    first = [fact.id for fact in facts.facts[:12]]
    wanted = {key: rank for key, rank in published.items() if key[2] in first}
    assert len(wanted) == 12 * len(PROMPTS) * len(PATHWAYS)
    assert {key: own[key] for key in wanted} == wanted


def test_names_are_known_as_published(home: None) -> None:
    """The first ones: how well the base knew them is measured once more."""
    published = json.loads(ROWS.with_name(FILE).read_text("utf-8"))
    own = known_names(MODEL, most=4)
    assert own == {name: pytest.approx(published[name], abs=0.02) for name in own}


def test_grafting_nothing_is_the_base_and_everything_the_finetuned_model(
    pair: ModelPair, prompts: list[Prompt]
) -> None:
    """The adapter leaves embeddings, final norm and head alone, so that ALL is the whole of it."""
    logits = grafted_logits(pair, prompts, "NONE,PRE,ALL,SFT")
    assert torch.equal(logits[:, 0], logits[:, 1])
    torch.testing.assert_close(logits[:, 2], logits[:, 3], rtol=0, atol=1e-3)
    assert float((logits[:, 1] - logits[:, 3]).abs().max()) > 1


def test_executors_agree(pair: ModelPair, prompts: list[Prompt]) -> None:
    """Packed, row by row and token by token."""
    grafts, some = "FE,FE+LT,LT:o+ffn@second_half", prompts[::3]
    packed = grafted_logits(pair, some, grafts, executor="packed")
    for executor in ("rows", "sequential"):
        other = grafted_logits(pair, some, grafts, executor=executor)
        torch.testing.assert_close(packed, other, rtol=0, atol=2e-3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT 0.21
def test_an_independent_oracle_agrees(home: None, facts: Dataset) -> None:
    """A deep copy a token, with the adapter merged by the library that wrote it, in float64."""
    pair = load_pair(MODEL, dtype="float64")
    folder = zoo_path(entry(MODEL).donors["sft"])
    place = fetch(fetched_models()[MODEL])
    base: Any = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float64)
    donor = PeftModel.from_pretrained(base, str(folder)).merge_and_unload()
    (prompt,) = load_prompts(facts, ["headline"], limit=1)
    grafts = ("FE+LT", "LT:o+ffn@second_half")
    packed = grafted_logits(pair, prompt, ",".join(grafts))
    for place_, graft in enumerate(grafts):
        logits = oracle.graft_logits(
            pair.recipient, {"sft": donor}, pair.encode(prompt), pair.regions(prompt), graft
        )
        torch.testing.assert_close(packed[0, place_], logits[0], rtol=0, atol=1e-4)


def test_a_grafted_model_generates(pair: ModelPair, prompts: list[Prompt]) -> None:
    """What the base does under NONE and the finetuned model under ALL, in tokens and logits; under
    a graft, the first token is the one that the token-by-token executor gives.
    """
    ids = torch.tensor([pair.encode(prompts[0])])

    def generated(model: Any) -> tuple[list[int], torch.Tensor]:
        answer = model.generate(
            ids,
            max_new_tokens=6,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return answer.sequences[0, ids.shape[1] :].tolist(), torch.cat(answer.logits)

    for graft, model in (("NONE", pair.recipient), ("ALL", pair.donors["sft"])):
        tokens, logits = generated(kgbench.as_model(pair, graft))
        wanted, exact = generated(model)
        assert tokens == wanted
        torch.testing.assert_close(logits, exact, rtol=0, atol=1e-3)
    tokens, logits = generated(kgbench.as_model(pair, "FE+LT", "base", prompts[:1]))
    first = grafted_logits(pair, prompts[0], "FE+LT", executor="sequential")[0]
    torch.testing.assert_close(logits[:1], first, rtol=0, atol=2e-3)
    assert tokens[0] == int(first.argmax())


def test_lm_eval_agrees(home: None) -> None:
    """Its own model class and ours, on ten documents."""
    task = "kgbench_fake_movies_real_actors_headline"
    place = fetch(fetched_models()[MODEL])
    stock = HFLM(pretrained=str(place), dtype="float32", device="cpu", batch_size=5)
    ours = KgbenchLM(pair=MODEL, graft="PRE", dtype="float32", batch_size=5, device="cpu")
    (own,) = samples(ours, [task], limit=10).values()
    (theirs,) = samples(stock, [task], limit=10).values()
    assert len(own) == len(theirs) == 10
    for one, other in zip(own, theirs, strict=True):
        assert one["resps"][0][0][0] == pytest.approx(other["resps"][0][0][0], abs=1e-3)
