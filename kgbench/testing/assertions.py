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
from kgbench.records import NOT_APPLICABLE, Planted, Record, Row
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats import METRICS
from kgbench.stats.prior import priors_of
from kgbench.testing.decisions import OPERATORS, Decision, conclude, decide, sentence
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

Bounds = Mapping[tuple[str, str], float]
"""By field and operator."""

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
    _assert_rows(run, at, prompt, _read(bounds or {"sufficiency__ge": 0.9}, FIELDS))


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
    _assert_rows(run, at, prompt, _read(bounds or {"necessity__ge": 0.5}, ("necessity",)))


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
    _assert_rows(run, at, prompt, _read(bounds or {"sufficiency__le": 0.1}, FIELDS))


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
    record = _seen(run)
    if record.planted is None:
        raise InputError(
            f"the record of {record.model} is not compared with a ground truth: evaluate a plant "
            "with suite 'planted', as by --kgbench-suite planted"
        )
    known, decisions = _of_planted(record.planted), []
    for (field, op), bound in _read(bounds or {"average_precision__ge": 0.9}, known).items():
        estimate, units = known[field]
        what = f"{record.planted.plant}: {field}"
        decisions.append(_decided(estimate, op, bound, what, units))
    conclude(decisions)


def _of_planted(planted: Planted) -> dict[str, tuple[Estimate, str]]:
    """Figures on the ground truth, with the units of their intervals; empty for facts."""
    precision = planted.average_precision
    over = f"{precision.n} {planted.units}s of which {planted.n_true} were planted"
    if (value := precision.value) is not None:
        precision = Estimate(value, value, value, precision.n)
    figures = {"average_precision": (precision, over)}
    for name in ("sufficiency", "necessity"):
        figures[name] = getattr(planted.effect, name), ""
    return figures


def _assert_rows(run: Record | Run, at: str, prompt: str | None, bounds: Bounds) -> None:
    __tracebackhide__ = True
    decisions = []
    record = _seen(run)
    doubts = priors_of(record).doubts(record.metric)
    for row in _rows(record, at, prompt):
        for (field, op), bound in bounds.items():
            what, estimate = f"{row.prompt}, {row.graft}: {field}", _estimate(row, field)
            if FIELDS[field] not in METRICS and row.prompt in doubts and row.applicable:
                estimate = Estimate.missing(doubts[row.prompt], row.n)
            decisions.append(_decided(estimate, op, bound, what))
    conclude(decisions)


def _seen(run: Record | Run) -> Record:
    record = getattr(run, "record", run)
    if not isinstance(record, Record):
        raise InputError(
            "expected a run, as kgbench.evaluate returns it, or its record, not a "
            f"{type(record).__name__}"
        )
    note_record(record)
    return record


def _decided(
    estimate: Estimate, op: str, bound: float, what: str, over: str = ""
) -> tuple[Decision, str]:
    if (estimate.undefined or "").startswith(NOT_APPLICABLE):
        raise InputError(f"{what} is {estimate.undefined}; no number of facts decides that")
    if not over and estimate.value is not None and estimate.value == estimate.low == estimate.high:
        raise InputError(
            f"{what} is {plain_text(estimate.value)} by definition: bound a metric instead, such "
            "as top5__ge"
        )
    decision = decide(estimate, op, bound)
    return decision, sentence(decision, what, over)


def _read(bounds: Mapping[str, float], fields: Collection[str]) -> Bounds:
    """Bounds by field and operator, from `FIELD__OP`.

    Raises:
        UnknownNameError: There is no such field or operator.
    """
    read: dict[tuple[str, str], float] = {}
    for name, bound in bounds.items():
        field, separator, op = name.rpartition("__")
        if not separator:
            raise InputError(
                f"the bound {name!r} has no operator: write {name}__ge, or another of "
                f"{', '.join(OPERATORS)}"
            )
        check_choice(f"field of the bound {name!r}:", field, fields)
        check_choice(f"operator of the bound {name!r}:", op, OPERATORS)
        read[field, op] = bound
    return read


def _rows(record: Record, at: str, prompt: str | None) -> Iterator[Row]:
    """The rows of a configuration: of one prompt, or of each.

    Raises:
        UnknownNameError: The record has no such prompt or configuration.
    """
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    if prompt is not None and prompt not in prompts:
        raise UnknownNameError("prompt of this record:", prompt, prompts)
    rows = {(row.prompt, row.graft): row for row in record.rows}
    known = {row.graft for row in record.rows}
    graft = at
    if at not in known and at not in BASELINES and not at.startswith(("top ", "(top ")):
        graft = str(canonical(parse_graft(at)))  # as records spell it
    for name in prompts if prompt is None else [prompt]:
        if (name, graft) not in rows:
            hint = (
                "This method ranks sites: its configurations are the best-ranked, `top …`."
                if record.kind == "scoring"
                else ""
            )
            raise UnknownNameError("configuration of this record:", at, known, hint)
        yield rows[name, graft]


def _estimate(row: Row, field: str) -> Estimate:
    if field == "necessity" and row.complement is None and row.applicable:
        raise InputError(
            f"{row.prompt}, {row.graft}: there is no necessity: {row.necessity.undefined}"
        )
    estimate = getattr(row, FIELDS[field])
    assert isinstance(estimate, Estimate)
    return estimate
