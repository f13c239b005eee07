"""One document of a task as a model sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgbench.errors import InputError
from kgbench.harness import needs_lm_eval
from kgbench.harness.checks import has_spans
from kgbench.harness.folders import known_name, manager, quiet
from kgbench.harness.rendering import render
from kgbench.registry import told

__all__ = ["preview"]


def preview(name: str, number: int = 0, include_path: Path | None = None) -> dict[str, Any]:
    """Render a document.

    Args:
        name: A task.
        number: The document's number, from 0.
        include_path: A folder of tasks beside the shipped one.

    Returns:
        `task`, `file`, `document`, `documents` (how many there are), `id`, `context`, `targets`, `gold` (the right one's number where
        there are several), `spans` (the text of each), `metrics`. What does not apply is None.

    Raises:
        UnknownNameError: There is no such task.
        InputError: lm-eval is not installed, the task does not load or render, or has fewer documents.
    """
    needs_lm_eval()
    with quiet():
        tasks = manager(include_path)
        known_name(name, tasks.all_subtasks)
        file = tasks.task_index[name].yaml_path
        try:
            task = tasks.load([name])["tasks"][name]
            task.set_fewshot_seed(0)
            docs = task.eval_docs
            if number >= len(docs):
                raise InputError(
                    f"task {name!r} has {len(docs)} documents, with numbers from 0 to {len(docs) - 1}; there is no {number}"
                )
            return {
                "task": name,
                "file": str(file),
                "document": number,
                "documents": len(docs),
                **_told(task, docs[number], number),
            }
        except InputError:
            raise
        except Exception as error:  # whatever a task's data and functions raise
            raise InputError(
                f"{file}: task {name!r} does not load: {told(error)}; see 'kgbench tasks validate'"
            ) from error


def _told(task: Any, doc: Mapping[str, Any], number: int) -> dict[str, Any]:
    requests = render(task, doc, number)
    chosen = task.OUTPUT_TYPE == "multiple_choice"
    return {
        "id": doc.get("id"),
        "context": requests[0].context,
        "targets": [request.target for request in requests if request.target is not None],
        "gold": task.doc_to_target(doc) if chosen else None,
        "spans": _spans(doc),
        "metrics": list(task.aggregation()),
    }


def _spans(doc: Mapping[str, Any]) -> dict[str, str] | None:
    if not has_spans(doc):
        return None
    return {
        region: doc["query"][slice(*span)]
        for region, span in doc["spans"].items()
        if span is not None
    }
