"""The words for places in a model and a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

__all__ = [
    "BASELINES",
    "COMPONENTS",
    "CONFIGURATIONS",
    "GROUPS",
    "LAYER_GROUPS",
    "OUTSIDE",
    "PATHWAYS",
    "PER_LAYER",
    "RECIPIENT",
    "REGIONS",
    "SCORED_REGIONS",
    "SYNONYMS",
    "Site",
    "SiteScores",
    "partition",
    "scored_positions",
]

REGIONS = ("FE", "LT", "M", "R", "RP", "P", "BOS")
"""Named token spans of a prompt; they may overlap and need not cover it."""

SCORED_REGIONS = ("LT", "FE", "M", "RP", "R", "P", "BOS", "REST")
"""A partition of a prompt's tokens for scoring: the first that applies to a token."""

PER_LAYER = (
    "ln_1",
    "q_norm",
    "k_norm",
    "q",
    "k",
    "v",
    "o",
    "ln_1_post",
    "ln_2",
    "gate",
    "up",
    "down",
    "ln_2_post",
)
"""Weight-bearing parts of a layer, in the order of computation."""

OUTSIDE = ("emb", "pos", "ln_f", "head")
"""Weight-bearing parts outside the layers."""

COMPONENTS = (*OUTSIDE[:2], *PER_LAYER, *OUTSIDE[2:])

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attn": ("q_norm", "k_norm", "q", "k", "v"),
    "ffn": ("gate", "up", "down"),
    "ln": ("ln_1", "ln_1_post", "ln_2", "ln_2_post"),
    "all": (*OUTSIDE[:2], *PER_LAYER),
}
"""Names for several components; `all` holds neither final norm nor head."""

SYNONYMS: Mapping[str, str] = {
    "mlp": "ffn",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "embed_tokens": "emb",
    "lm_head": "head",
}
"""Hugging Face's names of components and groups, which a graft expression may use; they are read as ours."""

LAYER_GROUPS: Mapping[str, tuple[Fraction, Fraction]] = {
    "first_half": (Fraction(0), Fraction(1, 2)),
    "second_half": (Fraction(1, 2), Fraction(1)),
    "first_quarter": (Fraction(0), Fraction(1, 4)),
    "second_quarter": (Fraction(1, 4), Fraction(1, 2)),
    "third_quarter": (Fraction(1, 2), Fraction(3, 4)),
    "fourth_quarter": (Fraction(3, 4), Fraction(1)),
}

BASELINES = ("PRE", "SFT")
"""Configurations that are no graft: the recipient and the donor by themselves."""

PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
CONFIGURATIONS = (*BASELINES, "ALL", *PATHWAYS)
"""The default suite, in the paper's order."""

RECIPIENT = "recipient"
"""The reserved donor name that puts the recipient's weights back."""


class Site(NamedTuple):
    """What a localizer scores and an intervention addresses."""

    layer: int | None
    """None outside the layers."""
    component: str
    region: str
    """One of `SCORED_REGIONS`."""


SiteScores = Mapping[Site, float]
"""How responsible each site is; higher is more."""


def partition(regions: Mapping[str, Sequence[int]], n: int) -> list[str]:
    """The region that each token of a prompt is scored under.

    Args:
        regions: Token indices of each region of the prompt.
        n: Number of tokens.
    """
    found = ["REST"] * n
    for region in reversed(SCORED_REGIONS[:-1]):
        for token in regions.get(region, ()):
            found[token] = region
    return found


def scored_positions(region: str, regions: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """The positions expression of the tokens that are scored under a region.

    Args:
        region: One of `SCORED_REGIONS`.
        regions: For each prompt, the token indices of its regions; all prompts have regions of the same names.
    """
    names = [
        name
        for name in SCORED_REGIONS[: SCORED_REGIONS.index(region)]
        if any(name in each for each in regions)
    ]
    if region == "REST":
        return f"({'+'.join(names)})^C"
    overlapping = [
        name
        for name in names
        if any(set(each.get(name, ())) & set(each.get(region, ())) for each in regions)
    ]
    return f"({'+'.join([f'{region}^C', *overlapping])})^C" if overlapping else region
