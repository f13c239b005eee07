"""Token trees: a trie over treatments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgbench.engine.tree import END, Tree, grow, split

treatments = st.tuples(st.integers(1, 8), st.integers(1, 7)).flatmap(
    lambda shape: hnp.arrays(np.int64, shape, elements=st.integers(0, 2))
)


@st.composite
def uneven(draw: st.DrawFn) -> np.ndarray:
    """Rows of several lengths."""
    some = draw(treatments).copy()
    for row in some:
        row[draw(st.integers(1, len(row))) :] = END
    return some


@given(treatments | uneven())
def test_a_node_is_a_distinct_prefix(some: np.ndarray) -> None:
    """There are as many nodes as distinct prefixes of rows; a node's path spells its prefix, in
    order, ending in itself.
    """
    tree = grow(some, range(some.shape[1]))
    rows = [tuple(row[row != END].tolist()) for row in some]
    prefixes = {row[: k + 1] for row in rows for k in range(len(row))}
    seen = ancestors(tree)
    spelled = [tuple(tree.treatments[seen[node]].tolist()) for node in range(len(tree))]
    assert len(tree) == len(prefixes)
    assert set(spelled) == prefixes
    assert tree.depths.tolist() == [len(s) - 1 for s in spelled]
    assert seen.diagonal().all()
    assert not np.triu(seen, 1).any(), "no node sees one that comes later"
    for row, path in zip(rows, tree.paths.tolist(), strict=True):
        assert [spelled[node] for node in path[: len(row)]] == [
            row[: k + 1] for k in range(len(row))
        ]


@given(treatments, st.data())
def test_leaves_spell_their_configuration(some: np.ndarray, data: st.DataObject) -> None:
    """The node at which a configuration is read out has the configuration's own history, at each
    readout, in the order asked for.
    """
    readouts = data.draw(st.lists(st.integers(0, some.shape[1] - 1), min_size=1, max_size=4))
    tree = grow(some, readouts)
    assert tree.leaves.shape == (len(some), len(readouts))
    for row, leaves in zip(some.tolist(), tree.leaves.tolist(), strict=True):
        for readout, leaf in zip(readouts, leaves, strict=True):
            path = np.flatnonzero(ancestors(tree)[leaf])
            assert tree.treatments[path].tolist() == row[: readout + 1]
            assert tree.depths[path].tolist() == list(range(readout + 1))


@given(treatments | uneven(), st.integers(1, 60))
def test_split_keeps_every_configuration_within_the_limit(some: np.ndarray, limit: int) -> None:
    """Groups hold each configuration once, and their trees at most `limit` nodes, or twice a row's,
    unless one configuration alone has more.
    """
    groups = list(split(some, limit))
    assert sorted(row for group, _ in groups for row in group.tolist()) == list(range(len(some)))
    for group, nodes in groups:
        assert len(grow(some[group], [0])) == nodes
        assert nodes <= max(limit, 2 * some.shape[1])


@given(treatments | uneven(), st.data())
def test_split_counts_what_configurations_need(some: np.ndarray, data: st.DataObject) -> None:
    """A tree holds the rows that its configurations need, each once, and has at most `limit` nodes,
    or twice those of its first configuration.
    """
    row = st.integers(0, len(some) - 1)
    needs = [[own, *data.draw(st.lists(row, max_size=2))] for own in range(len(some))]
    limit = data.draw(st.integers(1, 30))
    for group, nodes in split(some, limit, needs):
        assert nodes <= max(limit, 2 * len(grow(some[needs[group[0]]], [0])))
        held = sorted({row for configuration in group for row in needs[configuration]})
        assert len(grow(some[held], [0])) == nodes


@given(treatments | uneven())
def test_split_divides_only_where_it_must(some: np.ndarray) -> None:
    """A limit that the whole tree meets divides nothing."""
    ((group, _),) = split(some, len(grow(some, [0])))
    assert len(group) == len(some)


@given(treatments, st.integers(0, 40))
def test_beyond_the_limit_sharing_saves_computation(some: np.ndarray, keys: int) -> None:
    """Trees that exceed the limit cost at most what their configurations cost apart."""
    for group, nodes in split(some, 0, keys=keys):
        apart = len(group) * some.shape[1] * (keys + some.shape[1])
        assert nodes * (keys + nodes) <= apart


@given(st.integers(1, 300), st.integers(1, 60))
def test_the_limit_follows_the_length(tokens: int, n: int) -> None:
    """Configurations that differ in the last token only share trees of twice the prompt's tokens,
    so that each computes two tokens at most, and the prompt is computed once per tree.
    """
    rows = np.zeros((n, tokens), dtype=np.int64)
    rows[:, -1] = np.arange(n)
    trees = [nodes for _, nodes in split(rows, 1, keys=tokens)]
    assert len(trees) <= n / max(tokens, 1) + 1
    assert sum(trees) == n + len(trees) * (tokens - 1)


def ancestors(tree: Tree) -> np.ndarray:
    """[i, j]: node j is i or an ancestor of i."""
    nodes = np.arange(len(tree))
    seen: np.ndarray = (nodes[:, None] >= nodes) & (nodes[:, None] < tree.ends)
    return seen
