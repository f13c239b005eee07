"""Token trees: a trie over treatments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgbench.engine.tree import grow, split

treatments = st.tuples(st.integers(1, 8), st.integers(1, 7)).flatmap(
    lambda shape: hnp.arrays(np.int64, shape, elements=st.integers(0, 2))
)


@given(treatments)
def test_a_node_is_a_distinct_prefix(some: np.ndarray) -> None:
    """There are as many nodes as distinct prefixes of rows; a node's path spells its prefix, in
    order, ending in itself.
    """
    tree = grow(some, range(some.shape[1]))
    prefixes = {tuple(row[: k + 1]) for row in some.tolist() for k in range(len(row))}
    spelled = [tuple(tree.treatments[tree.ancestors[node]].tolist()) for node in range(len(tree))]
    assert len(tree) == len(prefixes)
    assert set(spelled) == prefixes
    assert tree.depths.tolist() == [len(s) - 1 for s in spelled]
    assert tree.ancestors.diagonal().all()
    assert not np.triu(tree.ancestors, 1).any(), "no node sees one that comes later"


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
            path = np.flatnonzero(tree.ancestors[leaf])
            assert tree.treatments[path].tolist() == row[: readout + 1]
            assert tree.depths[path].tolist() == list(range(readout + 1))


@given(treatments, st.integers(1, 60))
def test_split_keeps_every_configuration_within_the_limit(some: np.ndarray, limit: int) -> None:
    """Groups hold each configuration once, and their trees at most `limit` nodes unless one
    configuration alone has more.
    """
    groups = list(split(some, limit))
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(some)))
    for group in groups:
        assert len(grow(some[group], [0])) <= max(limit, some.shape[1])
        assert len(group) == 1 or len(grow(some[group], [0])) <= limit


@given(treatments)
def test_split_divides_only_where_it_must(some: np.ndarray) -> None:
    """A limit that the whole tree meets divides nothing."""
    (group,) = split(some, len(grow(some, [0])))
    assert len(group) == len(some)
