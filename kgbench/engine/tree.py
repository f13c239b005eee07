"""Token trees: configurations of a prompt share the computation of their common prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

__all__ = ["Tree", "grow", "split"]


@dataclass(frozen=True)
class Tree:
    """A trie over the treatments of one prompt's tokens.

    A node is one token under one history of treatments. In a causal model its activations depend on
    this history only, so all configurations through a node share them. The tree holds no token ids:
    prompts with the same treatments share it.
    """

    depths: Int[np.ndarray, " node"]
    """Position of the node's token in the prompt."""
    treatments: Int[np.ndarray, " node"]
    ancestors: Bool[np.ndarray, "node node"]
    """[i, j]: node j is i or an ancestor of i, so that i attends to j."""
    paths: Int[np.ndarray, "row token"]
    """Node of each token of each inserted row."""
    leaves: Int[np.ndarray, "configuration readout"]
    """Readout nodes of each configuration."""

    def __len__(self) -> int:
        return len(self.depths)


class _Trie:
    """Nodes in the order of insertion: a parent always has a smaller number than its children."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}
        """Number of the child of a parent (-1 for the root) with a treatment."""

    def insert(self, row: Sequence[int]) -> list[int]:
        """Insert the missing nodes of a row; all nodes of the row."""
        at, path = -1, []
        for treatment in row:
            at = self.nodes.setdefault((at, treatment), len(self.nodes))
            path.append(at)
        return path

    def missing(self, row: Sequence[int]) -> int:
        """Number of nodes that a row would add."""
        at = -1
        for depth, treatment in enumerate(row):
            if (at, treatment) not in self.nodes:
                return len(row) - depth
            at = self.nodes[at, treatment]
        return 0


def grow(
    treatments: Int[np.ndarray, "row token"],
    readouts: Sequence[int],
    configurations: int | None = None,
) -> Tree:
    """The tree of a prompt.

    Args:
        treatments: Index of the treatment of each token in each row.
        readouts: Tokens that are read out.
        configurations: Number of leading rows that are read out; by default all.
    """
    trie = _Trie()
    paths = np.array(list(map(trie.insert, treatments.tolist())))
    ancestors = np.eye(len(trie.nodes), dtype=bool)
    depths = np.zeros(len(trie.nodes), dtype=np.int64)
    for (parent, _), node in trie.nodes.items():
        if parent >= 0:  # insertion order: the parent's row of `ancestors` is complete
            ancestors[node] |= ancestors[parent]
            depths[node] = depths[parent] + 1
    numbers = np.array([treatment for _, treatment in trie.nodes])
    return Tree(depths, numbers, ancestors, paths, paths[:configurations, list(readouts)])


def split(
    treatments: Int[np.ndarray, "configuration token"],
    limit: int,
    beside: Mapping[int, Int[np.ndarray, "_row token"]] | None = None,
    most: int | None = None,
) -> Iterator[Int[np.ndarray, " configuration"]]:
    """Divide configurations into groups whose trees have at most `limit` nodes each.

    A configuration is never divided, so a tree of one configuration may exceed the limit.

    Args:
        treatments: Index of the treatment of each token under each configuration.
        limit: Maximum number of nodes.
        beside: Further rows that the tree of a configuration must hold.
        most: Maximum number of configurations in a group.
    """
    trie, group = _Trie(), list[int]()
    # Lexicographic order puts configurations with a long common prefix into the same group.
    for configuration in np.lexsort(treatments.T[::-1]).tolist():
        rows = [
            *(beside[configuration].tolist() if beside and configuration in beside else ()),
            treatments[configuration].tolist(),
        ]
        if group and (len(group) == most or len(trie.nodes) + sum(map(trie.missing, rows)) > limit):
            yield np.array(group)
            trie, group = _Trie(), []
        group.append(configuration)
        for row in rows:
            trie.insert(row)
    yield np.array(group)
