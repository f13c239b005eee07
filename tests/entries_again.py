"""Computes the project's own entries of the leaderboard anew, and says how far they agree.

python tests/entries_again.py RESULTS.jsonl [BOARD,…]     # goes on where it was

An entry is of another machine where its platform is another one.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kgbench.leaderboard.entries import ENTRIES, Entry, read_entries
from kgbench.records.provenance import collect_provenance
from kgbench.runner import Settings
from kgbench.runner.rerun import Repetition, repeat

__all__ = ["agreement_table", "own_entries"]

ROOT = Path(__file__).parent.parent


def own_entries(boards: Iterable[str] = ()) -> list[Entry]:
    """The project's own entries, the cheapest first, of some boards or of all."""
    chosen = tuple(boards)
    entries = []
    for entry in read_entries(ROOT / ENTRIES):
        if entry.badge == "maintainers" and (not chosen or entry.suite in chosen):
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.record.cost.seconds)


def computed(entry: Entry) -> dict[str, Any]:
    """One entry, stored and now."""
    again, ids = repeat(entry.record, entry.facts(), Repetition(), Settings(device="cpu"))
    return {
        "id": entry.record.id,
        "board": entry.suite,
        "agrees": again.agrees,
        "rows": again.rows,
        "flipped": again.flipped,
        "largest": again.largest,
        "facts": len(ids),
        "stored_on": entry.record.provenance.platform,
        "now_on": collect_provenance("cpu").platform,
    }


def agreement_table(lines: Iterable[Mapping[str, Any]]) -> str:
    """By board and machine: entries, rows, those that agree, and the largest difference."""
    groups: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["board"], line["stored_on"] != line["now_on"]), []).append(line)
    head = ["board", "first on", "entries", "agree", "rows", "hits flipped", "largest, nats"]
    rows = [head, ["---"] * len(head)]
    for (board, elsewhere), own in sorted(groups.items()):
        counts = Counter(line["agrees"] for line in own)
        rows.append(
            [
                board,
                "another machine" if elsewhere else "a machine of this kind",
                str(len(own)),
                str(counts[True]),
                f"{sum(line['rows'] for line in own):,}",
                str(sum(line["flipped"] for line in own)),
                f"{max(line['largest'] for line in own):.0e}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Results so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main(path: Path, boards: Iterable[str]) -> None:
    """Compute what has no result yet, and print the table."""
    for entry in own_entries(boards):
        if entry.record.id in {line["id"] for line in read_lines(path)}:
            continue
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(computed(entry)) + "\n")
    print(f"on {platform.platform()}\n\n{agreement_table(read_lines(path))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(",") if len(sys.argv) > 2 else ())
