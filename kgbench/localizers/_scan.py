"""Single-site scans: an intervention turned into a scorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.errors import NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Unit, asked
from kgbench.localizers._measure import logprobs
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, Site, SiteScores, complement_graft, parse_graft

__all__ = ["scan"]

PROMPTS = 16
"""Prompts that are treated at once."""
DESCRIBED = 1 << 14
"""Most treatments described at once: grafts × tokens. Each holds edits of many layers."""


def scan(
    localizer: InterventionLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> SiteScores:
    """Score every site by an intervention on it alone, or on all but it.

    A unit's value is the change of the targets' mean log-probability (nats): between the unit alone and nothing, or where the
    method is scanned `left_out`, between everything and everything but the unit. Where a method draws at random, probabilities are
    averaged over the draws first.

    Args:
        localizer: The method; it is fitted on these prompts.
        pair: The models.
        prompts: Prompts of any lengths and regions.

    Returns:
        A score for every site; a prompt that does not have a site adds nothing to its score.

    Raises:
        NotApplicableError: The method gives some site no value.
    """
    fitted = localizer.fitted(pair, asked(localizer, pair, prompts))
    scores: dict[Site, float] = {}
    reasons: dict[str, None] = {}
    for group in _alike(pair, prompts):
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
            f"a scan of {localizer.name} gives no value to {len(missing)} of {len(sites)} sites, such as "
            f"{missing[0].region}:{missing[0].component}{layer}"
            + "".join(f"; {reason}" for reason in reasons)
        )
    return {site: scores[site] for site in sites}


def _alike(pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Sequence[Prompt]]:
    """Prompts that have regions of the same names."""
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
    """Value of each unit that the method can express."""
    left_out = localizer.scanned == "left_out"
    base, sign = (parse_graft("ALL"), -1.0) if left_out else (parse_graft("NONE"), 1.0)
    grafts = [_but(unit.graft) if left_out else unit.graft for unit in units]
    able = [
        number
        for number, graft in enumerate(grafts)
        if _can(localizer, pair, prompts, graft, reasons)
    ]
    if not able or not _can(localizer, pair, prompts, base, reasons):
        return {}
    chunks = [prompts[start : start + PROMPTS] for start in range(0, len(prompts), PROMPTS)]
    changes = np.concatenate(
        [_changes(localizer, pair, chunk, base, [grafts[n] for n in able]) for chunk in chunks],
        axis=1,
    )
    return {
        number: sign * float(change)
        for number, change in zip(able, changes.mean(axis=1), strict=True)
    }


def _but(graft: Graft) -> Graft:
    """All sites of the default components but a unit's."""
    other = complement_graft(graft)
    assert other is not None, "units have one donor"
    return other


def _can(
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
) -> Float[np.ndarray, "graft prompt"]:
    """Log-probability of each prompt's target under each graft less that under the base, which is measured beside each chunk of grafts."""
    step = max(1, DESCRIBED // sum(len(pair.encoded(prompt).ids) for prompt in prompts))
    chunks = (grafts[start : start + step] for start in range(0, len(grafts), step))
    found = [_measured(localizer, pair, prompts, [base, *chunk]) for chunk in chunks]
    return np.concatenate([measured[1:] - measured[0] for measured in found])


def _measured(
    localizer: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    grafts: Sequence[Graft],
) -> Float[np.ndarray, "graft prompt"]:
    """Log-probability of each prompt's target under each graft, probabilities averaged over the method's draws."""
    questions = asked(localizer, pair, prompts)
    drawn = [
        logprobs(pair, prompts, [variant.treat(pair, questions, graft) for graft in grafts])
        for variant in localizer.variants()
    ]
    found: Float[np.ndarray, "graft prompt"] = np.logaddexp.reduce(drawn, axis=0) - np.log(
        len(drawn)
    )
    return found
