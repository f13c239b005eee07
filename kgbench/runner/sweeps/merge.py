"""Union of folders of records; the same identity with other rows is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kgbench.errors import InputError
from kgbench.records import RecordStore, StoredRecord
from kgbench.stats.repetition import repeated


@dataclass(frozen=True)
class Merged:
    """What came of a union."""

    new: int
    """Records that the target did not have."""
    known: int
    """Records that it had."""


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Copy all records of some folders into another; what is there stays as it is.

    Args:
        sources: Folders of records.
        target: Another, which is made.

    Returns:
        How many records were new.

    Raises:
        InputError: Two records of one identity have rows that differ by more than rounding; nothing
            is copied then.
    """
    for source in sources:
        if not source.is_dir():
            raise InputError(f"{str(source)!r} is no folder of records")
    seen: dict[str, StoredRecord] = {}
    for store in (RecordStore(target), *map(RecordStore, sources)):
        for found in store.scan():
            one = seen.setdefault(found.record.id, found)
            if one is found:
                continue
            again = repeated(one.record, one.facts(), found.facts())
            if not again.agrees:
                raise InputError(
                    f"{one.path} and {found.path} are of one identity, {one.record.id[:12]}, and "
                    f"contradict each other: {again.flipped} of {again.rows} hits differ, "
                    f"log-probabilities by up to {again.largest:.3g} nats; find out which is right "
                    "(kgbench rerun), and delete the other. Nothing was copied"
                )
    into = RecordStore(target)
    there = {found.record.id for found in into.scan()}
    new = [found for id, found in seen.items() if id not in there]
    for found in new:
        files = {}
        for path in found.path.iterdir():
            if path.is_file() and path.name not in ("record.json", "facts.parquet", "seal.json"):
                files[path.name] = path.read_bytes()
        into.write(found.record, found.facts(), files, searched=True)
    return Merged(len(new), len(seen) - len(new))
