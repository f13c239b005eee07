"""The text table of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from kgbench.board.footnotes import Footnotes
from kgbench.board.planted import planted_block
from kgbench.board.wrap import text_width, wrapped
from kgbench.effects import verdict_of
from kgbench.estimate import Estimate
from kgbench.numbers import count_text, duration_text, number_text, significant_text
from kgbench.records import Cost, Record, Row

__all__ = ["render_table"]

GRAFT_WIDTH = 30
"""Longer graft expressions are wrapped."""

TOP = 10
"""Sites of a ranking that are shown; the record holds all."""

COLUMNS = ("top1", "top5", "mrr", "prob", "median_rank")
"""Beside the metric of the ratios, as many of these as fit."""


def render_table(record: Record) -> str:
    """The verdict on a run, then its table: a block per prompt, configurations in the paper's order, and a footer.

    Args:
        record: The record.

    Returns:
        Text of at most the terminal's width, or 100 columns, without a line end after the last line.
    """
    notes = Footnotes()
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    names = _metrics(record)
    shown = _fitting(record, names)
    blocks = [_block(record, prompt, shown, notes) for prompt in prompts]
    truth = [planted_block(record.planted, notes)] if record.planted is not None else []
    below = _below(record, notes) + _left_out(record, names[len(shown) :])
    reasons = [wrapped(line, "    ") for line in notes.lines()]
    parts = [
        wrapped(verdict_of(record)),
        _head(record),
        *blocks,
        *_ranking(record),
        *truth,
        "\n".join([below, *reasons]),
    ]
    return "\n\n".join(parts)


def _head(record: Record) -> str:
    what = record.identity
    seeds = ", ".join(map(str, what.seeds))
    limit = f", the first {what.limit}" if what.limit is not None else ""
    return wrapped(
        f"{what.localizer.name} on {record.model}, {what.dataset.name}{limit}, {what.dtype}, seed {seeds}: "
        f"means over facts with 95 % intervals; sufficiency and necessity on {record.metric}"
    )


def _metrics(record: Record) -> list[str]:
    """The metric of the ratios, then the others."""
    same = (record.metric, "mrr" if record.metric == "rr" else "")
    return [record.metric, *(name for name in COLUMNS if name not in same)]


def _fitting(record: Record, names: Sequence[str]) -> Sequence[str]:
    """As many of the metrics as fit, one at least."""
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    blocks = [[row for row in record.rows if row.prompt == prompt] for prompt in prompts]
    for count in range(len(names), 1, -1):
        lines = [
            line
            for rows in blocks
            for line in _table(rows, names[:count], Footnotes()).splitlines()
        ]
        if max(map(len, lines)) <= text_width():
            return names[:count]
    return names[:1]


def _left_out(record: Record, names: Sequence[str]) -> str:
    """Which columns do not fit, and where they are."""
    if not names:
        return ""
    told = f"columns left out for their width: {', '.join(names)}; a wider terminal or `kgbench export {record.id[:12]}` shows them"
    return f"\n{wrapped(told, '  ')}"


def _block(record: Record, prompt: str, names: Sequence[str], notes: Footnotes) -> str:
    rows = [row for row in record.rows if row.prompt == prompt]
    text = _table(rows, names, notes)
    dropped = f", {rows[0].dropped} dropped" if len({row.dropped for row in rows}) == 1 else ""
    return f"{prompt}: {rows[0].n} facts{dropped}\n{text}"


def _table(rows: Sequence[Row], metrics: Sequence[str], notes: Footnotes) -> str:
    uneven = len({(row.n, row.dropped) for row in rows if row.applicable}) > 1
    body = [
        [
            "\n".join(textwrap.wrap(row.graft, GRAFT_WIDTH)),
            *(notes.cell(row.estimate(metric)) for metric in metrics),
            notes.cell(row.sufficiency),
            notes.necessity(row),
            *([row.n, row.dropped] if uneven else []),
        ]
        for row in rows
    ]
    heads = [
        "graft",
        *("mrr" if m == "rr" else m for m in metrics),
        "sufficiency",
        "necessity",
        *(["n", "dropped"] if uneven else []),
    ]
    return tabulate(body, heads, tablefmt="simple", disable_numparse=True)


def _ranking(record: Record) -> list[str]:
    """The sites that a scoring localizer holds most responsible."""
    if not record.scores:
        return []
    first = sorted(record.scores, key=lambda s: -s.score)[:TOP]
    body = [
        ["–" if s.layer is None else s.layer, s.component, s.region, significant_text(s.score, 3)]
        for s in first
    ]
    text = tabulate(
        body, ["layer", "component", "region", "score"], tablefmt="simple", disable_numparse=True
    )
    return [f"highest scores of {len(record.scores)} sites, mean over the halves\n{text}"]


def _below(record: Record, notes: Footnotes) -> str:
    cost, ratio = record.cost, record.cost.plain_forward_ratio
    plain = "one plain forward"
    times = (
        f"{number_text(ratio.value)} × {plain}"
        if ratio.value is not None
        else f"ratio to {plain} {notes.cell(ratio)}"
    )
    pathways = record.curve is None and record.planted is None
    lines = [f"synergy of FE and LT: {_by_prompt(record.synergy, notes)}"] if pathways else []
    if record.curve is not None:
        areas = {prompt: curve.area for prompt, curve in record.curve.items()}
        lines.append(
            f"area under the recovery curve, over log10(budget) from .1 to 100 %: {_by_prompt(areas, notes)}"
        )
    if (ranking := record.ranking) is not None:
        first, second = ranking.facts
        halves = (
            f"maps by the halves of {first} and {second} facts, over {ranking.agreement.n} sites"
        )
        lines.append(f"Spearman's correlation of the {halves}: {notes.cell(ranking.agreement)}")
    lines += [
        f"{BASELINES.get(name, name)}: {_by_prompt(found, notes)}"
        for name, found in record.baselines.items()
    ]
    if record.dropped:
        lines.append(
            "dropped: "
            + "; ".join(f"{count} × {reason}" for reason, count in record.dropped.items())
        )
    lines.append(f"cost: {_spent(cost)}; {times} ({cost.measured_on})")
    if (scoring := cost.scoring) is not None:
        ratio = scoring.plain_forward_ratio
        times = (
            f"{number_text(ratio.value)} × {plain}"
            if ratio.value is not None
            else notes.cell(ratio)
        )
        lines.append(
            f"of that to rank the sites: {count_text(scoring.forwards, 'forward')}, {duration_text(scoring.seconds)}; {times}"
        )
    return "\n".join(wrapped(line, "  ") for line in lines)


def _spent(cost: Cost) -> str:
    forwards, rows = count_text(cost.forwards, "forward"), count_text(cost.token_rows, "token row")
    return f"{forwards}, {rows}, {duration_text(cost.seconds)}"


BASELINES = {"name_prior": "name prior (always the five most frequent first tokens), top5"}


def _by_prompt(figures: dict[str, Estimate], notes: Footnotes) -> str:
    return ", ".join(f"{notes.cell(estimate)} on {prompt}" for prompt, estimate in figures.items())
