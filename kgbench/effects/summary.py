"""All figures of a run from its per-fact rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.effects.ratios import COMPLEMENTS, gain, necessity, recovery, synergy
from kgbench.effects.scores import DEFAULT_METRIC, METRICS, check_metric, name_prior, score
from kgbench.effects.verdict import verdict
from kgbench.errors import DataError
from kgbench.records import Estimate, Operands, Row, facts_table
from kgbench.sites import CONFIGURATIONS
from kgbench.stats import Figure, mean, resample

__all__ = ["Summary", "summarize"]

Array = NDArray[Any]
Columns = Mapping[str, Array]

SUPPORT = {"rr": (0.0, 1.0), "prob": (0.0, 1.0)}
"""Between what these metrics lie; the means of others are taken to lie between those of the prompt's configurations."""


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
    verdict: str
    """One plain sentence."""


@dataclass(frozen=True)
class _Prompt:
    """One prompt's columns of each configuration over the same facts."""

    name: str
    columns: Mapping[str, Columns]
    """By configuration."""
    counts: Array
    """Resample [draws, n], as floats."""

    @property
    def n(self) -> int:
        return int(self.counts.shape[1])

    def scores(self, metric: str) -> dict[str, Array]:
        return {graft: score(columns, metric) for graft, columns in self.columns.items()}


def summarize(
    facts: pa.Table,
    *,
    metric: str = DEFAULT_METRIC,
    complements: Mapping[str, str | None] | None = None,
    dropped: Mapping[str, int] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> Summary:
    """All figures of a run.

    Args:
        facts: Per-fact rows. Where a prompt was read at several positions, the last counts.
        metric: The metric of the ratios, one of METRICS.
        complements: Configurations S^C of configurations S beyond the pathways', None where there is none; rows follow this order
            after the paper's configurations, others come last, by name.
        dropped: Facts left out of each prompt; the prompts follow this order, others come last, by name.
        draws: Bootstrap draws.
        seed: Seed of the resample, one for all configurations of a prompt.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the same facts.
        UnknownNameError: If there is no such metric.
    """
    metric = check_metric(metric)
    known = {**COMPLEMENTS, **{graft: other for graft, other in (complements or {}).items() if other is not None}}
    prompts = _prompts(facts_table(facts), (*CONFIGURATIONS, *(complements or {})), resample_of=(draws, seed))
    asked = list(dropped or {})
    prompts.sort(key=lambda p: asked.index(p.name) if p.name in asked else len(asked))
    rows = [row for p in prompts for row in _rows(p, metric, known, (dropped or {}).get(p.name, 0))]
    priors = {p.name: _store(name_prior(p.columns["PRE"]["target"])) for p in prompts}
    return Summary(
        metric,
        tuple(rows),
        {p.name: _store(synergy(p.scores(metric), p.counts)) for p in prompts},
        {"name_prior": priors},
        verdict(rows, metric),
    )


def _prompts(facts: pa.Table, order: Sequence[str], resample_of: tuple[int, int]) -> list[_Prompt]:
    """Each prompt's columns; `resample_of` holds the bootstrap's draws and seed."""
    found = []
    for name in dict.fromkeys(facts["prompt"].to_pylist()):
        part = _select(facts, "prompt", name)
        columns = {graft: _last_positions(_select(part, "graft", graft)) for graft in _ordered(part["graft"].to_pylist(), order)}
        for graft in ("PRE", "SFT"):
            if graft not in columns:
                raise DataError(f"per-fact rows: prompt {name} was not run under {graft}, without which there is no ratio")
        ids = columns["PRE"]["fact"]
        for graft, own in columns.items():
            if not np.array_equal(own["fact"], ids):
                raise DataError(f"per-fact rows: prompt {name} was run over {len(ids)} facts under PRE and over others under {graft}")
        found.append(_Prompt(name, columns, resample(len(ids), *resample_of).astype(float)))
    return found


def _select(table: pa.Table, column: str, value: str) -> pa.Table:
    return table.filter(pc.equal(table[column], value))


def _last_positions(table: pa.Table) -> Columns:
    """Columns in the order of the facts; the table is sorted by fact and position."""
    columns = {name: table[name].to_numpy() for name in table.column_names if name not in ("prompt", "graft")}
    ids = columns["fact"]
    last = np.append(ids[1:] != ids[:-1], True)
    return {name: column[last] for name, column in columns.items()}


def _ordered(grafts: Sequence[str], order: Sequence[str]) -> list[str]:
    """Configurations in the order given, then others with numbers in theirs: layer 2 before layer 10."""
    first = [c for c in dict.fromkeys(order) if c in set(grafts)]
    others = set(grafts) - set(first)
    return [*first, *sorted(others, key=lambda g: [(int(t), "") if t.isdigit() else (-1, t) for t in re.split(r"(\d+)", g)])]


def _rows(prompt: _Prompt, metric: str, complements: Mapping[str, str], dropped: int) -> list[Row]:
    means = {m: _means(prompt, m) for m in METRICS}
    scores = prompt.scores(metric)
    added = _store(gain(scores, prompt.counts))
    rows = []
    for graft in prompt.columns:
        named = {("mrr" if m == "rr" else m): means[m][graft] for m in METRICS}
        other = complements.get(graft)
        ran = other if other in prompt.columns else None
        operands = _operands(means[metric], graft, ran, added)
        rows.append(
            Row(
                prompt=prompt.name,
                graft=graft,
                n=prompt.n,
                dropped=dropped,
                **named,
                sufficiency=_store(recovery(scores, graft, prompt.counts)),
                necessity=_store(necessity(scores, graft, prompt.counts, complements)),
                complement=ran,
                operands=operands,
            )
        )
    return rows


def _means(prompt: _Prompt, metric: str) -> dict[str, Estimate]:
    scores = prompt.scores(metric)
    centres = [float(np.mean(values)) for values in scores.values()]
    support = SUPPORT.get(metric, (min(centres), max(centres)))
    return {graft: _store(mean(values, prompt.counts, support)) for graft, values in scores.items()}


def _operands(means: Mapping[str, Estimate], graft: str, complement: str | None, added: Estimate) -> Operands:
    absent = Estimate(n=added.n, undefined="it was not run")
    other = means[complement] if complement is not None else absent
    return Operands(pre=means["PRE"], sft=means["SFT"], all=means.get("ALL", absent), s=means[graft], complement=other, gain=added)


def _store(figure: Figure) -> Estimate:
    return Estimate(**figure.to_json())
