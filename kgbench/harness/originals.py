"""The prompts that rows were made of, as far as their data can be had again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgbench.data import Dataset, dataset_names, load_dataset, load_prompts
from kgbench.errors import InputError
from kgbench.harness.rows import fingerprint

__all__ = ["Originals", "Spans"]

Spans = Mapping[str, tuple[int, int]]
"""Per region its [start, end) characters in the query."""


class Originals:
    """Filled prompts of shipped data sets and of files beside tasks, each filled once."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, ...], Mapping[tuple[str, str], Spans]] = {}

    def spans(self, doc: Mapping[str, Any], task: Any, file: Path) -> Spans:
        """The spans of the prompt that a row was made of; none where its `fingerprint` is of no data at hand, or its query another text.

        Args:
            doc: The row.
            task: Its task, which names a file where it has its rows from `kgbench.harness.rows.load`.
            file: The task's YAML, beside which that file may stand.
        """
        known = [
            text
            for key in ("dataset", "prompt", "fingerprint", "id")
            if isinstance(text := doc.get(key), str)
        ]
        if len(known) < 4:
            return {}
        named = str((task.config.dataset_kwargs or {}).get("kgbench_dataset", ""))
        source = (*known[:3], named, str(file.parent))
        if source not in self._spans:
            self._spans[source] = _filled(*source)
        return self._spans[source].get((doc["id"], doc["query"]), {})


def _filled(
    dataset: str, prompt: str, mark: str, named: str, folder: str
) -> Mapping[tuple[str, str], Spans]:
    """Spans by id and text, of the data whose fingerprint this is."""
    for data in _sources(dataset, named, folder):
        try:
            if fingerprint(data, prompt) == mark:
                return {
                    (filled.fact.id, filled.text): filled.spans
                    for filled in load_prompts(data, [prompt])
                }
        except InputError:  # no such prompt, or one for other fields
            continue
    return {}


def _sources(dataset: str, named: str, folder: str) -> Iterator[Dataset]:
    shipped = [name for name in (dataset, named) if name in dataset_names()]
    files = [path for path in (Path(folder, named), Path(named)) if named and path.is_file()]
    for source in (*shipped, *map(str, files)):
        try:
            yield load_dataset(source)
        except InputError:
            continue
