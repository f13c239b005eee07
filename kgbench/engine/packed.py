"""The packed executor: the token tree of each prompt in one batch row, all its configurations.

Invariants:

- A node of a tree is one token under one history of treatments. Its attention mask holds its
  ancestors and itself, and its position id is its depth, so that it computes exactly what its token
  computes in a row of its own. Nodes of different branches never attend to each other.
- Prompts that go on from one text share trees, whose nodes differ in tokens too.
- Trees are grown when their chunk is computed; until then only their numbers of nodes are known.
- Nodes of row r of a batch of trees padded to `width` have indices r * width + node in the
  flattened batch; leaves, edits and cuts are shifted by r * width.
- No node has padding among its ancestors, so the content of padding has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from kgbench.engine.forward import Activity, Wiring, treated
from kgbench.engine.masks import Masks, make_masks
from kgbench.engine.plan import Answers, Budget, Plan
from kgbench.engine.schedule import Schedule, make_schedule
from kgbench.engine.siblings import Siblings, siblings
from kgbench.engine.tree import Tree, split

__all__ = ["run_packed"]


KEYS = 2
"""Keys, per unit of a model's width, to which attention costs as much as all else of a node. By
their numbers of operations these are about 6; trees larger than a CPU's caches cost more."""


@dataclass(frozen=True)
class Group:
    """Configurations that share a token tree."""

    kin: Siblings
    rows: Int[np.ndarray, " configuration"]
    """Numbers of the configurations among those of all these prompts."""
    nodes: int
    answers: int
    """Number of answers of the tree."""
    key: tuple[int, int]
    """Equal for groups of equal trees."""


@dataclass(frozen=True)
class Rooted:
    """A group with its token tree."""

    group: Group
    tree: Tree
    schedule: Schedule | None
    """Edits and cuts; None if the plan has none."""


def run_packed(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan chunk by chunk; the models must pass the self-test of this executor."""
    wiring = wiring.scaled(plan.scaled)
    config = wiring.model.config
    groups = _groups(plan, budget, config.vocab_size, KEYS * config.hidden_size)
    grown: dict[tuple[int, int], tuple[Tree, Schedule | None]] = {}
    for chunk in _chunks(groups, budget, config.vocab_size):
        # Trees are kept from one chunk to the next only, so that a plan's number of prompts does
        # not matter for memory.
        before, grown = grown, {}
        rooted = []
        for group in chunk:
            if group.key not in grown:
                grown[group.key] = before.get(group.key) or _grow(plan, group)
            rooted.append(Rooted(group, *grown[group.key]))
        yield _answer(wiring, plan, rooted)


def _groups(plan: Plan, budget: Budget, vocabulary: int, keys: int) -> Iterator[Group]:
    """One group per prompt or siblings, or several where a tree would exceed the budget.

    Prompts with the same treatments and readouts differ in their token ids only and share a tree.
    """
    limit = min(budget.tree, budget.tokens)
    layouts: dict[object, int] = {}
    divided: list[list[tuple[Int[np.ndarray, " configuration"], int]]] = []
    for kin in siblings(plan):
        request, read = kin.joint, kin.n_readouts
        layout = layouts.setdefault(kin.layout, len(layouts))
        if layout == len(divided):
            needs = list(map(request.rows_of, range(len(request.treatments))))
            most = max(1, budget.logits // (int(read.max()) * vocabulary))
            divided.append(list(split(request.rows, limit, needs, most, keys)))
        for number, (rows, nodes) in enumerate(divided[layout]):
            yield Group(kin, rows, nodes, int(read[rows].sum()), (layout, number))


def _grow(plan: Plan, group: Group) -> tuple[Tree, Schedule | None]:
    rows, runs = group.kin.joint.with_runs(group.rows)
    tree = group.kin.grow(rows, group.rows)
    return tree, make_schedule(plan.treatments, rows, tree.paths, runs) if plan.treatments else None


def _chunks(groups: Iterable[Group], budget: Budget, vocabulary: int) -> Iterator[list[Group]]:
    """Collect groups by size into chunks within the budget; a chunk has at least one group."""
    chunk: list[Group] = []
    answers = 0
    for group in sorted(groups, key=lambda g: g.nodes):
        full = (
            (len(chunk) + 1) * group.nodes > budget.tokens
            or (answers + group.answers) * vocabulary > budget.logits
            or len(chunk) == budget.prompts
        )
        if chunk and full:
            yield chunk
            chunk, answers = [], 0
        chunk.append(group)
        answers += group.answers
    if chunk:
        yield chunk


def _answer(wiring: Wiring, plan: Plan, chunk: list[Rooted]) -> Answers:
    device, width = wiring.pair.device, max(len(t.tree) for t in chunk)
    ids, depths, numbers = (np.zeros((len(chunk), width), dtype=np.int64) for _ in range(3))
    # Padding attends to itself: a fully masked row would make the softmax NaN.
    ends = np.tile(np.arange(1, width + 1), (len(chunk), 1))
    for row, rooted in enumerate(chunk):
        n = len(rooted.tree)
        numbers[row, :n], ids[row, :n] = rooted.group.kin.read(rooted.tree)
        depths[row, :n], ends[row, :n] = rooted.tree.depths, rooted.tree.ends
        # Padding takes the last node's treatment, so that it adds no weight set to any module.
        numbers[row, n:] = numbers[row, n - 1]
    leaves = np.concatenate(
        [row * width + t.tree.leaves.reshape(-1) for row, t in enumerate(chunk)]
    )
    masks = make_masks(wiring.pair, ends, depths)
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
    own = {layer: partial(masks.of, layer) for layer in masks.own()}
    return Activity(whole.edits(masks.whole.device), {**own, **whole.masks(masks)})


def _labels(chunk: list[Rooted]) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt, configuration and readout of each leaf, in the order of the leaves."""
    labels = [rooted.group.kin.labels(rooted.group.rows) for rooted in chunk]
    prompts, configurations, readouts = torch.from_numpy(np.concatenate(labels, axis=1))
    return prompts, configurations, readouts
