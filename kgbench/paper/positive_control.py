"""The positive control: whether a pair keeps the criteria that were set before pairs were built.

Criteria bound mean top-5 hit rates over facts under one training seed; they are in `page.toml`. A
pair shows a criterion that is kept under four of five of its seeds and that is not vacuous, by the
same rule and means as claims are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from kgbench.numbers import number_text
from kgbench.paper.figure_claims import ClaimTerm, larger_term, means_of
from kgbench.paper.figure_specs import Criterion, page
from kgbench.paper.pair_rows import PairRows, columns_of
from kgbench.testing.decisions import OPERATORS

_SHARE = Fraction(4, 5)
"""Of the training seeds of a pair; of fewer than five, all."""

Rates = Mapping[str, float]
"""Mean hit rates by the paper's name of a configuration."""

_DECIMALS = 9
"""Of means over facts, which are multiples of 1 / facts; the others are of rounding."""


def is_kept(criterion: Criterion, rates: Rates) -> bool:
    """Whether rates keep all bounds, but for rounding."""
    value = rates[criterion.first]
    if criterion.second:
        value -= criterion.share * rates[criterion.second]
    value = round(value, _DECIMALS)
    return all(OPERATORS[op](value, bound) for op, bound in criterion.bounds.items())


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
    larger: Mapping[str, ClaimTerm | None]
    """Its larger term by prompt, over facts and seeds; None where finetuning added nothing."""

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
        return math.ceil(_SHARE * len(self.rates))

    @property
    def vacuous(self) -> str:
        """Its larger terms that recover next to nothing as text; empty where it is not vacuous."""
        texts = []
        for prompt, term in self.larger.items():
            if term is not None and not term.is_next_to_nothing:
                continue
            text = "finetuning added nothing"
            if term is not None:
                text = f"{term.name} recovers {number_text(term.recovery)}"
            texts.append(f"{prompt}: {text}" if len(self.larger) > 1 else text)
        return "; ".join(texts)

    @property
    def shown(self) -> bool:
        """Whether the pair shows it."""
        return not self.vacuous and len(self.kept) >= self.needed

    def figures(self) -> dict[str, str]:
        """Its rates as text, by training seed."""
        return {str(seed): _text(self.criterion, own) for seed, own in self.rates.items()}


def results(measured: PairRows) -> tuple[Result, ...]:
    """All criteria of which the rows of a pair hold the evaluation."""
    found = []
    for criterion in page().criteria:
        figure = page().figures[criterion.figure]
        seeds = measured.about.seeds_of(figure.evaluation)
        if not seeds:
            continue
        columns = columns_of(measured, figure.evaluation)
        rates: dict[int, dict[str, Rates]] = {seed: {} for seed in seeds}
        larger, rows = {}, page().rows[figure.rows]
        for prompt in criterion.prompts:
            larger[prompt] = larger_term(criterion, means_of(columns[prompt], "top5", rows))
            for seed, own in zip(seeds, columns[prompt], strict=True):
                rates[seed][prompt] = means_of([own], "top5", rows)
        found.append(Result(criterion, rates, larger))
    return tuple(found)
