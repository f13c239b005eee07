"""Tasks as lm-eval loads them, and their documents as it renders them for a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Request", "half_made", "render"]


@dataclass(frozen=True)
class Request:
    """What a model is asked about a document."""

    context: Any
    """The text before; anything but a text is a fault of the task."""
    target: Any
    """What is scored after it; None where the model is to generate."""
    field: str
    """Where the target comes from: `doc_to_target`, or `doc_to_choice[3]`."""


def render(task: Any, doc: Mapping[str, Any], number: int) -> list[Request]:
    """The requests of one document, each once, with as many few-shot examples as the task asks for by itself."""
    shots = task.config.num_fewshot or 0
    context = task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
    made = task.construct_requests(
        doc=doc, ctx=context, metadata=(task.config.task, number, task.config.repeats)
    )
    instances = made if isinstance(made, list) else [made]
    chosen = task.OUTPUT_TYPE == "multiple_choice" and not task.multiple_input
    requests: list[Request] = []
    for instance in instances:
        field = f"doc_to_choice[{instance.idx}]" if chosen else "doc_to_target"
        request = Request(*_texts(instance), field)
        if request not in requests:
            requests.append(request)
    return requests


def _texts(instance: Any) -> tuple[Any, Any]:
    """Context and target of a request; of a whole text, which is scored from its beginning, the context is empty."""
    arguments: Sequence[Any] = instance.args
    if len(arguments) == 1:
        return "", arguments[0]
    return arguments[0], None if isinstance(arguments[1], Mapping) else arguments[1]


def half_made(error: BaseException) -> Any:
    """The task that lm-eval was about to make when an error came up, if it had its documents already; otherwise None.

    lm-eval renders the first document while it makes a task. The documents then tell more than the error.
    """
    for frame in _frames(error):
        made = frame.get("self")
        if hasattr(made, "features") and hasattr(made, "task_docs"):
            return made
    return None


def _frames(error: BaseException) -> Iterator[Mapping[str, Any]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_locals
        trace = trace.tb_next
