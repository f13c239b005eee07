"""The pytest plug-in: a model pair and its evaluation as fixtures, and undecided claims.

A test is undecided that passes but for claims that the facts do not decide. Every pytest session
loads this where kgbench is installed, so that importing it loads nothing heavy.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest

from kgbench.errors import InputError
from kgbench.testing.bench import time_localizer as time_localizer
from kgbench.testing.session import Options, in_pytest_words, is_worker, session_of
from kgbench.testing.session import evaluation as evaluation
from kgbench.testing.session import facts as facts
from kgbench.testing.session import localizer as localizer
from kgbench.testing.session import model_pair as model_pair
from kgbench.testing.session import prompts as prompts
from kgbench.testing.session import pytest_addoption as pytest_addoption
from kgbench.testing.undecided import collecting

CATEGORY = "undecided"
"""Category of reports, in addition to pytest's `passed`, `failed` and others."""

ATTRIBUTE = "kgbench_undecided"
"""Attribute of a report: the messages. xdist passes it between processes."""

_MESSAGES = pytest.StashKey[list[str]]()
"""Of the undecided claims of a test."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown word for undecided tests before any test runs."""
    _ = Options(config).undecided


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Collect the claims of a test; fail it where its localizer changed models or process."""
    session = session_of(item.config)
    with collecting() as claims:
        try:
            result = yield
        finally:
            item.stash[_MESSAGES] = claims.undecided
            session.records.update(claims.records)
            try:
                if session.watch is not None:
                    session.watch.check(weights=False)
            except InputError as error:
                session.watch = None
                item.session.shouldfail = in_pytest_words(error)
                pytest.fail(item.session.shouldfail, pytrace=False)
    if claims.undecided and Options(item.config).undecided == "fail":
        messages, item.stash[_MESSAGES] = "\n".join(claims.undecided), []
        pytest.fail(messages, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put undecided claims into the report: they make it undecided, or follow what failed."""
    messages = item.stash.get(_MESSAGES, [])
    if call.when != "call" or not messages or Options(item.config).undecided == "pass":
        return (yield)
    item.user_properties.extend((ATTRIBUTE, message) for message in messages)  # in JUnit's XML
    report = yield
    report.sections.append(("undecided as well", "\n".join(messages)))  # shown where it fails
    # A mark of expected failure is ignored: the test has neither passed nor failed.
    unexpected = str(report.longrepr).startswith("[XPASS(strict)]")
    if call.excinfo is None and (report.passed or unexpected):
        report.outcome, report.longrepr = "passed", None
        vars(report).pop("wasxfail", None)
        setattr(report, ATTRIBUTE, messages)
    return report


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    """Category, letter and word of an undecided test, unless it failed, as by a subtest."""
    if report.outcome != "passed" or not hasattr(report, ATTRIBUTE):
        return None
    return CATEGORY, "U", "UNDECIDED"


# ------------------------------------------------------------------------- end of the session

_TABLES = pytest.StashKey[dict[str, str]]()
"""By record: its table, and where it is kept. xdist passes them between processes."""


def _tables(config: pytest.Config) -> dict[str, str]:
    """Of the records of this process and of its workers."""
    session, tables = session_of(config), config.stash.setdefault(_TABLES, {})
    for id, record in session.records.items():
        from kgbench.report import to_text
        from kgbench.report.run_report import record_report

        tables[id] = f"{to_text(record_report(record))}\n"
        if id in session.folders and Options(config).save is not None:
            tables[id] += f"record   {session.folders[id]}\n"
    return tables


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the tables of a worker."""
    tables: Mapping[str, str] = getattr(node, "workeroutput", {}).get("kgbench", {})
    node.config.stash.setdefault(_TABLES, {}).update(tables)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the tables of a worker."""
    if is_worker(session.config):
        vars(session.config)["workeroutput"]["kgbench"] = _tables(session.config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print tables and undecided claims, as far as there are any."""
    if tables := _tables(config):
        terminalreporter.section("kgbench")
        for table in tables.values():
            terminalreporter.line(table)
    if reports := terminalreporter.stats.get(CATEGORY):
        terminalreporter.section(CATEGORY)
        for report in reports:
            for message in getattr(report, ATTRIBUTE):
                terminalreporter.line(f"{CATEGORY.upper()} {report.nodeid} - {message}")
