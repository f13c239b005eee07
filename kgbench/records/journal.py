"""Finished parts of a run that has not ended, so that a killed run resumes."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgbench.errors import DataError
from kgbench.records.facts import FACTS_SCHEMA, facts_table, read_facts, write_facts

__all__ = ["Journal"]


CODE = "code.txt"
"""Holds the version of the code that computed."""


class Journal:
    """Per-fact rows of finished chunks, in a folder of their own.

    A part is written under a temporary name and then renamed, so that a part that is there is whole. It holds every configuration
    of its prompts; what is finished is thus a set of (prompt, fact) pairs, whatever the batch size of the run that resumes.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        """Take up what is there.

        Args:
            folder: The journal's folder; it need not exist.
            code: Version of the code that computes; what another version computed is deleted, with a warning. Empty to read only.
        """
        self.folder, self.code = folder, code
        self._check_code()
        self._parts: list[pa.Table] = []
        self._cost: dict[str, float] = {}
        self._next = 0
        self._finished: set[tuple[str, str]] = set()
        for path in sorted(folder.glob("[0-9]*-*.parquet")):
            self._next = int(path.name.split("-")[0]) + 1
            self._take(path)

    def _check_code(self) -> None:
        if self.code and self.folder.is_dir() and any(self.folder.iterdir()) and (before := self._read_code()) != self.code:
            told = f"an unfinished run of {before or 'an unknown version'} is left out and computed anew: this is {self.code}"
            warnings.warn(told, stacklevel=4)
            shutil.rmtree(self.folder)

    def _read_code(self) -> str:
        path = self.folder / CODE
        return path.read_text("utf-8") if path.is_file() else ""

    def _begin(self) -> None:
        """Make the folder; the version of the code comes first into it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.code:
            (self.folder / CODE).write_text(self.code, "utf-8")

    def keep(self, name: str, value: Any) -> None:
        """Keep a JSON value, such as the scores of one half of the facts."""
        self._begin()
        temporary = self.folder / f"{name}-{os.getpid()}.tmp"
        temporary.write_text(json.dumps(value, allow_nan=False), "utf-8")
        temporary.replace(self.folder / f"{name}.json")

    def kept(self, name: str) -> Any | None:
        """A value that was kept; None where it was not, or does not read."""
        try:
            return json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def _take(self, path: Path) -> None:
        try:
            part = read_facts(path)
        except DataError as error:
            warnings.warn(f"part of an unfinished run is left out and computed anew: {error}", stacklevel=4)
            return
        self._add(part, {key.decode(): float(value) for key, value in (part.schema.metadata or {}).items()})

    def _add(self, part: pa.Table, cost: Mapping[str, float]) -> None:
        pairs = list(zip(part["prompt"].to_pylist(), part["fact"].to_pylist(), strict=True))
        fresh = [pair not in self._finished for pair in pairs]
        self._finished.update(pairs)
        self._parts.append(part.filter(pa.array(fresh, pa.bool_())).replace_schema_metadata(None))
        for key, value in cost.items():
            self._cost[key] = self._cost.get(key, 0.0) + value

    def finished(self) -> frozenset[tuple[str, str]]:
        """The (prompt, fact) pairs of which all configurations are here."""
        return frozenset(self._finished)

    def cost(self) -> dict[str, float]:
        """Sums of what the parts say that they cost."""
        return dict(self._cost)

    def append(self, columns: Mapping[str, object] | pa.Table, cost: Mapping[str, float] | None = None) -> None:
        """Keep a finished chunk.

        Args:
            columns: Per-fact rows of some prompts under all configurations.
            cost: What they cost, such as forwards, token_rows and seconds.

        Raises:
            DataError: If a score is not finite.
        """
        part = facts_table(columns)
        self._begin()
        path = self.folder / f"{self._next:06d}-{os.getpid()}.parquet"
        temporary = path.with_suffix(".tmp")
        write_facts(part, temporary, {key: repr(float(value)) for key, value in (cost or {}).items()})
        temporary.replace(path)
        self._next += 1
        self._add(part, cost or {})

    def table(self) -> pa.Table:
        """All rows, sorted; a pair that two parts hold is taken from the first."""
        return facts_table(pa.concat_tables([FACTS_SCHEMA.empty_table(), *self._parts]))

    def discard(self) -> None:
        """Delete the folder: the run has ended and its record is written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.parent.is_dir() and not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()
