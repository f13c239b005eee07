"""Cost of a token row against the length of prompts, the number of configurations and of facts, and
the size of the model. `python tests/bench/test_scaling.py FILE.svg` draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from ratios import measure
from transformers import AutoModelForCausalLM, LlamaConfig

from kgbench.engine import Budget, Plan
from kgbench.engine.forward import Wiring
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Request
from kgbench.engine.tree import grow
from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.report.bars import KINDS, panels, styled
from kgbench.testing import pico_tokenizer

LENGTHS = (
    *(20, 25, 31, 38, 47, 58, 72, 90, 110, 135, 165, 200, 245, 300, 365, 450, 480, 502, 524),
    *(560, 650, 800, 1000, 1250, 1500, 1800, 2200, 2700, 3300, 4000),
)
CONFIGURATIONS = (8, 12, 18, 27, 40, 60, 90, 135, 200, 300, 450, 670, 1000)
FACTS = (150, 300, 600, 1200, 2500, 5000, 10_000)
SIZES = {2.5: (4, 200), 10: (8, 288), 40: (8, 576), 160: (14, 872), 350: (20, 1080)}
"""Layers and width, by millions of weights of the layers."""
STEP = 1.3
"""Largest ratio of the cost of a token row to that at the neighbour before."""
ROWS = 1000
"""Token rows of a timing, at least."""
ROUNDS = 3


@cache
def wiring(layers: int = 4, width: int = 128) -> Wiring:
    """Random models that take long prompts."""
    tokenizer = pico_tokenizer(bos=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=4 * width,
        max_position_embeddings=2 * LENGTHS[-1],
    )
    recipient, donor = (prepare(AutoModelForCausalLM.from_config(config)) for _ in range(2))
    return Wiring(ModelPair("random", recipient, {"sft": donor}, tokenizer, load_family("llama")))


def scan(tokens: int, n: int = 27) -> np.ndarray:
    """Treatments [configuration, token] of so many grafts at the last token."""
    treatments = np.zeros((n, tokens), dtype=np.int64)
    treatments[:, -1] = np.arange(n)
    return treatments


def pathways(tokens: int) -> np.ndarray:
    """Treatments [configuration, token] of PRE, SFT, and six grafts at FE, REL and LT."""
    place = np.arange(tokens) / tokens
    fe, rel = (place >= 0.2) & (place < 0.3), (place >= 0.5) & (place < 0.6)
    lt = np.arange(tokens) == tokens - 1
    nowhere = np.zeros(tokens, dtype=bool)
    grafts = [nowhere, ~nowhere, fe, rel, lt, fe | lt, fe | rel | lt, ~(fe | lt)]
    return np.array(grafts).astype(np.int64)


@dataclass(frozen=True)
class Work:
    """Prompts under some treatments, on random models."""

    models: Wiring
    treatments: np.ndarray
    n_prompts: int

    @property
    def trie(self) -> int:
        """Token rows of the tries of all prompts."""
        return self.n_prompts * len(grow(self.treatments, [0]))

    @property
    def plan(self) -> Plan:
        """Treatment i takes the donor's weights at one slot, in turns."""
        n, tokens = self.treatments.max() + 1, self.treatments.shape[1]
        slots = len(self.models.slots)
        table = np.eye(slots, dtype=np.uint8)[np.arange(n) % slots]
        ids = np.random.default_rng(tokens).integers(3, 250, (self.n_prompts, tokens)).tolist()
        requests = [Request(tuple(row), self.treatments, (tokens - 1,)) for row in ids]
        return Plan(table, tuple(requests))


def of_rows(models: Wiring, treatments: np.ndarray) -> Work:
    """Prompts that have `ROWS` token rows together, at least."""
    return Work(models, treatments, -(-ROWS // len(grow(treatments, [0]))))


def lengths(treatments: Callable[[int], np.ndarray]) -> dict[float, Work]:
    """Prompts of each length."""
    return {tokens: of_rows(wiring(), treatments(tokens)) for tokens in LENGTHS}


def configurations() -> dict[float, Work]:
    """Grafts at the last of 24 tokens, by their number."""
    return {n: of_rows(wiring(), scan(24, n)) for n in CONFIGURATIONS}


def facts() -> dict[float, Work]:
    """Pathways on prompts of 12 tokens, by their number."""
    return {n: Work(wiring(), pathways(12), n) for n in FACTS}


def sizes() -> dict[float, Work]:
    """Pathways on prompts of 12 tokens, by the model's size."""
    return {size: of_rows(wiring(*shape), pathways(12)) for size, shape in SIZES.items()}


@dataclass(frozen=True)
class Series:
    """A sweep of one quantity."""

    what: str
    """The quantity."""
    works: Callable[[], dict[float, Work]]
    rows: float = 1.0
    """Token rows in units of the trie's, at most: where branches are long, trees are divided."""
    each_weight: bool = False
    """Whether costs are by weight of the model as well."""


SERIES = {
    "lengths, scan": Series("tokens of a prompt, 27 grafts at LT", partial(lengths, scan)),
    "lengths, pathways": Series("tokens of a prompt, pathways", partial(lengths, pathways), 1.4),
    "configurations": Series("grafts at the last of 24 tokens", configurations, 1.1),
    "facts": Series("facts, pathways", facts),
    "sizes": Series("millions of weights, pathways", sizes, each_weight=True),
}


@torch.inference_mode()
def rows(models: Wiring, plan: Plan) -> Sequence[int]:
    """Token rows of each chunk that is computed."""
    return [chunk.token_rows for chunk in run_packed(models, plan, Budget())]


@dataclass(frozen=True)
class Costs:
    """Measurements of a series."""

    at: Sequence[float]
    costs: np.ndarray
    """Processor time (µs) of a token row of the trie; of 10⁶ weights as well where asked."""
    rows: float
    """Token rows in units of the trie's, at most."""
    largest: float
    """Token rows of the largest chunk, in units of the budget or of twice its prompt's tokens,
    whichever are more."""

    @property
    def step(self) -> float:
        """Largest cost in units of that at the neighbour before."""
        return float(max(after / before for before, after in pairwise(self.costs)))


def costs(series: Series) -> Costs:
    """Measure a series, its values in turns."""
    works = series.works()
    plans = {at: work.plan for at, work in works.items()}
    ratios, largest = list[float](), list[float]()
    for at, work in works.items():
        chunks = rows(work.models, plans[at])
        ratios.append(sum(chunks) / work.trie)
        allowed = max(Budget().tokens, 2 * work.treatments.shape[1])
        largest.append(max(chunks) / allowed)
    seconds = []
    for _ in range(ROUNDS):
        seconds.append([measure(partial(rows, works[at].models, plans[at])) for at in works])
    units = [w.trie * (at if series.each_weight else 1) for at, w in works.items()]
    found = 1e6 * np.median(seconds, axis=0) / np.array(units)
    return Costs(list(works), found, max(ratios), max(largest))


@pytest.mark.parametrize("name", SERIES)
def test_scaling(name: str, claim: Callable[..., None]) -> None:
    """The cost of a token row has no cliff, and no chunk exceeds the budget."""
    series = SERIES[name]
    found = costs(series)
    for at, cost in zip(found.at, found.costs, strict=True):
        print(f"{series.what}: {at:g}  {cost:.4g} us")
    most, step = f"{found.rows:.2f}", f"{found.step:.2f}"
    of = f"{found.at[0]:g} to {found.at[-1]:g} {series.what}"
    claim(f"{of}: token rows ÷ the trie's", most, f"≤ {series.rows}", found.rows <= series.rows)
    claim(f"{of}: cost of a row ÷ before", step, f"≤ {STEP}", found.step <= STEP)
    largest = f"{found.largest:.2f}"
    claim(f"{of}: largest chunk ÷ its limit", largest, "≤ 1", found.largest <= 1)


@styled
def drawn(measured: Mapping[str, Costs]) -> Figure:
    """A panel per quantity."""
    figure, axes = panels((7.2, 5.4), 2, 2)
    places = [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1)]
    for place, (name, found) in zip(places, measured.items(), strict=True):
        axis, series = axes[place], SERIES[name]
        axis.plot(found.at, found.costs, marker=".", label=series.what.partition(", ")[2])
        axis.set_xscale("log")
        axis.set_xlabel(series.what.partition(", ")[0])
        of_weights = " and million weights" if series.each_weight else ""
        axis.set_ylabel(f"µs a token row{of_weights}")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False)
    return figure


def main(path: Path) -> None:
    """Measure all series, and draw them."""
    measured = {name: costs(series) for name, series in SERIES.items()}
    with rc_context({"svg.fonttype": "none"}):
        drawn(measured).savefig(path, metadata=KINDS["svg"])
    for name, found in measured.items():
        pairs = zip(found.at, found.costs, strict=True)
        line = ", ".join(f"{at:g}: {cost:.4g}" for at, cost in pairs)
        print(f"{name}: {line}; step {found.step:.2f}, rows {found.rows:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
