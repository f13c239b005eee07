"""The pytest plug-in: a model pair and its evaluation as fixtures, and undecided claims.

A test is undecided that passes but for claims that the facts do not decide. Every pytest session
loads this where kgbench is installed, so that importing it loads nothing heavy.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from kgbench.errors import KgbenchError
from kgbench.testing.bench import kgbench_job, time_localizer
from kgbench.testing.session import (
    Given,
    Session,
    evaluation,
    existing_session,
    facts,
    in_pytest_words,
    is_worker,
    localizer,
    model_pair,
    prompts,
    pytest_addoption,
    session_of,
)
from kgbench.testing.undecided import CollectedClaims, collecting, note_record, report_undecided

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


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown word for undecided tests before any test runs."""
    _ = Given(config).undecided


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
    """Fail a test with undecided claims if asked to, also of a fixture set up by an earlier test."""
    try:
        result = yield
    finally:
        claimed = item.config.stash.get(_OF_FIXTURES, {})
        if (claims := item.stash.get(_CLAIMS, None)) is not None:
            for fixture in _used(getattr(item, "_request", None)).values():
                for message in claimed.get(fixture, ()):
                    if message not in claims.undecided:
                        claims.undecided.append(message)
    _fail_if_asked(item)
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapped:
    """The same while fixtures end; earlier claims are reported by now."""
    if _CLAIMS in item.stash:
        item.stash[_CLAIMS].undecided.clear()
    result = yield
    _fail_if_asked(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put undecided claims into the report: they make it undecided, or follow what failed."""
    claims = item.stash.get(_CLAIMS, None)
    if claims is None or not claims.undecided or (call.when == "setup" and call.excinfo is None):
        return (yield)
    if Given(item.config).undecided == "pass":
        claims.undecided.clear()
        return (yield)
    messages = list(claims.undecided)
    properties = [(ATTRIBUTE, message) for message in messages]
    item.user_properties.extend(
        p for p in properties if p not in item.user_properties
    )  # JUnit's XML shows these
    report = yield
    report.sections.append(("undecided as well", "\n".join(messages)))  # shown where it fails
    # A mark of expected failure is ignored: the test has neither passed nor failed.
    unexpected = str(report.longrepr).startswith("[XPASS(strict)]")
    undecided = call.excinfo is None and (report.passed or unexpected)
    if undecided:
        report.outcome, report.longrepr = "passed", None
        vars(report).pop("wasxfail", None)
        setattr(report, ATTRIBUTE, messages)
    if call.when == "call":
        item.stash[_CALL] = undecided
    if call.when == "teardown":
        setattr(report, AGAIN, item.stash.get(_CALL, False))
        claims.undecided.clear()  # a plug-in may run the test once more
    return report


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


def _fail_if_asked(item: pytest.Item) -> None:
    claims = item.stash.get(_CLAIMS, None)
    if claims is not None and claims.undecided and Given(item.config).undecided == "fail":
        message = "\n".join(claims.undecided)
        claims.undecided.clear()
        pytest.fail(message, pytrace=False)


# ------------------------------------------------------------------------- end of the session

OUTPUT = "kgbench"
"""Key of the output of a worker of pytest-xdist."""


@dataclass(frozen=True)
class RecordSummary:
    """Report on one record, in plain values, which pass between processes."""

    id: str
    table: str
    kept: str | None
    """Where the record of the session's fixture outlives the session."""


_SUMMARIES = pytest.StashKey[dict[str, RecordSummary]]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the output of a worker."""
    for values in getattr(node, "workeroutput", {}).get(OUTPUT, ()):
        summary = RecordSummary(**values)
        _summaries(node.config).setdefault(summary.id, summary)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the summaries of a worker; elsewhere, keep them for the end."""
    config, mine = session.config, existing_session(session.config)
    summaries = record_summaries(mine) if mine is not None else []
    if not is_worker(config):
        _summaries(config).update({summary.id: summary for summary in summaries})
    elif summaries:
        vars(config)["workeroutput"][OUTPUT] = list(map(asdict, summaries))


def _damaged(config: pytest.Config) -> Iterator[str]:
    """Lines on damaged records in the folder of records."""
    folder = Given(config).path("save")
    if folder is None or not _summaries(config):
        return
    from kgbench.records import DamagedRecordWarning, RecordStore

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamagedRecordWarning)
        for _ in RecordStore(folder).scan():
            pass
    yield from (str(warning.message) for warning in caught)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print tables and undecided claims, as far as there are any."""
    summaries = list(_summaries(config).values())
    if summaries:
        terminalreporter.section("kgbench")
    for summary in summaries:
        terminalreporter.line(summary.table)
        if summary.kept:
            terminalreporter.line(f"record   {summary.kept}")
        terminalreporter.line("")
    for line in _damaged(config):
        terminalreporter.line(line)
    reports = list(terminalreporter.stats.get(CATEGORY, ()))
    for report in terminalreporter.stats.get("", ()):
        if getattr(report, AGAIN, False):
            reports.append(report)
    lines = []
    for report in reports:
        for message in messages_of(report):
            lines.append(f"{CATEGORY.upper()} {report.nodeid} - {message}")
    if lines:
        terminalreporter.section(CATEGORY)
    for line in lines:
        terminalreporter.line(line)


def _summaries(config: pytest.Config) -> dict[str, RecordSummary]:
    """Summaries of all processes, by record."""
    return config.stash.setdefault(_SUMMARIES, {})


def record_summaries(session: Session) -> list[RecordSummary]:
    """Summaries of all records of this process."""
    from kgbench.report import to_text
    from kgbench.report.run_report import record_report

    keeps = session.given.path("save") is not None
    summaries = []
    for id, record in session.records.items():
        folder = session.folders.get(id)
        kept = keeps and folder is not None and (folder / "record.json").is_file()
        table = to_text(record_report(record))
        summaries.append(RecordSummary(id, table, str(folder) if kept else None))
    return summaries
