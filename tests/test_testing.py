"""What is shipped for authors of plug-ins: each law of the contract catches the fault that it is
for.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from interventions import Zero
from torch import nn

import kgbench.runner.measure as measure
import kgbench.testing
from kgbench.data import Prompt
from kgbench.engine import Treatment
from kgbench.engine.edits import Hook, Values, Write
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import LawError, NotApplicableError
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
    Unit,
)
from kgbench.localizers.random import Random
from kgbench.metrics import Mixed
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.testing import check_localizer, laws_of, parametrize_with_checks

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

Treat = Callable[[ModelPair, Sequence[Prompt], Graft], Treatments]


def coin_flips(row: Sequence[Treatment]) -> list[Treatment]:
    return [t if random.random() < 0.5 or len(set(row)) == 1 else row[0] for t in row]


def silent(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
    if str(sites) == "LT":
        raise NotApplicableError("")
    return graft_treatments(pair, prompts, sites)


def declining(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
    if "head" not in str(sites) and str(sites) != "NONE":
        raise NotApplicableError("too hard")
    return graft_treatments(pair, prompts, sites)


def with_term(term: str) -> Treat:
    """The sites, and one term more."""

    def treat(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        graft_treatments(pair, prompts, sites)
        return graft_treatments(pair, prompts, parse_graft(f"{sites}; {term}"))

    return treat


def ordered(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
    first, *others = graft_treatments(pair, prompts, sites)
    if len(set(first)) > 1:
        (first,) = graft_treatments(pair, prompts[:1], parse_graft("FE:ffn"))
    return [first, *others]


def peek(answer: Callable[[ModelPair, Prompt], int]) -> Treat:
    """Writes the answer's row of the head, found in some way."""

    def treat(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        head = pair.recipient.get_output_embeddings().weight
        treatments = list(graft_treatments(pair, prompts, sites))
        if str(sites) in ("LT", "FE+LT"):
            hook = Hook(pair.n_layers - 1, "resid_post")
            for i, prompt in enumerate(prompts):
                edits = (Write(hook, Values(head[answer(pair, prompt)])),)
                treatments[i] = (*treatments[i][:-1], replace(treatments[i][-1], edits=edits))
        return treatments

    return treat


TREATS: dict[str, Treat] = {
    "one treatment too few": lambda pair, prompts, sites: [
        row[1:] for row in graft_treatments(pair, prompts, sites)
    ],
    "a model with one slot more": lambda pair, prompts, sites: [
        [Treatment(t.weights + b"\0") for t in row]
        for row in graft_treatments(pair, prompts, sites)
    ],
    "declines without a reason": silent,
    "declines nearly all": declining,
    "takes absent regions for none": lambda pair, prompts, sites: graft_treatments(
        pair, prompts, parse_graft("NONE") if "M" in str(sites).split(":")[0] else sites
    ),
    "never the donor's head": with_term("ALL:ln_f+head=recipient"),
    "always the donor's head": with_term("ALL:ln_f+head"),
    "destroys nothing": lambda pair, prompts, sites: graft_treatments(
        pair, prompts, "SFT" if str(sites) == "NONE" else sites
    ),
    "all or nothing": lambda pair, prompts, sites: graft_treatments(
        pair, prompts, sites if "head" in str(sites) or "M" in str(sites) else "PRE"
    ),
    "global random numbers": lambda pair, prompts, sites: [
        coin_flips(row) for row in graft_treatments(pair, prompts, sites)
    ],
    "the first prompt is another": ordered,
    "peeks at the target": peek(lambda pair, prompt: pair.encoded(prompt).target),
    "peeks at the text": peek(
        lambda pair, prompt: pair.encode(f"{prompt.text} {prompt.target}")[-1]
    ),
    "peeks at the field": peek(
        lambda pair, prompt: pair.encode(f"{prompt.text} {prompt.fact.fields['second_actor']}")[-1]
    ),
}
"""Faults of an intervention, by name."""


@dataclass(frozen=True)
class Faulty(Grafts):
    """Has one fault."""

    fault: str

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        return TREATS[self.fault](pair, prompts, sites)


@dataclass(frozen=True)
class Destroying(Faulty):
    """Says that it destroys the donor."""

    floor = "destroyed_donor"


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


Scores = dict[Site, float]

SCORES: dict[str, Callable[[Scores, Sequence[Prompt]], Scores]] = {
    "a layer without scores": lambda scores, _: {
        site: score for site, score in scores.items() if site.layer != 1
    },
    "infinite": lambda scores, _: {**scores, next(iter(scores)): float("inf")},
    "no number": lambda scores, _: {**scores, next(iter(scores)): float("nan")},
    "all alike": lambda scores, _: dict.fromkeys(scores, 1.0),
    "another answer each time": lambda scores, _: dict(
        zip(scores, np.array([*scores.values()]) + next(TICKS), strict=True)
    ),
    "the first prompt decides": lambda scores, prompts: {
        site: score + len(prompts[0].text) for site, score in scores.items()
    },
}
"""Faults of a scorer, by name."""


@dataclass(frozen=True)
class Misscored(Lengths):
    """Has one fault."""

    fault: str = "all alike"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        return SCORES[self.fault](dict(super().scores(pair, prompts)), prompts)


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
    pair._encoded[prompt] = replace(before, first=before.target + 1)
    return partial(pair._encoded.__setitem__, prompt, before)


def _autocast(pair: ModelPair) -> Callable[[], object]:
    opened = torch.autocast("cpu", torch.bfloat16)
    opened.__enter__()
    return partial(opened.__exit__, None, None, None)


def _patched(pair: ModelPair) -> Callable[[], object]:
    score = measure.score_labels

    def wrong(parts: Iterable[Mixed], *of: Any) -> dict[str, np.ndarray]:
        return score(((reads, labels, -logits) for reads, labels, logits in parts), *of)

    measure.score_labels = wrong  # type: ignore[attr-defined]
    return partial(setattr, measure, "score_labels", score)


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
        *(
            (Faulty(fault), law, why)
            for fault, law, why in (
                ("one treatment too few", "treatments_fit_the_prompts", "for prompts of"),
                ("a model with one slot more", "treatments_fit_the_prompts", "weight sets for"),
                ("declines without a reason", "declines_with_a_reason", "a reason on one line"),
                ("takes absent regions for none", "declines_with_a_reason", "do not have"),
                ("never the donor's head", "everything_treated_is_the_donor", "as the donor does"),
                ("always the donor's head", "nothing_treated_is_the_recipient", "as the recipient"),
                ("all or nothing", "depends_on_the_sites", "answers as 'NONE' or as"),
                ("declines nearly all", "depends_on_the_sites", "declines all of"),
                ("global random numbers", "same_under_a_seed", "that a parameter seeds"),
                ("the first prompt is another", "order_of_prompts_does_not_matter", "other order"),
                ("the first prompt is another", "batch_does_not_matter", "by itself and among"),
                ("peeks at the target", "treatments_fit_the_prompts", "without their answer"),
                ("peeks at the text", "treatments_fit_the_prompts", "without their answer"),
                ("peeks at the field", "treatments_fit_the_prompts", "KeyError"),
            )
        ),
        (Destroying("destroys nothing"), "nothing_kept_is_no_donor", "nothing is destroyed"),
        (NoBaseline(), "answers_alike_whatever_the_sites", "leave `baseline` out"),
        (Zero(), "a_kept_last_token_answers_its_prompt", "'FE+LT' answers the same to every"),
        (BadUnits(), "units_of_a_scan_fit", "not some of all_sites"),
        (Swapping(), "can_be_interrupted", "leaves the weights of recipient changed"),
        *(
            (Misscored(fault), law, why)
            for fault, law, why in (
                ("a layer without scores", "every_site_has_a_finite_score", "have no score"),
                ("infinite", "every_site_has_a_finite_score", "expected a finite number"),
                ("no number", "every_site_has_a_finite_score", "expected a finite number"),
                ("all alike", "not_all_sites_are_alike", "the same score"),
                ("another answer each time", "same_under_a_seed", "two runs"),
                ("the first prompt decides", "order_of_prompts_does_not_matter", "another order"),
            )
        ),
        (Hooked(), "leaves_the_pair_as_it_was", "the hooks of recipient"),
        (Hooked(always=False), "can_be_interrupted", "leaves the hooks of recipient changed"),
        (Swallowing(), "can_be_interrupted", "is not passed on"),
        (Undecorated(), "parameters_can_be_recorded", "@dataclass(frozen=True)"),
        (Unwritable(), "parameters_can_be_recorded", "JSON"),
        (Lucky(), "declares_in_known_words", "'luck': expected some of donor"),
        (Priceless(), "declares_in_known_words", "expected one of none, forward"),
        (Mute(), "says_what_it_is", "one line that describes"),
        (Mislabelled(), "says_what_it_is", "derives from the base class of this kind"),
    ],
    ids=lambda value: repr(value) if isinstance(value, AbstractLocalizer) else None,
)
def test_each_law_catches_its_fault(faulty: AbstractLocalizer, law: str, why: str) -> None:
    """A localizer with one fault fails the law against it, with a reason on one line."""
    reasons = broken(faulty)
    assert why in reasons[law]
    assert not any("\n" in reason for reason in reasons.values())


@pytest.mark.sampled(1)
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


# ------------------------------------------------------------------------- as pytest sees it


@parametrize_with_checks([Grafts, Random(seed=3), "oracle"], families=["gemma"])
def test_contract(check: Callable[[], None]) -> None:
    """Classes, instances and names: each law is a test of its own."""
    check()


def test_checks_are_named_and_fail_with_the_reason() -> None:
    """An id says localizer, parameters that are no defaults, family and law; a law that does not
    hold raises why.
    """
    mark = parametrize_with_checks([Misscored, Random(seed=3)], ["llama"]).mark
    checks = {mark.kwargs["ids"](check): check for check in mark.args[1]}
    assert "random-seed=3-llama-same_under_a_seed" in checks
    with pytest.raises(LawError, match="the same score"):
        checks["lengths-llama-not_all_sites_are_alike"]()


def test_all_families_by_default() -> None:
    """A test for each law on each family of `PICO_FAMILIES`."""
    checks = parametrize_with_checks([Lengths]).mark.args[1]
    assert len(checks) == len(kgbench.testing.PICO_FAMILIES) * len(laws_of(Lengths()))


@pytest.mark.parametrize("absent", ["torch", "pytest"])
def test_importing_needs_neither_torch_nor_pytest(absent: str) -> None:
    """`import kgbench.testing` loads no torch; and the contract itself is usable where pytest is
    not installed.
    """
    use = (
        ""
        if absent == "torch"
        else "from kgbench.testing import check_localizer, parametrize_with_checks"
    )
    code = f"import sys\nsys.modules[{absent!r}] = None\nimport kgbench.testing\n{use}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_public_names() -> None:
    """What is exported is there; anything else is an attribute error, as in any module."""
    assert all(getattr(kgbench.testing, name) is not None for name in kgbench.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pico_model'"):
        _ = kgbench.testing.pico_model
