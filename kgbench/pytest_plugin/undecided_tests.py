"""Claims that the facts do not decide: a test that makes one, and otherwise passes, is undecided."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from kgbench.pytest_plugin.session import Given, session_of
from kgbench.testing.undecided import Findings, collecting, saw, tell_undecided

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
"""Of reports, beside pytest's own `passed`, `failed` and others."""

ATTRIBUTE = "kgbench_undecided"
"""Of a report: the messages; xdist takes it from one process to another."""

AGAIN = "kgbench_again"
"""Of a report: it is the second undecided one of its test, which counts once."""

Wrapped = Generator[None, object, object]

_FOUND = pytest.StashKey[Findings]()
_CALL = pytest.StashKey[bool]()
"""Whether the report of a test's call is undecided."""
_OF_FIXTURES = pytest.StashKey[MutableMapping[Any, list[str]]]()
"""The messages of each fixture whose value is kept."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Wrapped:
    """Collect what the assertions of a test and of its fixtures find."""
    with collecting() as found:
        item.stash[_FOUND] = found
        result = yield
    if found.records:
        records = session_of(item.config).records
        records.update({id: record for id, record in found.records.items() if id not in records})
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Wrapped:
    """Fail a strict test that would pass with undecided claims, be they those of a fixture that an earlier test set up."""
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
    """Remember what a fixture claims, and what those claim that it asks for by name: every test that uses its value claims it too."""
    found, before = Findings(), set(_used(request))
    claimed = request.config.stash.setdefault(_OF_FIXTURES, WeakKeyDictionary())
    try:
        with collecting() as found:
            return (yield)
    finally:
        asked = [
            message
            for name, other in _used(request).items()
            if name not in before
            for message in claimed.get(other, ())
        ]
        claimed[fixturedef] = list(dict.fromkeys([*found.undecided, *asked]))
        for record in found.records.values():
            saw(record)
        tell_undecided(found.undecided)


def _used(request: Any) -> Mapping[str, pytest.FixtureDef[Any]]:
    """The fixtures that a test has used so far, which pytest tells nowhere else."""
    found: Mapping[str, pytest.FixtureDef[Any]] = getattr(request, "_fixture_defs", {})
    return found


def _take_from_fixtures(item: pytest.Item) -> None:
    claimed = item.config.stash.get(_OF_FIXTURES, {})
    if (found := item.stash.get(_FOUND, None)) is not None:
        messages = [
            message
            for fixture in _used(getattr(item, "_request", None)).values()
            for message in claimed.get(fixture, ())
        ]
        found.undecided.extend(
            message for message in dict.fromkeys(messages) if message not in found.undecided
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapped:
    """Likewise for what is asserted while fixtures end; what was before is reported by now."""
    if _FOUND in item.stash:
        item.stash[_FOUND].undecided.clear()
    result = yield
    _fail_if_strict(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put undecided claims into the report: they make it undecided, or stand beside what failed."""
    found = item.stash.get(_FOUND, None)
    if found is None or not found.undecided or (call.when == "setup" and call.excinfo is None):
        return (yield)
    messages = list(found.undecided)
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
        found.undecided.clear()  # a plug-in may run the test once more
    return report


def _unexpectedly(report: pytest.TestReport) -> bool:
    """Whether a report fails for the mark of an expected failure alone."""
    return str(report.longrepr).startswith("[XPASS(strict)]")


def _make_undecided(report: pytest.TestReport, messages: Sequence[str]) -> None:
    """A mark of expected failure has no say: the test has neither passed nor failed."""
    report.outcome, report.longrepr = "passed", None
    vars(report).pop("wasxfail", None)
    setattr(report, ATTRIBUTE, list(messages))


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """A category, a letter and a word of its own, unless the test has failed after all, as by a subtest."""
    if not messages_of(report) or report.outcome != "passed":
        return None
    return ("", "", "") if getattr(report, AGAIN, False) else (CATEGORY, "U", "UNDECIDED")


def messages_of(report: object) -> Sequence[str]:
    """The undecided claims of a report that neither passed nor failed."""
    found: Sequence[str] = getattr(report, ATTRIBUTE, ())
    return found


def _fail_if_strict(item: pytest.Item) -> None:
    found = item.stash.get(_FOUND, None)
    if found is not None and found.undecided and Given(item.config).strict:
        message = "\n".join(found.undecided)
        found.undecided.clear()
        pytest.fail(message, pytrace=False)
