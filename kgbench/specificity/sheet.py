"""The text tables of `kgbench specificity`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from kgbench.board.wrap import text_width, wrapped
from kgbench.estimate import Estimate
from kgbench.numbers import figure_text as share_text
from kgbench.specificity.figures import Row
from kgbench.specificity.measured import Measured
from kgbench.specificity.report import Specificity
from kgbench.specificity.sentences import figure_text
from kgbench.specificity.texts import KINDS

__all__ = ["render"]

_GRAFT_WIDTH = 16
"""Longer graft expressions are wrapped."""


@dataclass
class _Notes:
    """Reasons why there is no figure, numbered as they come."""

    reasons: list[str] = field(default_factory=list)

    def cell(self, figure: Estimate | None, text: Callable[[Estimate], str] = figure_text) -> str:
        if figure is None:
            return "–"
        if figure.undefined is None:
            return text(figure)
        if figure.undefined not in self.reasons:
            self.reasons.append(figure.undefined)
        word = "absent" if figure.undefined.startswith("absent") else "undefined"
        return f"{word} ({self.reasons.index(figure.undefined) + 1})"

    def kl(self, row: Row) -> str:
        """A mean divergence, of which an interval cannot be had where all are 0."""
        return f"0 in all {row.prompts}" if row.largest == 0 else self.cell(row.kl)

    def kl_share(self, row: Row, figure: Estimate | None) -> str:
        """A mean divergence as a share of another."""
        return (
            self.kl(row)
            if row.largest == 0 and figure is not None and figure.undefined is None
            else self.cell(figure)
        )

    def share(self, figure: Estimate | None) -> str:
        """A share of prompts, as other commands have it."""
        return self.cell(figure, lambda one: share_text(one.rounded()))

    def lines(self) -> list[str]:
        return [
            wrapped(f"({number}) {reason}", "    ") for number, reason in enumerate(self.reasons, 1)
        ]


def render(found: Specificity) -> str:
    """The verdict, what the texts are, the tables, and why figures are missing.

    Returns:
        Text without a line end after the last line.
    """
    notes = _Notes()
    near = [kind for kind in KINDS if kind != "target"]
    blocks = [
        ("KL from PRE to the graft, in nats", _table(found, list(KINDS), notes.kl)),
        (
            "share of prompts with another likeliest token",
            _table(found, list(KINDS), lambda row: notes.share(row.changed)),
        ),
        (
            "leak: KL as a share of that on the target facts",
            _table(found, near, lambda row: notes.kl_share(row, row.leak)),
        ),
        (
            "KL as a share of the whole donor's (SFT)",
            _table(
                found, list(KINDS), lambda row: notes.kl_share(row, row.of_sft), found.labels[1:]
            ),
        ),
        ("true answers: top5, and the change of their logprob against PRE", _answers(found, notes)),
    ]
    parts = [_head(found), *(f"{title}\n{table}" for title, table in blocks)]
    below = [*notes.lines(), *_lacking(found)]
    return "\n\n".join([wrapped(found.verdict), *parts, *(["\n".join(below)] if below else [])])


def _head(found: Specificity) -> str:
    told = (
        f"{found.localizer} on {found.model}, {found.dataset}, {found.dtype}, seed {found.seed}: the next token compared with PRE's, "
        "means over facts with 95 % intervals"
    )
    return "\n".join([wrapped(told), *(wrapped(_about(one), "    ") for one in found.measured)])


def _about(measured: Measured) -> str:
    prompts = measured.texts.prompts
    facts = len({prompt.fact.id for prompt in prompts})
    if not prompts:
        return f"{measured.texts.kind:<8} {measured.texts.about}"
    counted = _counted(len(prompts), "prompt") + (
        f" of {_counted(facts, 'fact')}" if facts < len(prompts) else ""
    )
    return f"{measured.texts.kind:<8} {counted}, {measured.texts.about}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _table(
    found: Specificity,
    kinds: Sequence[str],
    cell: Callable[[Row], str],
    labels: Sequence[str] | None = None,
) -> str:
    rows = [
        [label, *(cell(found.row(label, kind)) for kind in kinds)]
        for label in labels or found.labels
    ]
    return _fitting(["graft", *kinds], rows)


def _fitting(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, with intervals below their values where it is too wide otherwise."""
    body = [["\n".join(textwrap.wrap(label, _GRAFT_WIDTH)), *cells] for label, *cells in rows]
    table = tabulate(body, heads, tablefmt="simple", disable_numparse=True)
    if max(map(len, table.splitlines())) <= text_width():
        return str(table)
    return str(
        tabulate(
            [[cell.replace(" [", "\n[") for cell in row] for row in body],
            heads,
            tablefmt="simple",
            disable_numparse=True,
        )
    )


def _answers(found: Specificity, notes: _Notes) -> str:
    """Hits, PRE's first, and changes of log-probability, where the true answer is known."""
    kinds = ("target", "known")
    before = [found.row(found.labels[0], kind).top5_before for kind in kinds]
    rows = [["PRE", *(text for figure in before for text in (notes.share(figure), "–"))]]
    for label in found.labels:
        of = [found.row(label, kind) for kind in kinds]
        rows.append(
            [
                label,
                *(text for row in of for text in (notes.share(row.top5), notes.cell(row.logprob))),
            ]
        )
    heads = [f"{kind} {name}" for kind in kinds for name in ("top5", "logprob")]
    return _fitting(["graft", *heads], rows)


def _lacking(found: Specificity) -> list[str]:
    """Configurations that some prompts of a kind lack, and prompts that could not be read."""
    lines = []
    for one in found.measured:
        kind, n = one.texts.kind, len(one.texts.prompts)
        lines += [
            f"{kind}: {count} of {n} prompts left out: {reason}"
            for reason, count in one.unread.items()
        ]
        for label, reasons in (
            (label, one.absent.get(label, {})) for label in one.moved
        ):  # the others have a footnote
            lines += [
                f"{label} on {kind}: absent in {count} of {n} prompts: {reason}"
                for reason, count in reasons.items()
            ]
    return [wrapped(line, "    ") for line in lines]
