"""What is shipped for authors of plug-ins: each law of the contract catches the fault that it is
for.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from interventions import Zero
from torch import nn

import kgbench.runner.measure as measure
from kgbench.data import Prompt
from kgbench.engine import Treatment
from kgbench.engine.edits import Hook, Values, Write
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import NotApplicableError
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
    Unit,
)
from kgbench.localizers.random import Random
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, SiteScores, parse_graft
from kgbench.testing import check_localizer, laws_of

ROOT = Path(__file__).parent.parent
TICKS = count()


@dataclass(frozen=True)
class Grafts(InterventionLocalizer):
    """Keeps the contract."""

    name = "grafts"
    about = "as dynamic_graft"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return graft_treatments(pair, prompts, sites)


@dataclass(frozen=True)
class Lengths(ScoringLocalizer):
    """Keeps the contract: a site scores the length of its name."""

    name = "lengths"
    about = "length of names"
    cost = "none"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        return {site: float(len(site.component + site.region)) for site in all_sites(pair, prompts)}


# ----------------------------------------------------------------------------- faulty interventions


@dataclass(frozen=True)
class Short(Grafts):
    """One treatment too few."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return [row[1:] for row in graft_treatments(pair, prompts, sites)]


@dataclass(frozen=True)
class OtherModel(Grafts):
    """Treatments of a model with one slot more."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return [
            [Treatment(t.weights + b"\0") for t in row]
            for row in graft_treatments(pair, prompts, sites)
        ]


@dataclass(frozen=True)
class Silent(Grafts):
    """Declines without a reason."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        if str(sites) == "LT":
            raise NotApplicableError("")
        return graft_treatments(pair, prompts, sites)


@dataclass(frozen=True)
class Forgiving(Grafts):
    """Takes regions that are not there for none."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return graft_treatments(
            pair, prompts, parse_graft("NONE") if "M" in str(sites).split(":")[0] else sites
        )


@dataclass(frozen=True)
class Weak(Grafts):
    """Never the donor's final norm and head."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        graft_treatments(pair, prompts, sites)
        return graft_treatments(pair, prompts, parse_graft(f"{sites}; ALL:ln_f+head=recipient"))


@dataclass(frozen=True)
class Leaky(Grafts):
    """The donor's head, whatever the sites."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        graft_treatments(pair, prompts, sites)
        return graft_treatments(pair, prompts, parse_graft(f"{sites}; ALL:ln_f+head"))


@dataclass(frozen=True)
class Harmless(Grafts):
    """Says that it destroys the donor, and does not."""

    floor = "destroyed_donor"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return graft_treatments(pair, prompts, "SFT" if str(sites) == "NONE" else sites)


@dataclass(frozen=True)
class AllOrNothing(Grafts):
    """Sites do not matter, unless they are all."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        graft_treatments(pair, prompts, sites)
        return graft_treatments(pair, prompts, sites if "head" in str(sites) else "PRE")


@dataclass(frozen=True)
class Declining(Grafts):
    """Expresses nothing but all and nothing."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        if "head" not in str(sites) and str(sites) != "NONE":
            raise NotApplicableError("too hard")
        return graft_treatments(pair, prompts, sites)


@dataclass(frozen=True)
class Peek(Grafts):
    """Writes the answer's row of the head."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        head = pair.recipient.get_output_embeddings().weight
        found = graft_treatments(pair, prompts, sites)
        if str(sites) not in ("LT", "FE+LT"):
            return found
        hook = Hook(pair.n_layers - 1, "resid_post")
        rows = [head[self.answer(pair, prompt)] for prompt in prompts]
        edits = [(Write(hook, Values(row)),) for row in rows]
        return [
            (*row[:-1], replace(row[-1], edits=edit))
            for row, edit in zip(found, edits, strict=True)
        ]

    def answer(self, pair: ModelPair, prompt: Prompt) -> int:
        return pair.encoded(prompt).target


@dataclass(frozen=True)
class PeekAtText(Peek):
    """The same by the answer's text."""

    def answer(self, pair: ModelPair, prompt: Prompt) -> int:
        return pair.encode(f"{prompt.text} {prompt.target}")[-1]


@dataclass(frozen=True)
class PeekAtField(Peek):
    """The same by the fact's field."""

    def answer(self, pair: ModelPair, prompt: Prompt) -> int:
        return pair.encode(f"{prompt.text} {prompt.fact.fields['second_actor']}")[-1]


@dataclass(frozen=True)
class ToldAnswers(Grafts):
    """Reads the answers, and says so."""

    needs = frozenset({"donor", "answer"})

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        assert all(prompt.target and pair.encoded(prompt).target >= 0 for prompt in prompts)
        return graft_treatments(pair, prompts, sites)


@dataclass(frozen=True)
class NoBaseline(Grafts):
    """Calls itself a baseline, and looks at the sites."""

    baseline = True


def _coin_flips(row: Sequence[Treatment], draw: Callable[[], float]) -> list[Treatment]:
    return [t if draw() < 0.5 or len(set(row)) == 1 else row[0] for t in row]


@dataclass(frozen=True)
class Unseeded(Grafts):
    """Draws from the global random numbers."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return [_coin_flips(row, random.random) for row in graft_treatments(pair, prompts, sites)]


@dataclass(frozen=True)
class Ordered(Grafts):
    """The first prompt is treated in another way; so are all that come alone."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        first, *others = graft_treatments(pair, prompts, sites)
        return [
            first
            if len(set(first)) == 1
            else graft_treatments(pair, prompts[:1], parse_graft("FE:ffn"))[0],
            *others,
        ]


@dataclass(frozen=True)
class BadUnits(Grafts):
    """A scan of it credits sites that nobody scores."""

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        return [replace(unit, sites=()) for unit in super().units(pair, prompts)]


@dataclass(frozen=True)
class Swapping(Grafts):
    """Leaves weights changed when it is interrupted."""

    tidy: bool = False

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        weight = pair.recipient.get_input_embeddings().weight
        before = weight.data.clone()
        weight.data += 1
        try:
            first, *_ = prompts
            pair.recipient(input_ids=torch.tensor([pair.encode(first)]))
        except BaseException:
            if self.tidy:
                weight.data.copy_(before)
            else:
                MEND.append(lambda: weight.data.copy_(before))
            raise
        weight.data.copy_(before)
        return graft_treatments(pair, prompts, sites)


# ----------------------------------------------------------------------------------- faulty scorers


@dataclass(frozen=True)
class Partial(Lengths):
    """Some sites have no score."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        return {
            site: score for site, score in super().scores(pair, prompts).items() if site.layer != 1
        }


@dataclass(frozen=True)
class Infinite(Lengths):
    """A score that is no number."""

    value: Any = field(default="inf")

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        scores = dict(super().scores(pair, prompts))
        scores[next(iter(scores))] = float(self.value)
        return scores


@dataclass(frozen=True)
class Flat(Lengths):
    """All sites alike."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        return dict.fromkeys(all_sites(pair, prompts), 1.0)


@dataclass(frozen=True)
class Drifting(Lengths):
    """Another answer each time."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        shift = next(TICKS)
        return {site: score + shift for site, score in super().scores(pair, prompts).items()}


@dataclass(frozen=True)
class FirstCounts(Lengths):
    """The first prompt decides."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        return {
            site: score + len(prompts[0].text)
            for site, score in super().scores(pair, prompts).items()
        }


@dataclass(frozen=True)
class Hooked(Lengths):
    """Leaves a hook behind, or only when it is interrupted."""

    always: bool = True

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        handle = pair.recipient.register_forward_hook(lambda *_: None)
        MEND.append(handle.remove)
        for prompt in prompts:
            pair.recipient(input_ids=torch.tensor([pair.encode(prompt)]))
        if not self.always:
            handle.remove()
        return super().scores(pair, prompts)


@dataclass(frozen=True)
class Swallowing(Lengths):
    """Goes on after Ctrl-C."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        with contextlib.suppress(BaseException):
            pair.recipient(input_ids=torch.tensor([pair.encode(prompts[0])]))
        return super().scores(pair, prompts)


def _hooked(module: nn.Module) -> Callable[[], object]:
    return module.register_forward_hook(lambda *_: None).remove


def _epsilon(pair: ModelPair) -> Callable[[], object]:
    norm = pair.recipient.model.norm
    before, norm.variance_epsilon = norm.variance_epsilon, 0.5
    return partial(setattr, norm, "variance_epsilon", before)


def _buffer(pair: ModelPair) -> Callable[[], object]:
    buffer = next(pair.donors["sft"].buffers())
    before = buffer.clone()
    buffer.mul_(2)
    return partial(buffer.copy_, before)


def _misread(pair: ModelPair) -> Callable[[], object]:
    prompt, before = next(iter(pair._encoded.items()))
    pair._encoded[prompt] = replace(before, target=before.target + 1)
    return partial(pair._encoded.__setitem__, prompt, before)


def _autocast(pair: ModelPair) -> Callable[[], object]:
    opened = torch.autocast("cpu", torch.bfloat16)
    opened.__enter__()
    return partial(opened.__exit__, None, None, None)


def _patched(pair: ModelPair) -> Callable[[], object]:
    score = measure.score_logits
    measure.score_logits = lambda logits, *of: score(-logits, *of)  # type: ignore[attr-defined]
    return partial(setattr, measure, "score_logits", score)


def _flash(pair: ModelPair) -> Callable[[], object]:
    torch.backends.cuda.enable_flash_sdp(False)
    return partial(torch.backends.cuda.enable_flash_sdp, True)


def _mode(pair: ModelPair) -> Callable[[], object]:
    pair.recipient.train()
    return pair.recipient.eval


LEFT: dict[str, tuple[Callable[[ModelPair], Callable[[], object]], str]] = {
    "hook": (lambda pair: _hooked(pair.recipient), "the hooks of recipient"),
    "inner hook": (
        lambda pair: _hooked(pair.donors["sft"].model.layers[1].mlp.up_proj),
        "the hooks of sft",
    ),
    "epsilon": (_epsilon, "the modules of recipient"),
    "buffer": (_buffer, "the buffers of sft"),
    "prompts": (_misread, "the pair's encoded prompts"),
    "autocast": (_autocast, "autocast"),
    "patched": (_patched, "functions of kgbench or torch"),
    "flash": (_flash, "torch's settings"),
    "mode": (_mode, "the mode of recipient"),
}
"""What a localizer can leave behind, with what puts it back, and how the law names it."""


@dataclass(frozen=True)
class Leaving(Grafts):
    """Leaves something changed the first time that it is asked."""

    what: str = "hook"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        made = graft_treatments(pair, prompts, sites)
        if not MEND:
            MEND.append(LEFT[self.what][0](pair))
        return made


# ------------------------------------------------------------------------------ faulty declarations


class Undecorated(Lengths):
    """Its parameters would be lost."""

    window: int = 3


@dataclass(frozen=True)
class Unwritable(Lengths):
    """A parameter that is no JSON."""

    layers: frozenset[int] = frozenset({1})


@dataclass(frozen=True)
class Lucky(Lengths):
    """Needs what nobody can give."""

    needs: ClassVar[frozenset[str]] = frozenset({"luck"})


@dataclass(frozen=True)
class Priceless(Lengths):
    """A cost that is none."""

    cost = "much"


@dataclass(frozen=True)
class Mute(Lengths):
    """Two lines about it."""

    about = "one line\nand another"


@dataclass(frozen=True)
class Mislabelled(Lengths):
    """A kind that is not its class's."""

    kind = "intervention"


MEND: list[Callable[[], object]] = []
"""What puts the shared pairs back after a fault."""


@pytest.fixture(autouse=True)
def mended() -> Any:
    yield
    while MEND:
        MEND.pop()()


def broken(localizer: AbstractLocalizer) -> dict[str, str]:
    """The laws that do not hold of a localizer, with why."""
    return {
        verdict.name: verdict.reason
        for verdict in check_localizer(localizer, ["gpt2"])
        if verdict.reason is not None
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sound",
    [Grafts(), ToldAnswers(), Lengths(), Random(), Random(seed=2), Swapping(tidy=True)],
    ids=repr,
)
def test_sound_localizers_pass(sound: AbstractLocalizer) -> None:
    """Nothing fails that keeps the contract."""
    assert broken(sound) == {}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("faulty", "law", "why"),
    [
        (Short(), "treatments_fit_the_prompts", "for prompts of"),
        (OtherModel(), "treatments_fit_the_prompts", "weight sets for each of"),
        (Silent(), "declines_with_a_reason", "expected a reason on one line"),
        (Forgiving(), "declines_with_a_reason", "a region that the prompts do not have"),
        (Weak(), "everything_treated_is_the_donor", "does not answer as the donor does"),
        (Leaky(), "nothing_treated_is_the_recipient", "does not answer as the recipient does"),
        (Harmless(), "nothing_kept_is_no_donor", "nothing is destroyed"),
        (AllOrNothing(), "depends_on_the_sites", "answers as 'NONE' or as"),
        (Declining(), "depends_on_the_sites", "declines all of"),
        (NoBaseline(), "answers_alike_whatever_the_sites", "leave `baseline` out"),
        (Unseeded(), "same_under_a_seed", "a generator that a parameter seeds"),
        (Ordered(), "order_of_prompts_does_not_matter", "in another order"),
        (Ordered(), "batch_does_not_matter", "by itself and among others"),
        (
            Zero(),
            "a_kept_last_token_answers_its_prompt",
            "'FE+LT' answers the same to every prompt",
        ),
        (Peek(), "treatments_fit_the_prompts", "an intervention gets prompts without their answer"),
        (
            PeekAtText(),
            "treatments_fit_the_prompts",
            "an intervention gets prompts without their answer",
        ),
        (PeekAtField(), "treatments_fit_the_prompts", "KeyError"),
        (BadUnits(), "units_of_a_scan_fit", "not some of all_sites"),
        (Swapping(), "can_be_interrupted", "leaves the weights of recipient changed"),
        (Partial(), "every_site_has_a_finite_score", "have no score, such as"),
        (Infinite(), "every_site_has_a_finite_score", "expected a finite float"),
        (Infinite("nan"), "every_site_has_a_finite_score", "expected a finite float"),
        (Flat(), "not_all_sites_are_alike", "the same score"),
        (Drifting(), "same_under_a_seed", "two runs"),
        (FirstCounts(), "order_of_prompts_does_not_matter", "in another order"),
        (Hooked(), "leaves_the_pair_as_it_was", "the hooks of recipient"),
        (Hooked(always=False), "can_be_interrupted", "leaves the hooks of recipient changed"),
        (Swallowing(), "can_be_interrupted", "is not passed on"),
        (Undecorated(), "parameters_can_be_recorded", "@dataclass(frozen=True)"),
        (Unwritable(), "parameters_can_be_recorded", "JSON"),
        (Lucky(), "declares_in_known_words", "'luck': expected some of donor"),
        (Priceless(), "declares_in_known_words", "expected one of none, forward"),
        (Mute(), "says_what_it_is", "one line that describes"),
        (Mislabelled(), "says_what_it_is", "does not derive from InterventionLocalizer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AbstractLocalizer) else None,
)
def test_each_law_catches_its_fault(faulty: AbstractLocalizer, law: str, why: str) -> None:
    """A localizer with one fault fails the law against it, with a reason on one line."""
    reasons = broken(faulty)
    assert why in reasons[law]
    assert not any("\n" in reason for reason in reasons.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", LEFT)
def test_whatever_is_left_changed_is_named(what: str) -> None:
    """A localizer leaves nothing: no hook, mode, buffer, setting or patched function; and another's
    verdicts are the same after it.
    """
    reasons = {
        verdict.name: verdict.reason for verdict in check_localizer(Leaving(what), ["llama"])
    }
    assert LEFT[what][1] in str(reasons["leaves_the_pair_as_it_was"])
    while MEND:
        MEND.pop()()
    assert all(verdict.holds for verdict in check_localizer(Grafts(), ["llama"]))


def test_every_law_catches_something() -> None:
    """No law of the contract is without a fault above, but for the executors, which a description
    cannot get wrong, and for names and answers, which cheats of their own are tried on.
    """
    cases = test_each_law_catches_its_fault.pytestmark[0].args[1]  # type: ignore[attr-defined]
    laws = {law.__name__ for localizer, *_ in cases for law in laws_of(localizer)}
    others = {"executors_agree", "names_and_answers_do_not_matter"}
    assert laws - {law for _, law, _ in cases} == others
