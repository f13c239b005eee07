"""What a law is tried on: a localizer, a pair of random models, a few prompts, and their state."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import kgbench.runner.run  # noqa: F401  # loads all that a run calls, so that a patch is noticed
from kgbench.data import Prompt, load_dataset, load_prompts
from kgbench.engine import Engine, load_pair
from kgbench.engine.selftest import tolerance
from kgbench.engine.site_sets import all_sites
from kgbench.engine.state import changes, state_of
from kgbench.errors import LawError, NotApplicableError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, ScoringLocalizer
from kgbench.localizers._base import asked
from kgbench.models import catalog
from kgbench.models.encoding import Encoder
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.models.renaming import exchanged_answers, renamed_pair
from kgbench.numbers import plain_text
from kgbench.runner.measure import Count, counted
from kgbench.sites import PATHWAYS, RECIPIENT, SiteScores, parse_graft
from kgbench.testing.pico import pico_pair

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
EVERYTHING, NOTHING = "ALL:all+ln_f+head", "NONE"
SITES = (*PATHWAYS, "FE@1", "ALL@1", "LT:o+ffn@1", "FE:attn@0; LT:ffn@second_half", "ALL:o")
"""Sets of sites of many shapes; a method may decline those that it cannot express."""

Answers = Float[Tensor, "prompt sites vocabulary"]


@dataclass(frozen=True)
class Run:
    """What a localizer gives, and how many forwards that took."""

    value: Any
    """Answers, or scores by site."""
    forwards: int


@dataclass(frozen=True, eq=False)
class Trial:
    """A localizer, and the family of the models that it is tried on."""

    localizer: AbstractLocalizer
    family: str
    on: ModelPair | None = None
    """Models in the place of the family's random ones."""

    @cached_property
    def _start(self) -> tuple[ModelPair, Mapping[str, object]]:
        """A pair that trials share as long as it is unchanged, and its state before any law."""
        pair = _pair(self.family) if self.on is None else self.on
        return pair, _state(pair)

    @property
    def pair(self) -> ModelPair:
        """The models."""
        return self._start[0]

    def changed(self) -> tuple[str, ...]:
        """Changes since before the first law; the next trial gets a new pair then."""
        pair, before = self._start
        changed = changes(before, _state(pair))
        if changed:
            _pair.cache_clear()
        return changed

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts of four facts in two templates, of several lengths and regions."""
        if isinstance(self.localizer, InterventionLocalizer):
            return tuple(asked(self.localizer, self.pair, _prompts()))
        return _prompts()

    def fresh(self) -> Any:
        """A localizer with the same parameters that was not used, and the truth if it needs one."""
        lacking = "truth" in self.localizer.needs and not self.localizer.parameters().get("truth")
        return replace(self.localizer, **({"truth": PLANT} if lacking else {}))

    def fitted(self, prompts: Sequence[Prompt] | None = None) -> InterventionLocalizer:
        """An instance that was not used, fitted on all prompts, as a run does it."""
        localizer: InterventionLocalizer = self.fresh()
        return localizer.fitted(self.pair, self.prompts if prompts is None else prompts)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Those of `SITES` that the method can express."""
        localizer, expressible = self.fitted(), []
        for sites in SITES:
            try:
                localizer.treat(self.pair, self.prompts, parse_graft(sites))
            except NotApplicableError:
                continue
            expressible.append(sites)
        return tuple(expressible)

    @property
    def few(self) -> list[str]:
        """Two of `parts`, unlike each other."""
        return [self.parts[0], self.parts[-1]] if self.parts else [EVERYTHING]

    def answers(
        self,
        sites: Sequence[str],
        localizer: InterventionLocalizer | None = None,
        prompts: Sequence[Prompt] | None = None,
        executor: str = "rows",
    ) -> Answers:
        """Log-probabilities of the next token when only these sites carry the finetuned behaviour.

        Args:
            sites: Sets of sites.
            localizer: A method that was fitted; by default a new one.
            prompts: Prompts that are treated; by default all.
            executor: How configurations are run.
        """
        localizer = localizer or self.fitted()
        prompts = self.prompts if prompts is None else prompts
        return answers(localizer, self.pair, prompts, sites, Engine(self.pair, executor))

    def scores(self, prompts: Sequence[Prompt] | None = None) -> SiteScores:
        """Scores by an instance that was not used, of all prompts by default."""
        localizer: ScoringLocalizer = self.fresh()
        return localizer.scores(self.pair, self.prompts if prompts is None else prompts)

    def array(self, value: Tensor | SiteScores) -> Tensor:
        """Answers as they are, and scores of all sites, 0 where there is none."""
        if isinstance(value, Tensor):
            return value
        sites = all_sites(self.pair, self.prompts)
        return torch.tensor([value.get(site, 0.0) for site in sites], dtype=torch.float64)

    def result(
        self, prompts: Sequence[Prompt] | None = None, learned: Sequence[Prompt] | None = None
    ) -> Tensor:
        """Answers to `few` [prompt, sites, vocabulary], or scores [site], of a new instance.

        Args:
            prompts: Prompts that are treated or scored; by default all.
            learned: Prompts that an intervention is fitted on; by default all.
        """
        if isinstance(self.localizer, ScoringLocalizer):
            return self.array(self.scores(prompts))
        return self.answers(self.few, self.fitted(learned), prompts)

    @cached_property
    def first(self) -> Run:
        """The first run; laws share it, since some methods take long."""
        ranks = isinstance(self.localizer, ScoringLocalizer)
        sites = [] if ranks else self.few  # found before forwards are counted
        with counted(self.pair) as count:
            value = self.scores() if ranks else self.answers(sites)
        return Run(value, count.forwards)

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
                (of, list[Prompt](map(of.question, answered, map(read, answered))))
                for of, answered in (named, renamed)
            )
        return named, renamed


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


def _state(pair: ModelPair) -> dict[str, object]:
    """The state of a pair and of the process, weights included."""
    models = {RECIPIENT: pair.recipient, **pair.donors}
    return {
        **{f"the weights of {name}": weights_hash(model) for name, model in models.items()},
        **state_of(pair),
    }


def answers(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sites: Sequence[str],
    engine: Engine,
) -> Answers:
    """Log-probabilities by an engine under the treatments that a method gives on a pair.

    Probabilities are averaged over the method's draws.
    """
    draws, treatments = localizer.variants(), []
    for each, draw in product(sites, draws):
        treatments.append(draw.treat(pair, prompts, parse_graft(each)))
    logits = engine.logits(engine.plan_treatments(prompts, treatments))[:, :, 0].double()
    drawn = logits.log_softmax(dim=-1).reshape(len(prompts), len(sites), len(draws), -1)
    return drawn.logsumexp(dim=2) - math.log(len(draws))


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


class Interruption(BaseException):
    """In place of Ctrl-C: `except Exception` does not catch it."""


def expect_interruptible(trial: Trial, forward: int | None) -> None:
    """Expect that an interruption is passed on and changes nothing.

    Args:
        trial: What is tried.
        forward: Number of the forward that is interrupted; None for the last prompt.

    Raises:
        LawError: It does not.
    """
    where = f"in forward {forward} of {trial.first.forwards}" if forward else "at the last prompt"
    reached = False

    def interrupt() -> None:
        nonlocal reached
        reached = True
        raise Interruption

    def begun(count: Count) -> None:
        if count.forwards == forward:
            interrupt()

    class Prompts(tuple[Prompt, ...]):
        """Prompts that interrupt an iteration at the last one."""

        def __iter__(self) -> Iterator[Prompt]:
            yield from self[:-1]
            interrupt()

    before = _state(trial.pair)
    try:
        with counted(trial.pair, begun):
            trial.result(trial.prompts if forward else Prompts(trial.prompts))
        # Later runs can be shorter, where results are kept for the pair: no such forward comes.
        expect(
            not reached,
            f"an interruption {where} is not passed on: catch Exception, never BaseException",
        )
    except Interruption:
        pass
    changed = changes(before, _state(trial.pair))
    expect(
        not changed,
        f"interrupted {where}, it leaves {' and '.join(changed)} changed: undo every change in "
        "`finally`",
    )
