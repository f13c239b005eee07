"""Laws of localizers that score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.localizers import ScoringLocalizer
from kgbench.sites import SiteScores
from kgbench.testing.trial import Trial, expect, expect_alike
from kgbench.testing.watching import SEEDED, Watched, expect_interruptible, global_seed

__all__ = ["SCORING"]


def every_site_has_a_finite_score(trial: Trial) -> None:
    """There is one finite number for each site of `all_sites(pair, prompts)`, and for no other."""
    found, sites = _first(trial).value, set(all_sites(trial.pair, trial.prompts))
    missing, extra = sites - set(found), set(found) - sites
    expect(
        not missing,
        f"{len(missing)} of {len(sites)} sites have no score, such as {min(map(str, missing), default='')}",
    )
    expect(
        not extra,
        f"{len(extra)} scores are of no site in all_sites(pair, prompts), such as {min(map(str, extra), default='')}",
    )
    for site, score in found.items():
        fits = isinstance(score, float) and math.isfinite(score)
        expect(
            fits,
            f"the score of {site} is {score!r} ({type(score).__name__}): expected a finite float",
        )


def not_all_sites_are_alike(trial: Trial) -> None:
    """Some site scores higher than another."""
    found = _first(trial).value
    expect(len(set(found.values())) > 1, f"all {len(found)} sites have the same score")


def same_under_a_seed(trial: Trial) -> None:
    """Two of the same parameters score alike, whatever the state of the global random numbers."""
    expected = _array(trial, _first(trial).value)
    with global_seed(1):
        got = _array(trial, _scores(trial))
    expect_alike(got, expected, trial.pair, f"two runs, {SEEDED},")


def order_of_prompts_does_not_matter(trial: Trial) -> None:
    """The scores are the same when the prompts come in another order."""
    got = _array(trial, _scores(trial, trial.prompts[::-1]))
    expect_alike(
        got, _array(trial, _first(trial).value), trial.pair, "scores from prompts in another order"
    )


def leaves_the_pair_as_it_was(trial: Trial) -> None:
    """Models, the pair, torch's settings and kgbench's functions are afterwards what they were before, bit for bit."""
    _first(trial)
    changed = trial.changed()
    expect(not changed, f"{' and '.join(changed)} are not what they were before")


def can_be_interrupted(trial: Trial) -> None:
    """An interruption anywhere is passed on, and leaves the pair as it was."""
    expect_interruptible(
        trial.pair, trial.prompts, _first(trial).forwards, lambda prompts: _scores(trial, prompts)
    )


SCORING = (
    every_site_has_a_finite_score,
    not_all_sites_are_alike,
    same_under_a_seed,
    order_of_prompts_does_not_matter,
    leaves_the_pair_as_it_was,
    can_be_interrupted,
)


def _first(trial: Trial) -> Watched:
    return trial.first_run(lambda: _scores(trial))


def _scores(trial: Trial, prompts: Sequence[Prompt] | None = None) -> SiteScores:
    made: ScoringLocalizer = trial.fresh()
    return made.scores(trial.pair, trial.prompts if prompts is None else prompts)


def _array(trial: Trial, scores: SiteScores) -> Float[Tensor, " site"]:
    """Scores of all sites, 0 where there is none."""
    sites = all_sites(trial.pair, trial.prompts)
    return torch.tensor([scores.get(site, 0.0) for site in sites], dtype=torch.float64)
