"""Requests whose prompts go on from one text, and therefore share token trees.

Invariant: configurations, also of different requests, share a node where both their tokens and
their treatments agree up to there, and their rotary angles throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
from jaxtyping import Int

from kgbench.engine.plan import Plan, Request
from kgbench.engine.tree import END, Tree, grow

Rows = Int[np.ndarray, " configuration"]
"""Numbers of some configurations, counted over all requests."""


@dataclass(frozen=True)
class Siblings:
    """Neighbouring requests of a plan: one, or several without runs."""

    first: int
    """Number of the first one in the plan."""
    requests: tuple[Request, ...]

    @property
    def length(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(request.ids) for request in self.requests)

    @cached_property
    def joint(self) -> Request:
        """All as one; of several, a treatment's number then encodes a token id as well."""
        if len(self.requests) == 1:
            return self.requests[0]
        numbers, row = np.full((len(self._owners), self.length), END), 0
        for request in self.requests:
            n, length = request.treatments.shape
            numbers[row : row + n, :length] = request.treatments * self._base + request.ids
            row += n
        return Request((), numbers, ())

    @cached_property
    def _base(self) -> int:
        return 1 + max(max(request.ids) for request in self.requests)

    @cached_property
    def _owners(self) -> Int[np.ndarray, "configuration 2"]:
        """Request of each configuration, counted from the first, and its number there."""
        owners = []
        for number, request in enumerate(self.requests):
            owners += [(number, configuration) for configuration in range(request.configurations)]
        return np.array(owners)

    @cached_property
    def n_readouts(self) -> Int[np.ndarray, " configuration"]:
        """Number of readouts of each configuration."""
        read = np.array([len(request.readouts) for request in self.requests])
        return np.repeat(read, [request.configurations for request in self.requests])

    def limit(self, nodes: int, keys: int) -> int:
        """Maximum number of nodes of a tree: of several requests, those by which trees cost least.

        A tree of n nodes, p of them the text that all go on from, costs n (keys + n), and holds but
        n - p nodes of its own.

        Args:
            nodes: The maximum in any case.
            keys: Number of keys to which attention costs as much as all else of a node.
        """
        if len(self.requests) == 1:
            return nodes
        text = min(len(request.ids) for request in self.requests)
        return min(nodes, text + math.isqrt(text * (keys + text)))

    @property
    def layout(self) -> object:
        """Equal only where trees are equal; those of several requests hold token ids."""
        if len(self.requests) > 1:
            return self.first
        return self.joint.treatments.shape, self.joint.treatments.tobytes(), self.joint.readouts

    def grow(self, numbers: Int[np.ndarray, "row token"], rows: Rows) -> Tree:
        """The tree of some configurations, given the numbers of treatments that it is over."""
        if len(self.requests) == 1:
            return grow(numbers, self.joint.readouts, len(rows))
        tree = grow(numbers, ())
        tokens = np.concatenate([self.requests[i].readouts for i in self._owners[rows, 0]])
        leaves = tree.paths[np.repeat(np.arange(len(rows)), self.n_readouts[rows]), tokens]
        return replace(tree, leaves=leaves[None])

    def replaced(
        self, numbers: Int[np.ndarray, "row token"], by: Int[np.ndarray, " treatment"]
    ) -> Int[np.ndarray, "row token"]:
        """The numbers with other treatments, and the same token ids."""
        if len(self.requests) == 1:
            replaced: np.ndarray = by[numbers]
        else:
            treatments, ids = np.divmod(numbers, self._base)
            replaced = np.where(numbers == END, END, by[treatments] * self._base + ids)
        return replaced

    def read(self, tree: Tree) -> tuple[Int[np.ndarray, " node"], Int[np.ndarray, " node"]]:
        """Treatment and token id of each node."""
        if len(self.requests) == 1:
            return tree.treatments, np.array(self.joint.ids)[tree.depths]
        return np.divmod(tree.treatments, self._base)

    def labels(self, rows: Rows) -> Int[np.ndarray, "3 answer"]:
        """Prompt, configuration and readout of each leaf."""
        n = self.n_readouts[rows]
        prompts, configurations = np.repeat(self._owners[rows] + (self.first, 0), n, axis=0).T
        return np.stack([prompts, configurations, np.concatenate(list(map(np.arange, n)))])


def siblings(plan: Plan, angles: Callable[[int], object]) -> Iterator[Siblings]:
    """Divide the requests of a plan; in one with edits or cuts, each is alone.

    Args:
        plan: The plan.
        angles: Equal for lengths of prompts with equal rotary angles.
    """

    def stem(numbered: tuple[int, Request]) -> object:
        number, request = numbered
        alone = request.stem is None or plan.treatments
        return number if alone else (request.stem, angles(len(request.ids)))

    for _, neighbours in groupby(enumerate(plan.requests), stem):
        numbers, requests = zip(*neighbours, strict=True)
        yield Siblings(numbers[0], requests)
