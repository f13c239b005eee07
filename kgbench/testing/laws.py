"""Laws of the contract of localizers: of declarations, of interventions, of scorers, and of both.

A law passes or raises. Its name is what holds, and the first line of its docstring is the law in a
sentence, which `kgbench check` prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from kgbench.engine import Engine
from kgbench.engine.edits import Treatment
from kgbench.engine.selftest import tolerance
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import baseline_donor
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import (
    COSTS,
    FLOORS,
    NEEDS,
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
)
from kgbench.sites import PATHWAYS, parse_graft
from kgbench.testing.trial import (
    EVERYTHING,
    NOTHING,
    SITES,
    Trial,
    answers,
    expect,
    expect_alike,
    expect_interruptible,
    global_seed,
)

Law = Callable[[Trial], None]
"""Passes, or raises with the reason."""

BASES = {"intervention": InterventionLocalizer, "scoring": ScoringLocalizer}


def says_what_it_is(trial: Trial) -> None:
    """Name, version and description are text, on one line; the kind is that of the class."""
    localizer = trial.localizer
    for what in ("name", "version", "about", "paper"):
        expect(
            isinstance(getattr(localizer, what), str),
            f'{what} is no text: set {what} = "..." in the class',
        )
    expect(
        localizer.name.isidentifier(),
        f"name is {localizer.name!r}: expected letters, digits and underscores, as in a Python name",
    )
    expect(
        bool(localizer.version.strip()),
        'version is empty: set version = "1", and raise it whenever the answers change',
    )
    expect(
        bool(localizer.about.strip()) and "\n" not in localizer.about,
        f"about is {localizer.about!r}: expected one line that describes the method",
    )
    expect(
        isinstance(localizer, BASES.get(localizer.kind, ())),
        f"kind is {localizer.kind!r}: expected one of {', '.join(BASES)}, and that the class "
        "derives from the base class of this kind",
    )


def declares_in_known_words(trial: Trial) -> None:
    """Needs, floor and cost are among the words that kgbench knows."""
    localizer = trial.localizer
    unknown = sorted(set(localizer.needs) - set(NEEDS))
    expect(
        not unknown,
        f"needs holds {', '.join(map(repr, unknown))}: expected some of {', '.join(NEEDS)}",
    )
    expect(
        localizer.floor in FLOORS,
        f"floor is {localizer.floor!r}: expected one of {', '.join(FLOORS)}",
    )
    expect(
        localizer.cost in COSTS, f"cost is {localizer.cost!r}: expected one of {', '.join(COSTS)}"
    )


def parameters_can_be_recorded(trial: Trial) -> None:
    """Parameters are fields of a frozen dataclass, and JSON: they identify a result."""
    localizer = trial.localizer
    declared = vars(type(localizer)).get("__dataclass_params__")
    expect(
        declared is not None and declared.frozen,
        "the class is no frozen dataclass: write @dataclass(frozen=True) above it",
    )
    expect(replace(localizer) == localizer, "two of the same parameters are not equal")
    try:
        json.dumps(localizer.parameters(), allow_nan=False)
    except (TypeError, ValueError) as error:
        expect(
            False,
            f"parameters cannot be written as JSON ({error}): expected numbers, texts, truth "
            "values, None, or lists of these",
        )


# ---------------------------------------------------------------------------- interventions

KEPT = (EVERYTHING, "ALL", "FE+LT", "LT")
"""Sets of sites that hold the whole last token."""
ABSENT = "M"
"""A region that the prompts of a trial do not have."""


def treatments_fit_the_prompts(trial: Trial) -> None:
    """Each token of each prompt gets one treatment, of this model's weights, layers and tokens."""
    localizer = trial.fitted()
    slots, donors = len(trial.pair.slots), len(trial.pair.donors)
    lengths = [len(trial.pair.encode(prompt)) for prompt in trial.prompts]
    for sites in (EVERYTHING, NOTHING, *trial.parts):
        treatments = localizer.treat(trial.pair, trial.prompts, parse_graft(sites))
        counts = list(map(len, treatments))
        expect(
            counts == lengths,
            f"treat on {sites!r} gives {counts} treatments for prompts of {lengths} tokens",
        )
        for treatment in chain.from_iterable(treatments):
            expect(
                isinstance(treatment, Treatment),
                f"treat on {sites!r} gives a {type(treatment).__name__}, expected a Treatment",
            )
            fits = len(treatment.weights) == slots and max(treatment.weights) <= donors
            expect(
                fits,
                f"treat on {sites!r}: weights are not one of {donors + 1} weight sets for each of "
                f"{slots} slots",
            )


def declines_with_a_reason(trial: Trial) -> None:
    """Sites that the method cannot express are declined in a line; a missing region is an error."""
    localizer = trial.fitted()
    for sites in SITES:
        try:
            localizer.treat(trial.pair, trial.prompts, parse_graft(sites))
        except NotApplicableError as error:
            reason = str(error)
            expect(
                bool(reason.strip()) and "\n" not in reason,
                f"treat declines {sites!r} with {reason!r}: expected a reason on one line",
            )
    try:
        localizer.treat(trial.pair, trial.prompts, parse_graft(ABSENT))
    except (InputError, NotApplicableError):
        return
    expect(
        False,
        f"treat takes {ABSENT!r}, a region that the prompts do not have: expected the error of "
        "graft_treatments",
    )


def everything_treated_is_the_donor(trial: Trial) -> None:
    """Where all sites carry the finetuned behaviour, final norm and head too, the donor answers."""
    donor = trial.pair.donors[baseline_donor(trial.pair)]
    got = trial.answers([EVERYTHING])[:, 0]
    expect_alike(
        got,
        _alone(trial, donor),
        trial.pair,
        f"{EVERYTHING!r} treated does not answer as the donor does",
    )


def nothing_treated_is_the_recipient(trial: Trial) -> None:
    """Where no site carries the finetuned behaviour, the recipient answers."""
    got = trial.answers([NOTHING])[:, 0]
    expect_alike(
        got,
        _alone(trial, trial.pair.recipient),
        trial.pair,
        f"{NOTHING!r} treated does not answer as the recipient does",
    )


def nothing_kept_is_no_donor(trial: Trial) -> None:
    """Where no site is kept, answers are finite and not the donor's; they may be of no model."""
    got = trial.answers([NOTHING])[:, 0]
    expect(
        bool(got.isfinite().all()),
        f"{NOTHING!r} kept gives log-probabilities that are no finite numbers",
    )
    donor = trial.pair.donors[baseline_donor(trial.pair)]
    expect(
        not _alike(got, _alone(trial, donor), trial),
        f"{NOTHING!r} kept answers as the donor does: nothing is destroyed",
    )


def depends_on_the_sites(trial: Trial) -> None:
    """Some part of the sites answers neither as nothing nor as everything does."""
    expect(bool(trial.parts), f"treat declines all of {', '.join(map(repr, SITES))}")
    nothing, everything, *others = trial.answers([NOTHING, EVERYTHING, *trial.parts]).unbind(dim=1)
    between = any(
        not _alike(other, nothing, trial) and not _alike(other, everything, trial)
        for other in others
    )
    expect(
        between,
        f"each of {', '.join(map(repr, trial.parts))} answers as {NOTHING!r} or as {EVERYTHING!r} "
        "does",
    )


def a_kept_last_token_answers_its_prompt(trial: Trial) -> None:
    """Where the last token is kept, the answer depends on the prompt."""
    localizer = trial.fitted()
    holding = [sites for sites in trial.parts if sites in KEPT]
    if (
        len({trial.pair.encoded(prompt).ids[-1] for prompt in trial.prompts}) == 1
        and "LT" in holding
    ):
        holding.remove("LT")  # one token, such as a blank, whose own stream is the same everywhere
    for sites in (EVERYTHING, *holding):
        first, *others = trial.answers([sites], localizer)[:, 0].unbind(dim=0)
        erased = all(_alike(other, first, trial) for other in others)
        expect(
            not erased,
            f"{sites!r} answers the same to every prompt: the stream of the last token is erased, "
            "though it is kept",
        )


def answers_alike_whatever_the_sites(trial: Trial) -> None:
    """A baseline answers the same for all sites."""
    first, *others = trial.answers([NOTHING, EVERYTHING, *SITES]).unbind(dim=1)
    expect(
        all(_alike(other, first, trial) for other in others),
        "a baseline whose answers depend on the sites: leave `baseline` out",
    )


def batch_does_not_matter(trial: Trial) -> None:
    """Each prompt's answer is the same by itself as among others."""
    localizer = trial.fitted()
    alone = torch.cat([trial.answers(trial.few, localizer, [prompt]) for prompt in trial.prompts])
    expect_alike(
        alone, trial.first.value, trial.pair, "answers to a prompt by itself and among others"
    )


def executors_agree(trial: Trial) -> None:
    """Packed, in a row per configuration, or token by token, the answers are the same."""
    sites, localizer = [EVERYTHING, NOTHING, *trial.few], trial.fitted()
    packed, rows = (trial.answers(sites, localizer, executor=name) for name in ("packed", "rows"))
    expect_alike(packed, rows, trial.pair, f"the executors packed and rows, on {sites},")
    # One prompt is enough: token by token, prompts never meet.
    shortest = min(trial.prompts, key=lambda prompt: len(trial.pair.encode(prompt)))
    last = sites[-1:]
    alone = trial.answers(last, localizer, [shortest], "sequential")
    expected = rows[[trial.prompts.index(shortest)]][:, -1:]
    expect_alike(alone, expected, trial.pair, f"the executors sequential and rows, on {last},")


def units_of_a_scan_fit(trial: Trial) -> None:
    """Each unit of a scan is a set of sites that the method takes, credited to scored sites."""
    localizer = trial.fitted()
    prompts = trial.prompts[:2]  # of one template: units name regions that all prompts have
    units, scored = localizer.units(trial.pair, prompts), set(all_sites(trial.pair, prompts))
    expect(bool(units), "units gives nothing to measure")
    for number, unit in enumerate(units):
        localizer.treat(trial.pair, prompts, unit.graft)
        expect(
            bool(unit.sites) and set(unit.sites) <= scored,
            f"the unit '{unit.graft}' credits {unit.sites}, not some of all_sites",
        )
        fits = unit.minus is None or (0 <= unit.minus < len(units) and unit.minus != number)
        expect(fits, f"the unit '{unit.graft}' subtracts unit {unit.minus} of {len(units)}")


# ---------------------------------------------------------------------------- scorers


def every_site_has_a_finite_score(trial: Trial) -> None:
    """There is one finite number for each site of `all_sites(pair, prompts)`, and for no other."""
    scores, sites = trial.first.value, set(all_sites(trial.pair, trial.prompts))
    missing, extra = sites - set(scores), set(scores) - sites
    expect(
        not missing,
        f"{len(missing)} of {len(sites)} sites have no score, such as "
        f"{min(map(str, missing), default='')}",
    )
    expect(
        not extra,
        f"{len(extra)} scores are of no site in all_sites(pair, prompts), such as "
        f"{min(map(str, extra), default='')}",
    )
    for site, score in scores.items():
        fits = isinstance(score, int | float) and math.isfinite(score)
        expect(
            fits,
            f"the score of {site} is {score!r} ({type(score).__name__}): expected a finite number",
        )


def not_all_sites_are_alike(trial: Trial) -> None:
    """Some site scores higher than another."""
    scores = trial.first.value
    expect(len(set(scores.values())) > 1, f"all {len(scores)} sites have the same score")


# ---------------------------------------------------------------------------- both kinds


def same_under_a_seed(trial: Trial) -> None:
    """Two instances with the same parameters agree, whatever the global random state."""
    expected = trial.array(trial.first.value)
    with global_seed(1):
        got = trial.result()
    seeded = "which are to draw from a generator that a parameter seeds"
    expect_alike(got, expected, trial.pair, f"two runs, {seeded},")


def order_of_prompts_does_not_matter(trial: Trial) -> None:
    """Results are the same when the prompts come in another order, in fitting too."""
    turned = trial.prompts[::-1]
    got = trial.result(turned, learned=turned)
    if isinstance(trial.localizer, InterventionLocalizer):
        got = got.flip(0)  # one answer per prompt; scores are of all prompts together
    expect_alike(
        got, trial.array(trial.first.value), trial.pair, "results of prompts in another order"
    )


def leaves_the_pair_as_it_was(trial: Trial) -> None:
    """Models, pair, torch's settings and kgbench's functions are unchanged, bit for bit."""
    _ = trial.first
    changed = trial.changed()
    expect(not changed, f"{' and '.join(changed)} are not what they were before")


def can_be_interrupted(trial: Trial) -> None:
    """An interruption anywhere is passed on, and leaves the pair as it was."""
    forwards = trial.first.forwards
    for forward in sorted({1, forwards // 2 + 1} if forwards else ()):
        expect_interruptible(trial, forward)
    expect_interruptible(trial, None)


def names_and_answers_do_not_matter(trial: Trial) -> None:
    """A shipped pair's name and facts give no other results than another name and other answers."""
    named, renamed = trial.renamed()
    results = []
    for pair, prompts in (named, renamed):
        if isinstance(trial.localizer, ScoringLocalizer):
            scores = trial.fresh().scores(pair, prompts)
            results.append(torch.tensor([scores[site] for site in all_sites(*named)]))
        else:  # measured on the same models
            sites = [EVERYTHING, *(part for part in trial.parts if part in PATHWAYS)]
            localizer = trial.fresh().fitted(pair, prompts)
            results.append(answers(localizer, pair, prompts, sites, Engine(named[0], "rows")))
    what = f"results under the name of {named[0].name} and under another with answers exchanged"
    expect_alike(results[1], results[0], named[0], what)


DECLARATIONS = (says_what_it_is, declares_in_known_words, parameters_can_be_recorded)

INTERVENTIONS = (
    a_kept_last_token_answers_its_prompt,
    treatments_fit_the_prompts,
    declines_with_a_reason,
    same_under_a_seed,
    order_of_prompts_does_not_matter,
    batch_does_not_matter,
    executors_agree,
    units_of_a_scan_fit,
    names_and_answers_do_not_matter,
    leaves_the_pair_as_it_was,
    can_be_interrupted,
)

SCORERS = (
    every_site_has_a_finite_score,
    not_all_sites_are_alike,
    same_under_a_seed,
    order_of_prompts_does_not_matter,
    names_and_answers_do_not_matter,
    leaves_the_pair_as_it_was,
    can_be_interrupted,
)

FLOORED = {
    "recipient": nothing_treated_is_the_recipient,
    "destroyed_donor": nothing_kept_is_no_donor,
}
"""By floor, the law of answers where no site carries the finetuned behaviour."""


def laws_of(localizer: AbstractLocalizer) -> tuple[Law, ...]:
    """Laws of a localizer's kind, as it declares itself: declarations first, then behaviour."""
    if isinstance(localizer, ScoringLocalizer):
        return (*DECLARATIONS, *SCORERS)
    if not isinstance(localizer, InterventionLocalizer):
        return DECLARATIONS
    if localizer.baseline:
        return (*DECLARATIONS, answers_alike_whatever_the_sites, *INTERVENTIONS)
    floor = [law for floor, law in FLOORED.items() if floor == localizer.floor]
    ceiling = [everything_treated_is_the_donor] if localizer.reaches_donor else []
    return (*DECLARATIONS, *floor, *ceiling, depends_on_the_sites, *INTERVENTIONS)


def _alone(trial: Trial, model: PreTrainedModel) -> Float[Tensor, "prompt vocabulary"]:
    """Log-probabilities of the next token by one model, prompt by prompt, without the engine."""
    rows = []
    with torch.inference_mode():
        for prompt in trial.prompts:
            ids = torch.tensor([trial.pair.encode(prompt)])
            logits = model(input_ids=ids, use_cache=False).logits[0, -1]
            rows.append(logits.double().log_softmax(dim=-1))
    return torch.stack(rows)


def _alike(first: Tensor, second: Tensor, trial: Trial) -> bool:
    return bool((first - second).abs().max() <= tolerance(trial.pair, second))
