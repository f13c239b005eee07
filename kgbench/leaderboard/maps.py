"""Figures of methods over plants: their mean, and paired differences between methods.

A plant with its seed is the unit, since sites of one plant are no sample of anything: means have
Student's interval, and what ranks compare is resampled by plants, which all methods share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.stats import Resampled, mean, resample

__all__ = ["PlantScores", "mean_over_plants"]

DRAWS = 2000


@dataclass(frozen=True, eq=False)
class PlantScores:
    """What one method has on each of some plants; higher is better."""

    values: Mapping[str, float]
    """By plant."""
    support: tuple[float, float] = (0.0, 1.0)
    """Between what they lie."""

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval; of one plant the value alone."""
        values = np.array(list(self.values.values()))
        return (
            mean(values, self.support)
            if len(values) > 1
            else Estimate.alone(values[0], 1, "one plant")
        )

    def minus(self, other: PlantScores) -> Resampled:
        """Its paired difference from another method on the same plants.

        Raises:
            DataError: The two are not of the same plants.
        """
        if set(self.values) != set(other.values):
            raise DataError("two methods have figures of other plants, and cannot be compared")
        apart: NDArray[Any] = np.array(
            [own - other.values[plant] for plant, own in self.values.items()]
        )
        value, n = float(apart.mean()), len(apart)
        return Resampled(value, _counts(n) @ apart / n, (value, value), n)


@lru_cache(maxsize=16)
def _counts(n: int) -> NDArray[np.int64]:
    """The resample of so many plants [draws, n]: the same for every method."""
    return resample(n, DRAWS, 0)


def mean_over_plants(
    figures: Mapping[str, Estimate], support: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """The mean over plants, whose interval is over plants; undefined where one of them is.

    Args:
        figures: By plant.
        support: Between what they lie.
    """
    if not figures:
        return Estimate.missing("no plant has such a figure")
    for plant, figure in figures.items():
        if figure.value is None:
            return Estimate.missing(f"{figure.undefined} (on {plant})")
    values = np.array([figure.value for figure in figures.values()], float)
    return mean(values, support).rounded()
