"""What a localizer must not disturb, and what disturbs it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kgbench.data import Prompt
from kgbench.engine.state import changes, state_of
from kgbench.errors import LawError
from kgbench.models.family import module_at
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.sites import RECIPIENT

__all__ = ["SEEDED", "Watched", "expect_interruptible", "global_seed", "watch", "whole_state"]

SEEDED = "which are to draw from a generator that a parameter seeds"

SWALLOWED = "is not passed on: catch Exception, never BaseException"


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Other global random numbers for the time of a block: what a localizer draws is to come from its own parameters."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@dataclass(frozen=True)
class Watched:
    """What came of something that was done with a pair."""

    value: Any
    """What it returned."""
    forwards: int
    """Forwards of the pair's models."""


def watch(pair: ModelPair, act: Callable[[], object]) -> Watched:
    """Do something with a pair and count the forwards."""
    with _interrupted(pair, at=None) as calls:
        value = act()
    return Watched(value, calls[0])


def whole_state(pair: ModelPair) -> dict[str, object]:
    """The state of a pair and of the process, weights included."""
    models = {RECIPIENT: pair.recipient, **pair.donors}
    return {
        **{f"the weights of {name}": weights_hash(model) for name, model in models.items()},
        **state_of(pair),
    }


class Interruption(BaseException):
    """Stands for Ctrl-C: no `except Exception` sees it."""


class PartialPrompts(tuple[Prompt, ...]):
    """Prompts of which the last cannot be had: whoever goes through them is interrupted."""

    asked = False
    """Whether anyone did."""

    def __iter__(self) -> Iterator[Prompt]:
        yield from self[:-1]
        self.asked = True
        raise Interruption


def expect_interruptible(
    pair: ModelPair,
    prompts: tuple[Prompt, ...],
    forwards: int,
    act: Callable[[tuple[Prompt, ...]], object],
) -> None:
    """Fail a law by which what is interrupted, in a forward or at a prompt, passes that on and leaves the pair as it was.

    Args:
        pair: The models.
        prompts: Prompts to act on.
        forwards: How many forwards that takes.
        act: What is interrupted.

    Raises:
        LawError: It does not.
    """
    before = whole_state(pair)
    for at in sorted({1, forwards // 2 + 1} if forwards else ()):
        with _interrupted(pair, at) as calls:
            passed_on = _passes_on(lambda: act(prompts))
        # What is computed once for a pair makes later runs shorter, so that the forward may never come.
        if calls[0] >= at and not passed_on:
            raise LawError(f"an interruption in forward {at} of {forwards} {SWALLOWED}")
        _expect_unchanged(pair, before, f"in forward {at} of {forwards}")
    partial = PartialPrompts(prompts)
    if not _passes_on(lambda: act(partial)) and partial.asked:
        raise LawError(f"an interruption at the last prompt {SWALLOWED}")
    _expect_unchanged(pair, before, "at the last prompt")


@contextmanager
def _interrupted(pair: ModelPair, at: int | None) -> Iterator[list[int]]:
    """Interrupt forward number `at` of the pair's models half-way through the layers; gives a list with the number of forwards so far."""
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise Interruption

    layers = [
        module_at(model, f"{pair.family.layers}.{pair.n_layers // 2}")
        for model in (pair.recipient, *pair.donors.values())
    ]
    handles = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _passes_on(act: Callable[[], object]) -> bool:
    """Whether an interruption comes through."""
    try:
        act()
    except Interruption:
        return True
    return False


def _expect_unchanged(pair: ModelPair, before: Mapping[str, object], where: str) -> None:
    if changed := changes(before, whole_state(pair)):
        raise LawError(
            f"interrupted {where}, it leaves {' and '.join(changed)} changed: undo every change in `finally`"
        )
