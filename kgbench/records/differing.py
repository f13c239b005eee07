"""Where two identities differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kgbench.records.identity import Identity

__all__ = ["Differing", "differing"]

NAMES = {
    "dataset.name": "data set",
    "dataset.n": "facts in the data set",
    "localizer.name": "method",
    "localizer.version": "version of the method",
    "metric_version": "version of the metrics",
    "ranking_version": "version of the ranking",
    "seeds": "seed",
}
"""Parts of an identity in words."""

SHOWN = 12
"""Digits of a hash that are shown."""

OTHER = {
    "dataset.hash": "the facts are others",
    "tokenizer": "the tokenizers are others",
    "weights.recipient": "the recipients' weights are others",
}
"""What is said of hashes."""


@dataclass(frozen=True)
class Differing:
    """A part that two identities do not have alike."""

    field: str
    """Its place, such as `weights.donors.sft`."""
    first: Any
    """JSON value; None where it is not there."""
    second: Any

    def text(self) -> str:
        """The part by its place, and both values, in a line."""
        if isinstance(self.first, list) and isinstance(self.second, list):
            return f"{self.field}: {_lists(self.first, self.second)}"
        return f"{self.field}: {_value(self.first)} | {_value(self.second)}"

    def sentence(self) -> str:
        """What the first (A) and the second (B) have apart, in a line."""
        part, _, rest = self.field.partition(".")
        if part == "prompts":
            return _one_has(self, f"asks {rest}") or f"{rest} is worded in two ways"
        if self.field.startswith("weights.donors."):
            donor = self.field.rpartition(".")[2]
            return (
                _one_has(self, f"has a donor {donor}") or f"the weights of donor {donor} are others"
            )
        if self.field in OTHER:
            return OTHER[self.field]
        if self.field == "limit":
            first, second = (
                f"the first {n} facts" if n is not None else "all facts"
                for n in (self.first, self.second)
            )
            return f"A takes {first}, B {second}"
        if isinstance(self.first, list) and isinstance(self.second, list) and part != "seeds":
            return f"{self.field}: {_lists(self.first, self.second)}"
        name = NAMES.get(
            self.field, rest.removeprefix("parameters.") if part == "localizer" else self.field
        )
        return f"{name}: {_value(self.first)} in A, {_value(self.second)} in B"


def _one_has(part: Differing, what: str) -> str | None:
    """`A asks headline, B does not`, where one of them has the part alone."""
    if part.first is not None and part.second is not None:
        return None
    having, other = ("A", "B") if part.second is None else ("B", "A")
    return f"{having} {what}, {other} does not"


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
    texts = [
        [str(item) for item in some if item not in other]
        for some, other in ((first, second), (second, first))
    ]
    if not any(texts):
        return "the same in another order"
    return "; ".join(
        f"{letter} alone has {', '.join(only)}"
        for letter, only in zip("AB", texts, strict=True)
        if only
    )


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = "none" if value is None else str(value)
    is_hash = len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
    return f"{text[:SHOWN]}…" if is_hash else text
