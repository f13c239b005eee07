"""The positive control: criteria of the paper's mechanism that a pair shows, by training seed.

Criteria are about mean top-5 hit rates over facts, each under one training seed, with bounds that
were set before the pairs were built. A pair shows a criterion that is kept under all of its seeds
but one; of a single seed, under that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kgbench.numbers import number_text
from kgbench.reproduction.measurements import PairRows, columns_of
from kgbench.reproduction.page import Page

__all__ = ["CRITERIA", "Criterion", "Result", "results"]

Rates = Mapping[str, float]
"""Mean hit rates by the paper's name of a configuration."""

_ALL_PROMPTS = ("headline", "qa", "movie_title", "new_film")
_ROUNDING = 1e-9
"""Of means over facts, which are multiples of 1 / facts."""
_SUFFICES, _LEFT = 0.95, 0.03
_RECALLS, _MOST_OF_IT, _LITTLE = 0.4, 0.75, 0.15


@dataclass(frozen=True)
class Criterion:
    """One property of the paper's mechanism."""

    name: str
    title: str
    figure: str
    """A figure with its configurations."""
    prompts: tuple[str, ...]
    """It is to be kept on each of them."""
    terms: tuple[str, ...]
    """Its configurations."""
    kept: Callable[[Rates], bool]

    def text(self, rates: Mapping[str, Rates]) -> str:
        """Its rates, by prompt where there are several."""
        texts = []
        for prompt, own in rates.items():
            terms = ", ".join(f"{term} {number_text(own[term])}" for term in self.terms)
            texts.append(f"{prompt}: {terms}" if len(rates) > 1 else terms)
        return "; ".join(texts)


def _positions(name: str, figure: str, whose: str) -> tuple[Criterion, Criterion]:
    suffices = Criterion(
        f"{name}_suffice",
        f"{whose}: FE+LT ≥ .95 of SFT",
        figure,
        _ALL_PROMPTS,
        ("FE+LT", "SFT"),
        lambda rates: rates["FE+LT"] >= _SUFFICES * rates["SFT"] - _ROUNDING,
    )
    nothing = Criterion(
        f"{name}_complement",
        f"{whose}: (FE+LT)^C ≤ PRE + .03",
        figure,
        _ALL_PROMPTS,
        ("(FE+LT)^C", "PRE"),
        lambda rates: rates["(FE+LT)^C"] <= rates["PRE"] + _LEFT + _ROUNDING,
    )
    return suffices, nothing


_WHOLE, _NO_ATTN, _ATTN = "ATTN+O+FFN", "O+FFN", "ATTN+O"
_WITH, _WITHOUT = "hybrid, ATTN at FE", "hybrid, nothing at FE"

CRITERIA = (
    *_positions("known", "figure-2", "known actors"),
    *_positions("unknown", "figure-10", "unknown actors"),
    Criterion(
        "reversal_recalls",
        "one direction to both, at LT: ATTN+O+FFN ≥ .4",
        "figure-4",
        ("headline",),
        (_WHOLE,),
        lambda rates: rates[_WHOLE] >= _RECALLS - _ROUNDING,
    ),
    Criterion(
        "reversal_o_ffn",
        "one direction to both, at LT: O+FFN ≥ .75 of ATTN+O+FFN",
        "figure-4",
        ("headline",),
        (_NO_ATTN, _WHOLE),
        lambda rates: rates[_NO_ATTN] >= _MOST_OF_IT * rates[_WHOLE] - _ROUNDING,
    ),
    Criterion(
        "reversal_ffn",
        "one direction to both, at LT: FFN below O+FFN",
        "figure-4",
        ("headline",),
        ("FFN", _NO_ATTN),
        lambda rates: rates["FFN"] < rates[_NO_ATTN] - _ROUNDING,
    ),
    Criterion(
        "reversal_attn_o",
        "one direction to both, at LT: ATTN+O ≤ .15",
        "figure-4",
        ("headline",),
        (_ATTN,),
        lambda rates: rates[_ATTN] <= _LITTLE + _ROUNDING,
    ),
    Criterion(
        "hybrid_attn",
        "hybrid: ATTN at FE above nothing at FE",
        "figure-5",
        ("headline",),
        (_WITH, _WITHOUT),
        lambda rates: rates[_WITH] > rates[_WITHOUT] + _ROUNDING,
    ),
)


@dataclass(frozen=True)
class Result:
    """A criterion on a pair."""

    criterion: Criterion
    rates: Mapping[int, Mapping[str, Rates]]
    """By training seed and prompt."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Seeds under which it is kept on all prompts."""
        kept = self.criterion.kept
        return tuple(seed for seed, own in self.rates.items() if all(map(kept, own.values())))

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
        return {str(seed): self.criterion.text(own) for seed, own in self.rates.items()}


def results(measured: PairRows, page: Page) -> tuple[Result, ...]:
    """All criteria with rows of their evaluation.

    Args:
        measured: The rows of a pair.
        page: The page of the figures.
    """
    found = []
    for criterion in CRITERIA:
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
