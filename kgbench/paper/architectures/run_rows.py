"""Rows of the study's runs, one small file a run, and the figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.paper.architectures.design import Study
from kgbench.paper.pair_rows import read_stored, write_stored
from kgbench.records import Strict
from kgbench.stats import difference, hit_rate, resample
from kgbench.stats.intervals import outwards
from kgbench.stats.ratios import recovery

BOTH = "FE+LT"

PATHWAYS = ("PRE", "SFT", "FE", "LT", BOTH, "(FE+LT)^C")
"""Configurations of every run; those with cuts follow."""

KNOWN = "KNOWN"
"""Configuration of the recipient's rows about movies of pretraining."""

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("configuration", pa.string(), nullable=False),
        pa.field("fact", pa.uint16(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
    ]
)
"""`fact` counts the facts of the data set or the movies of pretraining; `rank` 1 is the best."""

_ABOUT = b"kgbench_study"


def cut_in(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE in one layer."""
    return f"{BOTH}, cut in {layer}"


def cut_from(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE from one layer on."""
    return f"{BOTH}, cut from {layer}"


class RunAbout(Strict):
    """Provenance of the rows of a run."""

    run: str
    levels: dict[str, str]
    """Level by factor."""
    seed: int
    identity: str
    """Hash of design, recipe and facts."""
    layers: int
    layer_weights: int
    """Weights inside the layers, which are what finetuning changes."""
    weights: int
    """All weights."""
    finetunings: int
    """Trainings of the donor, one after the other."""
    steps: dict[str, int]
    """By stage."""
    seconds: dict[str, float]
    """By stage."""
    kgbench: str
    packages: dict[str, str]
    platform: str


@dataclass(frozen=True)
class RunRows:
    """The rows of a run."""

    about: RunAbout
    table: pa.Table

    def ranks(self, prompt: str, configuration: str) -> np.ndarray:
        """Ranks [fact] of one configuration on one prompt, facts in order.

        Raises:
            DataError: The run holds no such rows.
        """
        names = (self.table["prompt"].to_numpy(), self.table["configuration"].to_numpy())
        chosen = (names[0] == prompt) & (names[1] == configuration)
        facts = self.table["fact"].to_numpy()[chosen]
        if not np.array_equal(facts, np.arange(len(facts))) or not len(facts):
            raise DataError(
                f"{self.about.run}: the rows of {configuration} on {prompt} are not one per fact; "
                "remove the file, and kgbench reproduce study makes it again"
            )
        ranks: np.ndarray = self.table["rank"].to_numpy()[chosen]
        return ranks


def rows_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / "runs" / f"{run}.parquet"


def write_rows(rows: RunRows, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_stored(rows.about, rows.table, _ABOUT, path)


def read_rows(path: Path) -> RunRows:
    """Read the file of a run.

    Raises:
        DataError: The file is not one of `write_rows`.
    """
    expected = (
        "the rows that `kgbench reproduce study` writes; remove it to have the run made again"
    )
    return RunRows(*read_stored(RunAbout, SCHEMA, _ABOUT, path, expected))


def table_of(blocks: Sequence[tuple[str, str, np.ndarray]]) -> pa.Table:
    """Rows from (prompt, configuration, ranks [fact])."""
    largest, rows = np.iinfo(np.uint16).max, []
    for prompt, configuration, ranks in blocks:
        for fact, rank in enumerate(np.minimum(ranks, largest).tolist()):
            rows.append((prompt, configuration, fact, rank))
    return pa.table(dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)), schema=SCHEMA)


# ---------------------------------------------------------------------------- figures of a run

_TOP = 5

_RECOVERY = "recovery of "

OUTCOMES: Mapping[str, str] = {
    "LT − FE": "log-odds of LT less those of FE",
    "LT": "log-odds of LT",
    "FE": "log-odds of FE",
    "FE+LT": "log-odds of FE+LT",
    f"{_RECOVERY}LT − FE": "recovery of LT less that of FE",
    f"{_RECOVERY}LT": "recovery of LT",
    f"{_RECOVERY}FE": "recovery of FE",
    "depth": "depth at which half is read, 0 the first layer and 1 the last",
}
"""Responses: the study's outcome first, then its parts, the same as recoveries, and the depth of
reading.
"""


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run."""

    study: Study
    rows: RunRows

    def hits(self, prompt: str, configuration: str) -> np.ndarray:
        """Whether the target is among the five likeliest tokens [fact]."""
        hits: np.ndarray = self.rows.ranks(prompt, configuration) <= _TOP
        return hits

    def rate(self, prompt: str, configuration: str) -> Estimate:
        """Share of hits."""
        hits = self.hits(prompt, configuration)
        return hit_rate(int(hits.sum()), len(hits))

    def recovery(self, prompt: str, configuration: str) -> Estimate:
        """Share of what finetuning added that a configuration brings."""
        return recovery({name: self.hits(prompt, name) for name in PATHWAYS}, configuration)

    def odds(self, prompt: str, configuration: str) -> float | None:
        """Log-odds of a configuration's recovery, in counts.

        Counted are the facts that the donor answers and the recipient does not; None where there
        are none.
        """
        gained = self.hits(prompt, "SFT") & ~self.hits(prompt, "PRE")
        if not gained.any():
            return None
        return log_odds(int(self.hits(prompt, configuration)[gained].sum()), int(gained.sum()))

    def outcome(self, name: str, prompts: Sequence[str] = ()) -> float | None:
        """One of `OUTCOMES`, the mean over prompts; None where it is undefined."""
        if name == "depth":
            layer = self.half_read.value
            return None if layer is None else layer / (self.layers - 1)
        terms = name.removeprefix(_RECOVERY)
        scale = self.odds if terms == name else self._recovered
        plus, _, minus = terms.partition(" − ")
        values = []
        for prompt in prompts or self.study.prompts:
            term, other = scale(prompt, plus), scale(prompt, minus) if minus else 0.0
            if term is None or other is None:
                return None
            values.append(term - other)
        return float(np.mean(values))

    def _recovered(self, prompt: str, configuration: str) -> float | None:
        return self.recovery(prompt, configuration).value

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return "-".join(self.rows.about.levels.values())

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.rows.about.layers

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Criteria that the run does not reach."""
        prompts, criteria = self.study.prompts, self.study.criteria
        sft = min(self.hits(prompt, "SFT").mean() for prompt in prompts)
        known = self.hits(prompts[0], KNOWN).mean()
        short = {"SFT": sft < criteria.sft, "known": known < criteria.known}
        return tuple(name for name in short if short[name])

    @cached_property
    def losses(self) -> np.ndarray:
        """Hits lost where LT's attention to FE is cut in one layer [layer, fact], prompt means."""
        return self._less(cut_in)

    @cached_property
    def reading(self) -> np.ndarray:
        """Hits lost where it is cut from a layer on [layer, fact], means over prompts."""
        return self._less(cut_from)

    def _less(self, cut: Callable[[int], str]) -> np.ndarray:
        per_prompt = []
        for prompt in self.study.prompts:
            whole = self.hits(prompt, BOTH).astype(float)
            kept = [self.hits(prompt, cut(layer)) for layer in range(self.layers)]
            per_prompt.append(whole - np.array(kept))
        less: np.ndarray = np.mean(per_prompt, axis=0)
        return less

    @cached_property
    def read_layer(self) -> Estimate:
        """The layer whose cut costs most; undefined where that cost may be 0."""
        most = int(self.losses.mean(1).argmax())
        reason = "no single layer's cut has a cost whose interval excludes 0"
        return _layer(self.losses, most, lambda costs: costs.argmax(1), reason)

    @cached_property
    def half_read(self) -> Estimate:
        """The last layer from which on a cut costs half of what cutting all layers costs."""
        reason = "the cost of cutting all attention from LT to FE may be 0"
        return _layer(self.reading, 0, _half, reason)


def _layer(
    costs: np.ndarray, tested: int, choose: Callable[[np.ndarray], np.ndarray], reason: str
) -> Estimate:
    """A layer that costs choose, its interval over facts from resamples.

    Args:
        costs: Of cuts [layer, fact].
        tested: The layer whose cost must not be 0.
        choose: Layers by their costs [draw, layer].
        reason: Why there is none.
    """
    n = costs.shape[1]
    whole = difference(costs[tested], np.zeros(n))
    if whole.low is None or whole.low <= 0:
        return Estimate.missing(reason, n)
    (layer,), drawn = choose(costs.mean(1)[None]), choose(resample(n) @ costs.T)
    return Estimate.hull(int(layer), n, outwards(drawn))


def _half(costs: np.ndarray) -> np.ndarray:
    """The last layer that costs at least half of what the first does, of each row [draw, layer]."""
    enough = costs >= costs[:, :1] / 2
    layers: np.ndarray = costs.shape[1] - 1 - enough[:, ::-1].argmax(1)
    return layers


def log_odds(hits: int, n: int) -> float:
    """Log-odds of hits among n, half a count added on either side (F. J. Anscombe, 1956)."""
    return float(np.log((hits + 0.5) / (n - hits + 0.5)))
