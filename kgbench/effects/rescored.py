"""All figures of a record from its per-fact rows, as when it was made or on another metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from kgbench.effects.judged import rejudged
from kgbench.effects.summary import Summary, summarize
from kgbench.records import NOT_APPLICABLE, Identity, Record
from kgbench.sites.configurations import budget_labels, complements, parse_top

__all__ = ["Absent", "Ran", "rescored", "summary_of"]

Absent = Mapping[str, Mapping[str, str]]
"""By prompt, configurations that the method cannot express, and why."""


@dataclass(frozen=True)
class Ran:
    """What was run, as far as figures depend on it."""

    identity: Identity
    floor: str
    dropped: int
    """Facts left out."""
    absent: Absent


def rescored(record: Record, facts: pa.Table, metric: str | None = None) -> Record:
    """The same record with every figure that its rows give made anew; what only the models can say stays.

    Args:
        record: The record.
        facts: Its per-fact rows.
        metric: The metric of the ratios; by default the record's own.

    Raises:
        DataError: The rows are not those of such a record.
        UnknownNameError: There is no such metric.
    """
    run = Ran(record.identity, record.floor, sum(record.dropped.values()), absent_of(record))
    found = summary_of(run, facts, metric or record.metric)
    changed = {
        "metric": found.metric,
        "rows": found.rows,
        "synergy": found.synergy,
        "baselines": found.baselines,
        "curve": found.curve,
        "verdict": found.verdict,
    }
    return rejudged(record.model_copy(update=changed), facts)


def summary_of(run: Ran, facts: pa.Table, metric: str) -> Summary:
    """The figures of a run."""
    what = run.identity
    shares = [
        top.percent
        for label in what.configurations
        if (top := parse_top(label)) is not None and top.percent is not None
    ]
    budgets = budget_labels(shares)
    expressed = all(label not in own for own in run.absent.values() for label in budgets)
    return summarize(
        facts,
        metric=metric,
        complements=complements(what.configurations, run.floor),
        dropped=dict.fromkeys(what.prompts, run.dropped),
        budgets=budgets if expressed else None,
        absent=run.absent,
    )


def absent_of(record: Record) -> Absent:
    """What a record says that its method cannot express."""
    found: dict[str, dict[str, str]] = {}
    for row in record.rows:
        if not row.applicable:
            found.setdefault(row.prompt, {})[row.graft] = (
                row.sufficiency.undefined or ""
            ).removeprefix(NOT_APPLICABLE)
    return found
