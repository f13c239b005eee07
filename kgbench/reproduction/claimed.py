"""The paper's claims about a figure, one by one, beside what its own figures say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from kgbench.effects.columns import by_prompt
from kgbench.effects.contrasts import between_configurations
from kgbench.leaderboard.published import PublishedRow, published
from kgbench.records import Estimate, Record
from kgbench.reproduction.page import ClaimSpec, FigureSpec, Page
from kgbench.testing.decisions import OPERATORS, decide

__all__ = ["Checked", "checked", "published_rates"]

_DRAWS = 2000
_SAME = {"headline": ("headline_v1", "headline"), "movie_title": ("movie_title_v1", "movie_title")}
"""Our prompts, and under which names the paper's runs of them stand."""


@dataclass(frozen=True)
class Checked:
    """A claim on one prompt."""

    prompt: str
    claim: ClaimSpec
    difference: Estimate
    outcome: Literal["holds", "fails", "undecided"]
    paper: Mapping[str, float]
    """The difference of the paper's top-5 rates, of each of its models."""

    @property
    def in_paper(self) -> Mapping[str, bool]:
        """Whether each of the paper's models keeps the claim, by its rates as they stand."""
        return {model: all(OPERATORS[op](value, bound) for op, bound in self.claim.bounds.items()) for model, value in self.paper.items()}


def checked(figure: FigureSpec, page: Page, record: Record, facts: pa.Table, dataset: str) -> list[Checked]:
    """All claims of a figure.

    Differences are of recoveries: m(first) - m(second) over m(SFT) - m(PRE), by fact; of the mean rank they are those of the mean
    reciprocal rank, since a mean rank is that of a few facts; the paper has none of that.

    Args:
        figure: The figure.
        page: The page that it stands on.
        record: Its evaluation.
        facts: The evaluation's per-fact rows.
        dataset: The shipped data set whose facts they are.
    """
    metric = "mrr" if figure.metric == "rank" else figure.metric
    columns = {prompt.name: prompt for prompt in by_prompt(facts, (), _DRAWS, record.identity.seeds[0])}
    rows = page.rows[figure.rows]
    found = []
    for prompt in figure.prompts:
        rates = published_rates(figure, dataset, prompt) if metric == "top5" else {}
        for claim in page.claims_of(figure):
            first, second = (rows.get(name, name) for name in (claim.first, claim.second))
            difference = Estimate(**between_configurations(columns[prompt], metric, first, second, claim.share).to_json())
            found.append(Checked(prompt, claim, difference, _outcome(difference, claim), _in_rates(rates, claim)))
    return found


def _outcome(difference: Estimate, claim: ClaimSpec) -> Literal["holds", "fails", "undecided"]:
    outcomes = [decide(difference, op, bound).outcome for op, bound in claim.bounds.items()]
    return "fails" if "fails" in outcomes else "undecided" if "undecided" in outcomes else "holds"


def published_rates(figure: FigureSpec, dataset: str, prompt: str) -> dict[str, dict[str, PublishedRow]]:
    """The paper's figures of one prompt: by model, then by the paper's name of the configuration."""
    if figure.published is None:
        return {}
    rows = [row for row in published() if (row.experiment, row.dataset) == (figure.published, dataset)]
    name = next((name for name in _SAME.get(prompt, (prompt,)) if any(row.prompt == name for row in rows)), None)
    found: dict[str, dict[str, PublishedRow]] = {}
    for row in rows:
        # In the experiment from one direction to both, PRE is not the recipient of the grafts, whose own figures are not given.
        if row.prompt == name and (figure.published, row.named) != ("reversal", "PRE"):
            found.setdefault(row.model, {})[row.named] = row
    return found


def _in_rates(rates: Mapping[str, Mapping[str, PublishedRow]], claim: ClaimSpec) -> dict[str, float]:
    known = {model: {name: row.top5 for name, row in rows.items()} for model, rows in rates.items()}
    needed = {claim.first, claim.second} | ({"PRE"} if claim.share != 1 else set())
    return {model: _rate_difference(rate, claim) for model, rate in known.items() if needed <= set(rate)}


def _rate_difference(rate: Mapping[str, float], claim: ClaimSpec) -> float:
    if claim.share == 1:
        return rate[claim.first] - rate[claim.second]
    return (rate[claim.first] - rate["PRE"]) - claim.share * (rate[claim.second] - rate["PRE"])
