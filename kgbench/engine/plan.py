"""Plans: which treatment each token of each prompt gets under each configuration, and where the answer is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from kgbench.engine.edits import Run, sources
from kgbench.engine.treatment import Slots, Treatment
from kgbench.errors import InputError
from kgbench.models.encoding import Encoded

__all__ = ["Answers", "Budget", "Plan", "Request", "make_plan"]


@dataclass(frozen=True)
class Request:
    """One prompt under all of its configurations."""

    ids: tuple[int, ...]
    treatments: Int[np.ndarray, "configuration token"]
    """Rows of the plan's table."""
    readouts: tuple[int, ...]
    """Tokens whose next-token logits are asked for."""
    runs: tuple[Run, ...] = ()
    """Runs that the configurations copy activations from; one that copies from others comes after them."""
    run_treatments: Int[np.ndarray, "run token"] | None = None
    """Rows of the plan's table, where there are runs."""
    needs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of the runs that a configuration copies from, through other runs too."""

    def beside(self) -> Mapping[int, Int[np.ndarray, "_run token"]]:
        """For each configuration that copies from runs, their rows of the plan's table."""
        if self.run_treatments is None:
            return {}
        return {
            configuration: self.run_treatments[list(runs)]
            for configuration, runs in self.needs.items()
            if runs
        }

    def with_runs(
        self, configurations: Int[np.ndarray, " configuration"]
    ) -> tuple[Int[np.ndarray, "row token"], Mapping[Run, int]]:
        """Rows of the plan's table of some configurations and, after them, of the runs that they need; the row of each run."""
        rows = self.treatments[configurations]
        if self.run_treatments is None:
            return rows, {}
        needed = sorted({run for c in configurations.tolist() for run in self.needs[c]})
        where = {self.runs[run]: len(rows) + i for i, run in enumerate(needed)}
        return np.concatenate([rows, self.run_treatments[needed]]), where


@dataclass(frozen=True)
class Plan:
    """What the engine is asked: an executor answers it."""

    table: UInt8[np.ndarray, "treatment slot"]
    """For each distinct treatment, the weight set of each slot."""
    requests: tuple[Request, ...]
    treatments: tuple[Treatment, ...] = ()
    """All distinct treatments; empty where all are choices of weights."""
    scaled: tuple[tuple[int, float], ...] = ()
    """Weight sets beyond the pair's: a donor's, and the scale of its difference from the recipient's."""


@dataclass(frozen=True)
class Budget:
    """How much is computed at once."""

    tokens: int = 512
    """Most token rows in one forward, padding included; more than this leave a CPU's caches and take longer each."""
    prompts: int | None = None
    """Most prompts in one forward."""
    tree: int = 512
    """Most tokens in one token tree; a larger one is divided."""
    logits: int = 1 << 26
    """Most logits held at once: answers × vocabulary."""

    @classmethod
    def on(cls, device: torch.device, prompts: int | None = None) -> Budget:
        """What suits a device: accelerators are slow on few rows."""
        return cls(tokens=cls.tokens if device.type == "cpu" else 8192, prompts=prompts)


@dataclass(frozen=True)
class Answers:
    """Next-token logits of one chunk; row i answers prompt `prompt[i]`, configuration `configuration[i]`, readout `readout[i]`."""

    prompt: Int[torch.Tensor, " answer"]
    configuration: Int[torch.Tensor, " answer"]
    readout: Int[torch.Tensor, " answer"]
    logits: Float[torch.Tensor, "answer vocabulary"]
    token_rows: int
    """Token rows that the chunk's forward computed, without padding."""


def make_plan(
    slots: Slots,
    prompts: Sequence[Encoded],
    treatments: Sequence[Sequence[Sequence[Treatment]]],
    readouts: Sequence[Sequence[int]] | None = None,
    n_sets: int = 2,
) -> Plan:
    """Number the distinct treatments of all prompts.

    Args:
        slots: The places of the pair's models.
        prompts: Encoded prompts.
        treatments: For each prompt, each configuration and each token, its treatment.
        readouts: Tokens to read out, per prompt; by default the last one.
        n_sets: Number of the pair's weight sets, the recipient's included.

    Raises:
        InputError: There is nothing to plan, or a readout is no token of its prompt.
    """
    if not prompts or not treatments:
        raise InputError("nothing to run: give at least one prompt and one configuration")
    if readouts is not None:
        _check_readouts(prompts, readouts)
    table = _Table(slots)
    requests = [
        table.request(
            prompt,
            treatments[i],
            tuple(readouts[i]) if readouts is not None else (len(prompt.ids) - 1,),
        )
        for i, prompt in enumerate(prompts)
    ]
    return table.plan(requests, n_sets)


class _Table:
    """The distinct treatments of all prompts, numbered as they come."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.numbers: dict[Treatment, int] = {}
        self.known: dict[
            tuple[int, tuple[int, ...]], tuple[Sequence[Treatment], list[int], tuple[Run, ...]]
        ] = {}
        """By a row's identity: prompts whose regions lie alike share their rows."""

    def request(
        self, prompt: Encoded, rows: Sequence[Sequence[Treatment]], read: tuple[int, ...]
    ) -> Request:
        found = [self._row(row, read) for row in rows]
        numbered = np.array([numbers for numbers, _ in found], dtype=np.int64).reshape(
            len(rows), len(prompt.ids)
        )
        runs = tuple(dict.fromkeys(run for _, own in found for run in own))
        if not runs:
            return Request(prompt.ids, numbered, read)
        where = {run: i for i, run in enumerate(runs)}
        hidden = np.array([self._row(run.treatments, ())[0] for run in runs], dtype=np.int64)
        return Request(
            prompt.ids,
            numbered,
            read,
            runs,
            hidden,
            {c: tuple(where[run] for run in own) for c, (_, own) in enumerate(found)},
        )

    def _row(
        self, row: Sequence[Treatment], read: tuple[int, ...]
    ) -> tuple[list[int], tuple[Run, ...]]:
        key = id(row), read
        if key not in self.known:  # the row itself is kept, so that no other takes its identity
            numbers = [
                self.numbers.setdefault(t, len(self.numbers))
                for t in _without_idle(self.slots, row, read)
            ]
            self.known[key] = row, numbers, tuple(sources(row))
        return self.known[key][1:]

    def plan(self, requests: Sequence[Request], n_sets: int) -> Plan:
        edited = any(t.edits or t.cuts for t in self.numbers)
        scaled = dict.fromkeys(
            (donor, t.scale)
            for t in self.numbers
            if t.scale != 1.0
            for donor in sorted(set(t.weights) - {0})
        )
        numbers = {key: n_sets + i for i, key in enumerate(scaled)}
        rows = [
            bytes(numbers.get((w, t.scale), w) for w in t.weights) if t.scale != 1.0 else t.weights
            for t in self.numbers
        ]
        table = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), len(self.slots))
        return Plan(table, tuple(requests), tuple(self.numbers) if edited else (), tuple(scaled))


def _check_readouts(prompts: Sequence[Encoded], readouts: Sequence[Sequence[int]]) -> None:
    if len(readouts) != len(prompts):
        raise InputError(
            f"readouts are given for {len(readouts)} prompts, expected one list of tokens for each of {len(prompts)}"
        )
    for i, (prompt, read) in enumerate(zip(prompts, readouts, strict=True)):
        if not read or not all(0 <= token < len(prompt.ids) for token in read):
            raise InputError(
                f"readouts {list(read)} of prompt {i} are not among its tokens: expected some of 0 to {len(prompt.ids) - 1}"
            )


def _without_idle(
    slots: Slots, row: Sequence[Treatment], readouts: Sequence[int]
) -> Iterator[Treatment]:
    """The same treatments without what cannot matter: final norm and head of tokens that are not read out."""
    for token, treatment in enumerate(row):
        if token in readouts:
            yield treatment
            continue
        weights = bytearray(treatment.weights)
        for slot in slots.readout:
            weights[slot] = 0
        yield replace(treatment, weights=bytes(weights))
