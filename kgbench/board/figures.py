"""Every figure of a record, one by one and by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose

from kgbench.estimate import Estimate
from kgbench.records import Planted, Record
from kgbench.stats import METRICS

__all__ = ["Changed", "Named", "changed_figures", "figures", "from_rows"]

OF_ROWS = (
    *("mrr" if metric == "rr" else metric for metric in METRICS),
    "rank",
    "median_rank",
    "sufficiency",
    "necessity",
    "gain",
)
ROUNDING = 2e-5
"""Two units in the last of the six digits that are stored, of each."""

OF_TRUTH = ("graded_precision", "auroc_decoy")


@dataclass(frozen=True)
class Named:
    """A figure and what it is of."""

    prompt: str
    """Empty where it is over all prompts."""
    graft: str
    """Empty where it is of no single configuration."""
    figure: str
    """A metric, `sufficiency`, `synergy`, `graded_precision`, …"""
    estimate: Estimate

    @property
    def where(self) -> str:
        """What it is of, in words."""
        return ", ".join(filter(None, (self.prompt, self.graft, self.figure)))


def figures(record: Record) -> Iterator[Named]:
    """All figures of a record that follow from what was measured; those of its cost do not."""
    for row in record.rows:
        yield from (Named(row.prompt, row.graft, name, getattr(row, name)) for name in OF_ROWS)
    yield from (
        Named(prompt, "", "synergy", estimate) for prompt, estimate in record.synergy.items()
    )
    for name, by_prompt in record.baselines.items():
        yield from (Named(prompt, "", name, estimate) for prompt, estimate in by_prompt.items())
    for prompt, curve in (record.curve or {}).items():
        yield from (
            Named(prompt, f"top {point.budget:g}%", "recovery", point.recovery)
            for point in curve.points
        )
        yield Named(prompt, "", "area", curve.area)
    if record.ranking is not None:
        yield Named("", "", "agreement", record.ranking.agreement)
    if record.planted is not None:
        yield from _planted(record.planted)


def _planted(planted: Planted) -> Iterator[Named]:
    found = {name: getattr(planted, name) for name in OF_TRUTH}
    yield from (
        Named("", "", name, estimate) for name, estimate in found.items() if estimate is not None
    )
    for prompt, effect in {"": planted.effect, **planted.prompts}.items():
        yield Named(prompt, "top k", "best_sufficiency", effect.sufficiency)
        yield Named(prompt, "top k", "best_necessity", effect.necessity)
    for prompt, pathway in (planted.pathways or {}).items():
        yield Named(prompt, pathway.planted, "recovery_planted", pathway.recovery_planted)
        yield Named(prompt, pathway.other, "recovery_other", pathway.recovery_other)


def from_rows(named: Named) -> bool:
    """Whether a figure follows from the per-fact rows; how a map ranks its sites does not."""
    return named.figure not in (*OF_TRUTH, "agreement")


@dataclass(frozen=True)
class Changed:
    """A figure that two records of one run do not have alike."""

    where: str
    stored: Estimate | None
    """None where the first record does not have it."""
    now: Estimate | None


def changed_figures(stored: Record, now: Record) -> tuple[Changed, ...]:
    """Figures that differ by more than rounding, in the first record's order, then the second's."""
    before, after = (
        {named.where: named.estimate for named in figures(record)} for record in (stored, now)
    )
    found = (
        (where, before.get(where), after.get(where)) for where in dict.fromkeys((*before, *after))
    )
    return tuple(
        Changed(where, first, second) for where, first, second in found if not _alike(first, second)
    )


def _alike(first: Estimate | None, second: Estimate | None) -> bool:
    if (
        first is None
        or second is None
        or first.n != second.n
        or first.undefined != second.undefined
    ):
        return False
    pairs = ((first.value, second.value), (first.low, second.low), (first.high, second.high))
    return all(
        a == b
        or (a is not None and b is not None and isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-9))
        for a, b in pairs
    )
