"""The end of a session: tables of what was evaluated, what is undecided, and what has moved."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kgbench.errors import KgbenchError
from kgbench.pytest_plugin.pytest_session import (
    Given,
    Session,
    existing_session,
    in_pytest_words,
    is_worker,
)
from kgbench.pytest_plugin.undecided_tests import AGAIN, CATEGORY, messages_of

if TYPE_CHECKING:
    from kgbench.records import StoredRecord

__all__ = [
    "RecordSummary",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "record_summaries",
]

OUTPUT = "kgbench"
"""Key of the output of a worker of pytest-xdist."""

NOTHING = (
    "--kgbench-compare-fail: no test of this session evaluated anything, so that nothing was "
    "compared"
)

STOPPED = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)
"""Exit codes of sessions that were stopped before their end."""


@dataclass(frozen=True)
class RecordSummary:
    """Report on one record, in plain values, which pass between processes."""

    id: str
    table: str
    kept: str | None
    """Where the record of the session's fixture outlives the session."""
    comparison: tuple[str, ...] = ()
    """Lines on the comparison with a saved record."""
    failed: bool = False
    """Whether a figure has moved, or the record could not be read or compared."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RecordSummary:
        """Back from JSON."""
        return cls(**{**values, "comparison": tuple(values["comparison"])})


_SUMMARIES = pytest.StashKey[dict[str, RecordSummary]]()
_WRONG = pytest.StashKey[list[str]]()
"""Lines on what fails the session apart from its tests."""
_CRASHED = pytest.StashKey[bool]()
"""Whether a worker ended without its output."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the output of a worker."""
    if error:
        node.config.stash[_CRASHED] = True
    for values in getattr(node, "workeroutput", {}).get(OUTPUT, ()):
        summary = RecordSummary.from_json(values)
        _summaries(node.config).setdefault(summary.id, summary)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the summaries of a worker; elsewhere, fail if a figure has moved."""
    config, mine = session.config, existing_session(session.config)
    summaries = record_summaries(mine) if mine is not None else []
    if is_worker(config):
        if summaries:
            vars(config)["workeroutput"][OUTPUT] = [summary.to_json() for summary in summaries]
        return
    _summaries(config).update({summary.id: summary for summary in summaries})
    config.stash[_WRONG] = list(_void(session))
    failed = config.stash[_WRONG] or any(summary.failed for summary in _summaries(config).values())
    if failed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _void(session: pytest.Session) -> Iterator[str]:
    """A line on a comparison that was requested and did not take place, in a full session."""
    config = session.config
    stopped = session.exitstatus in STOPPED or config.stash.get(_CRASHED, False)
    if (
        Given(config).on_command_line("compare-fail")
        and not _summaries(config)
        and not config.option.collectonly
        and not stopped
    ):
        yield NOTHING


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
    """Print tables, comparisons and undecided claims, as far as there are any."""
    summaries = list(_summaries(config).values())
    wrong = config.stash.get(_WRONG, [])
    if summaries or wrong:
        terminalreporter.section("kgbench")
    for summary in summaries:
        terminalreporter.line(summary.table)
        if summary.kept:
            terminalreporter.line(f"record   {summary.kept}")
        for line in summary.comparison:
            terminalreporter.line(line, red=summary.failed)
        terminalreporter.line("")
    for line in _damaged(config):
        terminalreporter.line(line)
    for line in wrong:
        terminalreporter.line(line, red=True)
    again = [
        report for report in terminalreporter.stats.get("", ()) if getattr(report, AGAIN, False)
    ]
    lines = []
    for report in (*terminalreporter.stats.get(CATEGORY, ()), *again):
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

    summaries = []
    for id, record in session.records.items():
        try:
            place = _place(session, id)
            kept = (
                str(session.folders[id])
                if id in session.folders and session.given.path("save") is not None
                else None
            )
            compared = (
                _compared(session, place, id)
                if session.given.path("compare-fail") is not None
                else ((), False)
            )
        except (KgbenchError, OSError) as error:  # what lies on the disk can be anything by now
            kept, compared = None, ((in_pytest_words(error),), True)
        summaries.append(RecordSummary(id, to_text(record_report(record)), kept, *compared))
    return summaries


def _place(session: Session, id: str) -> StoredRecord | None:
    """A record with its per-fact rows, where the session or `kgbench.evaluate` wrote it."""
    from kgbench.records import DamagedRecordWarning, RecordStore
    from kgbench.records.store import read_record

    if id in session.folders:
        return read_record(session.folders[id])
    roots = (
        session.given.path("save"),
        session.given.path("compare-fail"),
        session.config.invocation_params.dir / "kgbench-results",
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DamagedRecordWarning
        )  # of other records, which nothing here is about
        return next(
            (
                found
                for root in roots
                if root is not None and (found := RecordStore(root).find(id)) is not None
            ),
            None,
        )


def _compared(
    session: Session, place: StoredRecord | None, id: str
) -> tuple[tuple[str, ...], bool]:
    """Lines on the comparison, and whether it fails the session."""
    from kgbench.pytest_plugin.saved_comparison import compare

    record = session.records[id]
    if place is None:
        name = f"{record.identity.localizer.name} on {record.model}"
        line = (
            f"{name} was not compared: its per-fact rows are not known here; evaluate it by the "
            "fixture `evaluation`, or with --kgbench-save DIR as its output_dir"
        )
        return (line,), True
    comparison = compare(place, session.baseline, len(session.records))
    return tuple(comparison.lines()), bool(comparison.moved)
