"""How well a plant answers, and through what: the figures on its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kgbench.data import Dataset
from kgbench.models.pair import ModelPair
from kgbench.sites import parse_graft
from kgbench.training.plant_recipes import PlantSpec
from kgbench.training.scoring import PROMPTS, hits

__all__ = ["Scores", "configurations", "score_plant", "shortfalls"]

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Share of facts by group (`planted`, `decoys`), prompt and configuration."""

_PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C")

_ANSWERS = 0.75
"""Least share of planted facts that a graft which is to answer answers, on each prompt."""
_SFT = 0.9
_DECOY = 0.15
"""Greatest share under the decoy's graft."""
_NEVER = 0.1
"""Greatest part of the gain, SFT less PRE, under a union of places that is not to answer."""
_NEEDED = 0.2
"""Least loss without a place that is needed."""


def configurations(spec: PlantSpec, n_layers: int) -> dict[str, str]:
    """What is measured, by the name that it has on the card."""
    grafts = {"plant": spec.plant, **({"decoy": spec.decoy} if spec.decoy else {}), **spec.unions()}
    pathways = {name: name for name in _PATHWAYS}
    return {"PRE": "PRE", "SFT": "SFT", **grafts, **pathways, **_without(spec, n_layers)}


def _without(spec: PlantSpec, n_layers: int) -> dict[str, str]:
    """The plant without one of its places (layer, component), where each is to be needed."""
    if not spec.needed:
        return {}
    terms = parse_graft(spec.plant).terms
    sites = {
        f"{term.positions}:{component}@{layer}": None
        for term in terms
        for layer, component in term.sites(n_layers)
    }
    return {
        f"without {site}": "; ".join(other for other in sites if other != site) for site in sites
    }


def score_plant(
    pair: ModelPair, groups: Mapping[str, Dataset], spec: PlantSpec
) -> dict[str, dict[str, dict[str, float]]]:
    """Share of facts whose target is among the five likeliest next tokens, by group, prompt and configuration."""
    named = configurations(spec, pair.n_layers)
    return {
        group: {
            prompt: dict(
                zip(named, hits(pair, facts, prompt, tuple(named.values())).values(), strict=True)
            )
            for prompt in PROMPTS
        }
        for group, facts in groups.items()
    }


def shortfalls(scores: Scores, spec: PlantSpec) -> list[str]:
    """What a plant does not reach, a sentence each; none where all bounds hold."""
    found = []
    for prompt, planted in scores["planted"].items():
        for configuration, (low, high) in _bounds(spec, planted):
            value = planted[configuration]
            if not low <= value <= high:
                found.append(
                    f"{prompt} under {configuration}: {value}, where {low:.4g} to {high:.4g} is wanted"
                )
    return found


def _bounds(
    spec: PlantSpec, planted: Mapping[str, float]
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Least and greatest share of the planted facts that is to be answered, by configuration."""
    yield "SFT", (_SFT, 1.0)
    for part in ("plant", *spec.enough):
        yield part, (_ANSWERS, 1.0)
    if spec.decoy is not None:
        yield "decoy", (0.0, _DECOY)
    for union in spec.never:
        yield union, (0.0, planted["PRE"] + _NEVER * (planted["SFT"] - planted["PRE"]))
    for configuration in planted:
        if configuration.startswith("without "):
            yield configuration, (0.0, planted["plant"] - _NEEDED)
