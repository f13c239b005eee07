"""Two ways of doing the same work, timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

if TYPE_CHECKING:  # the benchmark of a GPU runs without pytest
    import pytest
    from pytest_benchmark.fixture import BenchmarkFixture

__all__ = ["Ratio", "group", "in_turns", "measure"]

Work = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """Median of the ratios of rounds, and an interval that holds the true median with at least 95 %
    (order statistics).
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: np.ndarray) -> Ratio:
        inner = int(
            binom.ppf(0.025, len(ratios), 0.5)
        )  # the count of rounds below the median is binomial
        ranked = np.sort(ratios)
        return cls(
            float(np.median(ratios)),
            float(ranked[max(inner - 1, 0)]),
            float(ranked[len(ratios) - max(inner, 1)]),
        )

    def scaled(self, factor: float) -> Ratio:
        return Ratio(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self) -> Ratio:
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low)

    def __str__(self) -> str:
        digits = 0 if self.value >= 100 else 1 if self.value >= 10 else 2
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def group(name: str) -> pytest.MarkDecorator:
    """Mark a benchmark as one of a group, timed like the ratios."""
    import pytest

    return pytest.mark.benchmark(group=name, timer=time.process_time)


def in_turns(
    benchmark: BenchmarkFixture, work: Work, references: Mapping[str, Work], rounds: int
) -> dict[str, Ratio]:
    """Time some work and what it is compared with in turns, after a round that does not count; the
    ratio to each reference.
    """
    seconds: dict[str, list[float]] = {name: [] for name in references}
    own: list[float] = []

    def references_first() -> None:
        for name, reference in references.items():
            seconds[name].append(measure(reference))

    benchmark.pedantic(
        lambda: own.append(measure(work)), setup=references_first, rounds=rounds, warmup_rounds=1
    )
    return {
        name: Ratio.of(np.array(own[1:]) / np.array(values[1:])) for name, values in seconds.items()
    }


def measure(work: Work) -> float:
    """Processor seconds of some work on this process's one thread: what else the machine does in
    the meantime does not count.
    """
    started = time.process_time()
    work()
    return time.process_time() - started
