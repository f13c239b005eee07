"""Random graft expressions, over the whole grammar."""

from __future__ import annotations

from collections.abc import Sequence

import oracle
from hypothesis import strategies as st

from kgbench.sites import COMPONENTS, GROUPS, OUTSIDE, REGIONS


def positions(regions: Sequence[str] = REGIONS) -> st.SearchStrategy[str]:
    """Positions: unions of regions, complements and brackets."""
    names = st.sampled_from((*regions, *regions, "ALL", "NONE"))
    atoms = st.recursive(
        names,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map(lambda some: f"({'+'.join(some)})")
            | inner.map(_complemented)
        ),
        max_leaves=4,
    )
    return st.lists(atoms, min_size=1, max_size=2).map("+".join)


def _complemented(atom: str) -> str:
    return f"({atom})^C" if atom.endswith("^C") else f"{atom}^C"


def layers(n: int) -> st.SearchStrategy[str]:
    """Layers that a model of `n` layers has at least one of."""
    integers = st.integers(0, n - 1)
    ranges = st.tuples(integers, integers).map(lambda ends: f"{min(ends)}-{max(ends)}")
    fractions = st.sampled_from(("0/1-1/2", "0-1/2", "1/2-1", "1/3-2/3", "2/3-1/1", "0-1/1"))
    parts = st.one_of(
        st.just("all"), integers.map(str), ranges, fractions, st.sampled_from(sorted(oracle.SHARES))
    )
    return (
        st.lists(parts, min_size=1, max_size=2)
        .map(",".join)
        .filter(lambda text: oracle.layer_set(text, n))
    )


def terms(
    regions: Sequence[str], components: Sequence[str], donors: Sequence[str], n: int
) -> st.SearchStrategy[str]:
    """One term."""
    names = (*components, *GROUPS)
    inside = [name for name in names if name not in OUTSIDE]
    anything = st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map(
        lambda some: f":{'+'.join(some)}"
    )
    some_inside = st.lists(st.sampled_from(inside), min_size=1, max_size=4, unique=True).map(
        lambda some: f":{'+'.join(some)}"
    )
    sites = st.one_of(
        st.just(""), anything, st.builds("{}@{}".format, st.just("") | some_inside, layers(n))
    )
    return st.builds(
        "{}{}{}".format,
        positions(regions),
        sites,
        st.sampled_from(("", *(f"={donor}" for donor in donors))),
    )


def grafts(
    regions: Sequence[str] = REGIONS,
    components: Sequence[str] = COMPONENTS,
    donors: Sequence[str] = ("sft", "recipient"),
    n: int = 3,
) -> st.SearchStrategy[str]:
    """Graft expressions of one to three terms that fit a model of `n` layers with these components."""
    return st.lists(terms(regions, components, donors, n), min_size=1, max_size=3).map("; ".join)
