"""Token trees: configurations of a prompt share the computation of their common prefix.

Rows are put in lexicographic order: the nodes that a row adds to a tree are its tokens after the
longest prefix that it shares with a neighbour, and nodes numbered in this order are in depth-first
order, so that the descendants of a node are the interval of numbers that follows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int

END = -1
"""In place of a treatment, after the last token of a row that is shorter than others."""


@dataclass(frozen=True)
class Tree:
    """A trie over the treatments of one prompt's tokens, with nodes in depth-first order.

    A node is one token under one history of treatments. In a causal model its activations depend on
    this history only, so all configurations through a node share them. The tree holds no token ids:
    prompts with the same treatments share it.
    """

    depths: Int[np.ndarray, " node"]
    """Position of the node's token in the prompt."""
    treatments: Int[np.ndarray, " node"]
    ends: Int[np.ndarray, " node"]
    """Nodes i to ends[i] - 1 are i and its descendants, which attend to i."""
    paths: Int[np.ndarray, "row token"]
    """Node of each token of each row; of no meaning after its last one."""
    leaves: Int[np.ndarray, "configuration readout"]
    """Readout nodes of each configuration."""

    def __len__(self) -> int:
        return len(self.depths)


def grow(
    treatments: Int[np.ndarray, "row token"],
    readouts: Sequence[int],
    configurations: int | None = None,
) -> Tree:
    """The tree of a prompt.

    Args:
        treatments: Index of the treatment of each token in each row; `END` after its last token.
        readouts: Tokens that are read out.
        configurations: Number of leading rows that are read out; by default all.
    """
    rows, tokens = _Rows.of(treatments), np.arange(treatments.shape[1])
    apart = tokens >= rows.shared[:, None]
    new = apart & (treatments[rows.order] != END)
    numbers = np.cumsum(new).reshape(new.shape) - 1
    # A token of a shared prefix has the node of the row before: the last new one of its column.
    paths = np.empty_like(numbers)
    paths[rows.order] = np.maximum.accumulate(np.where(new, numbers, -1))
    # The descendants of a node end at the first later row that has parted before or in its column.
    n_new = new.sum(axis=1)
    firsts = np.where(apart, (np.cumsum(n_new) - n_new)[:, None], new.sum())
    ends = np.full_like(numbers, new.sum())
    ends[:-1] = np.minimum.accumulate(firsts[:0:-1])[::-1]
    depths = np.broadcast_to(tokens, new.shape)[new]
    leaves = paths[:configurations, list(readouts)]
    return Tree(depths, treatments[rows.order][new], ends[new], paths, leaves)


def size(treatments: Int[np.ndarray, "row token"]) -> int:
    """Number of nodes of the tree of some rows."""
    rows = _Rows.of(treatments)
    return int((rows.lengths - np.minimum(rows.shared, rows.lengths)).sum())


def split(
    treatments: Int[np.ndarray, "row token"],
    limit: int,
    needs: Sequence[Sequence[int]] | None = None,
    most: int | None = None,
    keys: int = 0,
) -> Iterator[tuple[Int[np.ndarray, " configuration"], int]]:
    """Divide configurations into groups, each with a tree of its own.

    A tree has at most `limit` nodes. Beyond it, up to twice the nodes of its first configuration, a
    configuration joins a tree where it takes no more computation than the mean configuration of the
    tree: configurations of a long prompt that differ in few tokens do. A configuration is never
    divided, so the tree of one configuration may exceed the limit.

    Args:
        treatments: Index of the treatment of each token in each row.
        limit: Maximum number of nodes of a tree, unless its rows are long.
        needs: Rows that the tree of each configuration must hold; by default one row each.
        most: Maximum number of configurations in a group.
        keys: Number of keys to which attention takes as much computation as all else of a node.

    Yields:
        Configurations of a group, and the number of nodes of their tree.
    """
    needs = needs if needs is not None else [(row,) for row in range(len(treatments))]
    rows = _Rows.of(treatments)
    places = np.argsort(rows.order).tolist()
    group, tree, nodes, branches, first = list[int](), list[int](), 0, 0, 0
    # Lexicographic order puts configurations with a long common prefix into the same group.
    for configuration in sorted(range(len(needs)), key=places.__getitem__):
        further = [places[row] for row in needs[configuration]]
        joined = tree.copy()
        larger = nodes + sum(rows.insert(row, joined) for row in further)
        fits = larger <= limit or (
            larger <= 2 * first and _joins(nodes, larger, max(branches, 1), keys)
        )
        if group and (len(group) == most or not fits):
            yield np.array(group), nodes
            group, joined, nodes, branches = [], [], 0, 0
            larger = sum(rows.insert(row, joined) for row in further)
        first = first if group else larger
        group.append(configuration)
        tree, nodes, branches = joined, larger, branches + (larger > nodes)
    yield np.array(group), nodes


def _joins(nodes: int, larger: int, branches: int, keys: int) -> bool:
    """Whether the nodes that a configuration adds cost no more than the tree's mean branch."""
    cost = nodes * (keys + nodes)
    return larger * (keys + larger) - cost <= cost / branches


@dataclass(frozen=True)
class _Rows:
    """Rows in lexicographic order."""

    order: Int[np.ndarray, " row"]
    shared: Int[np.ndarray, " row"]
    """[i]: length of the prefix that the rows at places i - 1 and i of the order share."""
    lengths: Int[np.ndarray, " row"]
    """Number of tokens, in this order."""

    @classmethod
    def of(cls, treatments: Int[np.ndarray, "row token"]) -> _Rows:
        width = treatments.shape[1]
        columns = treatments[:, (treatments != treatments[:1]).any(axis=0)]
        order = np.lexsort(columns.T[::-1]) if columns.size else np.arange(len(treatments))
        differ = np.diff(treatments[order], axis=0) != 0
        shared = np.where(differ.any(axis=1), differ.argmax(axis=1), width)
        lengths = (treatments[order] != END).sum(axis=1)
        return cls(order, np.concatenate([[0], shared]), lengths)

    def insert(self, row: int, tree: list[int]) -> int:
        """Insert a row into those of a tree, as places in the order; number of nodes it adds."""
        at = bisect_left(tree, row)
        neighbours = [*tree[max(at - 1, 0) : at], row, *tree[at : at + 1]]
        tree.insert(at, row)
        shared = 0
        for first, last in pairwise(neighbours):
            # Rows further apart share what all neighbours between them share.
            between = self.shared[first + 1 : last + 1]
            shared = max(shared, int(between.min(initial=self.lengths[row])))
        return int(self.lengths[row]) - shared
