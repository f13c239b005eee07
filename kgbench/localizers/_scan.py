"""Single-site scans: an intervention turned into a scorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.errors import NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Unit, asked
from kgbench.localizers._measure import logprobs
from kgbench.localizers._parts import Values, part
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, Site, SiteScores, complement_graft, parse_graft

PROMPTS = 16
"""Number of prompts treated at once."""
DESCRIBED = 1 << 14
"""Largest number of treatments in memory at once: grafts × tokens."""


def scan(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
) -> SiteScores:
    """Score every site by an intervention on it alone, or on all other sites.

    A unit's value is a difference of the targets' mean log-probability (nats): the unit alone minus
    no sites, or, for methods scanned `left_out`, all sites minus all but the unit. Probabilities
    are averaged over random draws first.

    Args:
        localizer: The method; it is fitted on these prompts.
        pair: The models.
        prompts: Prompts of any lengths and regions.

    Returns:
        Score of every site, with a value of 0 in prompts that lack the site.

    Raises:
        NotApplicableError: The method has no value for some site.
    """
    fitted = localizer.fitted(pair, asked(localizer, pair, prompts))
    scores: dict[Site, float] = {}
    reasons: dict[str, None] = {}
    for group in alike(pair, prompts):
        units = fitted.units(pair, asked(fitted, pair, group))
        values = _values(fitted, pair, group, units, reasons)
        for number, unit in enumerate(units):
            value = values.get(number, np.nan) - (
                0.0 if unit.minus is None else values.get(unit.minus, np.nan)
            )
            for site in unit.sites:
                scores[site] = scores.get(site, 0.0) + value * len(group) / len(prompts)
    sites = all_sites(pair, prompts)
    if missing := [site for site in sites if np.isnan(scores.get(site, np.nan))]:
        layer = "" if missing[0].layer is None else f"@{missing[0].layer}"
        raise NotApplicableError(
            f"a scan of {localizer.name} gives no value to {len(missing)} of {len(sites)} sites, "
            f"such as {missing[0].region}:{missing[0].component}{layer}"
            + "".join(f"; {reason}" for reason in reasons)
        )
    return {site: scores[site] for site in sites}


def measured_grafts(localizer: InterventionLocalizer, units: Sequence[Unit]) -> tuple[Graft, ...]:
    """What a scan treats: what every unit is measured from, then each unit, or its complement."""
    if localizer.scanned == "left_out":
        return parse_graft("ALL"), *(_rest(unit.graft) for unit in units)
    return parse_graft("NONE"), *(unit.graft for unit in units)


def alike(pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Sequence[Prompt]]:
    """Group prompts by the names of their regions."""
    groups: dict[frozenset[str], list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(frozenset(pair.encoded(prompt).regions), []).append(prompt)
    return list(groups.values())


def _values(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    units: Sequence[Unit],
    reasons: dict[str, None],
) -> Mapping[int, float]:
    """Value of each unit to which the method applies; `reasons` collects why others have none."""
    sign = -1.0 if localizer.scanned == "left_out" else 1.0
    base, *of_units = measured_grafts(localizer, units)
    grafts: dict[int, Graft] = {}
    for number, graft in enumerate(of_units):
        if _applies(localizer, pair, prompts, graft, reasons):
            grafts[number] = graft
    if not grafts or not _applies(localizer, pair, prompts, base, reasons):
        return {}
    changes = []
    for start in range(0, len(prompts), PROMPTS):
        chunk = prompts[start : start + PROMPTS]
        changes.append(part(partial(_changes, localizer, pair, chunk, base, [*grafts.values()])))
    means = np.concatenate(changes, axis=1).mean(axis=1)
    return {number: sign * float(change) for number, change in zip(grafts, means, strict=True)}


def _rest(graft: Graft) -> Graft:
    """The complement of a unit among the sites of the default components."""
    rest = complement_graft(graft)
    assert rest is not None, "units have one donor"
    return rest


def _applies(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    graft: Graft,
    reasons: dict[str, None],
) -> bool:
    try:
        localizer.treat(pair, asked(localizer, pair, prompts[:1]), graft)
    except NotApplicableError as error:
        reasons[str(error)] = None
        return False
    return True


def _changes(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    base: Graft,
    grafts: Sequence[Graft],
) -> Values:
    """Log-probability of each prompt's target under each graft minus that under the base.

    The base is measured again with each chunk of grafts, so that both come from the same forwards.
    """
    step = max(1, DESCRIBED // sum(len(pair.encoded(prompt).ids) for prompt in prompts))
    changes = []
    for start in range(0, len(grafts), step):
        values = _logprobs(localizer, pair, prompts, [base, *grafts[start : start + step]])
        changes.append(values[1:] - values[0])
    return np.concatenate(changes)


def _logprobs(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    grafts: Sequence[Graft],
) -> Float[np.ndarray, "graft prompt"]:
    """Log of each target's probability under each graft, averaged over the method's draws."""
    questions = asked(localizer, pair, prompts)
    by_draw = []
    for variant in localizer.variants():
        treatments = [variant.treat(pair, questions, graft) for graft in grafts]
        by_draw.append(logprobs(pair, prompts, treatments))
    total = np.logaddexp.reduce(by_draw, axis=0)
    mean: Float[np.ndarray, "graft prompt"] = total - np.log(len(by_draw))
    return mean
