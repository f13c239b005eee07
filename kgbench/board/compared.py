"""A comparison of two records as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from kgbench.board.comparison import Compared, Comparison
from kgbench.board.footnotes import Footnotes
from kgbench.board.wrap import wrapped
from kgbench.estimate import Estimate
from kgbench.numbers import number_text
from kgbench.records import Record

__all__ = ["render_comparison"]

GRAFT_WIDTH = 18
"""Longer graft expressions are wrapped."""

FEW = 5
"""Facts of a configuration that are listed unless all are asked for."""

LEGEND = "* the interval leaves out 0"


def render_comparison(comparison: Comparison, all_facts: bool = False) -> str:
    """The verdict, then what differs in what two records are of, the figures, and the facts.

    Args:
        comparison: The records.
        all_facts: List all facts that flipped, not the first few.

    Returns:
        Text of at most the terminal's width, or 100 columns.
    """
    notes = Footnotes()
    prompts = dict.fromkeys(row.prompt for row in comparison.rows)
    blocks = [_block(comparison, prompt, notes) for prompt in prompts]
    areas, flipped = _areas(comparison, notes), _flipped(comparison, all_facts)
    reasons = [LEGEND, *(wrapped(line, "    ") for line in notes.lines())]
    parts = [_head(comparison), _identities(comparison), *blocks, *areas, "\n".join(reasons)]
    parts += [*flipped, *_left_out(comparison)]
    return "\n\n".join([wrapped(comparison.verdict()), *parts])


def _head(comparison: Comparison) -> str:
    lines = [
        f"{letter}: {_told(record)}"
        for letter, record in (("A", comparison.first), ("B", comparison.second))
    ]
    about = (
        f"B − A on {comparison.metric}, paired over the facts that both have, with 95 % intervals"
    )
    return "\n".join([*(wrapped(line, "   ") for line in lines), wrapped(about)])


def _told(record: Record) -> str:
    what = record.identity
    limit = f", the first {what.limit} facts" if what.limit is not None else ""
    return f"{what.localizer.name} on {record.model}, {what.dataset.name}{limit}, {what.dtype} ({record.id[:12]}, {record.provenance.time})"


def _identities(comparison: Comparison) -> str:
    if not comparison.differing:
        return "both are of the same: facts, prompts, weights, method and settings"
    lines = [wrapped(f"  {part.sentence()}", "    ") for part in comparison.differing]
    return "\n".join(
        ["what differs:", *lines, *(wrapped(f"note: {note}", "  ") for note in comparison.notes)]
    )


def _block(comparison: Comparison, prompt: str, notes: Footnotes) -> str:
    rows, facts = [row for row in comparison.rows if row.prompt == prompt], comparison.facts[prompt]
    alone = [
        f"{n} only in {letter}"
        for letter, n in (("A", facts.first_only), ("B", facts.second_only))
        if n
    ]
    body = [
        [
            "\n".join(textwrap.wrap(row.graft, GRAFT_WIDTH)),
            number_text(row.first),
            number_text(row.second),
            _marked(row.difference, notes),
            _marked(row.sufficiency, notes) if _is_graft(row) else "–",
            _marked(row.necessity, notes)
            if _is_graft(row) and not row.graft.startswith("top ")
            else "–",
            f"{len(row.gained)} / {len(row.lost)}",
        ]
        for row in rows
    ]
    heads = ["graft", "A", "B", "B − A", "sufficiency", "necessity", "gained / lost"]
    table = tabulate(body, heads, tablefmt="simple", disable_numparse=True)
    return (
        f"{prompt}: {facts.shared} facts in both{''.join(f', {text}' for text in alone)}\n{table}"
    )


def _is_graft(row: Compared) -> bool:
    return row.graft not in ("PRE", "SFT")


def _marked(estimate: Estimate, notes: Footnotes) -> str:
    text = notes.cell(estimate)
    apart = (
        estimate.low is not None
        and estimate.high is not None
        and not estimate.low <= 0 <= estimate.high
    )
    return f"{text} *" if apart else text


def _areas(comparison: Comparison, notes: Footnotes) -> list[str]:
    texts = [f"{_marked(area, notes)} on {prompt}" for prompt, area in comparison.areas.items()]
    return (
        [wrapped(f"area under the recovery curve, B − A: {', '.join(texts)}", "  ")]
        if texts
        else []
    )


def _flipped(comparison: Comparison, all_facts: bool) -> list[str]:
    rows = [row for row in comparison.rows if row.gained or row.lost]
    if not rows:
        return []
    lines = [
        f"facts that flipped ({comparison.hits}; gained: hit in B alone, lost: hit in A alone):"
    ]
    cut = False
    for row in rows:
        for what, facts in (("gained", row.gained), ("lost", row.lost)):
            shown = facts if all_facts else facts[:FEW]
            cut = cut or len(shown) < len(facts)
            if facts:
                lines.append(
                    wrapped(
                        f"  {row.prompt}, {row.graft}, {len(facts)} {what}: {_listed(shown, len(facts))}",
                        "    ",
                    )
                )
    return ["\n".join([*lines, *(["  (--facts lists all)"] if cut else [])])]


def _listed(shown: Sequence[str], n: int) -> str:
    more = f" and {n - len(shown)} more" if len(shown) < n else ""
    return ", ".join(shown) + more


def _left_out(comparison: Comparison) -> list[str]:
    """Configurations that only one record has."""
    lines = []
    for letter, keys in (("A", comparison.first_only), ("B", comparison.second_only)):
        by_prompt: dict[str, list[str]] = {}
        for prompt, graft in keys:
            by_prompt.setdefault(prompt, []).append(graft)
        lines += [
            wrapped(f"only in {letter}: {prompt}: {', '.join(grafts)}", "  ")
            for prompt, grafts in by_prompt.items()
        ]
    return ["\n".join(lines)] if lines else []
