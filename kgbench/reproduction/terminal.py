"""A figure as text for a terminal: the report's tables, in at most about 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tabulate import tabulate

from kgbench.numbers import number_text
from kgbench.reproduction.claimed import LEAST
from kgbench.reproduction.made import Made
from kgbench.reproduction.report import CLAIM_HEADS, claim_cells, figure_rows

__all__ = ["CLAIMS_LEGEND", "claims_text", "figure_text"]

CLAIMS_LEGEND = (
    "difference: of shares of what finetuning added, with its 95 % interval over facts (and training seeds, where "
    "there are several); in the paper, of top-5 rates: (no) where they do not keep the bound, (?) where so many facts do "
    f"not tell; vacuous: the larger term recovers less than {number_text(LEAST)}"
)
"""What stands below claims."""

_NAME = 18
"""Columns of a row's name."""
_WIDTHS = (24, 17, None, 12, None)
"""Columns of a claim and of what it means; intervals and models stay on their lines."""


def figure_text(made: Made) -> Iterator[str]:
    """Ours beside the paper's, a table per prompt, and a blank line after each; heads take a line per word."""
    for heads, rows in figure_rows(made):
        yield _table(rows, [_broken(head) for head in heads], [_NAME, *(None for _ in heads[1:])])
        yield ""


def claims_text(made: Made) -> Iterator[str]:
    """What holds here and in the paper, a table per prompt, and a blank line after each."""
    for prompt, claims in groupby(made.claims, key=lambda claim: claim.prompt):
        rows = [
            [cell if isinstance(cell, str) else "\n".join(cell) for cell in claim_cells(claim)]
            for claim in claims
        ]
        yield f"claims on {prompt}"
        yield _table(rows, CLAIM_HEADS, _WIDTHS)
        yield ""


def _broken(head: str) -> str:
    return head.replace(" (", "\n(").replace(", ", ",\n")


def _table(
    rows: Sequence[Sequence[str]], heads: Sequence[str], widths: Sequence[int | None]
) -> str:
    return tabulate(rows, heads, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
