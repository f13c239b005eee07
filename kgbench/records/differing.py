"""Where two identities differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kgbench.records.identity import Identity

__all__ = ["Differing", "differing"]

SHOWN = 12
"""Digits of a hash that are shown."""


@dataclass(frozen=True)
class Differing:
    """A part that two identities do not have alike."""

    field: str
    """Its place, such as `weights.donors.sft`."""
    first: Any
    """JSON value; None where it is not there."""
    second: Any

    def text(self) -> str:
        """The part and both values, in a line."""
        if isinstance(self.first, list) and isinstance(self.second, list):
            return f"{self.field}: {_lists(self.first, self.second)}"
        return f"{self.field}: {_value(self.first)} | {_value(self.second)}"


def differing(first: Identity, second: Identity) -> tuple[Differing, ...]:
    """The parts that two identities do not have alike, in the order of the model; none exactly where the ids are equal."""
    return tuple(_parts(first.model_dump(mode="json"), second.model_dump(mode="json"), ""))


def _parts(first: Any, second: Any, where: str) -> Iterator[Differing]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys((*first, *second)):
            yield from _parts(first.get(key), second.get(key), f"{where}.{key}".lstrip("."))
    elif first != second:
        yield Differing(where, first, second)


def _lists(first: list[Any], second: list[Any]) -> str:
    """What one list alone holds; or that it is the order."""
    texts = [[str(item) for item in some if item not in other] for some, other in ((first, second), (second, first))]
    if not any(texts):
        return "the same in another order"
    return " | ".join(f"also {', '.join(only)}" if only else "–" for only in texts)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    text = str(value)
    is_hash = len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
    return f"{text[:SHOWN]}…" if is_hash else text
