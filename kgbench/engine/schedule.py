"""Schedule of a batch's edits and cuts, grouped by hook and by round.

Invariant: a copy reads the final activation of its source at the hook. All edits at a hook run in
one call on the whole batch, so they are ordered in rounds: an edit comes after the earlier edits of
its own token at the hook, and a copy also after the last edit of its source there. Edits of one
round, kind and basis are independent and run as one indexed operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kgbench.engine.attention_masks import Masks
from kgbench.engine.edits import Add, Copy, Edit, Hook, SourceRun, Treatment, Values, Write
from kgbench.engine.indices import Index, Indices


@dataclass
class Step:
    """Edits of one hook, round and kind, applied together."""

    nodes: list[int] = field(default_factory=list)
    """Rows of edited tokens in the flattened batch."""
    sources: list[int] = field(default_factory=list)
    """Rows that are copied from, one per node."""
    values: list[Values] = field(default_factory=list)
    """Constants that are written or added, one per node."""

    def extend(self, other: Step, offset: int) -> None:
        """Append the edits of another step, with its rows shifted by `offset`."""
        self.nodes += [node + offset for node in other.nodes]
        self.sources += [source + offset for source in other.sources]
        self.values += other.values


Key = tuple[Hook, int, type[Edit], Values | None]
"""Hook, round of edits at it, kind of edit, and the basis of a partial copy."""


@dataclass
class Schedule:
    """All edits and cuts of a batch."""

    steps: dict[Key, Step] = field(default_factory=lambda: defaultdict(Step))
    cuts: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Cut edges (query row, key row) of each layer."""

    def extend(self, other: Schedule, offset: int) -> None:
        """Append another schedule, with its rows shifted by `offset`."""
        for key, step in other.steps.items():
            self.steps[key].extend(step, offset)
        for layer, pairs in other.cuts.items():
            self.cuts[layer] += [(node + offset, key + offset) for node, key in pairs]

    def within(self, layers: range, nodes: Int[np.ndarray, " node"]) -> Schedule:
        """The edits and cuts of some layers, in which several rows are one.

        Rows that are one up to a layer have equal edits there, with equal rounds and sources.

        Args:
            layers: The layers.
            nodes: Row of the layers in which each row is computed.
        """
        part = Schedule()
        for key, step in self.steps.items():
            if key[0].layer in layers:
                moved = nodes[step.nodes]
                _, first = np.unique(moved, return_index=True)
                sources = nodes[step.sources] if step.sources else moved
                part.steps[key] = Step(
                    moved[first].tolist(),
                    sources[first].tolist() if step.sources else [],
                    [step.values[i] for i in first] if step.values else [],
                )
        for layer, pairs in self.cuts.items():
            if pairs and layer in layers:
                part.cuts[layer] = list(dict.fromkeys(map(tuple, nodes[np.array(pairs)].tolist())))
        return part

    def edits(self, indices: Indices) -> Mapping[Hook, Callable[[Tensor], Tensor]]:
        """Function of the whole batch's activations [..., width] at each hook."""
        by_hook: dict[Hook, list[Callable[[Tensor], Tensor]]] = defaultdict(list)
        for (hook, _, kind, basis), step in sorted(self.steps.items(), key=lambda item: item[0][1]):
            by_hook[hook].append(_edit(kind, basis, step, indices))
        return {hook: partial(_all, done) for hook, done in by_hook.items()}

    def overwritten(self) -> Mapping[Hook, list[int]]:
        """Rows at each hook that get a whole copy or a constant, whatever they were before."""
        rows: dict[Hook, list[int]] = defaultdict(list)
        for (hook, _, kind, basis), step in self.steps.items():
            if kind is Write or (kind is Copy and basis is None):
                rows[hook] += step.nodes
        return rows

    def sources(self) -> Mapping[Hook, list[int]]:
        """Rows at each hook that are copied from."""
        rows: dict[Hook, list[int]] = defaultdict(list)
        for (hook, *_), step in self.steps.items():
            rows[hook] += step.sources
        return rows

    def masks(self, masks: Masks, indices: Indices) -> Mapping[int, Callable[[], Tensor]]:
        """Function that makes the mask of each layer with cuts, given the masks without them."""
        by_layer = {}
        for layer, pairs in self.cuts.items():
            if pairs:
                # Flattened row i is position i % width of batch row i // width.
                nodes, keys = np.array(pairs).T
                cells = np.stack([nodes // masks.width, nodes % masks.width, keys % masks.width])
                by_layer[layer] = partial(_cut, masks, layer, indices.add(cells))
        return by_layer


def _cut(masks: Masks, layer: int, cells: Index) -> Float[Tensor, "row 1 token token"]:
    """The mask of a layer without the cells (row, query, key) that are cut."""
    mask = masks.of(layer).clone()
    rows, queries, keys = cells.on(mask.device)
    mask[rows, 0, queries, keys] = torch.finfo(mask.dtype).min
    return mask


def _all(done: Sequence[Callable[[Tensor], Tensor]], activations: Tensor) -> Tensor:
    flat = activations.reshape(-1, activations.shape[-1])
    for edit in done:
        flat = edit(flat)
    return flat.reshape(activations.shape)


def _edit(
    kind: type[Edit], basis: Values | None, step: Step, indices: Indices
) -> Callable[[Tensor], Tensor]:
    nodes = indices.add(np.array(step.nodes))
    if kind is Copy:
        return partial(_copied, nodes, indices.add(np.array(step.sources)), basis)
    values = torch.stack([value.tensor for value in step.values])
    return partial(_added if kind is Add else _written, nodes, values)


def _copied(nodes: Index, sources: Index, basis: Values | None, flat: Tensor) -> Tensor:
    to, copied = nodes.on(flat.device), flat.index_select(0, sources.on(flat.device))
    if basis is not None:
        rows, targets = basis.tensor.to(flat), flat.index_select(0, to)
        copied = targets + (copied - targets) @ rows.T @ rows
    return flat.index_copy(0, to, copied)


def _written(nodes: Index, values: Tensor, flat: Tensor) -> Tensor:
    return flat.index_copy(0, nodes.on(flat.device), values.to(flat))


def _added(nodes: Index, values: Tensor, flat: Tensor) -> Tensor:
    return flat.index_add(0, nodes.on(flat.device), values.to(flat))


def make_schedule(
    treatments: Sequence[Treatment],
    numbers: Int[np.ndarray, "row token"],
    nodes: Int[np.ndarray, "row token"],
    runs: Mapping[SourceRun, int],
) -> Schedule:
    """The edits and cuts of one prompt's rows.

    Args:
        treatments: All treatments of a plan.
        numbers: Index of the treatment of each token of each row.
        nodes: Index of each token in the flattened batch; rows may share nodes of a token tree.
        runs: Row of each run that is copied from.
    """
    scheduler, seen = _Scheduler(treatments, numbers, nodes, runs), set[int]()
    for row, of_row in enumerate(numbers.tolist()):
        for token, number in enumerate(of_row):
            node, treatment = int(nodes[row, token]), treatments[number]
            if node not in seen and (treatment.edits or treatment.cuts):
                scheduler.add(row, token)
            seen.add(node)
    return scheduler.schedule


@dataclass
class _Scheduler:
    treatments: Sequence[Treatment]
    numbers: np.ndarray
    nodes: np.ndarray
    runs: Mapping[SourceRun, int]
    schedule: Schedule = field(default_factory=Schedule)
    rounds: dict[tuple[int, Hook], int] = field(default_factory=dict)
    """Last round of edits of each node at each hook, after which its activation is final."""

    def add(self, row: int, token: int) -> None:
        """Add the edits and cuts of a token."""
        node = int(self.nodes[row, token])
        treatment = self.treatments[int(self.numbers[row, token])]
        at: dict[Hook, int] = {}
        for edit in treatment.edits:
            at[edit.hook] = self._round(edit, token, at.get(edit.hook, 0))
            basis = edit.basis if isinstance(edit, Copy) else None
            step = self.schedule.steps[edit.hook, at[edit.hook], type(edit), basis]
            step.nodes.append(node)
            if isinstance(edit, Copy):
                step.sources.append(int(self.nodes[self.runs[edit.source], token]))
            else:
                step.values.append(edit.value)
        for cut in treatment.cuts:
            self.schedule.cuts[cut.layer] += [
                (node, int(self.nodes[row, key])) for key in sorted(cut.keys) if key < token
            ]

    def _round(self, edit: Edit, token: int, before: int) -> int:
        """Round of an edit: after earlier edits of the token and after the last of its source."""
        if not isinstance(edit, Copy):
            return before + 1
        return max(before, self._final(self.runs[edit.source], token, edit.hook)) + 1

    def _final(self, row: int, token: int, hook: Hook) -> int:
        key = int(self.nodes[row, token]), hook
        if key not in self.rounds:
            last = 0
            for edit in self.treatments[int(self.numbers[row, token])].edits:
                if edit.hook == hook:
                    last = self._round(edit, token, last)
            self.rounds[key] = last
        return self.rounds[key]
