"""Laws of localizers that intervene."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.selftest import tolerance
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import Slots, Treatment, baseline_donor
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import InterventionLocalizer
from kgbench.sites import PATHWAYS, parse_graft
from kgbench.testing.trial import Trial, expect, expect_alike
from kgbench.testing.watching import SEEDED, Watched, expect_interruptible, global_seed

__all__ = ["laws_of_intervention"]

EVERYTHING, NOTHING = "ALL:all+ln_f+head", "NONE"
SOME = (*PATHWAYS, "FE@1", "ALL@1", "LT:o+ffn@1", "FE:attn@0; LT:ffn@second_half", "ALL:o")
"""Sets of sites of many shapes; a method may decline those that it cannot express."""
KEPT = (EVERYTHING, "ALL", "FE+LT", "LT")
"""Sets of sites that hold the whole last token."""
ABSENT = "M"
"""A region that the prompts of a trial do not have."""


def treatments_fit_the_prompts(trial: Trial) -> None:
    """Each token of each prompt gets one treatment, of this model's weights, layers and tokens."""
    made = _fitted(trial)
    slots, donors = len(Slots(trial.pair.family, trial.pair.n_layers)), len(trial.pair.donors)
    lengths = [len(trial.pair.encode(prompt)) for prompt in trial.prompts]
    for sites in (EVERYTHING, NOTHING, *_applicable(trial, made)):
        treatments = made.treat(trial.pair, trial.prompts, parse_graft(sites))
        found = [len(each) for each in treatments]
        expect(
            found == lengths,
            f"treat on {sites!r} gives {found} treatments for prompts of {lengths} tokens",
        )
        for treatment in (treatment for each in treatments for treatment in each):
            expect(
                isinstance(treatment, Treatment),
                f"treat on {sites!r} gives a {type(treatment).__name__}, expected a Treatment",
            )
            fits = len(treatment.weights) == slots and max(treatment.weights) <= donors
            expect(
                fits,
                f"treat on {sites!r}: weights are not one of {donors + 1} weight sets for each of {slots} slots",
            )


def declines_with_a_reason(trial: Trial) -> None:
    """Sites that the method cannot express are declined in one line, and a region that is not there is an error."""
    made = _fitted(trial)
    for sites in SOME:
        try:
            made.treat(trial.pair, trial.prompts, parse_graft(sites))
        except NotApplicableError as error:
            reason = str(error)
            expect(
                bool(reason.strip()) and "\n" not in reason,
                f"treat declines {sites!r} with {reason!r}: expected a reason on one line",
            )
    try:
        made.treat(trial.pair, trial.prompts, parse_graft(ABSENT))
    except (InputError, NotApplicableError):
        return
    expect(
        False,
        f"treat takes {ABSENT!r}, a region that the prompts do not have: expected what graft_treatments raises",
    )


def everything_treated_is_the_donor(trial: Trial) -> None:
    """Where all sites carry the finetuned behaviour, final norm and head among them, the donor answers."""
    donor = trial.pair.donors[baseline_donor(trial.pair)]
    got = _answers(trial, [EVERYTHING])[:, 0]
    expect_alike(
        got,
        _alone(trial, donor),
        trial.pair,
        f"{EVERYTHING!r} treated does not answer as the donor does",
    )


def nothing_treated_is_the_recipient(trial: Trial) -> None:
    """Where no site carries the finetuned behaviour, the recipient answers."""
    got = _answers(trial, [NOTHING])[:, 0]
    expect_alike(
        got,
        _alone(trial, trial.pair.recipient),
        trial.pair,
        f"{NOTHING!r} treated does not answer as the recipient does",
    )


def nothing_kept_is_no_donor(trial: Trial) -> None:
    """Where no site is kept, the donor is destroyed: the answers are finite, but not the donor's (nor need they be the recipient's)."""
    got = _answers(trial, [NOTHING])[:, 0]
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
    made = _fitted(trial)
    parts = _applicable(trial, made)
    expect(bool(parts), f"treat declines all of {', '.join(map(repr, SOME))}")
    nothing, everything, *others = _answers(trial, [NOTHING, EVERYTHING, *parts], made).unbind(
        dim=1
    )
    between = any(
        not _alike(other, nothing, trial) and not _alike(other, everything, trial)
        for other in others
    )
    expect(
        between,
        f"each of {', '.join(map(repr, parts))} answers as {NOTHING!r} or as {EVERYTHING!r} does",
    )


def a_kept_last_token_answers_its_prompt(trial: Trial) -> None:
    """Where the last token is kept, the answer depends on the prompt: an edit that erases the stream scores nothing."""
    made = _fitted(trial)
    for sites in (EVERYTHING, *(sites for sites in _applicable(trial, made) if sites in KEPT)):
        first, *others = _answers(trial, [sites], made)[:, 0].unbind(dim=0)
        erased = all(_alike(other, first, trial) for other in others)
        expect(
            not erased,
            f"{sites!r} answers the same to every prompt: what the last token carries is erased, though it is kept",
        )


def answers_alike_whatever_the_sites(trial: Trial) -> None:
    """A baseline answers the same for all sites."""
    first, *others = _answers(trial, [NOTHING, EVERYTHING, *SOME]).unbind(dim=1)
    expect(
        all(_alike(other, first, trial) for other in others),
        "a baseline whose answers depend on the sites: leave `baseline` out",
    )


def same_under_a_seed(trial: Trial) -> None:
    """Two of the same parameters answer alike, whatever the state of the global random numbers."""
    with global_seed(1):
        got = _answers(trial, _few(trial))
    expect_alike(got, _first(trial).value, trial.pair, f"two runs, {SEEDED},")


def order_of_prompts_does_not_matter(trial: Trial) -> None:
    """Each prompt's answer is the same when the prompts come in another order, those that the method is fitted on too."""
    turned = trial.prompts[::-1]
    got = _answers(trial, _few(trial), _fitted(trial, turned), turned)
    expect_alike(
        got.flip(0), _first(trial).value, trial.pair, "answers to prompts in another order"
    )


def batch_does_not_matter(trial: Trial) -> None:
    """Each prompt's answer is the same by itself as among others."""
    made, some = _fitted(trial), _few(trial)
    alone = torch.cat([_answers(trial, some, made, [prompt]) for prompt in trial.prompts])
    expect_alike(
        alone, _first(trial).value, trial.pair, "answers to a prompt by itself and among others"
    )


def executors_agree(trial: Trial) -> None:
    """Packed into one row per prompt or in a row per configuration, the answers are the same."""
    some = [EVERYTHING, NOTHING, *_few(trial)]
    packed, rows = (_answers(trial, some, executor=executor) for executor in ("packed", "rows"))
    expect_alike(packed, rows, trial.pair, f"the executors packed and rows, on {some},")


def units_of_a_scan_fit(trial: Trial) -> None:
    """Whatever a scan measures is a set of sites that the method takes, and is credited to sites that are scored."""
    made = _fitted(trial)
    prompts = trial.prompts[
        :2
    ]  # of one template: a unit's graft names regions that all prompts have
    units, scored = made.units(trial.pair, prompts), set(all_sites(trial.pair, prompts))
    expect(bool(units), "units gives nothing to measure")
    for number, unit in enumerate(units):
        made.treat(trial.pair, prompts, unit.graft)
        expect(
            bool(unit.sites) and set(unit.sites) <= scored,
            f"the unit '{unit.graft}' credits {unit.sites}, not some of all_sites",
        )
        fits = unit.minus is None or (0 <= unit.minus < len(units) and unit.minus != number)
        expect(fits, f"the unit '{unit.graft}' subtracts unit {unit.minus} of {len(units)}")


def leaves_the_pair_as_it_was(trial: Trial) -> None:
    """Models, the pair, torch's settings and kgbench's functions are afterwards what they were before, bit for bit."""
    _first(trial)
    changed = trial.changed()
    expect(not changed, f"{' and '.join(changed)} are not what they were before")


def can_be_interrupted(trial: Trial) -> None:
    """An interruption anywhere is passed on, and leaves the pair as it was."""
    some = _few(trial)
    expect_interruptible(
        trial.pair,
        trial.prompts,
        _first(trial).forwards,
        lambda prompts: _answers(trial, some, prompts=prompts),
    )


_ALWAYS = (
    a_kept_last_token_answers_its_prompt,
    treatments_fit_the_prompts,
    declines_with_a_reason,
    same_under_a_seed,
    order_of_prompts_does_not_matter,
    batch_does_not_matter,
    executors_agree,
    units_of_a_scan_fit,
    leaves_the_pair_as_it_was,
    can_be_interrupted,
)

FLOORED = {
    "recipient": nothing_treated_is_the_recipient,
    "destroyed_donor": nothing_kept_is_no_donor,
}
"""By floor, what a method answers where no site carries the finetuned behaviour."""


def laws_of_intervention(localizer: InterventionLocalizer) -> tuple[Callable[[Trial], None], ...]:
    """The laws of a localizer as it declares itself."""
    if localizer.baseline:
        return (answers_alike_whatever_the_sites, *_ALWAYS)
    floor = [law for floor, law in FLOORED.items() if floor == localizer.floor]
    ceiling = [everything_treated_is_the_donor] if localizer.reaches_donor else []
    return (*floor, *ceiling, depends_on_the_sites, *_ALWAYS)


def _fitted(trial: Trial, prompts: Sequence[Prompt] | None = None) -> InterventionLocalizer:
    """A localizer that has not been used, fitted on all prompts, as a run does it."""
    made: InterventionLocalizer = trial.fresh()
    return made.fitted(trial.pair, trial.prompts if prompts is None else prompts)


def _applicable(trial: Trial, made: InterventionLocalizer) -> list[str]:
    """Those of `SOME` that the method can express."""
    found = []
    for sites in SOME:
        try:
            made.treat(trial.pair, trial.prompts, parse_graft(sites))
        except NotApplicableError:
            continue
        found.append(sites)
    return found


def _first(trial: Trial) -> Watched:
    some = _few(trial)
    return trial.first_run(lambda: _answers(trial, some))


def _few(trial: Trial) -> list[str]:
    """Two of them, unlike each other."""
    parts = _applicable(trial, _fitted(trial))
    return [parts[0], parts[-1]] if parts else [EVERYTHING]


def _answers(
    trial: Trial,
    sites: Sequence[str],
    made: InterventionLocalizer | None = None,
    prompts: Sequence[Prompt] | None = None,
    executor: str = "rows",
) -> Float[Tensor, "prompt sites vocabulary"]:
    """Log-probabilities of the next token when only these sites carry the finetuned behaviour, averaged over the method's draws."""
    localizer = made or _fitted(trial)
    some = trial.prompts if prompts is None else prompts
    draws = localizer.variants()
    engine = Engine(trial.pair, executor)
    treatments = [
        draw.treat(trial.pair, some, parse_graft(each)) for each in sites for draw in draws
    ]
    logits = engine.logits(engine.plan_treatments(some, treatments))[:, :, 0].double()
    drawn = logits.log_softmax(dim=-1).reshape(len(some), len(sites), len(draws), -1)
    return drawn.logsumexp(dim=2) - math.log(len(draws))


def _alone(trial: Trial, model: PreTrainedModel) -> Float[Tensor, "prompt vocabulary"]:
    """Log-probabilities of the next token by one model of the pair, one prompt at a time, without the engine."""
    with torch.inference_mode():
        ids = [torch.tensor([trial.pair.encode(prompt)]) for prompt in trial.prompts]
        return torch.stack(
            [
                model(input_ids=each, use_cache=False).logits[0, -1].double().log_softmax(dim=-1)
                for each in ids
            ]
        )


def _alike(one: Tensor, other: Tensor, trial: Trial) -> bool:
    return bool((one - other).abs().max() <= tolerance(trial.pair, other))
