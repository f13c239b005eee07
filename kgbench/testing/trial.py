"""What a law is tried on: a localizer, a pair of random models, a few prompts, and their state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

import kgbench.runner.run  # noqa: F401  # loads all that a run calls, so that a patch is noticed
from kgbench.data import Prompt, load_dataset, load_prompts
from kgbench.engine import load_pair
from kgbench.engine.selftest import tolerance
from kgbench.engine.state import changes, state_of
from kgbench.errors import LawError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer
from kgbench.localizers._base import asked
from kgbench.models import catalog
from kgbench.models.encoding import Encoder
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.models.renaming import exchanged_answers, renamed_pair, unanswered
from kgbench.numbers import plain_text
from kgbench.sites import RECIPIENT
from kgbench.testing.pico import pico_pair

T = TypeVar("T")

DATASET = "fake_movies_fake_actors"
TEMPLATES = {
    "check_short": "{first_actor} {R:stars} {P:with}",
    "check_long": "Now {first_actor} {R:acts} {P:beside}",
}
"""Short, since a scan measures every site; the second has tokens that are of no region."""
SHIPPED = {
    "gpt2": "tiny-gpt2",
    "gpt_neox": "tiny-pythia",
    "llama": "tiny-llama",
    "gemma": "tiny-gemma",
}
"""Pairs by family, by whose names and facts nothing may be found."""
N_SHIPPED = 4
"""Facts of such a pair."""
PLANT = "ALL:ffn@1"
"""Ground truth for a localizer that needs one."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A localizer, and the family of the models that it is tried on."""

    localizer: AbstractLocalizer
    family: str
    _kept: dict[str, object] = field(default_factory=dict)
    """What laws share, by name."""
    _before: dict[str, object] = field(default_factory=dict)
    """The state of the pair and of the process before the first law."""

    @property
    def pair(self) -> ModelPair:
        """A pair that trials share as long as it is unchanged."""
        pair = _pair(self.family)
        if not self._before:
            self._before.update(_whole_state(pair))
        return pair

    def changed(self) -> tuple[str, ...]:
        """Changes since before the first law; the next trial gets a new pair then."""
        changed = changes(self._before, _whole_state(self.pair))
        if changed:
            _pair.cache_clear()
        return changed

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts of four facts in two templates, of several lengths and regions."""
        if isinstance(self.localizer, InterventionLocalizer):
            return tuple(asked(self.localizer, self.pair, _prompts()))
        return _prompts()

    def fresh(self) -> Any:
        """A localizer with the same parameters that was not used, and the truth if it needs one."""
        lacking = "truth" in self.localizer.needs and not self.localizer.parameters().get("truth")
        return replace(self.localizer, **({"truth": PLANT} if lacking else {}))

    def renamed(self) -> tuple[tuple[ModelPair, list[Prompt]], tuple[ModelPair, list[Prompt]]]:
        """A pair under the name and with facts of a shipped one, and with exchanged answers.

        The second has another name. For interventions it is the shipped one, and those that do not
        need the answers find them nowhere in memory; scorers, which may take long, get a small one.
        """
        name = SHIPPED[self.family]
        prompts = load_prompts(catalog.entry(name).dataset, ["headline"], limit=N_SHIPPED)
        intervenes = isinstance(self.localizer, InterventionLocalizer)
        pair = _shipped(name) if intervenes else self.pair
        exchange, others = exchanged_answers(renamed_pair(pair, name, {}), prompts, seed=0)
        named = renamed_pair(pair, name, {}), prompts
        renamed = renamed_pair(pair, "another", exchange), others
        if intervenes and "answer" not in self.localizer.needs:
            # By an encoder of its own, since that of a pair remembers answers.
            read = Encoder(pair.tokenizer, pair.chat_template)
            named, renamed = (
                (of, unanswered(of, some, map(read, some))) for of, some in (named, renamed)
            )
        return named, renamed

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that is made for the first law that needs it."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast("T", self._kept[name])

    def first_run(self, act: Callable[[], object]) -> Watched:
        """Result and forwards of the first run."""

        def run() -> Watched:
            with _interrupted(self.pair, at=None) as calls:
                value = act()
            return Watched(value, calls[0])

        return self.once("run", run)


@cache
def _pair(family: str) -> ModelPair:
    return pico_pair(family)


@cache
def _shipped(name: str) -> ModelPair:
    return load_pair(name, dtype="float64", device="cpu")


@cache
def _prompts() -> tuple[Prompt, ...]:
    dataset = replace(load_dataset(DATASET), templates=TEMPLATES)
    first, second = (load_prompts(dataset, [name], limit=4) for name in TEMPLATES)
    return (*first[:2], *second[2:])


def expect(holds: bool, otherwise: str) -> None:
    """Fail a law that does not hold.

    Raises:
        LawError: It does not.
    """
    if not holds:
        raise LawError(otherwise)


def expect_alike(got: Tensor, expected: Tensor, pair: ModelPair, otherwise: str) -> None:
    """Fail a law by which two arrays of log-probabilities, or of scores, are one but for rounding.

    Raises:
        LawError: They are not, or are no numbers.
    """
    difference, allowed = float((got - expected).abs().max()), tolerance(pair, expected)
    expect(
        difference <= allowed,
        f"{otherwise} differ by {plain_text(difference, 3)}, where rounding explains "
        f"{plain_text(allowed, 1)}",
    )


SEEDED = "which are to draw from a generator that a parameter seeds"

SWALLOWED = "is not passed on: catch Exception, never BaseException"


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Other global random numbers during a block; a localizer draws from its own parameters."""
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
    """Result of a run, and its number of forwards."""

    value: Any
    """Value that the run returned."""
    forwards: int
    """Forwards of the pair's models."""


def _whole_state(pair: ModelPair) -> dict[str, object]:
    """The state of a pair and of the process, weights included."""
    models = {RECIPIENT: pair.recipient, **pair.donors}
    return {
        **{f"the weights of {name}": weights_hash(model) for name, model in models.items()},
        **state_of(pair),
    }


class Interruption(BaseException):
    """In place of Ctrl-C: `except Exception` does not catch it."""


class PartialPrompts(tuple[Prompt, ...]):
    """Prompts that interrupt an iteration at the last one."""

    asked = False
    """Whether the last one was reached."""

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
    """Expect that an interruption, in a forward or at a prompt, is passed on and changes nothing.

    Args:
        pair: The models.
        prompts: Prompts to act on.
        forwards: How many forwards that takes.
        act: What is interrupted.

    Raises:
        LawError: It does not.
    """
    before = _whole_state(pair)
    for at in sorted({1, forwards // 2 + 1} if forwards else ()):
        with _interrupted(pair, at) as calls:
            passed_on = _passes_on(lambda: act(prompts))
        # Later runs can be shorter, where results are kept for the pair: no such forward comes.
        if calls[0] >= at and not passed_on:
            raise LawError(f"an interruption in forward {at} of {forwards} {SWALLOWED}")
        _expect_unchanged(pair, before, f"in forward {at} of {forwards}")
    partial = PartialPrompts(prompts)
    if not _passes_on(lambda: act(partial)) and partial.asked:
        raise LawError(f"an interruption at the last prompt {SWALLOWED}")
    _expect_unchanged(pair, before, "at the last prompt")


@contextmanager
def _interrupted(pair: ModelPair, at: int | None) -> Iterator[list[int]]:
    """Interrupt forward number `at` of the pair's models half-way through the layers.

    Yields:
        A list with the number of forwards so far.
    """
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise Interruption

    layers = []
    for model in (pair.recipient, *pair.donors.values()):
        layers.append(model.get_submodule(f"{pair.family.layers}.{pair.n_layers // 2}"))
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
    if changed := changes(before, _whole_state(pair)):
        raise LawError(
            f"interrupted {where}, it leaves {' and '.join(changed)} changed: undo every change in "
            "`finally`"
        )
