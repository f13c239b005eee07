"""A leaderboard of many entries: those that are shipped, several times under other names.

`python tests/many_entries.py FOLDER [COPIES]` writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgbench.leaderboard.entries import read_entries
from kgbench.leaderboard.folders import changed
from kgbench.records import Identity

SHIPPED = Path(__file__).parents[1] / "leaderboard" / "results"


def write_copies(results: Path, copies: int) -> int:
    """Write the shipped entries below a folder, each as a run of so many further methods.

    Returns:
        How many there are.
    """
    methods: dict[Path, dict[str, tuple[dict[str, Any], pa.Table]]] = {}
    for entry in read_entries(SHIPPED):
        board, method, name = entry.folder.parts[-3:]
        for copy in range(copies):
            documents = json.loads(json.dumps(entry.documents))
            record, submission = documents["record.json"], documents["submission.json"]
            record["identity"]["localizer"]["name"] += f"_{copy}"
            record["id"] = Identity.model_validate(record["identity"]).digest()
            submission.update(record=record["id"], name=f"{submission['name']} {copy}")
            place = results / board / f"{method}-{copy}"
            methods.setdefault(place, {})[name] = (documents, entry.rows())
    for place, own in methods.items():
        with changed(place) as (documents, rows):
            for name, parts in own.items():
                documents[name], rows[name] = parts
    return sum(map(len, methods.values()))


if __name__ == "__main__":
    print(write_copies(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2))
