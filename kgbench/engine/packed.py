"""The packed executor: the token tree of each prompt in one batch row, all its configurations.

Invariants:

- A node of a tree is one token under one history of treatments. Its attention mask holds its
  ancestors and itself, and its position id is its depth, so that it computes exactly what its token
  computes in a row of its own. Nodes of different branches never attend to each other.
- Nodes of row r of a batch of trees padded to `width` have indices r * width + node in the
  flattened batch; leaves, edits and cuts are shifted by r * width.
- No node has padding among its ancestors, so the content of padding has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kgbench.engine.forward import Activity, Wiring, treated
from kgbench.engine.masks import Masks, make_masks
from kgbench.engine.plan import Answers, Budget, Plan, Request
from kgbench.engine.schedule import Schedule, make_schedule
from kgbench.engine.tree import Tree, grow, split

__all__ = ["run_packed"]


@dataclass(frozen=True)
class Rooted:
    """The token tree of some configurations of one prompt."""

    prompt: int
    configurations: Int[np.ndarray, " configuration"]
    ids: Int[np.ndarray, " token"]
    tree: Tree
    schedule: Schedule | None
    """Edits and cuts; None if the plan has none."""

    @property
    def answers(self) -> int:
        """Number of answers of the tree: configurations × readouts."""
        return self.tree.leaves.size


def run_packed(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan chunk by chunk; the models must pass the self-test of this executor."""
    wiring = wiring.scaled(plan.scaled)
    vocabulary = wiring.model.config.vocab_size
    for chunk in _chunks(_trees(plan, budget, vocabulary), budget, vocabulary):
        yield _answer(wiring, plan, chunk)


def _trees(plan: Plan, budget: Budget, vocabulary: int) -> list[Rooted]:
    """One tree per prompt, or several where one would exceed the budget.

    Prompts with the same treatments and readouts differ in their token ids only and share a tree.
    """
    grown: dict[
        tuple[object, ...], list[tuple[Int[np.ndarray, " configuration"], Tree, Schedule | None]]
    ] = {}
    rooted = []
    for i, request in enumerate(plan.requests):
        key = (request.treatments.shape, request.treatments.tobytes(), request.readouts)
        if key not in grown:
            most = max(1, budget.logits // (len(request.readouts) * vocabulary))
            groups = split(
                request.treatments, min(budget.tree, budget.tokens), request.beside(), most
            )
            grown[key] = [(group, *_grow(plan, request, group)) for group in groups]
        for group, tree, schedule in grown[key]:
            rooted.append(Rooted(i, group, np.array(request.ids), tree, schedule))
    return rooted


def _grow(
    plan: Plan, request: Request, group: Int[np.ndarray, " configuration"]
) -> tuple[Tree, Schedule | None]:
    rows, runs = request.with_runs(group)
    tree = grow(rows, request.readouts, len(group))
    return tree, make_schedule(plan.treatments, rows, tree.paths, runs) if plan.treatments else None


def _chunks(trees: Iterable[Rooted], budget: Budget, vocabulary: int) -> Iterator[list[Rooted]]:
    """Group trees by size into chunks within the budget; a chunk has at least one tree."""
    chunk: list[Rooted] = []
    answers = 0
    for tree in sorted(trees, key=lambda t: len(t.tree)):
        full = (
            (len(chunk) + 1) * len(tree.tree) > budget.tokens
            or (answers + tree.answers) * vocabulary > budget.logits
            or len(chunk) == budget.prompts
        )
        if chunk and full:
            yield chunk
            chunk, answers = [], 0
        chunk.append(tree)
        answers += tree.answers
    if chunk:
        yield chunk


def _answer(wiring: Wiring, plan: Plan, chunk: list[Rooted]) -> Answers:
    device, width = wiring.pair.device, max(len(t.tree) for t in chunk)
    ids, depths, numbers = (np.zeros((len(chunk), width), dtype=np.int64) for _ in range(3))
    ancestors = np.zeros((len(chunk), width, width), dtype=bool)
    # Padding attends to itself: a fully masked row would make the softmax NaN.
    ancestors[:, np.arange(width), np.arange(width)] = True
    for row, rooted in enumerate(chunk):
        n = len(rooted.tree)
        ids[row, :n], depths[row, :n] = rooted.ids[rooted.tree.depths], rooted.tree.depths
        numbers[row, :n], ancestors[row, :n, :n] = rooted.tree.treatments, rooted.tree.ancestors
        # Padding takes the last node's treatment, so that it adds no weight set to any module.
        numbers[row, n:] = numbers[row, n - 1]
    leaves = np.concatenate(
        [row * width + t.tree.leaves.reshape(-1) for row, t in enumerate(chunk)]
    )
    masks = make_masks(wiring.pair, ancestors, depths)
    with treated(wiring, plan.table, numbers.reshape(-1), leaves, _activity(chunk, masks)) as model:
        logits = model(
            input_ids=torch.from_numpy(ids).to(device),
            attention_mask=masks.whole,
            position_ids=torch.from_numpy(depths).to(device),
            use_cache=False,
        ).logits
    return Answers(*_labels(chunk), logits, sum(len(t.tree) for t in chunk))


def _activity(chunk: list[Rooted], masks: Masks) -> Activity:
    whole, width = Schedule(), masks.whole.shape[-1]
    for row, rooted in enumerate(chunk):
        if rooted.schedule is not None:
            whole.extend(rooted.schedule, row * width)
    return Activity(whole.edits(masks.whole.device), {**masks.own(), **whole.masks(masks)})


def _labels(chunk: list[Rooted]) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt, configuration and readout of each leaf, in the order of the leaves."""
    prompts, configurations, readouts = [], [], []
    for rooted in chunk:
        n = rooted.tree.leaves.shape[1]
        prompts.append(torch.full((rooted.answers,), rooted.prompt))
        configurations.append(torch.from_numpy(rooted.configurations).repeat_interleave(n))
        readouts.append(torch.arange(n).repeat(len(rooted.configurations)))
    return torch.cat(prompts), torch.cat(configurations), torch.cat(readouts)
