"""Figures of scored answers: means over facts with intervals, and what grafts bring of what finetuning added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.answers.scoring import ScoredAnswer
from kgbench.effects import recovery
from kgbench.estimate import Estimate
from kgbench.stats import hit_rate, mean

__all__ = ["FIGURES", "ConfigurationFigures", "PromptFigures", "figures_of"]

TOP = 5
"""Of the hits that recoveries are of, as in `kgbench eval`."""

_SCORES: Mapping[str, Callable[[ScoredAnswer], bool | float]] = {
    "logprob": lambda row: row.logprob,
    "top1": lambda row: row.rank <= 1,
    "top5": lambda row: row.rank <= TOP,
    "mrr": lambda row: 1 / row.rank,
    "first_top5": lambda row: row.first_rank <= TOP,
    "first_prob": lambda row: float(np.exp(row.first_logprob)),
    "alternatives_top5": lambda row: row.alternatives_rank <= TOP,
    "alternatives_prob": lambda row: row.alternatives_prob,
}
_RECOVERIES = {"recovery": "top5", "first_recovery": "first_top5"}

FIGURES = (*_SCORES, *_RECOVERIES)
"""`logprob` (nats), `top1`, `top5` and `mrr` of the whole answer among the candidates; top-5 hit rate and probability of its first token,
and of all first tokens of the name (`alternatives_…`); recovery on `top5` and on `first_top5`."""

_SUPPORT = {"mrr": (0.0, 1.0), "first_prob": (0.0, 1.0), "alternatives_prob": (0.0, 1.0)}
"""Between what these lie; mean log-likelihoods are taken to lie between those of the prompt's configurations."""


@dataclass(frozen=True)
class ConfigurationFigures:
    """The figures of one configuration."""

    graft: str
    figures: Mapping[str, Estimate]
    """By the names in `FIGURES`."""


@dataclass(frozen=True)
class PromptFigures:
    """The figures of one prompt."""

    name: str
    n: int
    """Number of facts."""
    configurations: tuple[ConfigurationFigures, ...]
    colliding: Estimate
    """Share of the answers whose first token is another candidate's too."""
    sharers: float
    """How many other candidates have an answer's first token, on average."""
    several: Estimate
    """Share of the answers that can begin with several tokens."""
    scored: float
    """Share of the candidates that had to be scored to their last token."""


def figures_of(answers: Sequence[ScoredAnswer], n_candidates: int) -> list[PromptFigures]:
    """The figures of each prompt.

    Args:
        answers: Of the same facts under every configuration, in one order.
        n_candidates: Number of candidates.
    """
    prompts = dict.fromkeys(row.prompt for row in answers)
    return [
        _prompt_figures([row for row in answers if row.prompt == prompt], n_candidates)
        for prompt in prompts
    ]


def _prompt_figures(answers: Sequence[ScoredAnswer], n_candidates: int) -> PromptFigures:
    rows = {
        graft: [row for row in answers if row.graft == graft]
        for graft in dict.fromkeys(row.graft for row in answers)
    }
    facts = rows["PRE"]
    figures: dict[str, dict[str, Estimate]] = {graft: {} for graft in rows}
    for name, score in _SCORES.items():
        scores = {graft: np.array([score(row) for row in own]) for graft, own in rows.items()}
        for graft, figure in _means(name, scores).items():
            figures[graft][name] = figure
        for ratio in (ratio for ratio, metric in _RECOVERIES.items() if metric == name):
            for graft in rows:
                figures[graft][ratio] = recovery(scores, graft)
    return PromptFigures(
        facts[0].prompt,
        len(facts),
        tuple(ConfigurationFigures(graft, own) for graft, own in figures.items()),
        hit_rate(sum(row.collisions > 0 for row in facts), len(facts)),
        float(np.mean([row.collisions for row in facts])),
        hit_rate(sum(len(row.alternatives) > 1 for row in facts), len(facts)),
        float(np.mean([row.scored for row in answers])) / n_candidates,
    )


def _means(name: str, scores: Mapping[str, NDArray[Any]]) -> dict[str, Estimate]:
    centres = [float(np.mean(values)) for values in scores.values()]
    support = _SUPPORT.get(name, (min(centres), max(centres)))
    return {graft: mean(values, support) for graft, values in scores.items()}
