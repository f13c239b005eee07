"""Token trees: the configurations of one prompt share the tokens up to which they treat the prompt alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

__all__ = ["Tree", "grow", "split"]


@dataclass(frozen=True)
class Tree:
    """A trie over the treatments of one prompt's tokens; a node is one token under one history of treatments.

    It does not hold the token ids: prompts of one length whose regions lie alike share their tree.
    """

    depths: Int[np.ndarray, " node"]
    """Position of the node's token in the prompt."""
    treatments: Int[np.ndarray, " node"]
    ancestors: Bool[np.ndarray, "node node"]
    """[i, j]: node j is i or comes before it on its path, so that i attends to j."""
    leaves: Int[np.ndarray, "configuration readout"]
    """Node at which each configuration is read out."""

    def __len__(self) -> int:
        return len(self.depths)


def grow(treatments: Int[np.ndarray, "configuration token"], readouts: Sequence[int]) -> Tree:
    """The tree of a prompt, level by level.

    Args:
        treatments: Number of the treatment of each token under each configuration.
        readouts: Tokens that are read out.
    """
    n_configurations, n_tokens = treatments.shape
    paths = np.empty((n_configurations, n_tokens), dtype=np.int64)
    parents: list[int] = []
    numbers: list[int] = []
    depths: list[int] = []
    at = [-1] * n_configurations
    for depth in range(n_tokens):
        children: dict[tuple[int, int], int] = {}
        for row, treatment in enumerate(treatments[:, depth].tolist()):
            key = (at[row], treatment)
            if key not in children:
                children[key] = len(parents)
                parents.append(at[row])
                numbers.append(treatment)
                depths.append(depth)
            at[row] = children[key]
        paths[:, depth] = at
    ancestors = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
    return Tree(np.array(depths), np.array(numbers), ancestors, paths[:, list(readouts)])


def split(treatments: Int[np.ndarray, "configuration token"], limit: int) -> Iterator[Int[np.ndarray, " configuration"]]:
    """Divide configurations into groups whose trees hold at most `limit` nodes, neighbours in the tree together.

    A single configuration is never divided, so that a group may exceed a limit below the prompt's length.
    """
    n_tokens = treatments.shape[1]
    order = np.lexsort(treatments.T[::-1])
    group: list[int] = []
    nodes = 0
    for row in order.tolist():
        shared = _shared(treatments[group[-1]], treatments[row]) if group else 0
        if group and nodes + n_tokens - shared > limit:
            yield np.array(group)
            group, nodes, shared = [], 0, 0
        group.append(row)
        nodes += n_tokens - shared
    yield np.array(group)


def _shared(one: Int[np.ndarray, " token"], other: Int[np.ndarray, " token"]) -> int:
    """Number of first tokens that two configurations treat alike."""
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if differ.size else len(one)
