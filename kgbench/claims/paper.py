"""What the paper measured: top-5 hit rates of the runs behind its figures (Nief et al., arXiv 2506.20746).

Each row is one finetuned model and one prompt over the same facts about invented movies with real
actors. The published runs filled the prompts headline and movie_title with a doubled "in".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CONFIGURATIONS", "MEASURED", "Measured", "cited"]

CONFIGURATIONS = ("PRE", "SFT", "FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")

_FIGURES = "v1, figures 2, 3a, 6 to 11"
_UNPUBLISHED = "in no figure"


@dataclass(frozen=True)
class Measured:
    """One model on one prompt."""

    model: str
    prompt: str
    where: str
    """The figures that show it."""
    top5: Mapping[str, float]
    """Hit rate of each configuration, as exact as it is known."""


def _measured(model: str, prompt: str, where: str, rates: Sequence[float]) -> Measured:
    return Measured(model, prompt, where, dict(zip(CONFIGURATIONS, rates, strict=True)))


MEASURED = (
    _measured(
        "Gemma",
        "headline",
        _FIGURES,
        (0.0100, 0.9950, 0.1291, 0.5315, 0.9970, 0.0010, 0.2523, 0.0120),
    ),
    _measured(
        "GPT-2 XL",
        "headline",
        _FIGURES,
        (0.0060, 0.9970, 0.2763, 0.0861, 0.9970, 0.0100, 0.1051, 0.5135),
    ),
    _measured(
        "Llama",
        "headline",
        _FIGURES,
        (0.0070, 0.9990, 0.0781, 0.3413, 0.9990, 0.0060, 0.3844, 0.0490),
    ),
    _measured(
        "Pythia",
        "headline",
        _FIGURES,
        (0.0010, 0.9950, 0.0651, 0.0771, 0.9920, 0.0050, 0.2082, 0.0751),
    ),
    _measured(
        "Gemma", "qa", _FIGURES, (0.0130, 0.9970, 0.2122, 0.6116, 0.9970, 0.0030, 0.4595, 0.1201)
    ),
    _measured(
        "GPT-2 XL", "qa", _FIGURES, (0.0270, 0.9990, 0.2212, 0.1241, 0.9990, 0.0260, 0.3674, 0.5065)
    ),
    _measured(
        "Llama", "qa", _FIGURES, (0.0220, 0.9990, 0.1512, 0.3033, 0.9990, 0.0030, 0.3994, 0.1562)
    ),
    _measured(
        "Pythia", "qa", _FIGURES, (0.0170, 0.9980, 0.1742, 0.1021, 0.9950, 0.0220, 0.3033, 0.1882)
    ),
    _measured(
        "Gemma",
        "movie_title",
        _UNPUBLISHED,
        (0.0130, 1.0000, 0.1842, 0.7227, 0.9990, 0.0000, 0.8919, 0.0070),
    ),
    _measured(
        "GPT-2 XL",
        "movie_title",
        _UNPUBLISHED,
        (0.0100, 1.0000, 0.2783, 0.1131, 0.9980, 0.0230, 0.6116, 0.5866),
    ),
    _measured(
        "Llama",
        "movie_title",
        _UNPUBLISHED,
        (0.0100, 1.0000, 0.1001, 0.5896, 1.0000, 0.0060, 0.7638, 0.0260),
    ),
    _measured(
        "Pythia",
        "movie_title",
        _UNPUBLISHED,
        (0.0060, 1.0000, 0.0320, 0.1602, 0.9950, 0.0040, 0.8498, 0.0150),
    ),
    _measured(
        "Gemma, less finetuned",
        "headline",
        "v1, figure 13",
        (0.0100, 0.9880, 0.0761, 0.1682, 0.9860, 0.0130, 0.1171, 0.1151),
    ),
    _measured(
        "Gemma, less finetuned",
        "qa",
        "v1, figure 13",
        (0.0130, 0.9920, 0.0761, 0.1682, 0.9499, 0.0180, 0.1762, 0.1772),
    ),
    _measured(
        "Gemma, less finetuned",
        "movie_title",
        "v1, figure 13",
        (0.0130, 1.0000, 0.0601, 0.2112, 0.9910, 0.0270, 0.3674, 0.1351),
    ),
    _measured(
        "Gemma, less finetuned",
        "new_film",
        _UNPUBLISHED,
        (0.0000, 0.9910, 0.0000, 0.0250, 0.1502, 0.0010, 0.1251, 0.0030),
    ),
)
"""Gemma 1.1 2B, GPT-2 XL, Llama 3.2 1B and Pythia 2.8B, finetuned aggressively but where it says less."""


def cited(row: Measured, configurations: Sequence[str]) -> str:
    """A row as text: `Gemma on headline: SFT 0.9950, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)`."""
    rates = ", ".join(f"{name} {row.top5[name]:.4f}" for name in configurations)
    return f"{row.model} on {row.prompt}: {rates} ({row.where})"
