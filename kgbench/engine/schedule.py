"""When and where edits happen: the treatments of a batch's tokens, sorted by hook and by what must come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kgbench.engine.edits import Add, Copy, Edit, Hook, Run, Values
from kgbench.engine.masks import Masks
from kgbench.engine.treatment import Treatment

__all__ = ["Schedule", "Step", "make_schedule"]


@dataclass
class Step:
    """Edits of one kind that are done at once."""

    nodes: list[int] = field(default_factory=list)
    """Tokens that are edited."""
    sources: list[int] = field(default_factory=list)
    """Tokens that are copied from."""
    values: list[Values] = field(default_factory=list)
    """Constants that are written or added."""

    def extend(self, other: Step, offset: int) -> None:
        """Take over another's edits, of tokens that are counted from `offset`."""
        self.nodes += [node + offset for node in other.nodes]
        self.sources += [source + offset for source in other.sources]
        self.values += other.values


Key = tuple[Hook, int, type[Edit], Values | None]
"""Hook, what round of edits at it, kind of edit, and the basis where only a component is copied."""


@dataclass
class Schedule:
    """All edits and cuts of a batch."""

    steps: dict[Key, Step] = field(default_factory=lambda: defaultdict(Step))
    cuts: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """For each layer, tokens and those that they do not attend to."""

    def extend(self, other: Schedule, offset: int) -> None:
        """Take over another's, of tokens that are counted from `offset`."""
        for key, step in other.steps.items():
            self.steps[key].extend(step, offset)
        for layer, pairs in other.cuts.items():
            self.cuts[layer] += [(node + offset, key + offset) for node, key in pairs]

    def edits(self, device: torch.device) -> Mapping[Hook, Callable[[Tensor], Tensor]]:
        """For each hook, what is done to the activations of the whole batch [..., width]."""
        by_hook: dict[Hook, list[Callable[[Tensor], Tensor]]] = defaultdict(list)
        for (hook, _, kind, basis), step in sorted(self.steps.items(), key=lambda item: item[0][1]):
            by_hook[hook].append(_edit(kind, basis, step, device))
        return {hook: partial(_all, done) for hook, done in by_hook.items()}

    def masks(self, masks: Masks) -> Mapping[int, Float[Tensor, "row 1 token token"]]:
        """The mask of each layer that has cuts, from those without them."""
        found = {}
        for layer, pairs in self.cuts.items():
            if pairs:
                mask = masks.of(layer).clone()
                (nodes, keys), width = (
                    torch.tensor(pairs, device=mask.device).unbind(1),
                    mask.shape[-1],
                )
                mask[nodes // width, 0, nodes % width, keys % width] = torch.finfo(mask.dtype).min
                found[layer] = mask
        return found


def _all(done: Sequence[Callable[[Tensor], Tensor]], activations: Tensor) -> Tensor:
    flat = activations.reshape(-1, activations.shape[-1])
    for edit in done:
        flat = edit(flat)
    return flat.reshape(activations.shape)


def _edit(
    kind: type[Edit], basis: Values | None, step: Step, device: torch.device
) -> Callable[[Tensor], Tensor]:
    nodes = torch.tensor(step.nodes, device=device)
    if kind is Copy:
        sources = torch.tensor(step.sources, device=device)
        return partial(_copied, nodes, sources, basis)
    values = torch.stack([value.tensor for value in step.values]).to(device)
    return partial(_added if kind is Add else _written, nodes, values)


def _copied(nodes: Tensor, sources: Tensor, basis: Values | None, flat: Tensor) -> Tensor:
    copied = flat.index_select(0, sources)
    if basis is not None:
        rows, own = basis.tensor.to(flat), flat.index_select(0, nodes)
        copied = own + (copied - own) @ rows.T @ rows
    return flat.index_copy(0, nodes, copied)


def _written(nodes: Tensor, values: Tensor, flat: Tensor) -> Tensor:
    return flat.index_copy(0, nodes, values.to(flat))


def _added(nodes: Tensor, values: Tensor, flat: Tensor) -> Tensor:
    return flat.index_add(0, nodes, values.to(flat))


def make_schedule(
    treatments: Sequence[Treatment],
    numbers: Int[np.ndarray, "row token"],
    nodes: Int[np.ndarray, "row token"],
    runs: Mapping[Run, int],
) -> Schedule:
    """The edits and cuts of one prompt's rows.

    Args:
        treatments: All treatments of a plan.
        numbers: Which of them each token of each row has.
        nodes: Where each token of each row is in the batch; rows may share tokens.
        runs: Row of each run that is copied from.
    """
    return _Scheduler(treatments, numbers, nodes, runs).schedule()


@dataclass
class _Scheduler:
    treatments: Sequence[Treatment]
    numbers: np.ndarray
    nodes: np.ndarray
    runs: Mapping[Run, int]
    rounds: dict[tuple[int, Hook], int] = field(default_factory=dict)
    """For each node and hook, how many rounds of edits are over before its activation is final."""

    def schedule(self) -> Schedule:
        found = Schedule()
        seen: set[int] = set()
        for row in range(len(self.numbers)):
            for token, number in enumerate(self.numbers[row].tolist()):
                node = int(self.nodes[row, token])
                treatment = self.treatments[number]
                if node not in seen and (treatment.edits or treatment.cuts):
                    self._add(found, row, token)
                seen.add(node)
        return found

    def _add(self, found: Schedule, row: int, token: int) -> None:
        node, treatment = (
            int(self.nodes[row, token]),
            self.treatments[int(self.numbers[row, token])],
        )
        at: dict[Hook, int] = {}
        for edit in treatment.edits:
            at[edit.hook] = self._round(edit, token, at.get(edit.hook, 0))
            step = found.steps[
                edit.hook, at[edit.hook], type(edit), edit.basis if isinstance(edit, Copy) else None
            ]
            step.nodes.append(node)
            if isinstance(edit, Copy):
                step.sources.append(int(self.nodes[self.runs[edit.source], token]))
            else:
                step.values.append(edit.value)
        for cut in treatment.cuts:
            found.cuts[cut.layer] += [
                (node, int(self.nodes[row, key])) for key in sorted(cut.keys) if key < token
            ]

    def _round(self, edit: Edit, token: int, before: int) -> int:
        """The round of an edit: after those before it at its own token, and after the last one at the token that it copies from."""
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
