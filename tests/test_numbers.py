"""Laws of how numbers are written for people."""

from __future__ import annotations

import csv
import re

import pytest
from fake_runs import RATES, record, rows
from hypothesis import given
from hypothesis import strategies as st

from kgbench.analyses.compare import compare_records, comparison_report
from kgbench.estimate import Estimate
from kgbench.numbers import (
    count_text,
    duration_text,
    exact_text,
    figure_text,
    metric_name,
    number_text,
    percent_text,
    plain_text,
    reason_text,
    share_text,
    signed_text,
    significant_text,
)
from kgbench.report import to_text
from kgbench.report.export import as_csv, as_latex, as_markdown
from kgbench.report.run_report import record_report
from kgbench.stats import METRICS

OTHER_STYLE = re.compile(r"(?<![\w.])[-−]?0\.\d(?![.\d]*\.)|(?<![\w)\]])-\.?\d")
"""A zero before the point, or a hyphen as a minus sign."""

finite = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.874, ".87"),
        (-0.016, "−.02"),
        (0.0, "0"),
        (-0.001, "0"),
        (0.999, "1.00"),
        (1.034, "1.03"),
        (-3.0, "−3.00"),
        (12.34, "12.3"),
        (461.2, "461"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    """Two decimals without the leading zero, three digits above ten, a true minus sign."""
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.1, ".10"),
        (-0.028, "−.028"),
        (1.0, "1.0"),
        (9.96, "10"),
        (123.4, "123"),
        (3e-6, "3e−6"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    """Figures that span orders have two significant digits, and whole numbers all of theirs."""
    assert significant_text(value) == text


@given(finite)
def test_no_other_style(value: float) -> None:
    """No writing of a number has a zero before the point or a hyphen as its sign."""
    for write in (number_text, percent_text, plain_text, significant_text, signed_text):
        assert not OTHER_STYLE.search(write(value)), write


@given(st.integers(-1500, 1500))
def test_a_share_rounds_alike_in_per_cent(thousandths: int) -> None:
    """`.97` in a table is 97 % in the sentence below it, also where the share is halfway: .975."""
    share = thousandths / 1000
    assert percent_text(share) == plain_text(100 * float(number_text(share).replace("−", "-")))


def test_figures() -> None:
    """Value and interval; what holds by definition stands alone; undefined is a word."""
    estimate = Estimate(value=0.871, low=0.812, high=0.92, n=9)
    assert figure_text(estimate) == ".87 [.81, .92]" and share_text(estimate) == "87 % [81, 92]"
    assert exact_text(estimate) == ".871 [.812, .92], n = 9"
    assert figure_text(Estimate(value=1, low=1, high=1, n=9)) == "1"
    assert figure_text(Estimate(undefined="why", n=9)) == "undefined"


def test_counts_and_times() -> None:
    """One forward, two forwards; days where hours are many."""
    assert [count_text(n, "forward") for n in (0, 1, 1500)] == [
        "0 forwards",
        "1 forward",
        "1,500 forwards",
    ]
    told = [duration_text(seconds) for seconds in (5.23, 240, 9000, 3391.7 * 3600)]
    assert told == ["5.2 s", "4 min", "2.5 h", "141 days"]


def test_reasons() -> None:
    """Numbers in a stored reason are written alike; versions and names are left as they are."""
    reason = "m(SFT) - m(PRE) = 0.00667 [-0.02, 0.0333] over 150 facts is not told from 0"
    assert (
        reason_text(reason) == "m(SFT) - m(PRE) = .01 [−.02, .03] over 150 facts is not told from 0"
    )
    assert (
        reason_text("loses its sign in 2.5% of the draws") == "loses its sign in 2.5 % of the draws"
    )
    assert reason_text("top 0.1% of torch 2.5.1") == "top .1 % of torch 2.5.1"


@pytest.mark.parametrize("metric", METRICS)
def test_every_text_of_a_run_has_one_style(metric: str) -> None:
    """Tables, verdict, comparison, Markdown and LaTeX write numbers alike; CSV has plain ones."""
    table = rows(rates={**RATES, "(FE+LT)^C": 0.0, "PRE": 0.06})
    first, second = (
        record(table, metric=metric),
        record(rows(rates={**RATES, "SFT": 0.07}), metric=metric),
    )
    compared = to_text(
        comparison_report(
            compare_records((first, table), (second, rows(rates={**RATES, "SFT": 0.07})))
        )
    )
    for text in (
        to_text(record_report(first)),
        to_text(record_report(second)),
        compared,
        as_markdown([first, second]),
    ):
        assert not OTHER_STYLE.search(text.replace("- m(", "")), OTHER_STYLE.search(text)
    assert not OTHER_STYLE.search(as_latex([first]).replace("$-$", "−").replace("- m(", ""))
    for line in csv.DictReader(as_csv([first]).splitlines()):
        assert "−" not in "".join(text for name, text in line.items() if name != "verdict")


def test_metric_names() -> None:
    """Every metric has a name in words."""
    assert metric_name("top5") == "top-5 hit rate" and all(" " in metric_name(m) for m in METRICS)
