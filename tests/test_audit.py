"""What an audit reports of wordings and seeds, and of the difference that facts detect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_runs
import numpy as np
import pytest
import stored_runs
from scipy.stats import norm

from kgbench import evaluate
from kgbench.analyses.audit import (
    AuditedMethod,
    Spread,
    audit_report,
    methods_of,
    smallest_difference,
    spreads,
    wordings_of,
)
from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.records import Record
from kgbench.report import Table, to_text
from kgbench.stats import ratio
from kgbench.stats.summary import rescored


def recovery_of(hits: int, n: int) -> Estimate:
    """The recovery of a graft that brings some of n facts, all of which finetuning added."""
    return ratio((np.arange(n) < hits).astype(int), np.ones(n, int))


def test_power() -> None:
    """Two methods whose recoveries differ by so much, on so many facts each, are told apart by a
    two-sided test of 5 % in 80 % of repetitions.
    """
    n, rate, repetitions = 200, 0.4, 20_000
    difference = smallest_difference([recovery_of(80, n)])
    rng = np.random.default_rng(0)
    one, other = (rng.binomial(n, rate + by * difference, repetitions) / n for by in (-0.5, 0.5))
    errors = np.sqrt((one * (1 - one) + other * (1 - other)) / n)
    rejected = np.abs(other - one) > norm.ppf(0.975) * errors
    assert abs(rejected.mean() - 0.8) < 0.03


def test_it_shrinks_with_facts() -> None:
    """Four times the facts halve the smallest difference; that of several wordings and seeds has
    their mean variance; where all facts came out alike it is not 0, since the next might not.
    """
    small, large = (smallest_difference([recovery_of(n // 4, n)]) for n in (100, 400))
    assert small == pytest.approx(2 * large, rel=0.1)
    other = smallest_difference([recovery_of(50, 100)])
    both = smallest_difference([recovery_of(25, 100), recovery_of(50, 100)])
    assert both == pytest.approx(np.sqrt((small**2 + other**2) / 2))
    assert smallest_difference([recovery_of(100, 100)]) > 0.01


def part(seed: int = 0, rows_seed: int = 0, **changes: Any) -> Record:
    """A record of a run that never happened, under a seed."""
    return stored_runs.stored(seed=rows_seed, seeds=(seed,), **changes)[0]


def named(name: str, **parameters: Any) -> dict[str, Any]:
    """A localizer's part of an identity."""
    return {"localizer": {"name": name, "version": "1", "parameters": parameters}}


def by_graft(method: AuditedMethod) -> dict[str, Spread]:
    """Spreads of a method by configuration."""
    return {row.graft: row for row in spreads(method)}


def text_of(method: AuditedMethod) -> str:
    """The report on one method, on one line."""
    return " ".join(to_text(audit_report([(method, spreads(method))], "this")).split())


def test_a_method_that_draws_nothing() -> None:
    """Its standard deviation over seeds is 0, whether one was run or two."""
    for runs in ([part()], [part(0), part(1)]):
        (method,) = methods_of(runs)
        assert not method.drawn and all(row.seeds_sd == 0 for row in spreads(method))


def test_values_are_those_of_the_record() -> None:
    """The mean and the standard deviation over wordings are those of the sufficiencies in the
    record.
    """
    record = part()
    (method,) = methods_of([record])
    recoveries = dict[str, list[float]]()
    for row in record.rows:
        recoveries.setdefault(row.graft, []).append(row.sufficiency.value or 0.0)
    for graft, spread in by_graft(method).items():
        assert len(recoveries[graft]) == 2
        assert spread.value.value == pytest.approx(np.mean(recoveries[graft]))
        assert spread.wordings_sd == pytest.approx(np.std(recoveries[graft], ddof=1))


def test_seeds_that_move_a_method() -> None:
    """A method that came out otherwise under another seed has a spread over seeds."""
    method = named("drawing", seed=0)
    worse, _ = stored_runs.stored(stored_runs.WORSE, seeds=(1,), **named("drawing", seed=1))
    (found,) = methods_of([part(**method), worse])
    assert found.seeds == ("0", "1") and found.drawn
    sd = by_graft(found)["FE+LT"].seeds_sd
    assert isinstance(sd, float) and sd > 0.2


def test_one_of_a_kind_has_no_standard_deviation() -> None:
    """Of a method that draws under one seed, in one wording, both are undefined, and the text has
    the reasons.
    """
    (method,) = methods_of([part(**named("drawing", seed=0))])
    assert all(isinstance(row.seeds_sd, Estimate) for row in spreads(method))
    alone = replace(method, wordings=("qa",))
    row = by_graft(alone)["LT"]
    assert isinstance(row.wordings_sd, Estimate) and row.wordings_sd.value is None
    assert isinstance(row.smallest, float)
    text = text_of(alone)
    assert "standard deviation of FE+LT is undefined (one wording only" in text
    assert "one seed only" in text


def test_wordings_without_a_value_are_left_out() -> None:
    """A configuration's value is over the wordings that have it under every seed; which are left
    out is reported.
    """
    rows = fake_runs.rows(60, prompts=("qa",))
    what = fake_runs.identity(seeds=(1,), prompts={"qa": "q" * 64})
    (method,) = methods_of([part(), rescored(fake_runs.record(rows, what=what), rows)])
    assert by_graft(method)["LT"].left_out == {"headline": "LT was not run under seed 1"}
    assert "dynamic_graft, headline: " in text_of(method)
    (both,) = methods_of([part()])
    cells = {("qa", "0"): both.figures["LT"]["qa", "0"]}
    lacking = replace(both, figures={**both.figures, "LT": cells})
    assert set(by_graft(lacking)["LT"].left_out) == {"headline"}
    assert not by_graft(lacking)["FE"].left_out


def test_two_methods() -> None:
    """Each has its own rows and its own sentence; equal names differ by their parameters."""
    worse, _ = stored_runs.stored(stored_runs.WORSE, **named("worse"))
    methods = methods_of([part(), worse])
    assert [method.name for method in methods] == ["dynamic_graft", "worse"]
    report = audit_report([(method, spreads(method)) for method in methods], "this")
    tables = [part for part in report.parts if isinstance(part, Table)]
    assert len(tables) == 2
    assert "worse: the standard deviation of FE+LT is" in str(report.verdict)
    twins = methods_of([part(**named("twin", k=k)) for k in (1, 2)])
    assert [method.name for method in twins] == ["twin (k=1)", "twin (k=2)"]


@pytest.mark.parametrize(
    ("second", "match"),
    [
        (
            lambda: part(1, **stored_runs.OTHER),
            "differ in weights.recipient: .*weights.donors.sft: ",
        ),
        (
            lambda: part(1, prompts={"headline": "other", "qa": "q" * 64}),
            "'headline' has one wording",
        ),
        (lambda: part(0, limit=60), "these runs differ in limit"),
        (
            lambda: part(0, rows_seed=1),
            "two runs of dynamic_graft have the prompt 'headline' under seed 0",
        ),
    ],
)
def test_runs_that_do_not_go_together(second: Callable[[], Record], match: str) -> None:
    """Other weights, another wording under the same name, and a cell that comes twice are refused,
    and named.
    """
    with pytest.raises(InputError, match=match):
        methods_of([part(), second()])


def test_wordings() -> None:
    """All prompts that ask for the same, but no earlier versions; a data set's own, and those that
    are added.
    """
    movies = wordings_of(load_dataset("tiny_movies"))
    assert {"headline", "qa"} < set(movies) and not any(name.endswith("_v1") for name in movies)
    assert wordings_of(load_dataset("battles")) == ("battle_year", "battle_question")


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pair is audited, each wording under each seed a record; the same records by name give the
    same figures without running.
    """
    run = evaluate(
        "tiny-gpt2", limit=20, prompts="qa", grafts="LT", output_dir=tmp_path, progress=False
    )
    asked = ["audit", str(run.path), "--prompt", "headline,qa", "--output-dir", str(tmp_path)]
    assert main([*asked, "--seeds", "2", "--json", "-q"]) == 0
    computed = json.loads(capsys.readouterr().out)
    (method,) = computed["methods"]
    assert method["n"] == 20 and len(computed["runs"]) == 4
    assert method["wordings"] == ["headline", "qa"]
    assert method["seeds"] == ["0", "1"]
    assert not method["drawn"]
    rows = {row["graft"]: row for row in method["rows"]}
    assert {"LT", "LT^C"} <= set(rows) and all(row["seeds_sd"] == 0 for row in rows.values())
    assert computed["verdict"].startswith("dynamic_graft: ")
    assert main(["audit", *computed["runs"], "--json", "--output-dir", str(tmp_path)]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert {**stored, "runs": None} == {**computed, "runs": None}
    assert main(["audit", *computed["runs"][:2], "--output-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "2 wordings, 1 seed, 20 facts" in text and max(map(len, text.splitlines())) <= 100
