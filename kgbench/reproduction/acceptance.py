"""The positive control: criteria of the paper's mechanism that a pair shows, by training seed.

Criteria bound mean top-5 hit rates over facts under one training seed; they are in `page.toml` and
were set before the pairs were built. A pair shows a criterion that is kept under all of its seeds
but one; of a single seed, under that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kgbench.numbers import number_text
from kgbench.reproduction.measurements import PairRows, columns_of
from kgbench.reproduction.page import Criterion, Page

__all__ = ["Result", "is_kept", "results"]

Rates = Mapping[str, float]
"""Mean hit rates by the paper's name of a configuration."""

_ROUNDING = 1e-9
"""Of means over facts, which are multiples of 1 / facts."""


def is_kept(criterion: Criterion, rates: Rates) -> bool:
    """Whether rates keep all bounds; `ge` and `le` but for rounding, `gt` and `lt` beyond it."""
    value = rates[criterion.first]
    if criterion.second:
        value -= criterion.share * rates[criterion.second]
    for op, bound in criterion.bounds.items():
        margin = value - bound if op in ("ge", "gt") else bound - value
        least = -_ROUNDING if op in ("ge", "le") else _ROUNDING
        if margin < least:
            return False
    return True


def _text(criterion: Criterion, rates: Mapping[str, Rates]) -> str:
    """The rates of a criterion, by prompt where there are several."""
    texts = []
    for prompt, own in rates.items():
        terms = ", ".join(f"{term} {number_text(own[term])}" for term in criterion.terms)
        texts.append(f"{prompt}: {terms}" if len(rates) > 1 else terms)
    return "; ".join(texts)


@dataclass(frozen=True)
class Result:
    """A criterion on a pair."""

    criterion: Criterion
    rates: Mapping[int, Mapping[str, Rates]]
    """By training seed and prompt."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Seeds under which it is kept on all prompts."""
        kept = []
        for seed, rates in self.rates.items():
            if all(is_kept(self.criterion, own) for own in rates.values()):
                kept.append(seed)
        return tuple(kept)

    @property
    def needed(self) -> int:
        """Seeds under which it is to be kept."""
        return max(1, len(self.rates) - 1)

    @property
    def shown(self) -> bool:
        """Whether the pair shows it."""
        return len(self.kept) >= self.needed

    def figures(self) -> dict[str, str]:
        """Its rates as text, by training seed."""
        return {str(seed): _text(self.criterion, own) for seed, own in self.rates.items()}


def results(measured: PairRows, page: Page) -> tuple[Result, ...]:
    """All criteria with rows of their evaluation.

    Args:
        measured: The rows of a pair.
        page: The page of the figures.
    """
    found = []
    for criterion in page.criteria:
        figure = page.figures[criterion.figure]
        seeds = measured.about.seeds_of(figure.evaluation)
        if not seeds:
            continue
        columns = columns_of(measured, figure.evaluation)
        grafts = {"PRE": "PRE", "SFT": "SFT", **page.rows[figure.rows]}
        rates: dict[int, dict[str, Rates]] = {seed: {} for seed in seeds}
        for prompt in criterion.prompts:
            for seed, own in zip(seeds, columns[prompt], strict=True):
                scores = own.scores("top5")
                means = {term: float(scores[grafts[term]].mean()) for term in criterion.terms}
                rates[seed][prompt] = means
        found.append(Result(criterion, rates))
    return tuple(found)
