"""What is wrong with a task, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Finding", "Place"]


@dataclass(frozen=True)
class Place:
    """Where in a folder of tasks; what does not apply is None."""

    file: Path | None = None
    task: str | None = None
    document: int | None = None
    """Its number, from 0."""
    identifier: str | None = None
    """Its id, where the row has one."""
    field: str | None = None
    """A key of the YAML or a column of the row, such as `doc_to_target` or `spans.FE`."""

    def at(self, field: str) -> Place:
        """The same with a field."""
        return replace(self, field=field)

    def __str__(self) -> str:
        own = f" ({self.identifier})" if self.identifier is not None else ""
        named = {
            "task": self.task,
            "document": None if self.document is None else f"{self.document}{own}",
            "field": self.field,
        }
        parts = ", ".join(f"{kind} {name}" for kind, name in named.items() if name is not None)
        return ": ".join(part for part in (str(self.file or ""), parts) if part)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    place: Place
    message: str
    tokenizers: tuple[str, ...] = ()
    """Those under which it is so, where it is one of tokens."""

    def __str__(self) -> str:
        under = f" (tokenizer {', '.join(self.tokenizers)})" if self.tokenizers else ""
        return f"{self.place}: {self.message}{under}"
