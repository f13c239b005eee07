"""`--model kgbench` answers as lm-eval's own model does where nothing is grafted, and as the
audited algorithm where something is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from lm_eval_runs import NAMES, TOKENIZERS, ours, request, samples, stock

from kgbench.harness.encoded_requests import TaskDocument
from kgbench.harness.metrics import TokenScore
from kgbench.harness.model import KgbenchLM

TASKS = ["mine", "question"]
CLOSE = 1e-4

families = pytest.mark.parametrize("family", TOKENIZERS)
Checkpoints = Callable[[str], dict[str, Path]]


def names(found: dict[str, list[dict[str, Any]]]) -> torch.Tensor:
    """Log-likelihoods of the full names, document by document."""
    return torch.tensor([document["name_logprob"] for task in found.values() for document in task])


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


@pytest.mark.sampled(1)
@families
@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_recipient_and_donor_score_as_lm_eval_s_own_model(
    family: str, shots: int, batch_size: int, checkpoints: Checkpoints, tasks: Path
) -> None:
    """PRE and SFT give every full name the log-likelihood that lm-eval's Hugging Face model gives
    it, whatever names, batch and shots.
    """
    for graft, name in (("PRE", "recipient"), ("SFT", "sft")):
        own = samples(
            ours(checkpoints(family), graft=graft, batch_size=batch_size), TASKS, tasks, shots
        )
        theirs = samples(stock(checkpoints(family)[name], batch_size), TASKS, tasks, shots)
        assert distance(names(own), names(theirs)) < CLOSE
        assert [d["arguments"] for d in own["mine"]] == [d["arguments"] for d in theirs["mine"]]


@pytest.mark.crossed
@families
@pytest.mark.parametrize("graft", ["FE+LT", "FE^C", "P:ffn; FE:attn@1", "BOS+R:ln"])
@pytest.mark.parametrize("continuation", ["lt", "none", "all"])
def test_grafted_answers_are_the_audited_algorithm_s(
    family: str, graft: str, continuation: str, checkpoints: Checkpoints, tasks: Path
) -> None:
    """Under every rule for later tokens, first token and full name are those of a deep copy of the
    model per token.
    """
    if "BOS" in graft and family == "gpt2":
        graft = "R:ln"
    lm = ours(checkpoints(family), graft=graft, continuation=continuation, dtype="float64")
    hybrid = cache(lambda assignment: oracle.hybrid(lm.pair.recipient, lm.pair.donors, assignment))
    for document in samples(lm, ["mine"], tasks, 1, limit=2)["mine"]:
        context, target = document["arguments"][0]
        ids, head = (lm.tokenizer(text)["input_ids"] for text in (context + target, context))
        # LT predicts the first token that holds more than blanks.
        words = (t for t in range(len(head), len(ids)) if lm.tokenizer.decode(ids[t]).strip())
        lead = next(words) - 1
        later = list(range(lead + 1, len(ids) - 1))
        regions: dict[str, list[int]] = dict(
            spans(lm, document), LT=[lead, *(later if continuation == "lt" else [])], M=later
        )
        tail = {"lt": "", "none": "; M=recipient", "all": "; M"}[continuation]
        # A graft of nothing at later tokens is the recipient there, whatever components an earlier
        # term named.
        logits = oracle.graft_logits(
            lm.pair.recipient,
            lm.pair.donors,
            ids[:-1],
            regions,
            graft + tail,
            range(len(head) - 1, len(ids) - 1),
            lambda _, __, assignment: hybrid(assignment),
        ).log_softmax(-1)
        each = [float(row[token]) for row, token in zip(logits, ids[len(head) :], strict=True)]
        first, answer = logits[lead + 1 - len(head)], ids[lead + 1]
        assert document["rank"] == int((first >= first[answer]).sum())
        assert document["logprob"] == pytest.approx(float(first[answer]), abs=1e-6)
        assert document["name_logprob"] == pytest.approx(sum(each), abs=1e-6)


def spans(lm: KgbenchLM, document: dict[str, Any]) -> dict[str, list[int]]:
    """Tokens of each region of the last query, with the blank before it, where that is a token of
    its own.
    """
    context, query = document["arguments"][0][0], document["doc"]["query"]
    start = len(context) - len(query)
    encoding = lm.tokenizer(context, return_offsets_mapping=True)
    found = {"BOS": [0]} if lm.tokenizer.bos_token_id == encoding["input_ids"][0] else {}
    for region, span in document["doc"]["spans"].items():
        if span is not None:
            first, last = span[0] + start, span[1] + start
            offsets = list(enumerate(encoding["offset_mapping"]))
            touched = [
                i
                for i, (a, b) in offsets
                if (a < last and b > first) or (a == b and first <= a < last and i)
            ]
            blank = [i for i, (a, b) in offsets if context[a:b] == " " and b == first]
            found[region] = [*blank, *touched]
    return found


@pytest.mark.sampled(1)
@families
def test_batch_and_order_change_nothing(family: str, checkpoints: Checkpoints, tasks: Path) -> None:
    """One prompt at a time, sixteen at once, all executors: the same."""
    first = names(
        samples(
            ours(checkpoints(family), graft="FE+LT", batch_size=1, dtype="float64"), TASKS, tasks
        )
    )
    for arguments in (
        {"batch_size": 16},
        {"executor": "rows"},
        {"executor": "sequential"},
        {"batch_size": "auto"},
    ):
        again = names(
            samples(
                ours(checkpoints(family), graft="FE+LT", dtype="float64", **arguments),
                TASKS[::-1],
                tasks,
            )
        )
        assert distance(first, torch.cat([again[len(NAMES) :], again[: len(NAMES)]])) < 1e-6


def test_a_long_continuation_is_read_out_in_pieces(checkpoints: Checkpoints) -> None:
    """Logits stay within the budget whatever a continuation's length; the score is the same."""
    lm = ours(checkpoints("gpt2"), graft="LT", dtype="float64")
    passages = [
        lm.reader.passage(
            "Ana Lee stars", " in a movie alongside Bo Chen, an actor", TaskDocument("t", {})
        )
    ]
    whole = lm.answering.scores(passages, "LT")
    vocabulary = lm.pair.recipient.config.vocab_size
    engine, rows = lm.answering.engine, []
    run, engine.budget = engine.run, replace(engine.budget, logits=5 * vocabulary)

    def watched(plan: Any) -> Iterator[Any]:
        for chunk in run(plan):
            rows.append(len(chunk.logits))
            yield chunk

    engine.run = watched  # type: ignore[method-assign]
    for one, other in zip(whole, lm.answering.scores(passages, "LT"), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
    assert 0 < max(rows) <= 5


@pytest.mark.sampled(1)
@families
def test_choices_score_as_lm_eval_s_own_model(
    family: str, checkpoints: Checkpoints, tasks: Path
) -> None:
    """In the form with candidates, every candidate has the log-likelihood that lm-eval's own model
    gives it.
    """
    own, theirs = (
        samples(lm, ["mine_choices"], tasks)["mine_choices"]
        for lm in (ours(checkpoints(family), graft="SFT"), stock(checkpoints(family)["sft"]))
    )
    for one, other in zip(own, theirs, strict=True):
        assert [r[0][0] for r in one["resps"]] == pytest.approx(
            [r[0][0] for r in other["resps"]], abs=CLOSE
        )
        assert one["acc"] == other["acc"]


@pytest.mark.sampled(1)
@families
def test_whole_texts_score_as_lm_eval_s_own_model(family: str, checkpoints: Checkpoints) -> None:
    """A text longer than the model reads is scored in the same windows."""
    text = " ".join(f"{a} stars in a movie alongside {b}." for a, b in NAMES * 2)
    own, theirs = ours(checkpoints(family), graft="SFT"), stock(checkpoints(family)["sft"])
    requests = [request((text,)), request((NAMES[0][0],))]
    assert own.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(
        theirs.loglikelihood_rolling(requests), abs=1e-3
    )


@families
def test_texts_without_spans_are_answered(family: str, checkpoints: Checkpoints) -> None:
    """Empty contexts, blanks at the end of a context, and contexts that are too long score as in
    lm-eval's own model.
    """
    long = " ".join(a for a, _ in NAMES * 8)
    requests = [
        request(pair)
        for pair in (
            ("", " Bo Chen"),
            ("Ana Lee and ", "Bo"),
            ("Ana Lee:\n", "Bo"),
            (long, " Bo Chen"),
        )
    ]
    own, theirs = ours(checkpoints(family), graft="SFT"), stock(checkpoints(family)["sft"])
    for one, other in zip(
        own.loglikelihood(requests, disable_tqdm=True),
        theirs.loglikelihood(requests, disable_tqdm=True),
        strict=True,
    ):
        assert isinstance(one, TokenScore)
        assert one[0] == pytest.approx(other[0], abs=CLOSE)


@pytest.mark.sampled(2)
@families
@pytest.mark.parametrize("graft", ["PRE", "SFT"])
def test_generation_is_lm_eval_s_own(family: str, graft: str, checkpoints: Checkpoints) -> None:
    """Without a graft, generated text is what lm-eval's own model writes, stop sequences and all."""
    contexts = [f"{a} stars in a movie alongside" for a, _ in NAMES]
    requests = [
        request((c, {"until": ["e", "\n"], "max_gen_toks": 12}), kind="generate_until")
        for c in contexts
    ]
    requests += [
        request((c, {"until": [], "max_gen_toks": 7}), kind="generate_until") for c in contexts
    ]
    theirs = stock(checkpoints(family)["recipient" if graft == "PRE" else "sft"], 1)
    assert ours(checkpoints(family), graft=graft).generate_until(
        requests, disable_tqdm=True
    ) == theirs.generate_until(requests, disable_tqdm=True)


@pytest.mark.crossed
@families
@pytest.mark.parametrize("continuation", ["lt", "none", "all"])
def test_generation_under_a_graft_is_the_audited_algorithm_s(
    family: str, continuation: str, checkpoints: Checkpoints
) -> None:
    """Each generated token is the most probable one after a deep copy of the model per token."""
    lm = ours(checkpoints(family), graft="LT", continuation=continuation, dtype="float64")
    context = "Ana Lee stars in a movie alongside"
    head = lm.tokenizer(context)["input_ids"]
    ids, lead = list(head), len(head) - 1
    hybrid = cache(lambda assignment: oracle.hybrid(lm.pair.recipient, lm.pair.donors, assignment))
    for _ in range(5):
        tail = list(range(lead + 1, len(ids)))
        regions = {
            "LT": [lead, *(tail if continuation == "lt" else [])],
            "M": tail if continuation == "all" else [],
        }
        logits = oracle.graft_logits(
            lm.pair.recipient,
            lm.pair.donors,
            ids,
            regions,
            "LT; M",
            make=lambda _, __, assignment: hybrid(assignment),
        )
        ids.append(int(logits[0].argmax()))
    wanted = lm.tokenizer.decode(ids[len(head) :], skip_special_tokens=True)
    assert lm.generate_until(
        [request((context, {"until": [], "max_gen_toks": 5}), kind="generate_until")],
        disable_tqdm=True,
    ) == [wanted]
