"""An audit as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from math import sqrt

from tabulate import tabulate

from kgbench.audit.figures import Audit, Difference, Quantity
from kgbench.audit.methods import Method
from kgbench.audit.sentences import notes_of, verdict_of
from kgbench.board.footnotes import Footnotes
from kgbench.board.wrap import wrapped
from kgbench.effects.detectable import SCOPES, Detectable
from kgbench.estimate import Estimate
from kgbench.numbers import number_text

__all__ = ["render_audit"]

COLUMNS = 6
"""Wordings in a row of a table."""

GRAFT_WIDTH = 16
"""Longer graft expressions are wrapped."""

POINTS = 1e4
"""Variances are shown in squared percentage points."""

PARTS = ("facts", "wordings", "seeds", "interaction")

HEADS: Mapping[str, str] = {
    "facts": "same facts",
    "sample": "other facts",
    "wordings": "all\nwordings",
    "seeds": "any seed",
}
"""What a difference is to hold for."""

MORE = "--variance adds values by wording, the components of the variance, and notes on what figures rest on"

SMALLEST = "the smallest difference of two methods that a test of 5 % finds in 80 % of repetitions, by what it is to hold for"


def render_audit(audit: Audit, what: str, whole: bool = False) -> str:
    """The verdict of an audit, and its table; on demand all tables and notes.

    Args:
        audit: The figures.
        what: What it is of: pair, facts and dtype.
        whole: Add values by wording, the components of the variance, and notes on what figures rest on.

    Returns:
        Text of at most 100 columns, but for names of wordings that are longer.
    """
    blocks = [
        wrapped(
            f"audit of {what}: {audit.n} facts; recovery on {audit.asked.metric}, with 95 % intervals over facts"
        )
    ]
    for method in audit.methods:
        blocks += _method(audit, method, whole)
    for (first, second), some in audit.differences.items():
        blocks += _pair(audit, f"{second} − {first}", some)
    blocks += [wrapped(note, "  ") for note in notes_of(audit)] if whole else [wrapped(MORE)]
    return "\n\n".join([wrapped(verdict_of(audit)), *blocks])


def _method(audit: Audit, method: Method, whole: bool) -> list[str]:
    some, notes = audit.quantities[method.name], Footnotes()
    head = f"{method.name}: {_counted(len(method.wordings), 'wording')}, {_counted(len(method.seeds), 'seed')}"
    about = f"what the variance of one figure (one wording, one seed, {audit.n} facts) is from, in squared percentage points"
    return [
        f"{head}\n{_spreads(some, notes)}",
        *(
            [*_by_wording(method, some), f"{wrapped(about)}\n{_parts(some, notes)}"]
            if whole
            else []
        ),
        _smallest({one.label: one.detectable for one in some}, audit.asked.difference, notes),
        *_footnotes(notes),
    ]


def _pair(audit: Audit, title: str, some: Sequence[Difference]) -> list[str]:
    if not some:
        return [wrapped(f"{title}: no configuration that both have in one wording")]
    notes = Footnotes()
    rows = [[one.label, _cell(one.value, notes)] for one in some]
    return [
        f"{title}, on the same facts and wordings\n{_table(['graft', 'difference'], rows)}",
        _smallest({one.label: one.detectable for one in some}, audit.asked.difference, notes),
        *_footnotes(notes),
    ]


def _footnotes(notes: Footnotes) -> list[str]:
    return ["\n".join(wrapped(line, "    ") for line in notes.lines())] if notes.lines() else []


def _spreads(some: Sequence[Quantity], notes: Footnotes) -> str:
    rows = []
    for one in some:
        values = [figure.value for figure in one.by_wording.values() if figure.value is not None]
        reach = f"{number_text(min(values))} to {number_text(max(values))}" if values else "–"
        rows.append(
            [
                one.label,
                _cell(one.value, notes),
                _cell(one.wordings_sd, notes),
                reach,
                _cell(one.seeds_sd, notes),
            ]
        )
    heads = ["graft", "mean", "SD over wordings", "their range", "SD over seeds"]
    return _table(heads, rows)


def _by_wording(method: Method, some: Sequence[Quantity]) -> list[str]:
    """Values of the wordings, a few to a table."""
    if len(method.wordings) < 2:
        return []
    tables = []
    for start in range(0, len(method.wordings), COLUMNS):
        shown = method.wordings[start : start + COLUMNS]
        rows = [
            [one.label, *(_plain(one.by_wording.get(wording)) for wording in shown)] for one in some
        ]
        tables.append(_table(["by wording", *shown], rows))
    return tables


def _parts(some: Sequence[Quantity], notes: Footnotes) -> str:
    rows = []
    for one in some:
        if not (parts := one.parts):
            rows.append(
                [one.label, *[notes.cell(Estimate.missing(one.undefined or ""))] * len(PARTS), "–"]
            )
            continue
        total = sum(figure.value or 0.0 for figure in parts.values())
        sd = number_text(sqrt(total)) if total >= 0 else "–"
        rows.append(
            [one.label, *(_cell(_scaled(parts[part], POINTS), notes) for part in PARTS), sd]
        )
    return _table(["graft", *PARTS, "its SD"], rows)


def _smallest(
    by_label: Mapping[str, Mapping[str, Detectable]], difference: float, notes: Footnotes
) -> str:
    """The smallest differences, and how many facts a given one takes."""
    rows = []
    for label, scopes in by_label.items():
        cells = [_detectable(scopes[scope], notes) if scope in scopes else "–" for scope in SCOPES]
        needed = [
            _facts(scopes[scope], difference) if scope in scopes else "–"
            for scope in ("facts", "wordings")
        ]
        rows.append([label, *cells, *needed])
    heads = [
        "graft",
        *HEADS.values(),
        f"facts\nfor {number_text(difference)}",
        "over all\nwordings",
    ]
    return f"{wrapped(SMALLEST)}\n{_table(heads, rows)}"


def _detectable(one: Detectable, notes: Footnotes) -> str:
    if one.smallest is None:
        return notes.cell(Estimate.missing(one.undefined or "", one.n))
    return number_text(one.smallest)


def _facts(one: Detectable, difference: float) -> str:
    """The number of facts, or that none would do."""
    if one.undefined:
        return "–"
    found = one.facts_for(difference)
    return f"{found:,}" if isinstance(found, int) else "no number"


def _cell(figure: Estimate, notes: Footnotes) -> str:
    return notes.cell(figure.rounded())


def _plain(figure: Estimate | None) -> str:
    return "–" if figure is None or figure.value is None else number_text(figure.value)


def _scaled(figure: Estimate, by: float) -> Estimate:
    if figure.value is None or figure.low is None or figure.high is None:
        return figure
    return Estimate(figure.value * by, figure.low * by, figure.high * by, figure.n)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = [["\n".join(textwrap.wrap(label, GRAFT_WIDTH)), *cells] for label, *cells in rows]
    return str(tabulate(body, heads, tablefmt="simple", disable_numparse=True))
