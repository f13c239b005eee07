"""State that methods fit on prompts; it is no parameter, and is independent of prompt order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
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

Method = TypeVar("Method", bound=InterventionLocalizer)
Found = TypeVar("Found")

CHUNK = 16
"""Number of prompts whose activations are in memory at once."""


def holding(method: Method, **state: object) -> Method:
    """A copy of the method with fitted or drawn state, which is not among its parameters."""
    variant = copy(method)
    for name, value in state.items():
        object.__setattr__(variant, name, value)  # the dataclass is frozen
    return variant


class Corpus:
    """The prompts that a method is fitted on, in a canonical order, with a cache of statistics."""

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
        prompts = self.once(
            ("like", prompt.name), lambda: [p for p in self.prompts if p.name == prompt.name]
        )
        if not prompts:
            raise InputError(
                f"the method was fitted on no prompt of the template {prompt.name!r}; "
                "fit it on all that it is to treat"
            )
        return prompts

    def once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """The value of `compute`, cached under a key."""
        if key not in self._known:
            self._known[key] = compute()
        value: Found = self._known[key]
        return value

    def latest(self, kind: str, key: Hashable, compute: Callable[[], Found]) -> Found:
        """The value of `compute`, cached for the latest key of a kind only: for large values."""
        if kind not in self._latest or self._latest[kind][0] != key:
            self._latest.pop(kind, None)
            self._latest[kind] = (key, compute())
        value: Found = self._latest[kind][1]
        return value


class FittedLocalizer(InterventionLocalizer):
    """A method fitted on all prompts of a task; unfitted, it learns from the prompts it treats."""

    _corpus: ClassVar[Corpus | None] = None

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """The method with a corpus; statistics are computed at the first call of `treat`."""
        return holding(self, _corpus=Corpus(prompts))

    def corpus(self, prompts: Sequence[Prompt]) -> Corpus:
        """The corpus that the method was fitted on, or one of these prompts if it is unfitted."""
        return self._corpus or Corpus(prompts)


def seeded_number(*parts: object) -> int:
    """A 64-bit hash of the parts, equal in every process and on every machine."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big")


def seeded_key(name: str, seed: int) -> tuple[int, str]:
    """Sort key of names for a pseudorandom order that depends on the seed."""
    return seeded_number(seed, name), name


def run_activations(
    pair: ModelPair, prompts: Sequence[Prompt], weight_set: int, hooks: Sequence[Hook]
) -> Iterator[tuple[Prompt, Float[Tensor, "hook token width"]]]:
    """Each prompt with its activations under one of the pair's models.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        weight_set: 0 for the recipient, then the donors in order.
        hooks: Hook points.
    """
    engine = Engine(pair)
    for start in range(0, len(prompts), CHUNK):
        chunk = prompts[start : start + CHUNK]
        treatments = [
            own_run(pair, len(pair.encoded(prompt).ids), weight_set).treatments for prompt in chunk
        ]
        yield from zip(chunk, engine.activations(chunk, treatments, hooks), strict=True)
