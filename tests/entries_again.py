"""Computes the project's own entries of the leaderboard a second time, and counts how far they agree.

python tests/entries_again.py [BOARD,…]     # goes on where leaderboard/again.tsv ends, the cheapest first
python tests/entries_again.py --table       # the documentation's table

An entry is of another machine where its platform is another one.
"""

from __future__ import annotations

import csv
import secrets
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from kgbench.leaderboard.entries import ENTRIES, Entry, read_entries
from kgbench.leaderboard.folders import document_hash, rows_hash
from kgbench.leaderboard.limits import RECORD
from kgbench.records.provenance import collect_provenance
from kgbench.runner import Settings
from kgbench.runner.rerun import Repetition, repeat

__all__ = [
    "AGAIN",
    "SEED",
    "agreement_table",
    "all_own_entries",
    "entry_boards",
    "is_the_same",
    "outcome",
    "own_entries",
    "read_lines",
]

ROOT = Path(__file__).parent.parent
AGAIN = ROOT / "leaderboard" / "again.tsv"
SEED = secrets.randbelow(10**6)
"""Of tests that draw entries; a failure names it."""


def own_entries(boards: Iterable[str] = ()) -> list[Entry]:
    """The project's own entries, the cheapest first, of some boards or of all."""
    chosen = tuple(boards)
    entries = []
    for entry in read_entries(ROOT / ENTRIES):
        if entry.badge == "maintainers" and (not chosen or entry.suite in chosen):
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.result.cost.seconds)


@cache
def all_own_entries() -> list[Entry]:
    """Those of all boards, read once."""
    return own_entries()


def is_the_same(entry: Entry) -> None:
    """Every row comes out the same within tolerance, and so does the map."""
    again, ids = repeat(entry.record, entry.facts(), Repetition(), Settings(device="cpu"))
    assert again.agrees, f"{entry.folder.name} (draw {SEED}): {again}"
    assert len(ids) == entry.record.identity.n_facts


def outcome(entry: Entry) -> str:
    """The beginning of a hash of what was run and what came of it: id, scores and rows.

    An entry that replaces another under its id has another one, unless it is the same bit for bit.
    """
    scores = entry.documents[RECORD].get("scores")
    return document_hash([entry.result.id, scores, rows_hash(entry.rows())])[:16]


def computed(entry: Entry) -> dict[str, str]:
    """One entry, stored and now: a line of the file."""
    again, _ = repeat(entry.record, entry.facts(), Repetition(), Settings(device="cpu"))
    is_here = entry.record.provenance.platform == collect_provenance("cpu").platform
    return {
        "outcome": outcome(entry),
        "machine": "same" if is_here else "other",
        "agrees": "yes" if again.agrees else "no",
        "rows": str(again.rows),
        "flipped": str(again.flipped),
        "largest": f"{again.largest:.1e}",
    }


@cache
def entry_boards() -> dict[str, str]:
    """The board of each own entry, by its outcome."""
    return {outcome(entry): entry.suite for entry in all_own_entries()}


def agreement_table(lines: Iterable[Mapping[str, str]], boards: Mapping[str, str]) -> str:
    """By board and machine: entries, rows, those that agree, and the largest difference."""
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for line in lines:
        groups.setdefault((boards[line["outcome"]], line["machine"]), []).append(line)
    head = ["board", "machine", "entries", "agree", "rows", "hits flipped", "largest, nats"]
    rows = [head, ["---"] * len(head)]
    for (board, machine), own in sorted(groups.items()):
        rows.append(
            [
                board,
                machine,
                str(len(own)),
                str(sum(line["agrees"] == "yes" for line in own)),
                f"{sum(int(line['rows']) for line in own):,}",
                str(sum(int(line["flipped"]) for line in own)),
                f"{max(float(line['largest']) for line in own):.0e}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_lines(path: Path) -> list[dict[str, str]]:
    """Results so far."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def main(boards: Iterable[str]) -> None:
    """Compute what has no result yet."""
    done = {line["outcome"] for line in read_lines(AGAIN)}
    for entry in own_entries(boards):
        if outcome(entry) not in done:
            line = computed(entry)
            with AGAIN.open("a", encoding="utf-8") as file:
                file.write("\t".join(line.values()) + "\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given != ["--table"]:
        main(given[0].split(",") if given else ())
    print(agreement_table(read_lines(AGAIN), entry_boards()))
