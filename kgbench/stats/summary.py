"""All figures of a run or of a record from its per-fact rows; on plants, against the truth.

A map is compared with the ground truth, and so are effects of its best sites, and pathways.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.estimate import Estimate, rounded
from kgbench.numbers import figure_text, is_readable, number_text, reason_text
from kgbench.records import (
    FIGURES,
    NO_INTERVAL_OF_RANKS,
    NOT_APPLICABLE,
    Curve,
    CurvePoint,
    Effect,
    GroupContrast,
    Pathway,
    Planted,
    Record,
    Result,
    Row,
    facts_table,
)
from kgbench.records.fact_rows import spans
from kgbench.sites import (
    BASELINES,
    CONTROLS,
    PATHWAYS,
    Graft,
    Site,
    SiteScores,
    block_of,
    parse_graft,
)
from kgbench.sites.configurations import (
    BEST,
    REST,
    budget_labels,
    canonical,
    complements,
    parse_top,
)
from kgbench.stats.answer_frequency import (
    Priors,
    answer_counts,
    better_models,
    name_prior,
    priors_of,
)
from kgbench.stats.contrast import contrast_recovery, group_contrast
from kgbench.stats.intervals import WEAK, Array, difference, mean, median, standard_errors
from kgbench.stats.ranking_quality import average_precision, chance_precision
from kgbench.stats.ratios import (
    COMPLEMENTS,
    curve_area,
    gain,
    necessity,
    recovery,
    sufficiency,
    synergy,
)
from kgbench.stats.scores import (
    DEFAULT_METRIC,
    METRICS,
    ONLY_SHARES,
    PromptColumns,
    Scores,
    by_prompt,
    check_metric,
    has_metric,
    numbers,
    support_of,
)
from kgbench.stats.verdict_sentence import verdict

ORDER = (*BASELINES, "ALL", "NONE", *PATHWAYS)
"""The paper's order."""


@dataclass(frozen=True)
class Summary:
    """All figures of a run."""

    metric: str
    """The metric of the ratios."""
    rows: tuple[Row, ...]
    """Prompt by prompt, configurations in the paper's order."""
    synergy: dict[str, Estimate]
    """By prompt."""
    baselines: dict[str, dict[str, Estimate]]
    """`name_prior`, by prompt."""
    answers: dict[str, tuple[int, ...]]
    """By prompt, how often each distinct first token is the answer."""
    curve: dict[str, Curve] | None
    """By prompt, where sites were ranked."""
    verdict: str
    """One plain sentence."""
    contrast: dict[str, tuple[GroupContrast, ...]] | None = None
    """By prompt, where it has controls."""


def summarize(
    facts: pa.Table,
    *,
    metric: str | None = DEFAULT_METRIC,
    complements: Mapping[str, str | None] | None = None,
    dropped: Mapping[str, int] | None = None,
    budgets: Mapping[str, float] | None = None,
    absent: Mapping[str, Mapping[str, str]] | None = None,
    limited: bool = False,
    of_names: bool = True,
) -> Summary:
    """All figures of a run.

    Args:
        facts: Per-fact rows. Where a prompt was read at several positions, the last counts.
        metric: The metric of the ratios, one of METRICS; None for the first that separates facts from
            frequencies, see `Priors.usual_metric`.
        complements: Configurations S^C of configurations S beyond the pathways', None where there
            is none; rows follow this order after the paper's configurations, others come last, by
            name.
        dropped: Facts left out of each prompt; the prompts follow this order, others come last, by
            name.
        budgets: Of configurations that graft the best-ranked sites, in per cent, ascending.
        absent: By prompt, configurations without rows that the method cannot express, and why.
        limited: Whether these are some of the facts of a data set only.
        of_names: Whether the first tokens of answers are read, which a frequency can guess.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the
            same facts.
        UnknownNameError: If there is no such metric.
    """
    complements, dropped, absent = complements or {}, dropped or {}, absent or {}
    complement_of = dict(COMPLEMENTS)
    for graft, other in complements.items():
        if other is not None:
            complement_of[graft] = other
    order, terms = (*ORDER, *complements), list(dropped)
    prompts = by_prompt(facts_table(facts), order)
    prompts.sort(key=lambda p: terms.index(p.name) if p.name in terms else len(terms))
    answers = {}
    for p in prompts if of_names else ():
        answers[p.name] = answer_counts(p.columns["PRE"]["target"])
    if metric is None:  # means of all metrics do not depend on that of the ratios
        first = [_rows(prompt, prompt.scores(DEFAULT_METRIC), {}, 0) for prompt in prompts]
        better = better_models(chain.from_iterable(first))
        metric = Priors(better, answers, limited).usual_metric
    metric = check_metric(metric)
    rows: list[Row] = []
    synergies: dict[str, Estimate] = {}
    several = {name: counts for name, counts in answers.items() if len(counts) > 1}
    priors = {name: name_prior(counts).rounded() for name, counts in several.items()}
    curves: dict[str, Curve] | None = {} if budgets else None
    for prompt in prompts:
        name, lacking = prompt.name, absent.get(prompt.name, {})
        scores = prompt.scores(metric)
        ran = _rows(prompt, scores, complement_of, dropped.get(name, 0))
        rows += _with_absent(ran, lacking, complement_of, order)
        synergies[name] = synergy(scores).rounded()
        if unknown := [graft for graft in ("FE", "LT", "FE+LT") if graft in lacking]:
            reason = f"{NOT_APPLICABLE}the method cannot express {' and '.join(unknown)}"
            synergies[name] = Estimate.missing(reason)
        if budgets and curves is not None:
            points = []
            for label, budget in budgets.items():
                points.append(CurvePoint(budget=budget, recovery=recovery(scores, label)))
            curves[name] = Curve(points=tuple(points), area=curve_area(scores, budgets))
    doubts = Priors(better_models(rows), answers, limited).doubts(metric)
    contrasts = _contrasts(prompts, metric)
    sentence = verdict(rows, metric, curves, doubts, contrasts)
    baselines = {"name_prior": priors} if priors else {}
    return Summary(metric, tuple(rows), synergies, baselines, answers, curves, sentence, contrasts)


def _contrasts(
    prompts: Sequence[PromptColumns], metric: str
) -> dict[str, tuple[GroupContrast, ...]] | None:
    """Contrasts of the prompts that have controls; None where none has."""
    scores = {prompt.name: prompt.scores(metric) for prompt in prompts}
    by_prompt = {}
    for name, on in scores.items():
        if (off := scores.get(f"{name}{CONTROLS}")) is None:
            continue
        rows = []
        for graft in on:
            figures = group_contrast(on, off, graft), contrast_recovery(on, off, graft)
            rows.append(GroupContrast(graft=graft, difference=figures[0], recovery=figures[1]))
        by_prompt[name] = tuple(rows)
    return by_prompt or None


def _rows(
    prompt: PromptColumns,
    scores: Scores,
    complements: Mapping[str, str],
    dropped: int,
) -> list[Row]:
    """The rows of a prompt, ratios on these scores; the mean of ranks has no interval."""
    table = {}
    undefined = Estimate.missing(ONLY_SHARES, prompt.n)
    for name in METRICS:
        table[name] = dict.fromkeys(prompt.columns, undefined)
        if has_metric(prompt.columns["PRE"], name):
            by_graft = prompt.scores(name)
            table[name] = means(by_graft, support_of(by_graft.values(), name))
    added, rows = gain(scores), []
    is_weak = standard_errors(added) < WEAK
    for graft, columns in prompt.columns.items():
        ranks, other = columns.get("rank"), complements.get(graft)
        of_ranks = dict.fromkeys(("rank", "median_rank"), undefined)
        if ranks is not None:
            alone = Estimate.alone(float(np.mean(ranks)), len(ranks), NO_INTERVAL_OF_RANKS)
            of_ranks = {"rank": alone, "median_rank": median(ranks)}
        share = recovery(scores, graft)
        beyond = share.value is not None and not is_readable(share)
        row = Row(
            prompt=prompt.name,
            graft=graft,
            n=prompt.n,
            dropped=dropped,
            **{name: by_graft[graft] for name, by_graft in table.items()},
            **of_ranks,
            sufficiency=share,
            necessity=necessity(scores, graft, complements),
            complement=other if other in prompt.columns else None,
            gain=added,
            difference=difference(scores[graft], scores["PRE"]) if is_weak or beyond else None,
        )
        rows.append(row)
    return rows


def means(scores: Scores, support: tuple[float, float]) -> dict[str, Estimate]:
    """The mean of each configuration.

    Args:
        scores: Per-fact scores [n] of each configuration of a prompt.
        support: Bounds of the means, see `support_of`.
    """
    return {graft: mean(values, support) for graft, values in scores.items()}


def _with_absent(
    rows: Sequence[Row],
    absent: Mapping[str, str],
    complements: Mapping[str, str],
    order: Sequence[str],
) -> list[Row]:
    """One prompt's rows with those that the method cannot express, in order.

    Args:
        rows: The rows that were run.
        absent: Configurations that could not be, and why.
        complements: Configuration S^C of each S.
        order: Of the configurations.
    """
    if not absent:
        return list(rows)
    explained = []
    for row in rows:
        other = complements.get(row.graft, "")
        if row.complement is None and row.graft not in ("PRE", "SFT") and other in absent:
            reason = f"its complement {other} is not applicable: {absent[other]}"
            row = row.model_copy(update={"necessity": Estimate.missing(reason, row.n)})
        explained.append(row)
    for graft, reason in absent.items():
        figures = dict.fromkeys(FIGURES, Estimate.missing(f"{NOT_APPLICABLE}{reason}"))
        changed = {"graft": graft, "n": 0, "complement": None, "difference": None, **figures}
        explained.append(rows[0].model_copy(update=changed))
    places = {graft: i for i, graft in enumerate(dict.fromkeys(order))}
    return sorted(explained, key=lambda row: places.get(row.graft, len(places)))


def rescored(record: Record, facts: pa.Table, metric: str | None = None) -> Record:
    """The same record with every figure computed again from its rows; other fields stay.

    Args:
        record: The record.
        facts: Its per-fact rows.
        metric: The metric of the ratios; by default the record's own.

    Raises:
        DataError: The rows are not those of such a record.
        UnknownNameError: There is no such metric.
    """
    again = with_figures(record, facts, metric or record.metric)
    if (planted := again.planted) is None:
        return again
    effect, effects = best_effects(again, facts)  # they depend on the metric
    prompts = {name: effects[name] for name in planted.prompts}
    return with_planted(again, planted.model_copy(update={"effect": effect, "prompts": prompts}))


def with_figures(result: Result, facts: pa.Table, metric: str | None) -> Record:
    """The record of a result: every figure follows from its rows; of a plant see `with_planted`.

    Args:
        result: The result.
        facts: Its per-fact rows, sorted.
        metric: The metric of the ratios; None for the usual one.

    Raises:
        DataError: The rows are not those of such a result.
        UnknownNameError: There is no such metric.
    """
    what, reasons, absent = result.identity, result.not_applicable.items(), {}
    ran, budgets = spans(facts) if reasons else {}, budgets_in(what.configurations)
    for prompt in what.prompts:
        absent[prompt] = {name: why for name, why in reasons if (prompt, name) not in ran}
    expressed = all(map(budgets.keys().isdisjoint, absent.values()))
    summary = summarize(
        facts,
        metric=metric,
        complements=complements(what.configurations, result.floor),
        dropped=dict.fromkeys(what.prompts, sum(result.dropped.values())),
        budgets=budgets if expressed else None,
        absent=absent,
        limited=what.limited,
        of_names=what.readout is None,
    )
    return Record.model_construct(**{**dict(result), **vars(summary)})


def budgets_in(configurations: Sequence[str]) -> dict[str, float]:
    """Those of the curve and their budgets in per cent, ascending."""
    tops = map(parse_top, configurations)
    return budget_labels(sorted({top.percent for top in tops if top and top.percent is not None}))


# ------------------------------------------------------------------------------------- plants

Place = tuple[object, ...]
"""A block, a layer's attention or FFN; where facts were planted at some tokens, with a region."""


@dataclass(frozen=True)
class Ground:
    """Ground truth of a plant: the blocks that learned the facts."""

    plant: str
    """Graft expression."""
    decoy: str | None
    """Graft expression of where other facts were planted."""
    sites: Collection[Site]
    """All sites of the pair on the prompts."""
    planted: Collection[Site]
    changed: Collection[tuple[int | None, str]]
    """(layer, component) whose weights differ between recipient and donor."""

    @cached_property
    def graft(self) -> Graft:
        """The plant as a graft."""
        return canonical(parse_graft(self.plant))

    @cached_property
    def everywhere(self) -> bool:
        """Whether facts were planted at all tokens, so that a place is a block."""
        return all(str(term.positions) == "ALL" for term in self.graft.terms)

    @cached_property
    def moved(self) -> frozenset[Place]:
        """Places whose weights changed."""
        return self._changed(self.sites)

    @cached_property
    def true(self) -> frozenset[Place]:
        """Those of planted sites."""
        return self._changed(self.planted)

    @cached_property
    def places(self) -> Mapping[Site, Place]:
        """The unit that each site belongs to; a site in no block is not there."""
        places: dict[Site, Place] = {}
        for site in self.sites:
            if (block := block_of((site.layer, site.component))) is not None:
                places[site] = block if self.everywhere else (*block, site.region)
        return places

    def _changed(self, sites: Collection[Site]) -> frozenset[Place]:
        weights = set(self.changed)
        changed = (site for site in sites if (site.layer, site.component) in weights)
        return frozenset(self.places[site] for site in changed if site in self.places)


def against_truth(ground: Ground, scores: SiteScores | None, why_none: str = "") -> dict[str, Any]:
    """Fields of `Planted` from a map of scores, all among places whose weights changed.

    Args:
        ground: The ground truth.
        scores: The map; None where the method does not rank.
        why_none: Why it does not.
    """
    places = sorted(ground.moved, key=str)
    truth = np.array([place in ground.true for place in places])
    precision = Estimate.missing(NOT_APPLICABLE + why_none)
    if scores is not None:
        ranked = by_place(scores, ground)
        precision = average_precision(np.array([ranked[place] for place in places]), truth)
    chance = chance_precision(truth)
    return {
        "plant": ground.plant,
        "decoy": ground.decoy,
        "units": "block" if ground.everywhere else "block and region",
        "n_units": len(ground.moved),
        "n_true": len(ground.true),
        "k": len(ground.planted),
        "average_precision": precision.rounded(),
        "chance": None if chance is None else rounded(chance),
    }


def by_place(scores: SiteScores, ground: Ground) -> dict[Place, float]:
    """The largest score of the sites of each place.

    Args:
        scores: The map.
        ground: The truth, by the places of which it is.
    """
    places: dict[Place, float] = {}
    for site, score in scores.items():
        if (place := ground.places.get(site)) is not None:
            places[place] = max(score, places.get(place, -np.inf))
    return places


CARRIES, NOT = 0.9, 0.1
"""Recovery from which a pathway carries the facts, and up to which it does not."""

OTHER = {"FE": "LT", "LT": "FE", "FE+LT": "(FE+LT)^C"}
"""The pathway that carries nothing of facts planted in another one."""


def judged(result: Result, facts: pa.Table, ground: Ground) -> Planted:
    """A result against the ground truth; its pathways are compared in `with_planted`.

    Args:
        result: The result.
        facts: Its per-fact rows.
        ground: The ground truth.
    """
    effect, effects = best_effects(result, facts)
    return Planted(
        **against_truth(ground, result.by_site, result.not_applicable.get(BEST, "")),
        effect=effect,
        prompts={name: effects[name] for name in result.identity.prompts},
    )


def with_planted(record: Record, planted: Planted) -> Record:
    """The record with its comparison with the ground truth, of which its verdict has a sentence.

    Args:
        record: The record, as of `with_figures`.
        planted: The comparison.
    """
    pathways = None
    if planted.units != "block":
        pathways = pathways_of(record, canonical(parse_graft(planted.plant)))
    planted = planted.model_copy(update={"pathways": pathways})
    sentence = f"{_on_the_truth(planted)} {record.verdict}"
    return record.model_copy(update={"planted": planted, "verdict": sentence})


def best_effects(record: Result, facts: pa.Table) -> tuple[Effect, dict[str, Effect]]:
    """Effects of the best-ranked sites, pooled over the prompts and on each.

    Pooled, the score of a fact is its sum over the prompts that all share, so that means and their
    ratios are those over all (fact, prompt), while intervals are over facts.
    """
    if (reason := record.not_applicable.get(BEST)) is not None:
        nothing = Estimate.missing(NOT_APPLICABLE + reason)
        absent = Effect(sufficiency=nothing, necessity=nothing)
        return absent, dict.fromkeys(record.identity.prompts, absent)
    rows = pc.is_in(facts["graft"], pa.array([*BASELINES, BEST, REST]))
    prompts = by_prompt(facts_table(facts.filter(rows)), ())

    def effect(scores: Scores) -> Effect:
        return Effect(
            sufficiency=sufficiency(scores, BEST), necessity=necessity(scores, BEST, {BEST: REST})
        )

    shared = reduce(_common, [prompt.facts for prompt in prompts])
    first, *others = (prompt.scores(record.metric, shared) for prompt in prompts)
    sums = {graft: numbers(values) for graft, values in first.items()}
    for scores in others:
        sums = {
            name: values + numbers(scores[name]) for name, values in sums.items() if name in scores
        }
    return effect(sums), {p.name: effect(p.scores(record.metric)) for p in prompts}


def _common(first: Array, second: Array) -> Array:
    """Facts that two prompts have, both in order."""
    return first if np.array_equal(first, second) else np.intersect1d(first, second)


def pathways_of(record: Record, plant: Graft) -> dict[str, Pathway] | None:
    """By prompt, whether only the planted pathway carries the facts; None without a graft."""
    positions = {str(term.positions) for term in plant.terms}
    planted = next(iter(positions)) if len(positions) == 1 else ""
    other = OTHER.get(planted, "")
    pathways = {}
    for prompt, rows in record.by_prompt.items():
        if planted in rows and other in rows:
            pathways[prompt] = _pathway(rows[planted], rows[other])
    return pathways or None


def _pathway(planted: Row, other: Row) -> Pathway:
    mine, theirs = planted.sufficiency, other.sufficiency
    outcome: Literal["identified", "not identified", "undecided", "not applicable"] = "undecided"
    if not (planted.applicable and other.applicable):
        outcome = "not applicable"
    if (mine.low or 0.0) >= CARRIES and theirs.high is not None and theirs.high <= NOT:
        outcome = "identified"
    elif (mine.high is not None and mine.high < CARRIES) or (theirs.low or 0.0) > NOT:
        outcome = "not identified"
    return Pathway(
        planted=planted.graft,
        other=other.graft,
        recovery_planted=mine,
        recovery_other=theirs,
        outcome=outcome,
    )


def verdict_of(record: Record) -> str:
    """Verdict from a record's figures; the stored one may have an older version's wording."""
    metric = record.metric
    doubts = priors_of(record).doubts(metric)
    sentence = verdict(record.rows, metric, record.curve, doubts, record.contrast)
    return sentence if record.planted is None else f"{_on_the_truth(record.planted)} {sentence}"


def _on_the_truth(planted: Planted) -> str:
    """How well the truth is found, in a sentence."""
    precision = planted.average_precision
    if precision.value is None:
        reason = reason_text(precision.undefined or "")
        return f"How well the blocks are found that learned the facts is undefined: {reason}."
    noun = "blocks" if planted.units == "block" else "(block, region)"
    sentence = (
        f"Among the {planted.n_units} {noun} whose weights changed the ranking finds those that "
        f"learned the facts with an average precision of {figure_text(precision)}"
    )
    if planted.chance is not None:
        sentence += f", where chance has {number_text(planted.chance)}"
    return f"{sentence}."
