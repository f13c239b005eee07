"""Plans: the treatment of each token under each configuration, and the readout tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from kgbench.engine.edits import SourceRun, Treatment, sources
from kgbench.errors import InputError
from kgbench.models.encoding import Encoded
from kgbench.models.family_map import Slots
from kgbench.models.placement import free_memory


@dataclass(frozen=True)
class Request:
    """One prompt under all of its configurations."""

    ids: tuple[int, ...]
    treatments: Int[np.ndarray, "row token"]
    """Rows of the plan's table: of all configurations, followed by those of all runs."""
    readouts: tuple[int, ...]
    """Tokens whose next-token logits are read out, but for runs."""
    runs: tuple[SourceRun, ...] = ()
    """Runs that the configurations copy activations from, in topological order: sources first."""
    needs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Indices of the runs that a configuration copies from, directly or through other runs."""
    stem: int | None = None
    """Number of the text that the prompt goes on from; neighbours with the same one share trees."""

    @property
    def configurations(self) -> int:
        """Number of configurations."""
        return len(self.treatments) - len(self.runs)

    def read_in(self, row: int) -> tuple[int, ...]:
        """Tokens that are read out in a row."""
        return self.readouts if row < self.configurations else ()

    def rows_of(self, configuration: int) -> tuple[int, ...]:
        """The rows of the runs that a configuration needs, and its own."""
        n = self.configurations
        return (*(n + run for run in self.needs.get(configuration, ())), configuration)

    def with_runs(
        self, configurations: Int[np.ndarray, " configuration"]
    ) -> tuple[Int[np.ndarray, "row token"], Mapping[SourceRun, int]]:
        """Treatments of some configurations, followed by those of the runs that they need.

        Returns:
            Rows of the plan's table, and the index of each run among these rows.
        """
        needed = set(chain.from_iterable(map(self.rows_of, configurations.tolist())))
        runs = sorted(row for row in needed if row >= self.configurations)
        index = {}
        for place, row in enumerate(runs, len(configurations)):
            index[self.runs[row - self.configurations]] = place
        return self.treatments[[*configurations, *runs]], index


@dataclass(frozen=True)
class Plan:
    """Requests of all prompts over one table of distinct treatments; the input of an executor."""

    table: UInt8[np.ndarray, "treatment slot"]
    """Weight set of each slot under each distinct treatment."""
    requests: tuple[Request, ...]
    treatments: tuple[Treatment, ...] = ()
    """All distinct treatments, in the order of the table; empty if none has edits or cuts."""
    scaled: tuple[tuple[int, float], ...] = ()
    """Weight sets beyond the pair's: (donor, scale) of W + scale (W' - W)."""
    heads: Mapping[int, UInt8[np.ndarray, "treatment head"]] = field(default_factory=dict)
    """Weight sets of single attention heads by slot, where they are not all the slot's; the heads
    after the last of them take the slot's."""

    def numbered(self, answers: Answers) -> Answers:
        """Answers with readouts counted over all prompts, in place of prompts."""
        counts = torch.tensor([len(request.readouts) for request in self.requests])
        first = counts.cumsum(0) - counts
        return replace(answers, prompt=first[answers.prompt] + answers.readout)


_NUMBERS = 1 << 17
"""Of the residual stream in one forward on a CPU: half a MiB in single precision."""
_FREE = 1 / 4
"""Share of an accelerator's free memory that the activations of one forward may take."""
_ROWS = 1 << 15
"""Token rows of one forward on an accelerator, at most: enough to fill any."""
_LAYER_ROWS = 40
"""Rows of residual width that a layer holds per token, with a second weight set."""
_HEAD_WIDTH = 64


@dataclass(frozen=True)
class Budget:
    """Limits of one forward."""

    tokens: int = 512
    """Maximum token rows in one forward, padding included, unless one tree has more."""
    prompts: int | None = None
    """Maximum prompts in one forward."""
    tree: int = 512
    """Maximum nodes of a token tree; larger ones are split. Where it saves computation, a tree may
    have up to twice the nodes of one configuration, however long the prompt."""
    logits: int = 1 << 26
    """Maximum logits in memory: answers × vocabulary."""

    @classmethod
    def on(
        cls, device: torch.device, width: int, prompts: int | None = None, held: int = 0
    ) -> Budget:
        """Default budget of a device for models of a width.

        On a CPU larger batches exceed the caches and take longer per row, and smaller ones of
        narrow models spend their time between the products. An accelerator takes what a share of
        its free memory holds.

        Args:
            device: Where the models are.
            width: Of their residual stream.
            prompts: Maximum prompts in one forward.
            held: Bytes of the free memory that are kept for models which are not loaded yet.
        """
        if device.type == "cpu":
            return cls(tokens=max(cls.tokens, _NUMBERS // width), prompts=prompts)
        free = free_memory()
        name = f"{device.type}:{device.index or 0}"
        left = free.get(name, free["cpu"])  # what is not listed has the processor's
        rows = int(_FREE * max(0, left - held)) // cls().activations(1, width, torch.float32)
        return cls(tokens=min(max(cls.tokens, rows), _ROWS), prompts=prompts)

    def activations(self, rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of the activations of one forward, roughly and at most.

        Args:
            rows: Token rows.
            width: Of the models.
            dtype: Type of the weights; attention scores are of float32.
        """
        scores = min(self.tree, self.tokens) * math.ceil(width / _HEAD_WIDTH)
        each = _LAYER_ROWS * width * dtype.itemsize + scores * torch.float32.itemsize
        return rows * each


@dataclass(frozen=True)
class Answers:
    """Next-token logits of one chunk.

    Row i is for prompt `prompt[i]`, configuration `configuration[i]` and readout `readout[i]`.
    """

    prompt: Int[torch.Tensor, " answer"]
    configuration: Int[torch.Tensor, " answer"]
    readout: Int[torch.Tensor, " answer"]
    logits: Float[torch.Tensor, "answer vocabulary"]
    token_rows: int
    """Token rows of the chunk's forward, without padding."""

    def within(
        self, numbers: Int[torch.Tensor, " prompt"], before: Collection[tuple[int, int]]
    ) -> Answers:
        """The same of prompts with other numbers, but for answers that were given before.

        Args:
            numbers: Of the prompts.
            before: Prompt, by its new number, and configuration of what was answered.
        """
        prompt = numbers[self.prompt]
        labels = zip(prompt.tolist(), self.configuration.tolist(), strict=True)
        kept = torch.tensor([i for i, label in enumerate(labels) if label not in before]).long()
        parts = prompt[kept], self.configuration[kept], self.readout[kept]
        return Answers(*parts, self.logits[kept.to(self.logits.device)], self.token_rows)


@dataclass(frozen=True)
class Chunk:
    """One forward of a plan, which is computed when its answers are asked for."""

    token_rows: int
    """Token rows of the forward, without padding."""
    answers: Callable[[], Answers]


def make_plan(
    slots: Slots,
    prompts: Sequence[Encoded],
    treatments: Sequence[Sequence[Sequence[Treatment]]],
    readouts: Sequence[Sequence[int]] | None = None,
    equal: Sequence[Collection[int]] = ((),),
    stems: Sequence[int] | None = None,
) -> Plan:
    """Number the distinct treatments of all prompts.

    Args:
        slots: The slots of the pair's models.
        prompts: Encoded prompts.
        treatments: Treatments, indexed by prompt, configuration and token.
        readouts: Tokens to read out, per prompt; by default where its answer is read.
        equal: For each donor, slots that compute the same as the recipient's: they take the
            recipient's weights, so that tokens that differ in them only share their computation.
        stems: Number of the text that each prompt goes on from, by which neighbours share their
            computation; by default prompts share none.

    Raises:
        InputError: There is nothing to plan, or a readout is not a token of its prompt.
    """
    if not prompts or not treatments:
        raise InputError("nothing to run: give at least one prompt and one configuration")
    if readouts is not None:
        _check_readouts(prompts, readouts)
    table = _Table(slots, equal)
    requests = []
    for i, prompt in enumerate(prompts):
        read = prompt.positions if readouts is None else tuple(readouts[i])
        like = table.request(treatments[i], read, len(prompt.ids))
        stem = None if stems is None else stems[i]
        requests.append(replace(like, ids=prompt.ids, stem=stem))
    return table.plan(requests)


class _Table:
    """The distinct treatments of all prompts, numbered in order of first occurrence."""

    def __init__(self, slots: Slots, equal: Sequence[Collection[int]]) -> None:
        self.slots = slots
        self.sets = np.zeros((1 + len(equal), len(slots)), dtype=np.uint8)
        """Effective weight set of each weight set in each slot."""
        for donor, same in enumerate(equal, 1):
            self.sets[donor] = donor
            self.sets[donor, list(same)] = 0
        self.numbers: dict[Treatment, int] = {}
        self.effective: dict[tuple[Treatment, bool], Treatment] = {}
        """Treatments by what they do at a token, and whether it is read out."""
        self.known: dict[object, tuple[Sequence[Sequence[Treatment]], Request]] = {}
        """Requests by identity of their rows and by readouts; prompts of one layout share rows."""
        self.scaled: dict[tuple[int, float], int] = {}
        """Weight sets beyond the pair's, in order of first occurrence."""

    def request(
        self, rows: Sequence[Sequence[Treatment]], read: tuple[int, ...], n: int
    ) -> Request:
        """The request of a prompt of `n` tokens, but for its ids and stem."""
        key = tuple(map(id, rows)), read, n
        if key not in self.known:
            # The value holds the rows themselves, so that their ids are not reused.
            self.known[key] = rows, self._request(rows, read, n)
        return self.known[key][1]

    def _request(
        self, rows: Sequence[Sequence[Treatment]], read: tuple[int, ...], n: int
    ) -> Request:
        numbers = [self._row(row, read) for row in rows]
        needs: dict[int, tuple[int, ...]] = {}
        index: dict[SourceRun, int] = {}
        for configuration, row in enumerate(rows):
            runs = [index.setdefault(run, len(index)) for run in sources(row)]
            needs[configuration] = tuple(runs)
        # Runs are never read out, so their final norm and head have no effect.
        numbers += [self._row(run.treatments, ()) for run in index]
        numbered = np.array(numbers, dtype=np.int64).reshape(len(numbers), n)
        return Request((), numbered, read, tuple(index), needs)

    def _row(self, row: Sequence[Treatment], read: tuple[int, ...]) -> list[int]:
        numbers = []
        for token, treatment in enumerate(row):
            key = treatment, token in read
            if key not in self.effective:
                self.effective[key] = self._effective(*key)
            effective = self.effective[key]
            numbers.append(self.numbers.setdefault(effective, len(self.numbers)))
        return numbers

    def _effective(self, treatment: Treatment, read: bool) -> Treatment:
        """A treatment without weights that make no difference.

        Final norm and head have no effect at tokens that are not read out.
        """
        weights = self.sets[np.frombuffer(treatment.weights, np.uint8), np.arange(len(self.slots))]
        if not read:
            weights[list(self.slots.readout)] = 0
        heads = []
        for slot, head, weight_set in treatment.heads:
            if self.sets[weight_set, slot] != weights[slot]:
                heads.append((slot, head, int(self.sets[weight_set, slot])))
        return replace(treatment, weights=weights.tobytes(), heads=tuple(heads))

    def plan(self, requests: Sequence[Request]) -> Plan:
        edited = any(t.edits or t.cuts for t in self.numbers)
        rows = []
        for treatment in self.numbers:
            row = np.frombuffer(treatment.weights, np.uint8)
            if treatment.scale != 1.0:
                row = row.copy()
                for donor in np.unique(row):
                    row[row == donor] = self.scaled_set(int(donor), treatment.scale)
            rows.append(row)
        table = np.array(rows, dtype=np.uint8).reshape(len(rows), len(self.slots))
        heads = head_sets(self.numbers, table, self.scaled_set)
        treatments = tuple(self.numbers) if edited else ()
        return Plan(table, tuple(requests), treatments, tuple(self.scaled), heads)

    def scaled_set(self, weight_set: int, scale: float) -> int:
        """Number of a weight set under a scale."""
        if scale == 1.0 or weight_set == 0:
            return weight_set
        return self.scaled.setdefault((weight_set, scale), len(self.sets) + len(self.scaled))


def head_sets(
    treatments: Collection[Treatment],
    table: UInt8[np.ndarray, "treatment slot"],
    numbered: Callable[[int, float], int] = lambda weight_set, scale: weight_set,
) -> dict[int, UInt8[np.ndarray, "treatment head"]]:
    """Weight sets of single attention heads by slot, as in `Plan.heads`.

    Args:
        treatments: The treatments.
        table: Weight set of each slot.
        numbered: Number of a weight set under a scale.
    """
    widths: dict[int, int] = {}
    for treatment in treatments:
        for slot, head, _ in treatment.heads:
            widths[slot] = max(head + 1, widths.get(slot, 0))
    heads = {slot: table[:, [slot] * width] for slot, width in widths.items()}
    for number, treatment in enumerate(treatments):
        for slot, head, weight_set in treatment.heads:
            heads[slot][number, head] = numbered(weight_set, treatment.scale)
    return heads


def _check_readouts(prompts: Sequence[Encoded], readouts: Sequence[Sequence[int]]) -> None:
    if len(readouts) != len(prompts):
        raise InputError(
            f"readouts are given for {len(readouts)} prompts, "
            f"expected one list of tokens for each of {len(prompts)}"
        )
    for i, (prompt, read) in enumerate(zip(prompts, readouts, strict=True)):
        if not read or not all(0 <= token < len(prompt.ids) for token in read):
            raise InputError(
                f"readouts {list(read)} of prompt {i} are not among its tokens: "
                f"expected some of 0 to {len(prompt.ids) - 1}"
            )
