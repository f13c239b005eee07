"""What a law is tried on: a localizer, a pair of random models and a few prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from torch import Tensor

import kgbench.runner.run  # noqa: F401  # what a run calls is loaded, so that a patched function is noticed
from kgbench.data import Prompt, load_dataset, load_prompts
from kgbench.engine.selftest import tolerance
from kgbench.engine.state import changes
from kgbench.errors import LawError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer
from kgbench.localizers._base import asked
from kgbench.models.pair import ModelPair
from kgbench.numbers import plain_text
from kgbench.testing.pico import pico_pair
from kgbench.testing.watching import Watched, watch, whole_state

__all__ = ["PLANT", "Trial", "expect", "expect_alike"]

DATASET = "fake_movies_fake_actors"
TEMPLATES = {
    "check_short": "{first_actor} {R:stars} {P:with}",
    "check_long": "Now {first_actor} {R:acts} {P:beside}",
}
"""Short, since a scan measures every site; the second has tokens that are of no region."""
PLANT = "ALL:ffn@1"
"""What a localizer that needs the truth is told."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A localizer, and the family of the models that it is tried on."""

    localizer: AbstractLocalizer
    family: str
    _kept: dict[str, Watched] = field(default_factory=dict)
    _before: dict[str, object] = field(default_factory=dict)
    """The state of the pair and of the process before the first law."""

    @property
    def pair(self) -> ModelPair:
        """A pair that trials share as long as it is as it was."""
        pair = _pair(self.family)
        if not self._before:
            self._before.update(whole_state(pair))
        return pair

    def changed(self) -> tuple[str, ...]:
        """What is not as it was before the first law; the next trial has a pair of its own then."""
        found = changes(self._before, whole_state(self.pair))
        if found:
            _pair.cache_clear()
        return found

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts of four facts in two templates, of several lengths and regions, as the localizer gets them."""
        if isinstance(self.localizer, InterventionLocalizer):
            return tuple(asked(self.localizer, self.pair, _prompts()))
        return _prompts()

    def fresh(self) -> Any:
        """A localizer of the same parameters that has not been used; it is told where the knowledge is, if that is what it needs."""
        untold = "truth" in self.localizer.needs and not self.localizer.parameters().get("truth")
        return replace(self.localizer, **({"truth": PLANT} if untold else {}))

    def first_run(self, act: Callable[[], object]) -> Watched:
        """What came of acting for the first time; laws share it, since some methods take long."""
        if "run" not in self._kept:
            self._kept["run"] = watch(self.pair, act)
        return self._kept["run"]


@cache
def _pair(family: str) -> ModelPair:
    return pico_pair(family)


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
        f"{otherwise} differ by {plain_text(difference, 3)}, where rounding explains {plain_text(allowed, 1)}",
    )
