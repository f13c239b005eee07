"""The packed executor: the token tree of each prompt in one row, all configurations in one forward."""

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

__all__ = ["run", "token_rows"]


@dataclass(frozen=True)
class Rooted:
    """The tree of some configurations of one prompt."""

    prompt: int
    configurations: Int[np.ndarray, " configuration"]
    ids: Int[np.ndarray, " token"]
    tree: Tree
    schedule: Schedule | None
    """Edits and cuts, if there are any."""

    @property
    def answers(self) -> int:
        """Number of answers that the tree gives."""
        return self.tree.leaves.size


def run(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan chunk by chunk, for models that pass the self-test of this executor."""
    wiring = wiring.scaled(plan.scaled)
    vocabulary = wiring.model.config.vocab_size
    for chunk in _chunks(_trees(plan, budget, vocabulary), budget, vocabulary):
        yield _answer(wiring, plan, chunk)


def token_rows(plan: Plan, budget: Budget) -> tuple[int, int]:
    """Token rows that `run` computes without padding, and the number of its forwards for a vocabulary of size one."""
    chunks = list(_chunks(_trees(plan, budget, 1), budget, 1))
    return sum(len(t.tree) for chunk in chunks for t in chunk), len(chunks)


def _trees(plan: Plan, budget: Budget, vocabulary: int) -> list[Rooted]:
    """One tree per prompt, or several where one would be too large; prompts treated alike share the work of growing."""
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
        rooted += [
            Rooted(i, group, np.array(request.ids), tree, schedule)
            for group, tree, schedule in grown[key]
        ]
    return rooted


def _grow(
    plan: Plan, request: Request, group: Int[np.ndarray, " configuration"]
) -> tuple[Tree, Schedule | None]:
    rows, runs = request.with_runs(group)
    tree = grow(rows, request.readouts, len(group))
    return tree, make_schedule(plan.treatments, rows, tree.paths, runs) if plan.treatments else None


def _chunks(trees: Iterable[Rooted], budget: Budget, vocabulary: int) -> Iterator[list[Rooted]]:
    """Trees of like size together, as many as the budget allows."""
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
    ancestors[:, np.arange(width), np.arange(width)] = (
        True  # padding attends to itself, so that no row of the softmax is empty
    )
    for row, rooted in enumerate(chunk):
        n = len(rooted.tree)
        ids[row, :n], depths[row, :n] = rooted.ids[rooted.tree.depths], rooted.tree.depths
        numbers[row, :n], ancestors[row, :n, :n] = rooted.tree.treatments, rooted.tree.ancestors
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
    """Prompt, configuration and readout of each leaf."""
    prompts = np.concatenate([np.full(t.answers, t.prompt) for t in chunk])
    configurations = np.concatenate(
        [np.repeat(t.configurations, t.tree.leaves.shape[1]) for t in chunk]
    )
    readouts = np.concatenate(
        [np.tile(np.arange(t.tree.leaves.shape[1]), len(t.configurations)) for t in chunk]
    )
    return torch.from_numpy(prompts), torch.from_numpy(configurations), torch.from_numpy(readouts)
