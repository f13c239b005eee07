"""Laws of the text table: everything there, in order, within a terminal."""

from __future__ import annotations

import pytest
from fake_runs import record, rows

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text
from kgbench.report import to_text
from kgbench.report.run_report import record_report
from kgbench.stats import METRICS

HYBRID = "FE:attn=task; LT:attn@1/2-1=task; LT:o+ffn@1/2-1=relation"


def heads(text: str) -> list[str]:
    """Names of the first block's columns."""
    return next(line.split() for line in text.splitlines() if line.startswith("graft "))


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_leads_and_fits(metric: str) -> None:
    """The metric of the ratios is the first column, whichever it is."""
    text = to_text(record_report(record(metric=metric)))
    assert heads(text)[1] == metric
    assert max(map(len, text.splitlines())) <= 100


def test_long_grafts_are_wrapped() -> None:
    """A hybrid graft takes several lines, and the table still fits."""
    text = to_text(record_report(record(rows(rates={"PRE": 0.0, "SFT": 1.0, HYBRID: 0.5}))))
    assert max(map(len, text.splitlines())) <= 100
    assert all(
        f"\n{term}" in text
        for term in ("FE:attn=task;", "LT:attn@1/2-1=task;", "LT:o+ffn@1/2-1=relation")
    )


@pytest.mark.parametrize("width", [70, 100, 170])
def test_the_width_of_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table fits the terminal, and says which columns it leaves out; a wide one has them all."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    text = to_text(record_report(record()))
    assert max(map(len, text.splitlines())) <= width
    left = {"top1", "mrr", "prob", "median_rank"} - set(heads(text))
    told = " ".join(text.split()).partition("hidden to fit the terminal: ")[2]
    assert set(told.partition(";")[0].split(", ")) - {""} == left
    assert not left if width == 170 else len(left) >= 2


def test_undefined_cost_ratio() -> None:
    """A ratio that was not measured says why."""
    made = record()
    cost = made.cost.model_copy(
        update={"plain_forward_ratio": Estimate(undefined="everything was resumed", n=0)}
    )
    text = to_text(record_report(made.model_copy(update={"cost": cost})))
    assert "ratio to one plain forward undefined (1)" in text.replace("\n  ", " ")
    assert "\n(1) everything was resumed" in text


def test_what_cannot_be_expressed_is_said() -> None:
    """A configuration that the method cannot express has n/a in every cell, and its reason once
    below.
    """
    made = record()
    nothing = Estimate(n=0, undefined="not applicable: no positions")
    fields = [
        name
        for name, field in type(made.rows[0]).model_fields.items()
        if field.annotation is Estimate
    ]
    changed = [
        row.model_copy(update=dict.fromkeys(fields, nothing) | {"n": 0})
        if row.graft == "FE"
        else row
        for row in made.rows
    ]
    text = to_text(record_report(made.model_copy(update={"rows": tuple(changed)})))
    line = next(line for line in text.splitlines() if line.startswith("FE "))
    assert line.split()[1:] == ["n/a", "(1)"] * 5
    assert text.count("not applicable: no positions") == 1
    assert "headline: 50 facts" in text and figure_text(nothing) == "not applicable"
