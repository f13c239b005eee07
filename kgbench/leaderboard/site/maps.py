"""The localization map of a run, as compactly as a picture allows."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kgbench.leaderboard.site.cells import short
from kgbench.leaderboard.site.links import DIGITS
from kgbench.leaderboard.validate.recomputation import planted_sites
from kgbench.records import Record
from kgbench.sites import COMPONENTS, OUTSIDE, SCORED_REGIONS, Site, parse_graft

__all__ = ["map_data"]

_STEPS = 4094


def map_data(record: Record) -> dict[str, Any] | None:
    """Two characters per site: by region, by component, by layer, with one place for a component outside the layers.

    A score is its step of 4,094 between the least and the largest; `..` stands where the model has
    no such site, and `AB(7)` for seven times `AB`.
    """
    if not record.scores:
        return None
    found = {Site(s.layer, s.component, s.region): s.score for s in record.scores}
    regions = [region for region in SCORED_REGIONS if any(site.region == region for site in found)]
    components = [name for name in COMPONENTS if any(site.component == name for site in found)]
    layers = sorted({site.layer for site in found if site.layer is not None})
    low, high = min(found.values()), max(found.values())
    sites = [
        Site(layer, c, r)
        for r in regions
        for c in components
        for layer in ([None] if c in OUTSIDE else layers)
    ]
    grid = _repeated([_step(found.get(site), low, high) for site in sites])
    parts = {
        "regions": " ".join(regions),
        "components": " ".join(components),
        "layers": layers,
        "ends": [short(low), short(high)],
        "grid": grid,
    }
    return {**parts, **_planted(record, sites)}


def _planted(record: Record, sites: list[Site]) -> dict[str, list[int]]:
    """Which of them were planted, as starts and ends of stretches."""
    if record.planted is None:
        return {}
    true = planted_sites(
        sites, parse_graft(record.planted.plant), len({site.layer for site in sites} - {None})
    )
    inside = [site in true for site in sites]
    return {
        "planted": [
            i
            for i in range(len(inside) + 1)
            if (inside[i - 1] if i else False) != (inside[i] if i < len(inside) else False)
        ]
    }


def _repeated(codes: list[str]) -> str:
    counted = [(code, len(list(same))) for code, same in groupby(codes)]
    return "".join(f"{code}({n})" if n > 2 else code * n for code, n in counted)


def _step(score: float | None, low: float, high: float) -> str:
    if score is None:
        return ".."
    step = round((score - low) / (high - low) * _STEPS) if high > low else 0
    return DIGITS[step // len(DIGITS)] + DIGITS[step % len(DIGITS)]
