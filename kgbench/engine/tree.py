"""Token trees: the configurations of one prompt share the tokens up to which they treat the prompt alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    paths: Int[np.ndarray, "row token"]
    """Node of each token of each row that the tree was grown from."""
    leaves: Int[np.ndarray, "configuration readout"]
    """Node at which each configuration is read out."""

    def __len__(self) -> int:
        return len(self.depths)


class _Trie:
    """Nodes in the order of their insertion, so that a parent comes before its children."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}
        """Number of the node below a parent, -1 at the root, with a treatment."""

    def insert(self, row: Sequence[int]) -> list[int]:
        """The nodes of a row, those that were missing included."""
        at, path = -1, []
        for treatment in row:
            at = self.nodes.setdefault((at, treatment), len(self.nodes))
            path.append(at)
        return path

    def missing(self, row: Sequence[int]) -> int:
        """How many nodes a row would add."""
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
        treatments: Number of the treatment of each token in each row.
        readouts: Tokens that are read out.
        configurations: How many of the first rows are read out; by default all.
    """
    trie = _Trie()
    paths = np.array([trie.insert(row) for row in treatments.tolist()])
    ancestors = np.eye(len(trie.nodes), dtype=bool)
    depths = np.zeros(len(trie.nodes), dtype=np.int64)
    for (parent, _), node in trie.nodes.items():
        if parent >= 0:
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
    """Divide configurations into groups whose trees hold at most `limit` nodes each, neighbours in the tree together.

    A single configuration is never divided, so that a group may exceed a limit below what one configuration takes.

    Args:
        treatments: Number of the treatment of each token under each configuration.
        limit: Most nodes.
        beside: For a configuration, further rows that its tree must hold.
        most: Most configurations in a group.
    """
    trie, group = _Trie(), list[int]()
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
