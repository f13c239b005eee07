"""A donor that learned other answers is never said to have learned these, nor is one that learned how
often each is given.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import fake_runs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgbench
from kgbench.data import load_dataset
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.records import Record, facts_table, renew_seal
from kgbench.report import to_text
from kgbench.report.run_report import record_report
from kgbench.stats import METRICS, rescored
from kgbench.stats.answer_frequency import LADDER, answer_counts, prior_score, priors_of
from kgbench.stats.scores import HITS
from kgbench.testing import assert_localized
from kgbench.testing.undecided import collecting

FEW = 6
"""First words of answers, where few are kept."""


@cache
def loaded(name: str) -> ModelPair:
    return kgbench.load_pair(name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("name", catalog.shipped())
def test_no_verdict_of_permuted_answers(name: str, few: bool, tmp_path: Path) -> None:
    """Of every shipped pair with the answers permuted no verdict says, on any metric, that a graft
    carries something or a donor learned it; also where few distinct first words are answers.
    """
    dataset = load_dataset(catalog.entry(name).dataset)
    facts = [dict(fact.fields) for fact in dataset.facts[: 400 if few else 150]]
    firsts = Counter(fact[dataset.object].split()[0] for fact in facts)
    if few:
        kept = {word for word, _ in firsts.most_common(FEW)}
        facts = [fact for fact in facts if fact[dataset.object].split()[0] in kept]
    answers = [fact[dataset.object] for fact in facts]
    order = np.random.default_rng(0).permutation(len(facts)).tolist()
    permuted = [{**f, dataset.object: answers[i]} for f, i in zip(facts, order, strict=True)]
    asked = {"subject": dataset.subject, "object": dataset.object, "prompts": ["headline", "qa"]}
    run = kgbench.evaluate(
        loaded(name),
        dataset=permuted,
        grafts=["FE", "LT", "FE+LT"],
        output_dir=tmp_path,
        progress=False,
        **asked,
    )
    for metric in METRICS:
        text = rescored(run.record, run.facts, metric).verdict
        assert "carries" not in text, text
    assert "carries" not in run.record.verdict


def few_answers(
    counts: list[int], donor: float, base: float = 0.0, limited: bool = False, metric: str = "top5"
) -> Record:
    """A record of one prompt whose answers are so often each of a few tokens, and a donor that has
    them all among its first five, and this share first.
    """
    n = sum(counts)
    table = fake_runs.rows(n, {"PRE": base, "SFT": 1.0, "LT": 0.7}, ["born"]).to_pydict()
    targets = np.repeat(np.arange(len(counts)), counts).tolist()
    first = round(donor * n)
    for row, graft in enumerate(table["graft"]):
        place = int(table["fact"][row].rpartition("/")[2])
        table["target"][row] = targets[place]
        if graft == "SFT":
            table["rank"][row] = 1 if place % n < first else 2
    dataset = {"name": "towns", "hash": "d" * 64, "n": 400 if limited else n}
    what = fake_runs.identity(dataset=dataset, limit=n if limited else None)
    made = fake_runs.record(facts_table(table), what=what)
    return rescored(made, facts_table(table), metric)


TOWNS = [5, 4, 4, 3, 3, 3, 2, 1, 1, 1, 1, 1, 1]
"""How often each of thirteen towns is the birthplace of thirty persons."""


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.sampled_from(HITS))
def test_prior_of_hits(counts: list[int], metric: str) -> None:
    """No fixed guess of k tokens hits more often than that of the most frequent ones."""
    targets = np.repeat(np.arange(len(counts)), counts)
    guess = np.argsort(counts)[::-1][: int(metric[3:])]
    assert prior_score(answer_counts(targets), metric) == pytest.approx(
        float(np.isin(targets, guess).mean())
    )


def test_prior_of_other_metrics() -> None:
    """They are those of a model that gives each token its frequency."""
    assert prior_score([2, 1, 1], "logprob") == pytest.approx(np.log([0.5, 0.5, 0.25, 0.25]).mean())
    assert prior_score([2, 1, 1], "prob") == pytest.approx((0.5 + 0.5 + 0.25 + 0.25) / 4)
    assert prior_score([2, 1, 1], "mrr") == pytest.approx((1 + 1 + 1 / 2 + 1 / 3) / 4)
    assert prior_score([2, 1, 1], "log_rank") == pytest.approx(np.log([1, 1, 2, 3]).mean())
    assert prior_score([2, 1, 1], "logit_diff") == pytest.approx((2 - 1 - 1) * np.log(2) / 4)
    assert prior_score([3], "logit_diff") == np.inf


def test_few_answers_take_another_metric() -> None:
    """Thirteen towns of thirty persons: a run that is asked for no metric takes top1 and says why
    before its table; on top5 nothing is concluded.
    """
    record = few_answers(TOWNS, 0.6)
    assert priors_of(record).usual_metric == "top1"
    text = " ".join(to_text(record_report(record)).split())
    assert (
        "On born nothing is concluded from top5: 13 distinct first tokens for 30 facts: always "
        "giving the five most frequent ones scores .63 of 1.00 on top5 (top5)." in text
    )
    assert "so nothing is concluded from top5; top1 tells more." in text
    assert "carries" not in text
    better = few_answers(TOWNS, 0.6, metric="top1")
    text = " ".join(to_text(record_report(better)).split())
    before, _, after = text.partition("so this table and its sentence use top1.")
    assert "13 distinct first tokens" in before and "born: 30 facts" in after
    assert "LT carries" in better.verdict and better.verdict.endswith("(top1).")


def test_one_answer_to_all_prompts() -> None:
    """One edited fact in several wordings, or one behaviour: no frequency is guessed, so something is
    concluded, and whether the answer is given to anything else is left to controls, by a remark.
    """
    record = few_answers([20], donor=1.0)
    assert "carries" in record.verdict
    (line,) = priors_of(record).remarks(record.metric)
    assert "one answer to all 20 prompts" in line and "controls" in line


def test_a_donor_that_knows_the_frequencies_only() -> None:
    """It is not said to have learned anything, on any metric."""
    record = few_answers(TOWNS, 0.2)
    table = priors_of(record)
    assert set(table.doubts("top1")) == {"born"} and "carries" not in record.verdict
    assert all("first token" in table.doubts(metric)["born"] for metric in ("top1", "top5"))
    with collecting() as findings:
        assert_localized(record, "LT", sufficiency__ge=0.1)
    assert "13 distinct first tokens" in findings.undecided[0]


def test_as_many_answers_as_facts() -> None:
    """Sixty facts with an answer each are read by top5, thirty by top1, five by logprob; thirty of
    four hundred, of which the others may have further ones, by top5.
    """
    for n, metric in ((60, "top5"), (30, "top1"), (5, "logprob")):
        assert priors_of(few_answers([1] * n, 0.9)).usual_metric == metric
    assert priors_of(few_answers([1] * 30, 0.9, limited=True)).usual_metric == LADDER[0]
    assert priors_of(few_answers(TOWNS, 0.9, limited=True)).usual_metric == "top1"


def test_an_earlier_record_is_read_with_its_answers(tmp_path: Path) -> None:
    """One that lacks how often each first token is the answer gets it from its rows when the same
    question is asked again, and then its metric and sentence follow it.
    """
    asked = {"grafts": ["LT"], "limit": 12, "output_dir": tmp_path, "progress": False}
    first = kgbench.evaluate("tiny-gemma", **asked)
    file = first.path / "record.json"
    stored = json.loads(file.read_text("utf-8"))
    del stored["answers"]
    file.write_text(json.dumps(stored), "utf-8")
    renew_seal(first.path)
    again = kgbench.evaluate("tiny-gemma", **asked)
    assert again.reused and again.record == first.record
