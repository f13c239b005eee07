"""Rows of configurations that a method cannot express: they have a reason and no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgbench.estimate import Estimate
from kgbench.records import FIGURES, NOT_APPLICABLE, Row

__all__ = ["with_absent"]


def with_absent(
    rows: Sequence[Row],
    absent: Mapping[str, str],
    complements: Mapping[str, str],
    order: Sequence[str],
) -> list[Row]:
    """One prompt's rows with those of configurations that the method cannot express, each in its place.

    Args:
        rows: The rows that were run.
        absent: Configurations that could not be, and why.
        complements: Configuration S^C of each S.
        order: Of the configurations.
    """
    if not absent:
        return list(rows)
    kept = [_explained(row, absent, complements) for row in rows]
    made = [
        _absent(rows[0], graft, f"{NOT_APPLICABLE}{reason}") for graft, reason in absent.items()
    ]
    places = {graft: i for i, graft in enumerate(dict.fromkeys(order))}
    return sorted([*kept, *made], key=lambda row: places.get(row.graft, len(places)))


def _explained(row: Row, absent: Mapping[str, str], complements: Mapping[str, str]) -> Row:
    """The row, whose necessity may be undefined because its complement could not be run."""
    other = complements.get(row.graft)
    if (
        row.complement is not None
        or row.graft in ("PRE", "SFT")
        or other is None
        or other not in absent
    ):
        return row
    reason = f"its complement {other} is not applicable: {absent[other]}"
    return row.model_copy(update={"necessity": Estimate.missing(reason, row.n)})


def _absent(like: Row, graft: str, reason: str) -> Row:
    nothing = Estimate.missing(reason)
    return Row(
        prompt=like.prompt,
        graft=graft,
        n=0,
        dropped=like.dropped,
        complement=None,
        **dict.fromkeys(FIGURES, nothing),
    )
