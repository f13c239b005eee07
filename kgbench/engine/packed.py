"""The packed executor: the token tree of each prompt in one batch row, all its configurations.

Invariants:

- A node of a tree is one token under one history of treatments. Its attention mask holds its
  ancestors and itself, and its position id is its depth, so that it computes exactly what its token
  computes in a row of its own. Nodes of different branches never attend to each other.
- Prompts that go on from one text share trees, whose nodes differ in tokens too.
- Up to some layer, configurations share more than their common prefix: also tokens whose treatments
  differ in later layers only. So layers may have trees of their own, each over the treatments cut
  off after its last layer; the last one is the tree of all layers, whose leaves are read out.
- Trees are grown when their chunk is computed; until then only their numbers of nodes are known.
- Nodes of row r of a batch of trees padded to `width` have indices r * width + node in the
  flattened batch; leaves, edits and cuts are shifted by r * width.
- No node has padding among its ancestors, so the content of padding has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int

from kgbench.engine.attention_masks import Masks, make_masks
from kgbench.engine.edits import Treatment
from kgbench.engine.forward import Activity, Stage, Weights, Wiring, treated
from kgbench.engine.indices import Indices
from kgbench.engine.plan import Answers, Budget, Chunk, Plan
from kgbench.engine.schedule import Schedule, make_schedule
from kgbench.engine.siblings import Siblings, siblings
from kgbench.engine.tree import END, Tree, grow, size, split
from kgbench.models.family_map import Slots

KEYS = 2
"""Keys, per unit of a model's width, to which attention costs as much as all else of a node, in
trees larger than a CPU's caches."""
FEW_KEYS = 6
"""The same in smaller trees, as by the numbers of operations."""


WASTE = 0.1
"""Rows that a layer may compute in vain, rather than have a tree of its own."""
SAVED = 0.15
"""Rows that trees of their own must save, over all layers, to be worth their gathering."""


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
    angles: tuple[int, ...]
    """Equal for groups of prompts with equal rotary angles, see `Rotary`."""


@dataclass(frozen=True)
class Trunk:
    """The tree of some layers of a group, and its relation to the whole tree."""

    layers: range
    tree: Tree
    nodes: Int[np.ndarray, " node"]
    """For each node, a node of the whole tree that it represents."""
    at: Int[np.ndarray, " whole"]
    """For each node of the whole tree, the node that represents it."""


@dataclass(frozen=True)
class Rooted:
    """A group with its token trees."""

    trunks: tuple[Trunk, ...]
    """In order, of all layers; the last one has the whole tree."""
    schedule: Schedule | None
    """Edits and cuts, of the whole tree; None if the plan has none."""

    @property
    def tree(self) -> Tree:
        """The whole tree, whose leaves are read out."""
        return self.trunks[-1].tree

    def trunk(self, layer: int) -> Trunk:
        """The trunk of a layer."""
        return next(trunk for trunk in self.trunks if layer in trunk.layers)


def run_packed(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Chunk]:
    """Forwards that answer a plan; the models must pass the self-test of this executor."""
    wiring = wiring.scaled(plan.scaled)
    forks = _Forks(plan, wiring)
    for groups in _chunks(wiring, plan, budget):
        yield Chunk(sum(group.nodes for group in groups), partial(_answer, plan, groups, forks))


def _groups(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Group]:
    """One group per prompt or siblings, or several where a tree would exceed the budget.

    Prompts with the same treatments and readouts differ in their token ids only and share a tree.
    """
    config, angles = wiring.model.config, wiring.rotary.angles
    vocabulary, width = config.vocab_size, config.hidden_size
    layouts: dict[object, int] = {}
    divided: list[list[tuple[Int[np.ndarray, " configuration"], int]]] = []
    for kin in siblings(plan, angles):
        request, read = kin.joint, kin.n_readouts
        layout = layouts.setdefault(kin.layout, len(layouts))
        if layout == len(divided):
            limit = kin.limit(min(budget.tree, budget.tokens), FEW_KEYS * width)
            needs = list(map(request.rows_of, range(request.configurations)))
            most = max(1, budget.logits // (int(read.max()) * vocabulary))
            divided.append(list(split(request.treatments, limit, needs, most, KEYS * width)))
        for number, (rows, nodes) in enumerate(divided[layout]):
            answers = int(read[rows].sum())
            yield Group(kin, rows, nodes, answers, (layout, number), angles(kin.length))


class _Forks:
    """Token trees of a plan's groups, and the layers from which on treatments differ."""

    def __init__(self, plan: Plan, wiring: Wiring) -> None:
        self.plan, self.wiring, self.n_layers = plan, wiring, wiring.slots.n_layers
        self._grown: dict[tuple[int, int], Rooted] = {}

    @cached_property
    def _cut_off(self) -> list[Int[np.ndarray, " treatment"]]:
        """Numbers of the treatments, equal if all that they do up to a layer is equal.

        They are of each layer but the last; of none where layers have no trees of their own.
        """
        layers = range(self.n_layers - 1) if self.wiring.staged else ()
        return [_cut_off(self.plan, self.wiring.slots, layer) for layer in layers]

    def rooted(self, groups: Sequence[Group]) -> list[Rooted]:
        """The groups of a chunk with their trees.

        Trees are kept from one chunk to the next only, so that a plan's number of prompts does not
        matter for memory.
        """
        before, self._grown = self._grown, {}
        for group in groups:
            if group.key not in self._grown:
                self._grown[group.key] = before.get(group.key) or self._grow(group)
        return [self._grown[group.key] for group in groups]

    def _grow(self, group: Group) -> Rooted:
        rows, runs = group.kin.joint.with_runs(group.rows)
        tree, plan = group.kin.grow(rows, group.rows), self.plan
        schedule = None
        if plan.treatments:
            schedule = make_schedule(plan.treatments, rows, tree.paths, runs)
        return Rooted(self.trunks(group.kin, rows, tree), schedule)

    def trunks(
        self, kin: Siblings, rows: Int[np.ndarray, "row token"], forest: Tree
    ) -> tuple[Trunk, ...]:
        """Trunks of a group.

        Only as many as save rows: layers whose own tree is hardly smaller compute the next one's.

        Args:
            kin: The prompts.
            rows: Numbers of the treatments of the group's rows.
            forest: Their tree.
        """
        everything = np.arange(len(forest))
        last = Trunk(range(self.n_layers), forest, everything, everything)
        treatments = np.unique(kin.read(forest)[0])
        if not self._cut_off or len(np.unique(self._cut_off[0][treatments])) == len(treatments):
            return (last,)  # all differ in the first layer already
        until = [kin.replaced(rows, numbers) for numbers in self._cut_off]
        sizes = list(map(size, until))
        starts, nodes, saved = [self.n_layers], len(forest), 0
        for layer in reversed(range(len(sizes))):
            if sizes[layer] <= (1 - WASTE) * nodes:
                starts.append(layer + 1)
                nodes = sizes[layer]
            saved += len(forest) - nodes
        if len(starts) == 1 or saved < SAVED * self.n_layers * len(forest):
            return (last,)
        trunks = []
        for start, stop in pairwise([0, *reversed(starts[1:])]):
            tree = grow(until[stop - 1], ())
            at, nodes_of = (
                np.empty(len(forest), dtype=np.int64),
                np.empty(len(tree), dtype=np.int64),
            )
            ours, theirs = tree.paths[rows != END], forest.paths[rows != END]
            at[theirs], nodes_of[ours] = ours, theirs
            trunks.append(Trunk(range(start, stop), tree, nodes_of, at))
        return (*trunks, replace(last, layers=range(trunks[-1].layers.stop, self.n_layers)))


def _cut_off(plan: Plan, slots: Slots, layer: int) -> Int[np.ndarray, " treatment"]:
    """Number of each treatment among those that differ up to a layer."""
    # Slots are in the order of computation, but for final norm and head, which are last.
    stop = 1 + max(slot for slot, site in enumerate(slots.sites) if site[0] == layer)
    numbers: dict[object, int] = {}
    cut_off = []
    for treatment, weights in enumerate(plan.table[:, :stop]):
        done = _until(plan.treatments[treatment], layer) if plan.treatments else ()
        heads = [sets[treatment].tobytes() for slot, sets in plan.heads.items() if slot < stop]
        key = weights.tobytes(), done, tuple(heads)
        cut_off.append(numbers.setdefault(key, len(numbers)))
    return np.array(cut_off)


def _until(treatment: Treatment, layer: int) -> tuple[object, ...]:
    """Edits and cuts of a treatment up to a layer."""
    edits = tuple(edit for edit in treatment.edits if edit.hook.layer <= layer)
    return edits, tuple(cut for cut in treatment.cuts if cut.layer <= layer)


def _chunks(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[list[Group]]:
    """Collect groups by size into chunks within the budget; a chunk has at least one group.

    Groups whose rotary angles differ are in different chunks.
    """
    vocabulary = wiring.model.config.vocab_size
    chunk: list[Group] = []
    answers = 0
    for group in sorted(_groups(wiring, plan, budget), key=lambda g: (g.angles, g.nodes)):
        full = chunk and (
            (len(chunk) + 1) * group.nodes > budget.tokens
            or (answers + group.answers) * vocabulary > budget.logits
            or len(chunk) == budget.prompts
            or group.angles != chunk[0].angles
        )
        if full:
            yield chunk
            chunk, answers = [], 0
        chunk.append(group)
        answers += group.answers
    if chunk:
        yield chunk


def _answer(plan: Plan, chunk: Sequence[Group], forks: _Forks) -> Answers:
    rooted, wiring = forks.rooted(chunk), forks.wiring
    device, trees, indices = wiring.pair.device, [each.tree for each in rooted], Indices()
    width = max(map(len, trees))
    ids, numbers = (np.zeros((len(chunk), width), dtype=np.int64) for _ in range(2))
    for row, (group, tree) in enumerate(zip(chunk, trees, strict=True)):
        n = len(tree)
        numbers[row, :n], ids[row, :n] = group.kin.read(tree)
        # Padding takes the last node's treatment, so that it adds no weight set to any module.
        numbers[row, n:] = numbers[row, n - 1]
    leaves = np.concatenate([row * width + t.leaves.reshape(-1) for row, t in enumerate(trees)])
    depths, masks = _masks(wiring, trees, indices)
    stages, activity = _stages(wiring, rooted, masks, indices)
    inputs, positions = indices.add(ids), indices.add(depths)
    weights = Weights(plan.table, plan.heads)
    tokens, length = numbers.reshape(-1), max(group.kin.length for group in chunk)
    with treated(wiring, weights, tokens, leaves, activity, stages, length) as model:
        logits = model(
            input_ids=inputs.on(device),
            attention_mask=masks.whole,
            position_ids=positions.on(device),
            use_cache=False,
        ).logits
    labels = [group.kin.labels(group.rows) for group in chunk]
    prompts, configurations, readouts = torch.from_numpy(np.concatenate(labels, axis=1))
    return Answers(prompts, configurations, readouts, logits, sum(map(len, trees)))


def _masks(
    wiring: Wiring, trees: Sequence[Tree], indices: Indices
) -> tuple[Int[np.ndarray, "row node"], Masks]:
    """Depth of each node of a padded batch of trees, and masks."""
    shape = len(trees), max(map(len, trees))
    depths = np.zeros(shape, dtype=np.int64)
    # Padding attends to itself: a fully masked row would make the softmax NaN.
    ends = np.tile(np.arange(1, shape[1] + 1), (shape[0], 1))
    for row, tree in enumerate(trees):
        depths[row, : len(tree)], ends[row, : len(tree)] = tree.depths, tree.ends
    return depths, make_masks(wiring.pair, ends, depths, indices)


def _stages(
    wiring: Wiring, rooted: Sequence[Rooted], masks: Masks, indices: Indices
) -> tuple[list[Stage], Activity]:
    """Rows of the layers, where they are not those of the batch; edits, and masks of layers.

    Args:
        wiring: The pair's sockets.
        rooted: Trees of the batch.
        masks: Masks of the whole trees.
        indices: Those of the batch.
    """
    starts: set[int] = set()
    for each in rooted:
        starts.update(trunk.layers.start for trunk in each.trunks)
    if len(starts) == 1:
        return [], _activity(_schedule(rooted, masks.width), masks, masks.own, indices)
    stages: list[Stage] = []
    activity = Activity(indices=indices)
    for start, stop in pairwise([*sorted(starts), wiring.slots.n_layers]):
        layers, trunks = range(start, stop), [each.trunk(start) for each in rooted]
        trunk_masks = _masks(wiring, [trunk.tree for trunk in trunks], indices)[1]
        before = [each.trunk(start - 1) for each in rooted] if stages else None
        stages.append(_stage(layers, trunks, before))
        schedule = _schedule(rooted, trunk_masks.width, layers)
        activity |= _activity(schedule, trunk_masks, layers, indices)
    return stages, activity


def _activity(
    schedule: Schedule, masks: Masks, layers: Collection[int], indices: Indices
) -> Activity:
    """Edits, and masks of some layers and of those with cuts."""
    return Activity(
        schedule.edits(indices),
        {
            **{layer: partial(masks.of, layer) for layer in layers},
            **schedule.masks(masks, indices),
        },
        schedule.overwritten(),
        schedule.sources(),
        indices,
    )


def _stage(layers: range, trunks: Sequence[Trunk], before: Sequence[Trunk] | None) -> Stage:
    """The stage of some layers, after one with the trunks `before`, if there is one."""
    shape = len(trunks), max(len(trunk.tree) for trunk in trunks)
    width = max(len(trunk.at) for trunk in trunks)
    earlier = width if before is None else max(len(trunk.tree) for trunk in before)
    rows, entering = (np.zeros(shape, dtype=np.int64) for _ in range(2))
    for row, trunk in enumerate(trunks):
        n = len(trunk.tree)
        continued = trunk.nodes if before is None else before[row].at[trunk.nodes]
        rows[row, :n], rows[row, n:] = row * width + trunk.nodes, row * width + trunk.nodes[-1]
        entering[row, :n], entering[row, n:] = row * earlier + continued, row * earlier
    return Stage(layers, rows, entering)


def _schedule(rooted: Sequence[Rooted], width: int, layers: range | None = None) -> Schedule:
    """Edits and cuts of a batch; of some layers, in their rows."""
    schedule = Schedule()
    for row, each in enumerate(rooted):
        if each.schedule is not None:
            part = each.schedule
            if layers is not None:
                part = part.within(layers, each.trunk(layers.start).at)
            schedule.extend(part, row * width)
    return schedule
