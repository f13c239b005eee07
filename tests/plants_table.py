"""Runs every scorer on every shipped plant and prints the tables that the README holds.

    python tests/plants_table.py [OUTPUT_DIR]

Records that exist in the output directory are used as they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgbench import localizers
from kgbench.models import catalog
from kgbench.numbers import figure_text, number_text
from kgbench.records import Estimate

__all__ = ["main"]

Figures = Mapping[str, Mapping[str, Any]]
"""Row of a plant by its name, for one localizer."""

BASELINES = ("oracle", "random", "prior", "none", "all")


def ask(localizer: str, output: str) -> Figures | str:
    """The rows of one localizer, or why there are none."""
    options = ["--suite", "planted", "--localizer", localizer, "--output-dir", output, "--json", "-q"]
    command = [sys.executable, "-m", "kgbench", "eval", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return {row["plant"]: row for row in json.loads(done.stdout)["rows"]}


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


def main(output: str) -> None:
    ours = [name for name in localizers.names() if Path(localizers.__file__).with_name(f"{name}.py").is_file()]
    order = [*BASELINES[:3], *(name for name in ours if name not in BASELINES)]
    asked = {name: ask(name, output) for name in order}
    print(tables({name: rows for name, rows in asked.items() if not isinstance(rows, str)}))
    for name, reason in asked.items():
        if isinstance(reason, str):
            print(f"\n{name}: {reason}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "kgbench-results")
