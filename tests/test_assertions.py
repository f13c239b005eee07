"""Claims about where facts are, as assertions on a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_runs
import pytest

from kgbench.errors import GraftSyntaxError, InputError, UnknownNameError
from kgbench.estimate import Estimate
from kgbench.records import NO_INTERVAL_OF_SITES, NOT_APPLICABLE, Effect, Planted, Record
from kgbench.stats import METRICS
from kgbench.testing import (
    UndecidedError,
    assert_localized,
    assert_necessary,
    assert_not_at,
    assert_planted,
)
from kgbench.testing.assertions import FIELDS
from kgbench.testing.undecided import CollectedClaims, collecting


@pytest.fixture(scope="module")
def record() -> Record:
    """Two prompts of 150 facts each; FE+LT brings 97 %, LT 29 %, FE 17 %."""
    return fake_runs.record(fake_runs.rows(150))


def found(claim: Callable[..., None], *arguments: Any, **bounds: Any) -> CollectedClaims:
    """What an assertion leaves undecided."""
    with collecting() as findings:
        claim(*arguments, **bounds)
    return findings


def failed(claim: Callable[..., None], *arguments: Any, **bounds: Any) -> str:
    """What an assertion fails with."""
    with collecting(), pytest.raises(AssertionError) as error:
        claim(*arguments, **bounds)
    return str(error.value)


@pytest.mark.parametrize(
    ("claim", "arguments"),
    [
        (assert_localized, {}),
        (
            assert_localized,
            {"prompt": "qa", "sufficiency__gt": 0.9, "top5__ge": 0.9, "log_rank__le": 4},
        ),
        (assert_necessary, {"at": "FE+LT"}),
        (assert_necessary, {"at": "LT", "necessity__ge": 0.6, "necessity__lt": 0.9}),
        (assert_not_at, {"at": "(FE+LT)^C"}),
        (assert_not_at, {"at": "FE", "sufficiency__le": 0.3}),
        *((assert_localized, {"at": spelling}) for spelling in ("LT+FE", "FE + LT", "FE+LT+FE")),
    ],
)
def test_what_holds(record: Record, claim: Callable[..., None], arguments: dict[str, Any]) -> None:
    """The claims of the paper on figures like the paper's; by default they are about each prompt,
    and a configuration is found however it is written.
    """
    findings = found(claim, record, **arguments)
    assert findings.undecided == [] and list(findings.records) == [record.id]


def test_what_fails(record: Record) -> None:
    """An AssertionError that says of each prompt estimate, interval, facts and bound."""
    lines = failed(assert_localized, record, "LT").splitlines()
    assert [line.split(" sufficiency ")[0] for line in lines] == ["qa, LT:", "headline, LT:"]
    assert lines[1].endswith("] over 150 facts is below the bound .9 (ge)")
    assert "qa" not in failed(assert_not_at, record, "ALL", prompt="headline")
    assert "necessity" in failed(assert_necessary, record, "FE+LT", necessity__le=0.5)


def test_what_is_undecided(record: Record) -> None:
    """It is told and nothing is raised where something collects; elsewhere UndecidedError, which is
    an AssertionError.
    """
    findings = found(assert_localized, record, "LT", sufficiency__ge=0.31)
    assert len(findings.undecided) == 2
    assert "facts would decide it" in findings.undecided[0]
    with pytest.MonkeyPatch.context() as outside, pytest.raises(AssertionError) as error:
        outside.setattr("kgbench.testing.undecided._stack", [])
        assert_localized(record, "LT", sufficiency__ge=0.31)
    assert type(error.value) is UndecidedError
    assert str(error.value).splitlines() == findings.undecided


def test_a_failure_wins(record: Record) -> None:
    """Where one bound fails and another is undecided, the assertion fails, and says both."""
    with collecting() as findings, pytest.raises(AssertionError) as error:
        assert_localized(record, "LT", prompt="qa", sufficiency__ge=0.31, sufficiency__le=0.05)
    assert type(error.value) is AssertionError and findings.undecided == []
    first, second = str(error.value).splitlines()
    assert first.endswith("is above the bound .05 (le)")
    assert second.startswith("undecided: qa, LT: sufficiency")


def test_few_facts() -> None:
    """Nine facts decide nothing, whatever their figures."""
    nine = fake_runs.record(fake_runs.rows(9, {**fake_runs.RATES, "SFT": 1, "FE+LT": 1, "PRE": 0}))
    assert len(found(assert_localized, nine, top5__ge=0.1).undecided) == 2
    assert len(found(assert_localized, nine, top5__le=0.1).undecided) == 2


@pytest.mark.parametrize("field", [*METRICS, "mrr", "sufficiency", "recovery", "necessity"])
def test_fields(record: Record, field: str) -> None:
    """Every metric and effect can have a bound, and is compared with its own figure."""
    row = next(row for row in record.rows if (row.prompt, row.graft) == ("qa", "FE"))
    above = getattr(row, FIELDS[field]).value + 1e6
    at = (assert_localized, record, "FE")
    assert field in failed(*at, prompt="qa", **{f"{field}__gt": above})
    assert found(*at, prompt="qa", **{f"{field}__le": above}).undecided == []


@pytest.mark.parametrize(
    ("claim", "arguments", "said"),
    [
        (assert_localized, {"suficiency__ge": 0.9}, "Did you mean 'sufficiency'"),
        (
            assert_localized,
            {"sufficiency__eq": 0.9},
            "unknown operator of the bound 'sufficiency__eq': 'eq'. Known: ge, gt, le, lt",
        ),
        (assert_localized, {"sufficiency": 0.9}, "has no operator: write sufficiency__ge"),
        (assert_localized, {"sufficiency__ge": float("nan")}, "a bound is a finite number"),
        (assert_localized, {"prompt": "headlin"}, "Did you mean 'headline'"),
        (assert_localized, {"at": "R"}, "unknown configuration of this record: 'R'. Known: "),
        (assert_localized, {"at": "top 1%"}, "unknown configuration of this record: 'top 1%'"),
        (assert_localized, {"at": "FE++LT"}, "cannot read the graft"),
        (assert_necessary, {"at": "FE", "sufficiency__ge": 0.5}, "unknown field"),
        (assert_necessary, {"at": "SFT"}, "there is no necessity: SFT is no graft"),
        (assert_planted, {}, "is not compared with a ground truth"),
    ],
)
def test_wrong_names_never_pass(
    record: Record, claim: Callable[..., None], arguments: dict[str, Any], said: str
) -> None:
    """They are errors of the input, not failed claims, and say what there is."""
    with pytest.raises(InputError) as error:
        claim(record, **arguments)
    assert said in str(error.value) and not isinstance(error.value, AssertionError)
    assert type(error.value) in (InputError, UnknownNameError, GraftSyntaxError)


def test_no_record() -> None:
    """What is no record is told as such."""
    with pytest.raises(
        InputError,
        match=r"expected a run, as kgbench\.evaluate returns it, or its record, not a dict",
    ):
        assert_localized({})  # type: ignore[arg-type]


def test_a_complement_that_was_not_run() -> None:
    """No number of facts would give a necessity, so that it is an error and not undecided."""
    without = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "LT^C"}
    with pytest.raises(InputError, match="there is no necessity: its complement was not run"):
        assert_necessary(fake_runs.record(fake_runs.rows(rates=without)), "LT")


def test_what_a_method_cannot_express(record: Record) -> None:
    """It is an error with the method's reason, since no number of facts decides it."""
    nothing = Estimate(n=0, undefined=f"{NOT_APPLICABLE}it has one place only")
    rows = tuple(
        (
            row.model_copy(update={"sufficiency": nothing, "top5": nothing})
            if row.graft == "FE"
            else row
        )
        for row in record.rows
    )
    absent = record.model_copy(update={"rows": rows})
    with pytest.raises(
        InputError,
        match="FE: top5 is not applicable: it has one place only; no number of facts decides that",
    ):
        assert_localized(absent, "FE", top5__ge=0.5)
    assert_localized(absent)


def test_undefined_ratios() -> None:
    """Where finetuning added nothing that can be told, ratios are undecided for that reason, and
    metrics are decided.
    """
    same = fake_runs.record(fake_runs.rows(50, dict.fromkeys(fake_runs.RATES, 0.5)))
    undecided = found(assert_localized, same).undecided
    assert len(undecided) == 2
    assert all("is undefined" in line and "not significantly" in line for line in undecided)
    assert found(assert_localized, same, top5__ge=0.2).undecided == []


@pytest.fixture
def planted(record: Record) -> Record:
    """A record that finds the places that facts use with a graded average precision of .97."""

    def figure(value: float, n: int = 40) -> Estimate:
        return Estimate(value=value, low=value - 0.05, high=value + 0.02, n=n)

    def over_sites(value: float) -> Estimate:
        return Estimate(value=value, undefined=NO_INTERVAL_OF_SITES, n=40)

    effect = Effect(sufficiency=figure(0.8, 150), necessity=figure(0.3, 150))
    found = Planted(
        plant="ALL:ffn@1",
        decoy=None,
        units="block",
        n_units=40,
        n_true=4,
        average_precision=over_sites(0.97),
        chance=0.3,
        k=4,
        effect=effect,
        prompts={"qa": effect},
        pathways=None,
    )
    return record.model_copy(update={"planted": found})


def test_planted(planted: Record) -> None:
    """Figures of the ranking against the truth, which are over all places and decide by their
    value, and of its best sites.
    """
    for bounds in ({}, {"sufficiency__ge": 0.7}, {"average_precision__le": 0.99}):
        assert found(assert_planted, planted, **bounds).undecided == []
    text = failed(assert_planted, planted, necessity__ge=0.5, average_precision__ge=0.95)
    assert (
        text.splitlines()[0]
        == "ALL:ffn@1: necessity .30 [.25, .32] over 150 facts is below the bound .5 (ge)"
    )
    text = failed(assert_planted, planted, average_precision__ge=0.99)
    assert text.endswith("over 40 blocks of which 4 were planted is below the bound .99 (ge)")
    with pytest.raises(UnknownNameError, match="precision"):
        assert_planted(planted, precision__ge=0.9)


@pytest.mark.parametrize(
    ("claim", "at"),
    [
        (assert_localized, "SFT"),
        (assert_localized, "PRE"),
        (assert_not_at, "PRE"),
        (assert_necessary, "ALL"),
    ],
)
def test_what_is_so_by_definition(record: Record, claim: Callable[..., None], at: str) -> None:
    """It is nothing that an evaluation could find, so that claiming it is an error; what was
    measured there can have a bound.
    """
    with pytest.raises(
        InputError,
        match=(
            rf"{at}: (sufficiency|necessity) is [01] by definition: bound a metric instead, such as"
            r" top5__ge"
        ),
    ):
        claim(record, at)
    assert_localized(record, "SFT", top5__ge=0.9)


def test_a_method_that_ranks(record: Record) -> None:
    """Its record has no pathways, and says what it has."""
    best = tuple(
        row.model_copy(update={"graft": "top 1%"}) for row in record.rows if row.graft == "FE+LT"
    )
    ranked = record.model_copy(update={"kind": "scoring", "rows": best})
    with pytest.raises(
        UnknownNameError,
        match=(
            r"Known: top 1%\. This method ranks sites: its configurations are the best-ranked, `top"
            r" …`\."
        ),
    ):
        assert_localized(ranked)
    assert_localized(ranked, "top 1%")


@pytest.mark.parametrize(
    "arguments", [{"at": "FE+LTX"}, {"sufficiency__ge": float("nan")}, {"prompt": "headlin"}]
)
def test_mistakes_show_no_frames_of_ours(record: Record, arguments: dict[str, Any]) -> None:
    """Of a wrong input pytest shows the line of the test alone: all that lies below is hidden."""
    with pytest.raises(InputError) as error:
        assert_localized(record, **arguments)
    assert error.value.__suppress_context__
    assert [entry.name for entry in error.traceback.filter(error)] == [
        "test_mistakes_show_no_frames_of_ours"
    ]
