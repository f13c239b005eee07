"""The text tables of `kgbench specificity`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from kgbench.board.wrap import wrapped
from kgbench.specificity.figures import Row
from kgbench.specificity.measured import Measured
from kgbench.specificity.report import Specificity
from kgbench.specificity.sentences import figure_text
from kgbench.specificity.texts import KINDS
from kgbench.stats import Figure

__all__ = ["render"]

_GRAFT_WIDTH = 16
"""Longer graft expressions are wrapped."""


@dataclass
class _Notes:
    """Reasons why there is no figure, numbered as they come."""

    reasons: list[str] = field(default_factory=list)

    def cell(self, figure: Figure | None) -> str:
        if figure is None:
            return "–"
        if figure.undefined is None:
            return figure_text(figure)
        if figure.undefined not in self.reasons:
            self.reasons.append(figure.undefined)
        word = "absent" if figure.undefined.startswith("absent") else "undefined"
        return f"{word} ({self.reasons.index(figure.undefined) + 1})"

    def kl(self, row: Row) -> str:
        """A mean divergence, of which an interval cannot be had where all are 0."""
        return f"0 in all {row.prompts}" if row.largest == 0 else self.cell(row.kl)

    def lines(self) -> list[str]:
        return [wrapped(f"({number}) {reason}", "    ") for number, reason in enumerate(self.reasons, 1)]


def render(found: Specificity) -> str:
    """What the texts are, the tables, why figures are missing, and one sentence.

    Returns:
        Text without a line end after the last line.
    """
    notes = _Notes()
    near = [kind for kind in KINDS if kind != "target"]
    blocks = [
        ("KL from PRE to the graft, in nats", _table(found, list(KINDS), notes.kl)),
        ("share of prompts with another likeliest token", _table(found, list(KINDS), lambda row: notes.cell(row.changed))),
        ("leak: KL as a share of that on the target facts", _table(found, near, lambda row: notes.cell(row.leak))),
        ("KL as a share of the whole donor's (SFT)", _table(found, list(KINDS), lambda row: notes.cell(row.of_sft))),
        ("true answers: top-5, and the change of their log-probability against PRE", _answers(found, notes)),
    ]
    parts = [_head(found), *(f"{title}\n{table}" for title, table in blocks)]
    below = [*notes.lines(), *_lacking(found)]
    return "\n\n".join([*parts, *(["\n".join(below)] if below else []), wrapped(found.verdict)])


def _head(found: Specificity) -> str:
    told = (
        f"{found.localizer} on {found.model}, {found.dataset}, {found.dtype}, seed {found.seed}: the next token compared with PRE's, "
        "means over facts with 95 % intervals"
    )
    return "\n".join([wrapped(told), *(wrapped(_about(one), "    ") for one in found.measured)])


def _about(measured: Measured) -> str:
    prompts = measured.texts.prompts
    facts = len({prompt.fact.id for prompt in prompts})
    counted = f"{len(prompts)} prompts of {facts} facts, " if facts < len(prompts) else f"{len(prompts)} prompts, " if prompts else ""
    return f"{measured.texts.kind:<8} {counted}{measured.texts.about}"


def _table(found: Specificity, kinds: Sequence[str], cell: Callable[[Row], str]) -> str:
    rows = [[_label(label), *(cell(found.row(label, kind)) for kind in kinds)] for label in found.labels]
    return tabulate(rows, ["graft", *kinds], tablefmt="simple", disable_numparse=True)


def _answers(found: Specificity, notes: _Notes) -> str:
    """Hits, PRE's first, and changes of log-probability, where the true answer is known."""
    kinds = ("target", "known")
    before = [found.row(found.labels[0], kind).top5_before for kind in kinds]
    rows = [["PRE", *(text for figure in before for text in (notes.cell(figure), "–"))]]
    for label in found.labels:
        of = [found.row(label, kind) for kind in kinds]
        rows.append([_label(label), *(notes.cell(figure) for row in of for figure in (row.top5, row.logprob))])
    heads = [f"{kind} {name}" for kind in kinds for name in ("top-5", "log-prob")]
    return tabulate(rows, ["graft", *heads], tablefmt="simple", disable_numparse=True)


def _label(graft: str) -> str:
    return "\n".join(textwrap.wrap(graft, _GRAFT_WIDTH))


def _lacking(found: Specificity) -> list[str]:
    """Configurations that some prompts of a kind lack, and prompts that could not be read."""
    lines = []
    for one in found.measured:
        kind, n = one.texts.kind, len(one.texts.prompts)
        lines += [f"{kind}: {count} of {n} prompts left out: {reason}" for reason, count in one.unread.items()]
        for label, reasons in ((label, one.absent.get(label, {})) for label in one.moved):  # the others have a footnote
            lines += [f"{label} on {kind}: absent in {count} of {n} prompts: {reason}" for reason, count in reasons.items()]
    return [wrapped(line, "    ") for line in lines]
