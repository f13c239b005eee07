"""A blank that the tokenizer keeps apart is given, and every reading of an answer begins after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_encoding import YEARS, cut_blanks

import kgbench
from kgbench.analyses import explorer
from kgbench.analyses.answers import score_prompts
from kgbench.data import Fact, Prompt
from kgbench.engine import Engine
from kgbench.harness.encoded_requests import Reader, TaskDocument
from kgbench.models.pair import ModelPair
from kgbench.report import to_text
from kgbench.report.run_report import record_report

GRAFTS = ("PRE", "SFT", "LT")
TEXT = "The battle was fought in"


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    """The shipped Llama whose tokenizer cuts the blank off a number."""
    shipped = kgbench.load_pair("tiny-llama")
    tokenizer = cut_blanks(shipped.tokenizer)
    return kgbench.load_pair(
        recipient=shipped.recipient, donors=dict(shipped.donors), tokenizer=tokenizer
    )


def prompts(answers: tuple[str, ...]) -> list[Prompt]:
    return [Prompt("when", Fact(f"b/{year}", {}), TEXT, year, {}) for year in answers]


def test_a_run_says_that_the_blank_is_given(pair: ModelPair, tmp_path: Path) -> None:
    """In the version of its metrics, which is a part of the id, and before the table; runs whose
    answers begin without one are as ever.
    """
    facts = [{"battle": f"no. {i}", "year": year} for i, year in enumerate(YEARS)]
    asked = {"grafts": ["LT"], "progress": False, "output_dir": tmp_path}
    options = {"subject": "battle", "object": "year", **asked}
    templates = {"when": "The battle {battle} was fought in"}
    run = kgbench.evaluate(pair, dataset=facts, prompts=templates, **options)
    assert run.record.identity.metric_version == "2 after blanks"
    text = to_text(record_report(run.record))
    assert "The tokenizer keeps the blank before an answer apart" in text
    assert 1 < len(run.record.answers["when"]) < len(YEARS)
    again = kgbench.evaluate(pair, dataset="tiny_movies", limit=2, **asked)
    assert again.record.identity.metric_version == "2"


@pytest.mark.parametrize("answers", [YEARS, (*YEARS, "Rome")])
def test_whole_answers_begin_after_the_blank(pair: ModelPair, answers: tuple[str, ...]) -> None:
    """The first tokens of `kgbench answers` are those of `kgbench eval`, also where a candidate
    begins without a blank of its own, so that the blank is read as a part of the others.
    """
    engine, some = Engine(pair), prompts(answers)
    grafts = GRAFTS if answers == YEARS else GRAFTS[:2]
    logits = engine.logits(engine.plan(some, grafts))[:, :, 0].double().log_softmax(-1)
    for scored in score_prompts(engine, some, answers, grafts):
        place = next(i for i, prompt in enumerate(some) if prompt.fact.id == scored.fact)
        target = pair.encoded(some[place]).target
        expected = float(logits[place, grafts.index(scored.graft), target])
        assert scored.first_logprob == pytest.approx(expected, abs=1e-4)
        assert scored.first_token == pair.tokenizer.decode(target)
        assert scored.first_token.strip() in scored.alternatives or scored.answer == "Rome"


def test_passages_of_lm_eval_begin_after_the_blank(pair: ModelPair) -> None:
    """LT of a request is the blank, the first token of its continuation the first of the number,
    and the blank is still scored with it.
    """
    reader = Reader(pair.tokenizer, 0, 100)
    for prompt in prompts(YEARS):
        passage = reader.passage(TEXT, f" {prompt.target}", TaskDocument("t", {}, 0))
        encoded = pair.encoded(prompt)
        assert passage.targets[0] == encoded.target == passage.encoded.target
        assert passage.encoded.ids[: passage.lead + 1] == encoded.ids
        assert passage.encoded.regions["LT"] == encoded.regions["LT"]
        assert passage.before == encoded.ids[-1:]


def test_the_answer_of_the_explorer(pair: ModelPair) -> None:
    """Is the one that a run scores."""
    shown = explorer.Reader(pair).read(TEXT, "1066")
    assert shown["answer"] == pair.tokenizer.decode(pair.encoded(prompts(("1066",))[0]).target)
    assert shown["tokens"][-1] == " "
