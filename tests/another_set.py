"""Scores the methods on another set of plants than the shipped one, and compares the two.

python tests/another_set.py build/plants-1   # goes on where leaderboard/another_set.tsv ends
python tests/another_set.py --table          # the documentation's table

The set is what `make plants SEED=1` builds in the tiny pairs: other facts in other places, drawn and
accepted by the same rules. Methods that take more than ten minutes on all of them are left out, and
so are the references none, all and oracle.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import kgbench
from kgbench.leaderboard.boards.planted import Plant, PlantScores
from kgbench.leaderboard.entries import ENTRIES, read_entries
from kgbench.leaderboard.ranks import better
from kgbench.models import catalog
from kgbench.numbers import figure_text

__all__ = ["SCORES", "comparison_table", "read_scores"]

ROOT = Path(__file__).parent.parent
SCORES = ROOT / "leaderboard" / "another_set.tsv"
TOKENS = ("entity", "last")
"""Levels at some tokens alone, which the board's means leave out."""

METHODS = (
    *("attribution_patch", "graft_drop", "path_patch", "ablation", "activation_patch"),
    *("static_graft", "dynamic_graft", "graft_attribution", "directional_patch"),
    *("attention_knockout", "weight_delta", "snip", "fisher", "prior", "random"),
)


def scored(folder: Path) -> dict[str, str]:
    """Average precision of each method on a plant: a line of the file."""
    card = json.loads((folder / "card.json").read_text("utf-8"))
    line = {"plant": card["name"], "level": card["level"]}
    with TemporaryDirectory() as runs:
        runs_of = kgbench.evaluate(
            str(folder),
            localizer=METHODS,
            suite="planted",
            output_dir=runs,
            device="cpu",
            progress=False,
        )
        for method, run in zip(METHODS, runs_of, strict=True):
            line[method] = f"{run.record.planted.average_precision.value:.6f}"
    return line


def read_scores() -> list[dict[str, str]]:
    """The lines of the file."""
    with SCORES.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def _scores(scores: Mapping[Plant, float]) -> PlantScores:
    """Those of facts at all tokens, whose mean over levels the board ranks by."""
    return PlantScores({at: score for at, score in scores.items() if at[0] not in TOKENS})


def comparison_table(lines: Sequence[Mapping[str, str]]) -> str:
    """By method, average precision on the shipped plants, on the other set, and on both together;
    then the number of pairs of methods that differ significantly on each.
    """
    shipped: dict[str, dict[Plant, float]] = {method: {} for method in METHODS}
    for entry in read_entries(ROOT / ENTRIES):
        plant = catalog.published(entry.pair) if entry.suite == "planted" else None
        if plant is not None and entry.pair.startswith("tiny") and entry.method in METHODS:
            assert entry.planted is not None and plant.level is not None
            score = entry.planted.average_precision.value or 0.0
            shipped[entry.method][plant.level, entry.pair] = score
    sets: dict[str, dict[str, PlantScores]] = {"shipped": {}, "another set": {}, "both": {}}
    for method in METHODS:
        other = {(line["level"], line["plant"]): float(line[method]) for line in lines}
        each = shipped[method], other, {**shipped[method], **other}
        for name, scores in zip(sets, map(_scores, each), strict=True):
            sets[name][method] = scores
    order = sorted(METHODS, key=lambda method: -(sets["both"][method].figure.value or 0))
    cells = [["method", *sets], ["---"] * 4]
    for method in order:
        figures = (figure_text(scores[method].figure) for scores in sets.values())
        cells.append([f"`{method}`", *figures])
    counts = (str(sum(map(len, better(scores).values()))) for scores in sets.values())
    cells.append(["pairs that differ significantly, of 105", *counts])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def main(words: list[str]) -> None:
    """Score what is left, or print the table."""
    if words == ["--table"]:
        print(comparison_table(read_scores()))
        return
    done = {line["plant"] for line in read_scores()} if SCORES.exists() else set()
    head = ["plant", "level", *METHODS]
    with SCORES.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, head, delimiter="\t", lineterminator="\n")
        if not done:
            writer.writeheader()
        for card in sorted(Path(words[0]).glob("tiny-*/card.json")):
            is_accepted = not json.loads(card.read_text("utf-8"))["shortfalls"]
            if is_accepted and card.parent.name not in done:
                writer.writerow(scored(card.parent))
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
