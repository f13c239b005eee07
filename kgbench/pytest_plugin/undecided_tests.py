"""Undecided tests: those that pass but for claims that the facts do not decide."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from kgbench.pytest_plugin.pytest_session import Given, session_of
from kgbench.testing.undecided import (
    CollectedClaims,
    collecting,
    note_record,
    report_undecided,
)

__all__ = [
    "AGAIN",
    "CATEGORY",
    "messages_of",
    "pytest_fixture_setup",
    "pytest_report_teststatus",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]

CATEGORY = "undecided"
"""Category of reports, in addition to pytest's `passed`, `failed` and others."""

ATTRIBUTE = "kgbench_undecided"
"""Attribute of a report: the messages. xdist passes it between processes."""

AGAIN = "kgbench_again"
"""Attribute of a report: the second undecided one of its test, which counts once."""

Wrapped = Generator[None, object, object]

_CLAIMS = pytest.StashKey[CollectedClaims]()
_CALL = pytest.StashKey[bool]()
"""Whether the report of a test's call is undecided."""
_OF_FIXTURES = pytest.StashKey[MutableMapping[Any, list[str]]]()
"""The messages of each fixture whose value is kept."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Wrapped:
    """Collect the claims of a test and of its fixtures."""
    with collecting() as claims:
        item.stash[_CLAIMS] = claims
        result = yield
    if claims.records:
        records = session_of(item.config).records
        records.update({id: record for id, record in claims.records.items() if id not in records})
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Wrapped:
    """Fail a strict test with undecided claims, also of a fixture that an earlier test set up."""
    try:
        result = yield
    finally:
        _take_from_fixtures(item)
    _fail_if_strict(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Wrapped:
    """Keep the claims of a fixture and of those that it requests by name.

    Every test that uses the value of a fixture makes its claims too.
    """
    claims, before = CollectedClaims(), set(_used(request))
    claimed = request.config.stash.setdefault(_OF_FIXTURES, WeakKeyDictionary())
    try:
        with collecting() as claims:
            return (yield)
    finally:
        messages = dict.fromkeys(claims.undecided)
        for name, other in _used(request).items():
            if name not in before:
                messages.update(dict.fromkeys(claimed.get(other, ())))
        claimed[fixturedef] = list(messages)
        for record in claims.records.values():
            note_record(record)
        report_undecided(claims.undecided)


def _used(request: Any) -> Mapping[str, pytest.FixtureDef[Any]]:
    """Fixtures that a test has used so far; pytest has no public name for them."""
    used: Mapping[str, pytest.FixtureDef[Any]] = getattr(request, "_fixture_defs", {})
    return used


def _take_from_fixtures(item: pytest.Item) -> None:
    claimed = item.config.stash.get(_OF_FIXTURES, {})
    if (claims := item.stash.get(_CLAIMS, None)) is not None:
        for fixture in _used(getattr(item, "_request", None)).values():
            for message in claimed.get(fixture, ()):
                if message not in claims.undecided:
                    claims.undecided.append(message)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapped:
    """The same while fixtures end; earlier claims are reported by now."""
    if _CLAIMS in item.stash:
        item.stash[_CLAIMS].undecided.clear()
    result = yield
    _fail_if_strict(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put undecided claims into the report: they make it undecided, or follow what failed."""
    claims = item.stash.get(_CLAIMS, None)
    if claims is None or not claims.undecided or (call.when == "setup" and call.excinfo is None):
        return (yield)
    messages = list(claims.undecided)
    properties = [(ATTRIBUTE, message) for message in messages]
    item.user_properties.extend(
        p for p in properties if p not in item.user_properties
    )  # JUnit's XML shows these
    report = yield
    report.sections.append(("undecided as well", "\n".join(messages)))  # shown where it fails
    undecided = call.excinfo is None and (report.passed or _unexpectedly(report))
    if undecided:
        _make_undecided(report, messages)
    if call.when == "call":
        item.stash[_CALL] = undecided
    if call.when == "teardown":
        setattr(report, AGAIN, item.stash.get(_CALL, False))
        claims.undecided.clear()  # a plug-in may run the test once more
    return report


def _unexpectedly(report: pytest.TestReport) -> bool:
    """Whether a report fails for the mark of an expected failure alone."""
    return str(report.longrepr).startswith("[XPASS(strict)]")


def _make_undecided(report: pytest.TestReport, messages: Sequence[str]) -> None:
    """A mark of expected failure is ignored: the test has neither passed nor failed."""
    report.outcome, report.longrepr = "passed", None
    vars(report).pop("wasxfail", None)
    setattr(report, ATTRIBUTE, list(messages))


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Category, letter and word of an undecided test, unless it failed, as by a subtest."""
    if not messages_of(report) or report.outcome != "passed":
        return None
    return ("", "", "") if getattr(report, AGAIN, False) else (CATEGORY, "U", "UNDECIDED")


def messages_of(report: object) -> Sequence[str]:
    """The undecided claims of a report that neither passed nor failed."""
    messages: Sequence[str] = getattr(report, ATTRIBUTE, ())
    return messages


def _fail_if_strict(item: pytest.Item) -> None:
    claims = item.stash.get(_CLAIMS, None)
    if claims is not None and claims.undecided and Given(item.config).strict:
        message = "\n".join(claims.undecided)
        claims.undecided.clear()
        pytest.fail(message, pytrace=False)
