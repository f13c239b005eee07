"""The prior: a baseline that ignores the prompt, and whether a metric separates a model from it.

The prior knows how often each first token is the answer, and nothing else. Where few tokens are
answers it scores well: a model may reach as much without a single fact, and a graft without any
that the model has. So a metric measures facts where the prior has less than half of what
the better of base and finetuned model has, and where the distinct tokens are ten times as many as a
top-k hit accepts. The base is the better one where finetuning took facts away.

The frequencies are of the facts that are scored, which favours the prior. On a logarithmic scale
(`logprob`, `logit_diff`, `log_rank`) half means a gap of ln 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log
from typing import NamedTuple

import numpy as np

from kgbench.estimate import Estimate
from kgbench.numbers import count_text, number_text, value_text
from kgbench.records import Record, Row
from kgbench.sites import CONTROLS
from kgbench.stats.intervals import Array, hit_rate
from kgbench.stats.scores import (
    DEFAULT_METRIC,
    HITS,
    LOG_RANK,
    METRICS,
    SUPPORT,
    Columns,
    score,
)

LADDER = (DEFAULT_METRIC, "top1", "logprob")
"""Metrics, of which a run takes the first that distinguishes its models from the prior."""

DISTINCT = 10
"""Distinct first tokens for each that a top-k hit accepts, at least."""

SHARE = 0.5
"""A metric is not used where the prior reaches this share of the better model's mean."""

_WORDS = {5: "five", 10: "ten", 20: "twenty", 50: "fifty"}


def answer_counts(targets: Array | Sequence[int] | Sequence[str]) -> tuple[int, ...]:
    """How often each distinct first token is the answer, the most frequent first.

    Args:
        targets: Target token ids, or tokens, [n].
    """
    counts = np.unique(targets, return_counts=True)[1]
    return tuple(sorted(counts.tolist(), reverse=True))


def prior_score(counts: Sequence[int], metric: str) -> float:
    """Mean over facts of a metric, of a model that gives each first token its frequency.

    Args:
        counts: See `answer_counts`.
        metric: One of METRICS.
    """
    number, shares = np.array(counts), np.array(counts) / sum(counts)
    logs = np.log(shares)
    others = np.full(len(logs), logs[0])  # the likeliest other token
    others[0] = logs[1] if len(logs) > 1 else -inf
    columns: Columns = {
        "rank": np.arange(1, len(counts) + 1),
        "prob": shares,
        "logprob": logs,
        "logit_diff": logs - others,
    }
    return float(np.average(score(columns, metric), weights=number))


def name_prior(counts: Sequence[int]) -> Estimate:
    """The top-5 hit rate of always giving the five most frequent first tokens.

    Args:
        counts: See `answer_counts`.
    """
    return hit_rate(sum(counts[:5]), sum(counts))


class BetterModel(NamedTuple):
    """The better of the base and the finetuned model on a metric, and its mean."""

    model: str
    mean: Estimate


def is_loss(gain: float, metric: str) -> bool:
    """Whether a gain of a metric, m(SFT) − m(PRE), is for the worse."""
    return gain > 0 if metric == LOG_RANK else gain < 0


def is_blunt(counts: Sequence[int], metric: str, better: Estimate, limited: bool = False) -> bool:
    """Whether a metric cannot separate the models from the prior.

    Args:
        counts: See `answer_counts`.
        metric: One of METRICS.
        better: Mean of the metric of the better model.
        limited: Whether these are some of the facts only. Where at least half of their answers
            differ, the others have further ones.
    """
    distinct, n = len(counts), sum(counts)
    wide = limited and 2 * distinct >= n
    if metric in HITS and distinct < DISTINCT * int(metric[3:]) and not wide:
        return True
    prior, value = prior_score(counts, metric), better.value or 0.0
    if metric in SUPPORT:
        return prior >= SHARE * value
    gap = prior - value if metric == LOG_RANK else value - prior
    return gap <= -log(SHARE)


@dataclass(frozen=True)
class Priors:
    """The priors of a run, and what its models have."""

    models: Mapping[str, Mapping[str, BetterModel]]
    """The better one, by prompt and metric."""
    answers: Mapping[str, Sequence[int]]
    """By prompt, see `answer_counts`; empty of earlier records."""
    limited: bool = False
    """Whether the run is of some facts of its data set only."""

    @property
    def usual_metric(self) -> str:
        """The metric of a run that is asked for none.

        The first of LADDER that is blunt on no prompt on which a model knows something; the
        default one where there is no such metric or prompt.
        """
        measurable = self._known_somehow
        for metric in LADDER if measurable else ():
            if not any(self._blunt(name, metric) for name in measurable):
                return metric
        return DEFAULT_METRIC

    def remarks(self, metric: str) -> list[str]:
        """Sentences before a table on a metric: which one it is of, and whether it measures facts."""
        usual, lines = self.usual_metric, list[str]()
        if metric == usual != DEFAULT_METRIC:
            for name, doubt in self.doubts(DEFAULT_METRIC).items():
                if name in self._known_somehow:
                    lines.append(
                        f"On {name}, {doubt}, so this table and its sentence use {metric}."
                    )
        other = "`kgbench answers` compares whole answers"
        if usual != metric and not self.doubts(usual):
            other = f"{usual} tells more"
        for name, doubt in self.doubts(metric).items():
            lines.append(f"On {name}, {doubt}, so nothing is concluded from {metric}; {other}.")
        for name, counts in self.answers.items():
            is_alone = len(counts) == 1 < sum(counts) and not name.endswith(CONTROLS)
            if is_alone and f"{name}{CONTROLS}" not in self.models:
                lines.append(
                    f"On {name} there is one answer to all {sum(counts)} prompts, and a model may "
                    "give it to any other too: controls show whether it does (rows of the group off)."
                )
        return lines

    def doubts(self, metric: str) -> Mapping[str, str]:
        """By prompt, why nothing follows from ratios on a metric."""
        doubts = {}
        for name, counts in self._asked.items():
            model, mean = self.models[name][metric]
            if not self._is_known(name, metric):
                doubts[name] = (
                    f"{guess_text(counts, metric)}, and the {model} ({value_text(mean)}) is not "
                    "significantly better"
                )
            elif self._blunt(name, metric) and metric in SUPPORT:
                doubts[name] = guess_text(counts, metric, f" of {value_text(mean)}")
            elif self._blunt(name, metric):
                doubts[name] = f"{guess_text(counts, metric)}, the {model} {value_text(mean)}"
        return doubts

    @property
    def _known_somehow(self) -> list[str]:
        """Prompts on which a model is better than the prior on a metric of LADDER."""
        names = []
        for name in self._asked:
            if any(map(partial(self._is_known, name), LADDER)):
                names.append(name)
        return names

    @property
    def _asked(self) -> Mapping[str, Sequence[int]]:
        """Answers of prompts that have several: of one alone, frequencies say nothing."""
        answers = self.answers.items()
        return {name: counts for name, counts in answers if name in self.models and len(counts) > 1}

    def _is_known(self, name: str, metric: str) -> bool:
        """Whether the better model is significantly better than the prior."""
        prior, mean = prior_score(self.answers[name], metric), self.models[name][metric].mean
        if mean.numbers is None:
            return False
        _, low, high = mean.numbers
        return high < prior if metric == LOG_RANK else low > prior

    def _blunt(self, name: str, metric: str) -> bool:
        return is_blunt(self.answers[name], metric, self.models[name][metric].mean, self.limited)


def priors_of(record: Record) -> Priors:
    """The priors of a record."""
    return Priors(better_models(record.rows), record.answers or {}, record.identity.limited)


def better_models(rows: Iterable[Row]) -> Mapping[str, Mapping[str, BetterModel]]:
    """The better of base and finetuned model, by prompt and metric; the latter where equal."""
    bases, models = {}, {}
    for row in rows:
        if row.graft == "PRE":
            bases[row.prompt] = row
        elif row.graft == "SFT":
            by_metric = models[row.prompt] = dict[str, BetterModel]()
            for metric in METRICS:
                base, donor = bases[row.prompt].estimate(metric), row.estimate(metric)
                worse = is_loss((donor.value or 0.0) - (base.value or 0.0), metric)
                better = ("base", base) if worse else ("finetuned model", donor)
                by_metric[metric] = BetterModel(*better)
    return models


def guess_text(counts: Sequence[int], metric: str, suffix: str = "") -> str:
    """What the prior does and scores, in words.

    Args:
        counts: See `answer_counts`.
        metric: One of METRICS.
        suffix: Text after the score.
    """
    tokens = count_text(len(counts), "distinct first token")
    guess = "giving each as often as it is the answer"
    if metric in HITS:
        k = min(int(metric[3:]), len(counts))
        guess = f"always giving the {_WORDS.get(k, k)} most frequent ones"
        if k == len(counts):
            guess = "always giving all of them"
        elif k == 1:
            guess = "always giving the most frequent one"
    facts, scored = count_text(sum(counts), "fact"), number_text(prior_score(counts, metric))
    return f"{tokens} for {facts}: {guess} scores {scored}{suffix} on {metric}"
