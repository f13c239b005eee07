"""What methods learn from prompts: kept beside a method's parameters, and independent of the order of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.edits import Hook
from kgbench.errors import InputError
from kgbench.localizers._base import InterventionLocalizer
from kgbench.localizers._hooks import own_run
from kgbench.models.pair import ModelPair

__all__ = [
    "Corpus",
    "FittedLocalizer",
    "activations",
    "found_at",
    "holding",
    "seeded_key",
    "seeded_number",
]

Method = TypeVar("Method", bound=InterventionLocalizer)
Found = TypeVar("Found")

CHUNK = 16
"""Prompts whose activations are held at once."""


def holding(method: Method, **state: object) -> Method:
    """The same method with something that it has learned or drawn, which is none of its parameters."""
    made = copy(method)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made


class Corpus:
    """The prompts that a method is fitted on, in an order of their own, and what has been computed from them."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = tuple(
            sorted(dict.fromkeys(prompts), key=lambda p: (p.name, p.fact.id, p.text))
        )
        self._known: dict[Hashable, Any] = {}
        self._latest: dict[Hashable, tuple[Hashable, Any]] = {}

    def like(self, prompt: Prompt) -> Sequence[Prompt]:
        """The prompts of the same template.

        Raises:
            InputError: There are none.
        """
        found = self.once(
            ("like", prompt.name), lambda: [p for p in self.prompts if p.name == prompt.name]
        )
        if not found:
            raise InputError(
                f"the method was fitted on no prompt of the template {prompt.name!r}; fit it on all that it is to treat"
            )
        return found

    def once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """What `compute` gives, computed when first asked for under a key."""
        if key not in self._known:
            self._known[key] = compute()
        found: Found = self._known[key]
        return found

    def latest(self, kind: str, key: Hashable, compute: Callable[[], Found]) -> Found:
        """The same, for what is too large to be kept when the next is asked for."""
        if kind not in self._latest or self._latest[kind][0] != key:
            self._latest.pop(kind, None)
            self._latest[kind] = (key, compute())
        found: Found = self._latest[kind][1]
        return found


class FittedLocalizer(InterventionLocalizer):
    """A method that learns from all prompts of a task; one that has seen none learns from those that it is asked to treat."""

    _corpus: ClassVar[Corpus | None] = None

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """The method with the prompts to learn from; it learns when first asked to treat any."""
        return holding(self, _corpus=Corpus(prompts))

    def corpus(self, prompts: Sequence[Prompt]) -> Corpus:
        """What the method learns from: the prompts that it was fitted on, or else these."""
        return self._corpus or Corpus(prompts)


def found_at(learned: Mapping[tuple[str, Hook], Found], region: str, hook: Hook) -> Found:
    """What was learned for a scored region and a hook.

    Raises:
        InputError: Nothing was.
    """
    if (region, hook) not in learned:
        raise InputError(
            f"the method was fitted on prompts without the region {region}; fit it on all prompts that it is to treat"
        )
    return learned[region, hook]


def seeded_number(*parts: object) -> int:
    """A number that depends on the parts alone: the same in every process, on every machine."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big")


def seeded_key(name: str, seed: int) -> tuple[int, str]:
    """What to sort names by, for an order that depends on a seed and not on the names' own."""
    return seeded_number(seed, name), name


def activations(
    pair: ModelPair, prompts: Sequence[Prompt], weight_set: int, hooks: Sequence[Hook]
) -> Iterator[tuple[Prompt, Float[Tensor, "hook token width"]]]:
    """Each prompt with the activations of one of the pair's models by itself."""
    engine = Engine(pair)
    for start in range(0, len(prompts), CHUNK):
        chunk = prompts[start : start + CHUNK]
        treatments = [
            own_run(pair, len(pair.encoded(prompt).ids), weight_set).treatments for prompt in chunk
        ]
        yield from zip(chunk, engine.activations(chunk, treatments, hooks), strict=True)
