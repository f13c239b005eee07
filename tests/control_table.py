"""Prints the documentation's tables of the positive control and of claims, from published rows.

python tests/control_table.py              # the tables
python tests/control_table.py --negative   # what the pairs do not show, as in negative.toml
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kgbench.models import catalog
from kgbench.numbers import number_text
from kgbench.paper.figure_claims import (
    claims_agreement,
    distinct_claims,
    family,
    figures_from,
    figures_there,
)
from kgbench.paper.figure_specs import page
from kgbench.paper.pair_rows import ROWS, read_measured
from kgbench.paper.positive_control import Result, results

__all__ = [
    "PUBLISHED",
    "REPORTED",
    "agreement",
    "negative",
    "not_shown",
    "published_results",
    "table",
]

PUBLISHED = Path(__file__).parents[1] / "leaderboard" / "reproductions"
REPORTED = sorted(path.parent.name for path in PUBLISHED.glob(f"*/{ROWS}"))
PAIRS = [pair for pair in REPORTED if pair in catalog.shipped()]
"""Tiny ones, which the criteria are about."""


def published_results() -> dict[str, tuple[Result, ...]]:
    """The criteria of each pair with published rows."""
    return {pair: results(read_measured(PUBLISHED / pair / ROWS)) for pair in PAIRS}


def table(found: Mapping[str, Sequence[Result]]) -> str:
    """A row per criterion: under how many seeds it is kept, and the figures of those on one prompt."""
    lines = [
        "| criterion | " + " | ".join(f"`{pair}`" for pair in found) + " |",
        "|---" * (len(found) + 1) + "|",
    ]
    by_name = {pair: {one.criterion.name: one for one in own} for pair, own in found.items()}
    for criterion in page().criteria:
        cells = [_cell(own.get(criterion.name)) for own in by_name.values()]
        lines.append(f"| {criterion.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None:
        return "not measured yet"
    count = f"{len(result.kept)} of {len(result.rates)}"
    if result.vacuous:
        count = f"**vacuous ({count})**"
    elif not result.shown:
        count = f"**{count}**"
    if len(result.criterion.prompts) > 1:
        return count
    (prompt,) = result.criterion.prompts
    figures = []
    for rates in result.rates.values():
        terms = [number_text(rates[prompt][term]) for term in result.criterion.terms]
        figures.append(" and ".join(terms))
    return f"{count}: {', '.join(figures)}"


def not_shown(found: Sequence[Result]) -> dict[str, dict[str, str]]:
    """The rates of each criterion that a pair does not show, and what makes it vacuous."""
    texts = {}
    for one in found:
        if not one.shown:
            vacuous = {"vacuous": one.vacuous} if one.vacuous else {}
            texts[one.criterion.name] = vacuous | one.figures()
    return texts


def negative(found: Mapping[str, Sequence[Result]]) -> str:
    """What is not shown, as TOML."""
    lines = []
    for pair, own in found.items():
        for name, texts in not_shown(own).items():
            lines += ["", f"[{pair}.{name}]", 'tries = ""']
            lines += [f"{key} = {json.dumps(t, ensure_ascii=False)}" for key, t in texts.items()]
    return "\n".join(lines)


def agreement() -> str:
    """A row per pair: outcomes of the paper's claims, and agreement with its model of the type."""
    lines = [
        "| pair | hold | fail | undecided | vacuous | the paper's model of its type | agree, where "
        "both decide | without premises |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for pair in PAIRS:
        measured = read_measured(PUBLISHED / pair / ROWS)
        figures = figures_from(figures_there(list(page().figures), measured.about), measured)
        claims = [claim for _, claim in distinct_claims(figures) if claim.paper]
        counts = Counter(claim.outcome for claim in claims)
        like = family(pair)
        assert like is not None
        found = claims_agreement(claims, like)
        outcomes = [str(counts[name]) for name in ("holds", "fails", "undecided", "vacuous")]
        both = f"{found.agree} of {found.decided}"
        beyond = f"{found.agree_beyond} of {found.beyond}"
        lines.append(f"| {pair} | {' | '.join(outcomes)} | {like} | {both} | {beyond} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--negative" in sys.argv:
        print(negative(published_results()))
    else:
        for name, text in (("control", table(published_results())), ("agreement", agreement())):
            print(f"<!-- begin: {name} -->\n{text}\n<!-- end: {name} -->\n")
