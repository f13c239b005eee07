"""Having sites scored, by one half of the facts and then by the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.engine import choosing
from kgbench.engine.rows import plain
from kgbench.engine.site_sets import all_sites
from kgbench.errors import InputError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, ScoringLocalizer
from kgbench.localizers._scan import scan
from kgbench.models.pair import ModelPair
from kgbench.records import Journal
from kgbench.runner.counting import Count, counted
from kgbench.runner.ranking import Halves
from kgbench.sites import Site, SiteScores

__all__ = ["Progress", "now", "plain_seconds", "score_halves", "score_sites"]

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all (0 where nobody knows), and what is being done."""


def score_halves(
    method: AbstractLocalizer,
    engine: Engine,
    prompts: Sequence[Prompt],
    halves: Halves,
    keep: tuple[Journal, Progress | None],
) -> tuple[tuple[SiteScores, SiteScores], dict[str, float]]:
    """Scores of all sites by each half of the facts, and what they cost together.

    Args:
        method: A method that ranks, or one that intervenes and is scanned.
        engine: Of the pair.
        prompts: All prompts of the job.
        halves: Ids of facts.
        keep: Where each half's scores are kept, and taken up by a run that resumes; who is told of the progress.
    """
    journal, progress = keep
    scores: list[SiteScores] = []
    costs: list[dict[str, float]] = []
    for half, facts in enumerate(halves):
        known = journal.kept(f"scores-{half}")
        if known is None:
            tell = _teller(progress, half, int(costs[0]["forwards"]) if costs else 0)
            found, cost = _measured(
                method, engine, [prompt for prompt in prompts if prompt.fact.id in facts], tell
            )
            known = {"scores": [[*site, score] for site, score in found.items()], "cost": cost}
            journal.keep(f"scores-{half}", known)
        scores.append({Site(*row[:3]): float(row[3]) for row in known["scores"]})
        costs.append(known["cost"])
    return (scores[0], scores[1]), {key: sum(cost[key] for cost in costs) for key in costs[0]}


def score_sites(
    method: AbstractLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> dict[Site, float]:
    """A method's score of every site, checked.

    Raises:
        InputError: The method leaves out a site, or a score is no finite number.
        NotApplicableError: The method cannot score sites.
    """
    if isinstance(method, ScoringLocalizer):
        found: Mapping[Site, float] = method.scores(pair, prompts)
    else:
        assert isinstance(method, InterventionLocalizer)
        found = scan(method, pair, prompts)
    if not isinstance(found, Mapping):
        raise InputError(
            f"localizer {method.name!r}: scores must give a number for each site as a mapping, not {type(found).__name__}"
        )
    sites = all_sites(pair, prompts)
    for site in sites:
        if site not in found or not math.isfinite(found[site]):
            what = "has no score" if site not in found else f"has the score {found[site]}"
            raise InputError(
                f"localizer {method.name!r}: {tuple(site)} {what}; every site needs a finite number"
            )
    return {site: float(found[site]) for site in sites}


def _measured(
    method: AbstractLocalizer,
    engine: Engine,
    prompts: Sequence[Prompt],
    tell: Callable[[Count], None] | None,
) -> tuple[dict[Site, float], dict[str, float]]:
    """Scores, and what they cost; the plain forward is timed before and after, so that a drift of the machine cancels."""
    before = plain_seconds(engine, prompts)
    started = now(engine.pair)
    with choosing(engine.executor, engine.budget), counted(engine.pair, tell) as count:
        found = score_sites(method, engine.pair, prompts)
    seconds = now(engine.pair) - started
    plain = (before + plain_seconds(engine, prompts)) / 2
    return found, {
        "forwards": count.forwards,
        "token_rows": count.token_rows,
        "seconds": seconds,
        "plain_seconds": plain,
    }


def _teller(progress: Progress | None, half: int, expected: int) -> Callable[[Count], None] | None:
    """Tells of the forwards done; the second half takes about as many as the first."""
    if progress is None:
        return None
    report: Progress = progress
    return lambda count: report(
        count.forwards,
        max(expected, count.forwards) if expected else 0,
        f"scoring, half {half + 1} of 2",
    )


def plain_seconds(engine: Engine, prompts: Sequence[Prompt]) -> float:
    """Seconds of one plain forward of the recipient over some prompts."""
    plan = engine.plan(prompts, ["PRE"])
    started = now(engine.pair)
    with torch.inference_mode():
        plain(engine.wiring, plan, engine.budget)
    return now(engine.pair) - started


def now(pair: ModelPair) -> float:
    """Seconds on the clock once the device has done what it was given."""
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)
    return time.perf_counter()
