"""Claims about where facts are, as assertions on a record.

An assertion passes or fails by the whole interval of a figure. A claim that the interval does not
decide is *undecided*: pytest reports it after the test, and elsewhere `UndecidedError` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from kgbench.errors import InputError, KgbenchError, UnknownNameError, check_choice
from kgbench.estimate import Estimate
from kgbench.numbers import plain_text
from kgbench.records import NOT_APPLICABLE, Record, Row
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats import METRICS
from kgbench.stats.answer_frequency import priors_of
from kgbench.testing.decisions import OPERATORS, Decision, conclude
from kgbench.testing.undecided import note_record

if TYPE_CHECKING:  # a claim about a record loads no torch
    from kgbench.runner import Run

FIELDS: Mapping[str, str] = {
    "sufficiency": "sufficiency",
    "recovery": "sufficiency",
    "necessity": "necessity",
    **{metric: metric for metric in METRICS},
}
"""Figures that can be bounded, with their names in the rows of a record."""

P = ParamSpec("P")


def _in_a_line(claim: Callable[P, None]) -> Callable[P, None]:
    """Raise errors of the input without a traceback."""

    @wraps(claim)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> None:
        __tracebackhide__ = True
        try:
            claim(*arguments, **options)
        except KgbenchError as error:
            raise error.with_traceback(None) from None

    return wrapped


@_in_a_line
def assert_localized(
    run: Record | Run, at: str = "FE+LT", *, prompt: str | None = None, **bounds: float
) -> None:
    """The facts are retrieved at these sites: by themselves, the sites satisfy the bounds.

    Args:
        run: An evaluation, or its record.
        at: A configuration of the record.
        prompt: One of its prompts; by default the claim is about each of them.
        **bounds: `FIELD__OP=NUMBER`. FIELD is `sufficiency`, `recovery` (the same), `necessity` or
            a metric such as `top5`; OP is `ge`, `gt`, `le` or `lt`. By default
            `sufficiency__ge=.9`.

    Raises:
        AssertionError: A whole interval breaks a bound.
        UndecidedError: Outside of pytest: an interval does not decide.
        InputError: A name is unknown, or the method cannot express the configuration.
    """
    __tracebackhide__ = True
    _assert_rows(run, at, prompt, bounds or {"sufficiency__ge": 0.9})


@_in_a_line
def assert_necessary(
    run: Record | Run, at: str, *, prompt: str | None = None, **bounds: float
) -> None:
    """The sites are necessary: without them, most of what finetuning added is lost.

    Args:
        run: An evaluation, or its record.
        at: A configuration of the record whose complement was run.
        prompt: One of its prompts; by default the claim is about each of them.
        **bounds: On the necessity; by default `necessity__ge=.5`.

    Raises:
        AssertionError: A whole interval breaks a bound.
        UndecidedError: Outside of pytest: an interval does not decide.
        InputError: A name is unknown, or there is no necessity of this configuration.
    """
    __tracebackhide__ = True
    _assert_rows(run, at, prompt, bounds or {"necessity__ge": 0.5}, ("necessity",))


@_in_a_line
def assert_not_at(
    run: Record | Run, at: str, *, prompt: str | None = None, **bounds: float
) -> None:
    """The facts are not retrieved at these sites: by themselves they bring next to nothing.

    Args:
        run: An evaluation, or its record.
        at: A configuration of the record.
        prompt: One of its prompts; by default the claim is about each of them.
        **bounds: On the sufficiency or a metric; by default `sufficiency__le=.1`.

    Raises:
        AssertionError: A whole interval breaks a bound.
        UndecidedError: Outside of pytest: an interval does not decide.
        InputError: A name is unknown, or the method cannot express the configuration.
    """
    __tracebackhide__ = True
    _assert_rows(run, at, prompt, bounds or {"sufficiency__le": 0.1})


@_in_a_line
def assert_planted(run: Record | Run, **bounds: float) -> None:
    """A method finds the sites where facts were planted.

    Average precision is over all blocks whose weights changed: it is exact for this plant and has no
    interval.

    Args:
        run: An evaluation, or its record, by a suite that knows the truth, such as `planted`.
        **bounds: `FIELD__OP=NUMBER`. FIELD is `average_precision`, or the `sufficiency` or
            `necessity` of as many best-ranked sites as were planted. By default
            `average_precision__ge=.9`.

    Raises:
        AssertionError: A whole interval breaks a bound.
        UndecidedError: Outside of pytest: an interval does not decide.
        InputError: A name is unknown, or the record is not compared with a truth.
    """
    __tracebackhide__ = True
    record = _record(run)
    if (planted := record.planted) is None:
        raise InputError(
            f"the record of {record.model} is not compared with a ground truth: evaluate a plant "
            "with suite 'planted', as by --kgbench-suite planted"
        )
    precision, effect = planted.average_precision, planted.effect
    over = f"{precision.n} {planted.units}s of which {planted.n_true} were planted"
    if (value := precision.value) is not None:
        precision = Estimate(value, value, value, precision.n)
    figures = {
        "average_precision": (precision, over),
        "sufficiency": (effect.sufficiency, ""),
        "necessity": (effect.necessity, ""),
    }
    decisions = []
    for field, op, bound in _read(bounds or {"average_precision__ge": 0.9}, figures):
        estimate, units = figures[field]
        decisions.append(_decision(estimate, op, bound, f"{planted.plant}: {field}", units))
    conclude(decisions)


def _assert_rows(
    run: Record | Run,
    at: str,
    prompt: str | None,
    bounds: Mapping[str, float],
    fields: Collection[str] = FIELDS,
) -> None:
    __tracebackhide__ = True
    decisions = []
    record = _record(run)
    doubts, read = priors_of(record).doubts(record.metric), _read(bounds, fields)
    for row in _rows(record, at, prompt):
        for field, op, bound in read:
            if field == "necessity" and row.complement is None and row.applicable:
                raise InputError(
                    f"{row.prompt}, {row.graft}: there is no necessity: {row.necessity.undefined}"
                )
            estimate: Estimate = getattr(row, FIELDS[field])
            if FIELDS[field] not in METRICS and row.prompt in doubts and row.applicable:
                estimate = Estimate.missing(doubts[row.prompt], row.n)
            what = f"{row.prompt}, {row.graft}: {field}"
            decisions.append(_decision(estimate, op, bound, what))
    conclude(decisions)


def _record(run: Record | Run) -> Record:
    record = getattr(run, "record", run)
    if not isinstance(record, Record):
        raise InputError(
            "expected a run, as kgbench.evaluate returns it, or its record, not a "
            f"{type(record).__name__}"
        )
    note_record(record)
    return record


def _decision(estimate: Estimate, op: str, bound: float, what: str, over: str = "") -> Decision:
    if (estimate.undefined or "").startswith(NOT_APPLICABLE):
        raise InputError(f"{what} is {estimate.undefined}; no number of facts decides that")
    if not over and estimate.value is not None and estimate.value == estimate.low == estimate.high:
        raise InputError(
            f"{what} is {plain_text(estimate.value)} by definition: bound a metric instead, such "
            "as top5__ge"
        )
    return Decision(estimate, op, bound, what, over)


def _read(bounds: Mapping[str, float], fields: Collection[str]) -> list[tuple[str, str, float]]:
    """Field, operator and bound, from `FIELD__OP`.

    Raises:
        UnknownNameError: There is no such field or operator.
    """
    read = []
    for name, bound in bounds.items():
        field, separator, op = name.rpartition("__")
        if not separator:
            raise InputError(
                f"the bound {name!r} has no operator: write {name}__ge, or another of "
                f"{', '.join(OPERATORS)}"
            )
        check_choice(f"field of the bound {name!r}:", field, fields)
        check_choice(f"operator of the bound {name!r}:", op, OPERATORS)
        read.append((field, op, bound))
    return read


def _rows(record: Record, at: str, prompt: str | None) -> Iterator[Row]:
    """The rows of a configuration: of one prompt, or of each.

    Raises:
        UnknownNameError: The record has no such prompt or configuration.
    """
    rows = {(row.prompt, row.graft): row for row in record.rows}
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    grafts = dict.fromkeys(row.graft for row in record.rows)
    if prompt is not None:
        check_choice("prompt of this record:", prompt, prompts)
    graft = at
    if at not in grafts and at not in BASELINES and not at.startswith(("top ", "(top ")):
        graft = str(canonical(parse_graft(at)))  # as records spell it
    for name in prompts if prompt is None else [prompt]:
        if (name, graft) not in rows:
            hint = (
                "This method ranks sites: its configurations are the best-ranked, `top …`."
                if record.kind == "scoring"
                else ""
            )
            raise UnknownNameError("configuration of this record:", at, grafts, hint)
        yield rows[name, graft]
