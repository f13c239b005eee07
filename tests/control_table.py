"""Prints the documentation's table of the positive control, from the published rows.

python tests/control_table.py              # the table
python tests/control_table.py --negative   # what the pairs do not show, as in negative.toml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kgbench.numbers import number_text
from kgbench.paper.measurements import ROWS, read_measured
from kgbench.paper.page import page
from kgbench.paper.paper_figures import Result, results

__all__ = ["PUBLISHED", "negative", "published_results", "table"]

PUBLISHED = Path(__file__).parents[1] / "leaderboard" / "reproductions"


def published_results() -> dict[str, tuple[Result, ...]]:
    """The criteria of each pair with published rows."""
    return {
        path.parent.name: results(read_measured(path), page())
        for path in sorted(PUBLISHED.glob(f"*/{ROWS}"))
    }


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
    if not result.shown:
        count = f"**{count}**"
    if len(result.criterion.prompts) > 1:
        return count
    (prompt,) = result.criterion.prompts
    figures = []
    for rates in result.rates.values():
        terms = [number_text(rates[prompt][term]) for term in result.criterion.terms]
        figures.append(" and ".join(terms))
    return f"{count}: {', '.join(figures)}"


def negative(found: Mapping[str, Sequence[Result]]) -> str:
    """What is not shown, as TOML."""
    lines = []
    for pair, own in found.items():
        for one in own:
            if not one.shown:
                lines += ["", f"[{pair}.{one.criterion.name}]"]
                lines += ['tries = ""']
                lines += [
                    f"{seed} = {json.dumps(text, ensure_ascii=False)}"
                    for seed, text in one.figures().items()
                ]
    return "\n".join(lines)


if __name__ == "__main__":
    if "--negative" in sys.argv:
        print(negative(published_results()))
    else:
        print(f"<!-- begin: control -->\n{table(published_results())}\n<!-- end: control -->")
