"""Localization maps against plants: AUROC over places, its bootstrap, and paired differences between methods.

A map has one score for each place and none for single facts, so that places are what is resampled: a (layer, component) whole, with all of
its regions, planted ones and others apart. Over several plants, plants are drawn first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.leaderboard.validate.planted import planted_sites
from kgbench.records import Estimate, Record
from kgbench.sites import Site, parse_graft
from kgbench.stats import Figure, Resampled, mean, resample, unseen

__all__ = ["PlantMap", "PlantMaps", "mean_over_plants", "plant_map"]

Array = NDArray[Any]

DRAWS = 2000

Place = tuple[int | None, str]
"""Layer and component."""


@dataclass(frozen=True, eq=False)
class PlantMap:
    """The scores of one method on one plant."""

    plant: str
    units: tuple[tuple[object, ...], ...]
    """Sites, or places where whole weights were planted."""
    scores: Array
    """Of each unit."""
    true: Array
    """Whether it was planted."""

    @cached_property
    def places(self) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """The places that hold a planted unit, and the others."""
        of = [(unit[0], unit[1]) for unit in self.units]
        planted = {place for place, true in zip(of, self.true, strict=True) if true}
        everything = dict.fromkeys(of)
        return tuple(p for p in everything if p in planted), tuple(p for p in everything if p not in planted)  # type: ignore[misc]

    @cached_property
    def value(self) -> float:
        """The AUROC."""
        return float(self._areas(np.ones((1, len(self.units))))[0])

    @cached_property
    def draws(self) -> Array:
        """The AUROC in each draw [draws]; NaN where a draw holds no other place than planted ones."""
        return self._areas(_unit_counts(self.plant, self.units, self.places))

    def _areas(self, counts: Array) -> Array:
        """The AUROC with each unit so many times [draws]."""
        true = self.true.astype(bool)
        above, below = self.scores[true][:, None], self.scores[~true][None, :]
        wins = (above > below) + 0.5 * (above == below)
        first, second = counts[:, true], counts[:, ~true]
        pairs = first.sum(axis=1) * second.sum(axis=1)
        areas: Array = np.divide(((first @ wins) * second).sum(axis=1), pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
        return areas


@lru_cache(maxsize=64)
def _unit_counts(plant: str, units: tuple[tuple[object, ...], ...], places: tuple[tuple[Place, ...], ...]) -> Array:
    """How often each unit is drawn [draws, units]: the same for every method."""
    drawn: dict[object, Array] = {}
    for kind, some in enumerate(places):
        counts = resample(len(some), DRAWS, crc32(f"{plant} {kind}".encode())) if some else np.zeros((DRAWS, 0))
        drawn.update({place: counts[:, i] for i, place in enumerate(some)})
    return np.stack([drawn[unit[0], unit[1]] for unit in units], axis=1).astype(float)


def plant_map(record: Record) -> PlantMap | str:
    """The map of a record on its plant, or why there is none."""
    planted = record.planted
    assert planted is not None
    if record.scores is None:
        return planted.auroc.undefined or "the method has no map"
    graft = parse_graft(planted.plant)
    scores = {Site(s.layer, s.component, s.region): s.score for s in record.scores}
    n_layers = 1 + max((site.layer for site in scores if site.layer is not None), default=-1)
    true = planted_sites(scores, graft, n_layers)
    if planted.units == "site":
        units: dict[tuple[object, ...], float] = {tuple(site): score for site, score in scores.items()}
        places = {tuple(site) for site in true}
    else:
        units, places = {}, {(site.layer, site.component) for site in true}
        for site, score in scores.items():
            units[site.layer, site.component] = max(score, units.get((site.layer, site.component), -np.inf))
    order = sorted(units, key=str)
    return PlantMap(record.model, tuple(order), np.array([units[u] for u in order]), np.array([u in places for u in order]))


@dataclass(frozen=True, eq=False)
class PlantMaps:
    """One method's maps on some plants."""

    maps: Mapping[str, PlantMap]
    stored: Estimate | None = None
    """The figure of a single plant, as its record has it."""

    @property
    def _floor(self) -> float:
        """What planted places leave open: the share of them that so many without an exception allow might be ranked at random."""
        return 0.5 * unseen(sum(len(own.places[0]) for own in self.maps.values()))

    @cached_property
    def figure(self) -> Figure:
        """The mean AUROC with its interval; of a single plant the record's own."""
        if self.stored is not None:
            return Figure(self.stored.value, self.stored.low, self.stored.high, self.stored.n, self.stored.undefined)
        value, share = float(np.mean([own.value for own in self.maps.values()])), 2 * self._floor
        # Places that are an exception could be ranked first or last, and no AUROC lies beyond 0 or 1.
        floor = (value - share * value, value + share * (1 - value))
        return self._resampled(
            [own.value for own in self.maps.values()], [own.draws for own in self.maps.values()], floor, len(self.maps)
        ).figure()

    def minus(self, other: PlantMaps) -> Resampled:
        """Its paired difference from another method on the same plants.

        Raises:
            DataError: If the two have scores of other sites.
        """
        for plant, own in self.maps.items():
            if own.units != other.maps[plant].units:
                raise DataError(f"two methods have maps of other sites on {plant}, and cannot be compared")
        pairs = [(own, other.maps[plant]) for plant, own in self.maps.items()]
        values = [own.value - theirs.value for own, theirs in pairs]
        floor = (float(np.mean(values)) - self._floor, float(np.mean(values)) + self._floor)
        # Of a single plant, what is resampled is its places.
        n = len(pairs) if len(pairs) > 1 else sum(map(len, pairs[0][0].places))
        return self._resampled(values, [own.draws - theirs.draws for own, theirs in pairs], floor, n)

    def _resampled(self, values: Sequence[float], draws: Sequence[Array], floor: tuple[float, float], n: int) -> Resampled:
        value, plants = float(np.mean(values)), len(values)
        weights = resample(plants, DRAWS, 0) if plants > 1 else np.ones((DRAWS, 1))
        means = (np.stack(draws, axis=1) * weights).sum(axis=1) / plants
        return Resampled(value, means, floor, n)


def mean_over_plants(figures: Mapping[str, Estimate]) -> Estimate:
    """The mean over plants, whose interval is over plants; undefined where one of them is."""
    if not figures:
        return Estimate(n=0, undefined="no plant has such a figure")
    for plant, figure in figures.items():
        if figure.value is None:
            return Estimate(n=0, undefined=f"{figure.undefined} (on {plant})")
    values = np.array([figure.value for figure in figures.values()], float)
    return Estimate(**mean(values, (0.0, 1.0)).to_json())
