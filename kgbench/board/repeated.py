"""A run beside the same run again, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from kgbench.board.wrap import wrapped
from kgbench.effects.repeated import OtherRow, Repeated
from kgbench.numbers import count_text, figure_text, plain_text, signed_text

__all__ = ["render_repeated", "repeated_answer", "repeated_sentence"]

GRAFT_WIDTH = 30
FEW = 10
"""Rows that are listed."""


def render_repeated(found: Repeated, what: str) -> str:
    """The verdict, then per prompt and configuration: stored, now, and how far apart; and the rows that differ.

    Args:
        found: The comparison.
        what: What was run again, such as `20 of 150 facts`.

    Returns:
        Text of at most 100 columns.
    """
    blocks = [
        _block(found, prompt) for prompt in dict.fromkeys(repeat.prompt for repeat in found.repeats)
    ]
    return "\n\n".join(
        [wrapped(repeated_sentence(found, what)), *blocks, *_map(found), *_others(found)]
    )


def _block(found: Repeated, prompt: str) -> str:
    rows = [repeat for repeat in found.repeats if repeat.prompt == prompt]
    body = [
        [
            "\n".join(textwrap.wrap(r.graft, GRAFT_WIDTH)),
            str(r.n),
            plain_text(r.stored, 4),
            plain_text(r.now, 4),
            signed_text(r.now - r.stored),
            str(r.flipped),
            plain_text(r.largest, 2),
            str(len(r.others)),
        ]
        for r in rows
    ]
    heads = [
        "graft",
        "facts",
        f"{found.metric} stored",
        "now",
        "difference",
        "flipped",
        "largest |Δ log p|",
        "beyond",
    ]
    return f"{prompt}\n{tabulate(body, heads, tablefmt='simple', disable_numparse=True)}"


def _map(found: Repeated) -> list[str]:
    if (again := found.map) is None:
        return []
    missing = f"; {again.missing} sites are in one of the maps only" if again.missing else ""
    largest = f"largest difference of a score {plain_text(again.largest, 2)}, of at most {plain_text(again.allowed, 2)}"
    return [
        wrapped(
            f"map of scores, stored and now: Spearman's correlation {figure_text(again.spearman)}, {largest}{missing}",
            "  ",
        )
    ]


def _others(found: Repeated) -> list[str]:
    lines = [_row(row) for row in found.others[:FEW]]
    lines += [
        f"{', '.join(key[:3])}: measured now, and not in the record" for key in found.missing[:FEW]
    ]
    lines += [
        f"{', '.join(key[:3])}: in the record, and not measured now" for key in found.extra[:FEW]
    ]
    more = sum(max(0, len(rows) - FEW) for rows in (found.others, found.missing, found.extra))
    lines += [f"and {more} more"] if more else []
    return (
        [
            "\n".join(
                [
                    "rows that differ by more than rounding:",
                    *(wrapped(f"  {line}", "    ") for line in lines),
                ]
            )
        ]
        if lines
        else []
    )


def _row(row: OtherRow) -> str:
    (rank, logprob), (rank_now, logprob_now) = row.stored, row.now
    numbers = f"rank {rank} stored, {rank_now} now; log-probability {plain_text(logprob)} stored, {plain_text(logprob_now)} now"
    return f"{row.prompt}, {row.graft}, {row.fact}: {numbers}"


def repeated_sentence(found: Repeated, what: str) -> str:
    """What came of it, in a sentence, and what could not be compared."""
    return f"{_outcome(found, what)}{f' Note: {found.note}.' if found.note else ''}"


def _outcome(found: Repeated, what: str) -> str:
    within = f"within {plain_text(found.tolerance)} nats"
    ties = (
        f", where {count_text(found.flipped, 'hit')} flipped by one rank, as ties do"
        if found.flipped
        else ""
    )
    if found.agrees:
        return f"It agrees: {what} run again, all {found.rows} rows {within}, the largest difference {plain_text(found.largest, 2)}{ties}."
    reasons = [
        f"{len(found.others)} of {found.rows} rows differ by more than {plain_text(found.tolerance)} nats or in their ranks"
        if found.others
        else "",
        f"{count_text(len(found.missing), 'row')} of the run not in the record"
        if found.missing
        else "",
        f"{count_text(len(found.extra), 'row')} of the record not of the run"
        if found.extra
        else "",
        f"{count_text(found.flipped, 'hit')} flipped" if found.flipped else "",
        "the map of scores differs" if found.map is not None and not found.map.agrees else "",
        "there is no row to compare" if not found.rows else "",
    ]
    return f"It differs: {what} run again, {'; '.join(filter(None, reasons))}."


def repeated_answer(found: Repeated, what: str) -> dict[str, Any]:
    """The object that `--json` prints."""
    again = found.map
    scores = None
    if again is not None:
        numbers = {
            "largest": again.largest,
            "allowed": again.allowed,
            "missing": again.missing,
            "agrees": again.agrees,
        }
        scores = {"spearman": again.spearman.answer(), **numbers}
    return {
        "agrees": found.agrees,
        "metric": found.metric,
        "hits": found.hits,
        "tolerance": found.tolerance,
        "rows_compared": found.rows,
        "largest": found.largest,
        "flipped": found.flipped,
        "rows": [repeat.answer() for repeat in found.repeats],
        "missing": _keys(found.missing),
        "extra": _keys(found.extra),
        "scores": scores,
        "note": found.note or None,
        "verdict": repeated_sentence(found, what),
    }


def _keys(keys: Sequence[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    return [dict(zip(("prompt", "graft", "fact", "position"), key, strict=True)) for key in keys]
