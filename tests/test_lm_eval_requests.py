"""Requests that are easy to read wrongly: queries that occur twice, special tokens written as text,
blanks, merges, equal texts.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval_runs import NAMES, TOKENIZERS, ours, request, samples, stock

from kgbench.errors import InputError, RegionError
from kgbench.harness.encoded_requests import TaskDocument
from kgbench.harness.metrics import TokenScore
from kgbench.harness.model import KgbenchLM

Checkpoints = Callable[[str], dict[str, Path]]
families = pytest.mark.parametrize("family", TOKENIZERS)


def own_row(lm: KgbenchLM, tasks: Path) -> dict[str, Any]:
    return samples(lm, ["mine"], tasks, limit=1)["mine"][0]["doc"]  # type: ignore[no-any-return]


@pytest.mark.sampled(1)
@families
def test_the_last_query_of_a_context_is_meant(
    family: str, checkpoints: Checkpoints, tasks: Path
) -> None:
    """Where a description or an example holds the very query, regions are those of the one that is
    asked.
    """
    lm = ours(checkpoints(family), graft="FE")
    row = own_row(lm, tasks)
    context = f"{row['query']} someone.\n\n{row['query']}"
    passage = lm.reader.passage(context, row["target"], TaskDocument("mine", row))
    first = passage.encoded.regions["FE"][0]
    assert (
        lm.tokenizer.decode(passage.encoded.ids[: first + 1], skip_special_tokens=True).count(
            row["query"]
        )
        == 1
    )
    assert (
        lm.tokenizer.decode([passage.encoded.ids[i] for i in passage.encoded.regions["FE"]]).strip()
        == row["subject"]
    )


@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_bos_written_as_text_is_the_bos(
    family: str, checkpoints: Checkpoints, tasks: Path
) -> None:
    """A chat template writes it so: it is there once, and it is the region BOS."""
    lm = ours(checkpoints(family), graft="BOS")
    row = own_row(lm, tasks)
    for context in (row["query"], "<bos>" + row["query"]):
        passage = lm.reader.passage(context, row["target"], TaskDocument("mine", row))
        assert passage.encoded.ids.count(lm.tokenizer.bos_token_id) == 1
        assert passage.encoded.regions["BOS"] == (0,)


@families
def test_tokens_that_merge_over_the_boundary_are_read_as_lm_eval_does(
    family: str, checkpoints: Checkpoints
) -> None:
    """Where nothing is known of regions; where they are known, there is no first token of the
    answer, and that is told.
    """
    lm, theirs = ours(checkpoints(family), graft="SFT"), stock(checkpoints(family)["sft"])
    requests = [
        request(pair)
        for pair in (
            ("Ana L", "ee stars in a movie"),
            ("Ana Lee sta", "rs in a movie"),
            ("", "<bos> Bo"),
            ("", "<eos> Bo"),
        )
    ]
    found, wanted = (each.loglikelihood(requests, disable_tqdm=True) for each in (lm, theirs))
    assert [score[0] for score in found] == pytest.approx([score[0] for score in wanted], abs=1e-4)
    with pytest.raises(RegionError, match="not a prefix"):
        lm.reader.passage(
            "Ana L", "ee stars", TaskDocument("mine", {"query": "Ana L", "spans": {"FE": [0, 3]}})
        )


def test_a_blank_context_loses_no_token(checkpoints: Checkpoints) -> None:
    """Without a BOS, a context of blanks is the end token and the blanks, and every token after
    them is scored.
    """
    lm = ours(checkpoints("gpt2"), graft="SFT")
    (score,) = lm.loglikelihood([request((" ", "Bo Chen"))], disable_tqdm=True)
    ids = [lm.prefix_token_id, *lm.tokenizer(" Bo Chen")["input_ids"]]
    with torch.no_grad():
        logprobs = lm.pair.donors["sft"](torch.tensor([ids])).logits[0].log_softmax(-1)
    assert score[0] == pytest.approx(
        float(sum(logprobs[t - 1, ids[t]] for t in range(1, len(ids)))), abs=1e-4
    )


def test_equal_texts_with_other_spans_are_other_requests(
    checkpoints: Checkpoints,
) -> None:
    """Two rows, or two tasks, that say otherwise where the entity is are each treated as they say."""
    lm = ours(checkpoints("gpt2"), graft="FE", dtype="float64")
    rows = [{"query": "Ana Lee stars", "spans": {"FE": span}} for span in ([0, 3], [0, 7])]
    for tasks in (("one", "one"), ("one", "other")):
        requests = [
            request(("Ana Lee stars", " in Rio"), row, i, task)
            for i, (row, task) in enumerate(zip(rows, tasks, strict=True))
        ]
        alone = [lm.loglikelihood([each], disable_tqdm=True)[0][0] for each in requests]
        assert abs(alone[0] - alone[1]) > 1e-3
        assert [
            score[0] for score in lm.loglikelihood(requests, disable_tqdm=True)
        ] == pytest.approx(alone, abs=1e-9)


def test_columns_of_others_mean_nothing(checkpoints: Checkpoints) -> None:
    """A foreign task's columns `prompt` and `id` are taken neither for a template nor for a fact."""
    lm = ours(checkpoints("gpt2"), graft="LT", localizer="ablation")
    rows = [{"prompt": f"How many {i}?", "id": 7} for i in range(3)]
    plain = lm.loglikelihood(
        [request((a, f" {b}"), {}, i) for i, (a, b) in enumerate(NAMES[:3])], disable_tqdm=True
    )
    named = lm.loglikelihood(
        [
            request((a, f" {b}"), row, i)
            for i, (row, (a, b)) in enumerate(zip(rows, NAMES, strict=False))
        ],
        disable_tqdm=True,
    )
    assert [score[0] for score in named] == pytest.approx([score[0] for score in plain], abs=1e-9)


def test_generation_ends_where_the_models_settings_say(
    checkpoints: Checkpoints,
) -> None:
    """Tokens that a checkpoint's settings for generation name end a text, as in lm-eval's own
    model.
    """
    lm, theirs = ours(checkpoints("gpt2"), graft="SFT"), stock(checkpoints("gpt2")["sft"], 1)
    asked = [request((a, {"until": [], "max_gen_toks": 12})) for a, _ in NAMES]
    texts = lm.generate_until(asked, disable_tqdm=True)
    context = lm.tokenizer(NAMES[4][0], return_tensors="pt")["input_ids"]
    end = int(
        lm.pair.donors["sft"].generate(context, max_new_tokens=12, do_sample=False)[
            0, context.shape[1] + 2
        ]
    )
    for model in (lm.pair.donors["sft"], theirs.model):
        model.generation_config.eos_token_id = [lm.eot_token_id, end]
    found = lm.generate_until(asked, disable_tqdm=True)
    assert found == theirs.generate_until(asked, disable_tqdm=True)
    assert found != texts


def test_no_stop_sequence_is_none(checkpoints: Checkpoints) -> None:
    """A task may say so with a null."""
    lm = ours(checkpoints("gpt2"), graft="LT")
    one, other = (
        lm.generate_until([request(("Ana", {"until": u, "max_gen_toks": 4}))], disable_tqdm=True)
        for u in (None, [])
    )
    assert one == other


def test_a_template_without_a_system_s_message_does_without(
    checkpoints: Checkpoints,
) -> None:
    """As in lm-eval's own model, which lm-eval's log says; a tokenizer without a template is told in a
    line.
    """
    lm = ours(checkpoints("gpt2"), graft="LT")
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    with pytest.raises(InputError, match="no chat template"):
        lm.apply_chat_template(talk)
    refusing = (
        "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.role }}] {{"
        " m.content }}\n"
    )
    lm.tokenizer.chat_template = "{% for m in messages %}" + refusing + "{% endfor %}"
    assert lm.apply_chat_template(talk) == "[user] Who?\n"


def test_a_score_can_be_copied() -> None:
    """Whatever lm-eval, or a process beside it, does with answers."""
    score = TokenScore(-2.5, True, 3, 0.25, -1.4)
    for other in (copy.deepcopy(score), pickle.loads(pickle.dumps(score))):
        assert (other, other.rank, other.prob, other.logprob) == ((-2.5, True), 3, 0.25, -1.4)
