"""A run compared with a repetition of it, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgbench.numbers import count_text, figure_text, plain_text, signed_text
from kgbench.report import Cell, Column, Lines, Report, Table
from kgbench.stats.repetition import OtherRow, Repeated

__all__ = ["repeat_report", "repeated_answer", "repeated_sentence"]

GRAFT_WIDTH = 30
FEW = 10
"""Rows that are listed."""


def repeat_report(found: Repeated, what: str) -> Report:
    """Per prompt and configuration: stored, now, and the difference; and the rows that differ.

    Args:
        found: The comparison.
        what: The facts that were run again, such as `20 of 150 facts`.
    """
    prompts = dict.fromkeys(repeat.prompt for repeat in found.repeats)
    parts: list[Table | Lines] = [_table(found, prompt) for prompt in prompts]
    if (again := found.map) is not None:
        missing = f"; {again.missing} sites are in one of the maps only" if again.missing else ""
        parts.append(
            Lines(
                [
                    f"map of scores, stored and now: Spearman's correlation "
                    f"{figure_text(again.spearman)}, largest difference of a score "
                    f"{plain_text(again.largest, 2)}, of at most "
                    f"{plain_text(again.allowed, 2)}{missing}"
                ],
                "  ",
            )
        )
    if lines := _others(found):
        lines = [f"  {line}" for line in lines]
        parts.append(Lines(["rows that differ by more than rounding:", *lines], "    "))
    return Report("", parts, verdict=repeated_sentence(found, what))


def _table(found: Repeated, prompt: str) -> Table:
    rows: list[list[Cell]] = []
    for repeat in found.repeats:
        if repeat.prompt != prompt:
            continue
        stored, now = plain_text(repeat.stored, 4), plain_text(repeat.now, 4)
        difference = signed_text(repeat.now - repeat.stored)
        largest, beyond = plain_text(repeat.largest, 2), len(repeat.others)
        numbers: list[Cell] = [repeat.n, stored, now, difference, repeat.flipped, largest, beyond]
        rows.append([repeat.graft, *numbers])
    heads = ["graft", "facts", f"{found.metric} stored", "now", "difference", "flipped"]
    heads += ["largest |Δ log p|", "beyond"]
    return Table(prompt, [Column(head) for head in heads], rows, GRAFT_WIDTH)


def _others(found: Repeated) -> list[str]:
    lines = [_row(row) for row in found.others[:FEW]]
    for keys, why in (
        (found.missing, "measured now, and not in the record"),
        (found.extra, "in the record, and not measured now"),
    ):
        lines += [f"{', '.join(key[:3])}: {why}" for key in keys[:FEW]]
    more = sum(max(0, len(rows) - FEW) for rows in (found.others, found.missing, found.extra))
    return [*lines, *[f"and {more} more"] * bool(more)]


def _row(row: OtherRow) -> str:
    (rank, logprob), (rank_now, logprob_now) = row.stored, row.now
    numbers = (
        f"rank {rank} stored, {rank_now} now; log-probability {plain_text(logprob)} "
        f"stored, {plain_text(logprob_now)} now"
    )
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
        return (
            f"It agrees: {what} run again, all {found.rows} rows {within}, the largest "
            f"difference {plain_text(found.largest, 2)}{ties}."
        )
    reasons = [
        f"{len(found.others)} of {found.rows} rows differ by more than "
        f"{plain_text(found.tolerance)} nats or in their ranks"
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
