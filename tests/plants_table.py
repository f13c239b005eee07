"""Prints the README's tables of scorers on plants, from the leaderboard's entries.

    python tests/plants_table.py [ROOT]

`kgbench leaderboard run --board planted` makes the entries.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgbench import localizers
from kgbench.leaderboard.entries import read_entries
from kgbench.models import catalog
from kgbench.numbers import figure_text, number_text
from kgbench.records import Estimate

__all__ = ["main"]

Figures = Mapping[str, Mapping[str, Any]]
"""Row of a plant by its name, for one localizer."""

BASELINES = ("oracle", "random", "prior", "none", "all")


def entries(root: Path) -> dict[str, Figures]:
    """The rows of each built-in method that has been run on all shipped plants."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in read_entries(root / "results"):
        if (planted := entry.record.planted) is not None and entry.method in localizers.names():
            facts = max(row.n for row in entry.record.rows)
            found.setdefault(entry.method, {})[entry.pair] = {"n": facts, **planted.answer()}
    return {name: rows for name, rows in found.items() if set(catalog.plants()) <= set(rows)}


def cell(row: Mapping[str, Any] | None, figure: str) -> str:
    found = row.get(figure) if row else None
    return "–" if not found else figure_text(Estimate(**found, n=row["n"]))  # type: ignore[index]


def table(title: str, found: Mapping[str, Figures], plants: Sequence[str], figure: str) -> str:
    heads = [f"`{catalog.entry(plant).plant}`<br>{plant.partition('.')[0]}" for plant in plants]
    lines = [f"**{title}**", "", "| scorer | " + " | ".join(heads) + " |", "|---" * (len(plants) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(rows.get(plant), figure) for plant in plants) + " |" for name, rows in found.items()]
    return "\n".join(lines)


def chance(found: Mapping[str, Figures], plants: Sequence[str]) -> str:
    """What a random order of the changed places is expected to get."""
    (rows, *_) = found.values()
    shares = (rows[plant]["chance"] for plant in plants)
    return "| *chance, and which weights changed* | " + " | ".join("–" if share is None else number_text(share) for share in shares) + " |"


def tables(found: Mapping[str, Figures]) -> str:
    """All tables, for the rows of each localizer."""
    weights = [plant for plant in catalog.plants() if str(catalog.entry(plant).plant).startswith("ALL:")]
    tokens = [plant for plant in catalog.plants() if plant not in weights]
    what = "graded average precision among the"
    everywhere = table(f"Plants at all tokens: {what} (layer, component) that changed", found, weights, "graded_precision")
    parts = [
        f"{everywhere}\n{chance(found, weights)}",
        table("Plants at all tokens: AUROC of the planted against the decoy's", found, weights, "auroc_decoy"),
        f"{table(f'Position plants: {what} sites that changed', found, tokens, 'graded_precision')}\n{chance(found, tokens)}",
    ]
    return "\n\n".join(parts)


def main(root: Path) -> None:
    ours = [name for name in localizers.names() if Path(localizers.__file__).with_name(f"{name}.py").is_file()]
    order = [*BASELINES[:3], *(name for name in ours if name not in BASELINES)]
    found = entries(root)
    print(tables({name: found[name] for name in order if name in found}))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "leaderboard"))
