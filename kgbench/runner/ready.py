"""Fit the localizer and rank sites before evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kgbench.data import Prompt
from kgbench.engine.site_sets import graft_sites
from kgbench.engine.treatment import parse_configuration
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer
from kgbench.localizers._base import asked
from kgbench.records import Journal
from kgbench.runner.job import Job
from kgbench.runner.measure import GROUP, Measurement, treated
from kgbench.runner.ranking import Progress, SiteRanking, score_halves
from kgbench.sites import Graft, SiteScores, parse_graft
from kgbench.sites.configurations import parse_top

__all__ = ["expressed", "ranked", "ready", "warm_up", "without_ranking"]


def ready(job: Job, journal: Journal, progress: Progress | None) -> Measurement:
    """Fit a job's localizer, and rank its sites where the job needs that.

    Args:
        job: The job.
        journal: Journal of scores, from which a run resumes.
        progress: Progress callback.
    """
    measurement = expressed(job)
    warm_up(job)
    if not job.ranks:
        return measurement
    try:
        scores, cost = score_halves(
            measurement.method, job.engine, job.all_prompts, job.halves, (journal, progress)
        )
    except NotApplicableError as error:
        return without_ranking(measurement, str(error))
    return replace(ranked(measurement, scores), scoring=cost)


def expressed(job: Job) -> Measurement:
    """Fit a job's localizer, and find the configurations that it cannot express."""
    method: AbstractLocalizer = job.localizer
    if not isinstance(method, InterventionLocalizer):
        return Measurement(job, method)
    method = method.fitted(job.pair, asked(method, job.pair, job.all_prompts))
    drawn = method.variants() if isinstance(method, InterventionLocalizer) else None
    if not (
        isinstance(drawn, Sequence)
        and drawn
        and all(isinstance(draw, InterventionLocalizer) for draw in drawn)
    ):
        raise InputError(
            f"localizer {job.localizer.name!r}: fitted must give an intervention, and variants a "
            "list of such, never empty"
        )
    absent: dict[str, dict[str, str]] = {name: {} for name in job.prompts}
    for label in (label for label in job.configurations if parse_top(label) is None):
        graft = parse_configuration(label)
        for name, prompts in job.prompts.items():
            if (
                isinstance(graft, Graft)
                and (reason := _reason(method, job, prompts, graft)) is not None
            ):
                absent[name][label] = reason
    return Measurement(job, method, absent)


def _reason(
    method: InterventionLocalizer, job: Job, prompts: Sequence[Prompt], graft: Graft
) -> str | None:
    """Reason why a method cannot express a graft on a template's prompts; None if it can."""
    try:
        for start in range(0, len(prompts), GROUP):
            treated(method.variants()[0], job.pair, prompts[start : start + GROUP], graft)
    except NotApplicableError as error:
        return str(error)
    return None


def ranked(measurement: Measurement, scores: tuple[SiteScores, SiteScores]) -> Measurement:
    """Add the scores of both halves."""
    job = measurement.job
    k = (
        None
        if job.truth is None
        else len(graft_sites(job.pair, job.all_prompts, parse_graft(job.truth.plant)))
    )
    return replace(
        measurement,
        ranking=SiteRanking(job.pair, job.prompts, job.halves, scores, k, job.spec.seed),
    )


def without_ranking(measurement: Measurement, reason: str) -> Measurement:
    """Mark budgets as not applicable for a method that cannot score sites."""
    job = measurement.job
    tops = {label: reason for label in job.configurations if parse_top(label) is not None}
    return replace(
        measurement,
        absent={name: {**measurement.absent.get(name, {}), **tops} for name in job.prompts},
    )


def warm_up(job: Job) -> None:
    """Run a first forward, whose start-up costs are no part of the method's cost."""
    for _ in job.engine.run(job.engine.plan(job.all_prompts[:2], ["PRE", "SFT", "ALL", "LT"])):
        pass
