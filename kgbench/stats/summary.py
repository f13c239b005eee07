"""All figures of a run or of a record from its per-fact rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.records import (
    FIGURES,
    NO_INTERVAL_OF_RANKS,
    NOT_APPLICABLE,
    Curve,
    CurvePoint,
    Identity,
    Record,
    Row,
    facts_table,
)
from kgbench.sites import BASELINES, PATHWAYS
from kgbench.sites.configurations import budget_labels, complements, parse_top
from kgbench.stats.intervals import mean, median
from kgbench.stats.planted_summary import rejudged
from kgbench.stats.ratios import COMPLEMENTS, curve_area, gain, necessity, recovery, synergy
from kgbench.stats.scores import (
    DEFAULT_METRIC,
    METRICS,
    PromptColumns,
    by_prompt,
    check_metric,
    name_prior,
    support_of,
)
from kgbench.stats.verdict import verdict

__all__ = ["Absent", "Ran", "Summary", "budgets_in", "means", "rescored", "summarize", "summary_of"]

Array = NDArray[Any]

ORDER = (*BASELINES, "ALL", "NONE", *PATHWAYS)
"""The paper's order."""


@dataclass(frozen=True)
class Summary:
    """All figures of a run."""

    metric: str
    """The metric of the ratios."""
    rows: tuple[Row, ...]
    """Prompt by prompt, configurations in the paper's order."""
    synergy: dict[str, Estimate]
    """By prompt."""
    baselines: dict[str, dict[str, Estimate]]
    """`name_prior`, by prompt."""
    curve: dict[str, Curve] | None
    """By prompt, where sites were ranked."""
    verdict: str
    """One plain sentence."""


def summarize(
    facts: pa.Table,
    *,
    metric: str = DEFAULT_METRIC,
    complements: Mapping[str, str | None] | None = None,
    dropped: Mapping[str, int] | None = None,
    budgets: Mapping[str, float] | None = None,
    absent: Mapping[str, Mapping[str, str]] | None = None,
) -> Summary:
    """All figures of a run.

    Args:
        facts: Per-fact rows. Where a prompt was read at several positions, the last counts.
        metric: The metric of the ratios, one of METRICS.
        complements: Configurations S^C of configurations S beyond the pathways', None where there
            is none; rows follow this order after the paper's configurations, others come last, by
            name.
        dropped: Facts left out of each prompt; the prompts follow this order, others come last, by
            name.
        budgets: Of configurations that graft the best-ranked sites, in per cent, ascending.
        absent: By prompt, configurations without rows that the method cannot express, and why.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the
            same facts.
        UnknownNameError: If there is no such metric.
    """
    metric = check_metric(metric)
    complements, dropped, absent = complements or {}, dropped or {}, absent or {}
    known = dict(COMPLEMENTS)
    known.update({graft: other for graft, other in complements.items() if other is not None})
    order, asked = (*ORDER, *complements), list(dropped)
    prompts = by_prompt(facts_table(facts), order)
    prompts.sort(key=lambda p: asked.index(p.name) if p.name in asked else len(asked))
    rows: list[Row] = []
    synergies: dict[str, Estimate] = {}
    priors: dict[str, Estimate] = {}
    curves: dict[str, Curve] | None = {} if budgets else None
    for prompt in prompts:
        name, lacking = prompt.name, absent.get(prompt.name, {})
        ran = _rows(prompt, metric, known, dropped.get(name, 0))
        rows += _with_absent(ran, lacking, known, order)
        synergies[name] = _synergy(prompt, metric, lacking)
        priors[name] = name_prior(prompt.columns["PRE"]["target"]).rounded()
        if budgets and curves is not None:
            curves[name] = _curve(prompt, metric, budgets)
    sentence = verdict(rows, metric, curves)
    baselines = {"name_prior": priors}
    return Summary(metric, tuple(rows), synergies, baselines, curves, sentence)


def _synergy(prompt: PromptColumns, metric: str, absent: Mapping[str, str]) -> Estimate:
    if unknown := [graft for graft in ("FE", "LT", "FE+LT") if graft in absent]:
        reason = f"{NOT_APPLICABLE}the method cannot express {' and '.join(unknown)}"
        return Estimate.missing(reason)
    return synergy(prompt.scores(metric)).rounded()


def _curve(prompt: PromptColumns, metric: str, budgets: Mapping[str, float]) -> Curve:
    scores, points = prompt.scores(metric), []
    for label, budget in budgets.items():
        points.append(CurvePoint(budget=budget, recovery=recovery(scores, label)))
    return Curve(points=tuple(points), area=curve_area(scores, budgets))


def _rows(
    prompt: PromptColumns, metric: str, complements: Mapping[str, str], dropped: int
) -> list[Row]:
    found = {}
    for name in METRICS:
        by_graft = prompt.scores(name)
        found[name] = means(by_graft, support_of(by_graft.values(), name))
    scores = prompt.scores(metric)
    added = gain(scores)
    rows = []
    for graft in prompt.columns:
        named = {name: by_graft[graft] for name, by_graft in found.items()}
        other = complements.get(graft)
        ran = other if other in prompt.columns else None
        rows.append(
            Row(
                prompt=prompt.name,
                graft=graft,
                n=prompt.n,
                dropped=dropped,
                **named,
                **_ranks(prompt.columns[graft]["rank"]),
                sufficiency=recovery(scores, graft),
                necessity=necessity(scores, graft, complements),
                complement=ran,
                gain=added,
            )
        )
    return rows


def _ranks(ranks: Array) -> dict[str, Estimate]:
    """The mean of ranks, which has no interval, and their median."""
    alone = Estimate.alone(float(np.mean(ranks)), len(ranks), NO_INTERVAL_OF_RANKS)
    return {"rank": alone, "median_rank": median(ranks)}


def means(scores: Mapping[str, Array], support: tuple[float, float]) -> dict[str, Estimate]:
    """The mean of each configuration.

    Args:
        scores: Per-fact scores [n] of each configuration of a prompt.
        support: Bounds of the means, see `support_of`.
    """
    return {graft: mean(values, support) for graft, values in scores.items()}


def _with_absent(
    rows: Sequence[Row],
    absent: Mapping[str, str],
    complements: Mapping[str, str],
    order: Sequence[str],
) -> list[Row]:
    """One prompt's rows with those that the method cannot express, in order.

    Args:
        rows: The rows that were run.
        absent: Configurations that could not be, and why.
        complements: Configuration S^C of each S.
        order: Of the configurations.
    """
    if not absent:
        return list(rows)
    explained = [_explained(row, absent, complements) for row in rows]
    for graft, reason in absent.items():
        explained.append(_absent(rows[0], graft, f"{NOT_APPLICABLE}{reason}"))
    places = {graft: i for i, graft in enumerate(dict.fromkeys(order))}
    return sorted(explained, key=lambda row: places.get(row.graft, len(places)))


def _explained(row: Row, absent: Mapping[str, str], complements: Mapping[str, str]) -> Row:
    """The row, whose necessity may be undefined because its complement could not be run."""
    other = complements.get(row.graft, "")
    if row.complement is not None or row.graft in ("PRE", "SFT") or other not in absent:
        return row
    reason = f"its complement {other} is not applicable: {absent[other]}"
    return row.model_copy(update={"necessity": Estimate.missing(reason, row.n)})


def _absent(like: Row, graft: str, reason: str) -> Row:
    nothing = Estimate.missing(reason)
    changed = {"graft": graft, "n": 0, "complement": None, **dict.fromkeys(FIGURES, nothing)}
    return like.model_copy(update=changed)


Absent = Mapping[str, Mapping[str, str]]
"""By prompt, configurations that the method cannot express, and why."""


@dataclass(frozen=True)
class Ran:
    """Parts of a run that its figures depend on."""

    identity: Identity
    floor: str
    dropped: int
    """Facts left out."""
    absent: Absent


def rescored(record: Record, facts: pa.Table, metric: str | None = None) -> Record:
    """The same record with every figure computed again from its rows; other fields stay.

    Args:
        record: The record.
        facts: Its per-fact rows.
        metric: The metric of the ratios; by default the record's own.

    Raises:
        DataError: The rows are not those of such a record.
        UnknownNameError: There is no such metric.
    """
    run = Ran(record.identity, record.floor, sum(record.dropped.values()), absent_of(record))
    summary = summary_of(run, facts, metric or record.metric)
    return rejudged(record.model_copy(update=vars(summary)), facts)


def summary_of(run: Ran, facts: pa.Table, metric: str) -> Summary:
    """The figures of a run."""
    identity = run.identity
    budgets = budgets_in(identity.configurations)
    expressed = all(budgets.keys().isdisjoint(own) for own in run.absent.values())
    return summarize(
        facts,
        metric=metric,
        complements=complements(identity.configurations, run.floor),
        dropped=dict.fromkeys(identity.prompts, run.dropped),
        budgets=budgets if expressed else None,
        absent=run.absent,
    )


def budgets_in(configurations: Sequence[str]) -> dict[str, float]:
    """Those of the curve and their budgets in per cent, ascending."""
    shares = set()
    for label in configurations:
        top = parse_top(label)
        if top is not None and top.percent is not None:
            shares.add(top.percent)
    return budget_labels(sorted(shares))


def absent_of(record: Record) -> Absent:
    """Configurations of a record that its method cannot express, and why."""
    absent: dict[str, dict[str, str]] = {}
    for row in record.rows:
        if not row.applicable:
            reason = (row.sufficiency.undefined or "").removeprefix(NOT_APPLICABLE)
            absent.setdefault(row.prompt, {})[row.graft] = reason
    return absent
