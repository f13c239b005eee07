"""Sets of sites: as treatments, as graft expressions, and what they cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import FAMILIES, examples, families, pair_of, pool

from kgbench.engine.site_sets import (
    all_sites,
    graft_sites,
    site_costs,
    site_graft,
    site_treatments,
    token_cells,
)
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.engine.weights import numel
from kgbench.models.family_map import Slots
from kgbench.sites import GROUPS, SCORED_REGIONS, Site, parse_graft

ALIKE = ("headline", "qa", "control")


def one_of_each() -> list:
    return [next(p for p in pool() if p.name == name) for name in ALIKE]


@families
def test_all_sites(family: str) -> None:
    """Default components times the regions that any of the prompts has, in the order of
    computation, each once.
    """
    pair, prompts = pair_of(family), one_of_each()
    sites = all_sites(pair, prompts)
    regions = {cell for p in prompts for cell in token_cells(pair, p)}
    places = [place for place in Slots(pair.family, 3).sites if place[1] in GROUPS["all"]]
    assert len(sites) == len(set(sites)) == len(places) * len(regions)
    assert [s[:2] for s in sites] == [place for place in places for _ in regions]
    order = [SCORED_REGIONS.index(s.region) for s in sites[: len(regions)]]
    assert order == sorted(order)
    assert set(all_sites(pair, prompts)) == {s for p in prompts for s in all_sites(pair, [p])}
    assert all_sites(pair, prompts[::-1]) == sites


@families
def test_cells(family: str) -> None:
    """Each token is scored under the first region that holds it."""
    pair = pair_of(family)
    for prompt in one_of_each():
        regions = pair.regions(prompt)
        for token, cell in enumerate(token_cells(pair, prompt)):
            holding = [r for r in SCORED_REGIONS if token in regions.get(r, ())]
            assert cell == (holding[0] if holding else "REST")


@families
def test_the_ends(family: str) -> None:
    """All sites are the graft ALL, none the recipient; with `left_out` it is the other way round."""
    pair, prompts = pair_of(family), one_of_each()
    nothing, everything = (
        graft_treatments(pair, prompts, parse_configuration(c)) for c in ("PRE", "ALL")
    )
    assert (
        site_treatments(pair, prompts, [])
        == site_treatments(pair, prompts, all_sites(pair, prompts), left_out=True)
        == nothing
    )
    assert (
        site_treatments(pair, prompts, all_sites(pair, prompts))
        == site_treatments(pair, prompts, [], left_out=True)
        == everything
    )


@examples(40, "sites")
@given(st.data(), st.sampled_from(FAMILIES))
def test_treatments_of_sites(data: st.DataObject, family: str) -> None:
    """A slot of a token has the donor's weights exactly if its site is in the set; leaving out is
    grafting the complement.
    """
    pair, prompts = pair_of(family), one_of_each()
    every = all_sites(pair, prompts)
    chosen = data.draw(st.sets(st.sampled_from(every)))
    treatments = site_treatments(pair, prompts, chosen)
    assert treatments == site_treatments(
        pair, prompts, [s for s in every if s not in chosen], left_out=True
    )
    for prompt, tokens in zip(prompts, treatments, strict=True):
        assert len(tokens) == len(pair.encode(prompt))
        for cell, treatment in zip(token_cells(pair, prompt), tokens, strict=True):
            for slot, (layer, component) in enumerate(Slots(pair.family, 3).sites):
                assert treatment.weights[slot] == (Site(layer, component, cell) in chosen)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ALIKE)
@families
def test_a_site_as_an_expression(family: str, name: str) -> None:
    """The expression of a site is the site: as treatments, and read back as sites."""
    pair, prompts = pair_of(family), pool(name)
    for site in all_sites(pair, prompts):
        graft = site_graft(pair, prompts, site)
        assert graft_treatments(pair, prompts, graft) == site_treatments(pair, prompts, [site]), (
            str(graft)
        )
        assert graft_sites(pair, prompts, graft) == {site}


@families
def test_sites_of_a_graft(family: str) -> None:
    """Sites that are grafted at all of their tokens; a region that overlaps another is one only as
    far as it is scored.
    """
    pair, prompts = pair_of(family), pool("headline")
    every = set(all_sites(pair, prompts))

    def found(graft: str) -> set[Site]:
        return set(graft_sites(pair, prompts, parse_graft(graft)))

    assert found("NONE") == found("ALL:ln_f+head") == set()
    assert found("ALL") == every
    assert found("FE:ffn@1") == {
        s for s in every if s.region == "FE" and s.layer == 1 and s.component in GROUPS["ffn"]
    }
    assert found("ALL:o+ffn@second_half") == {
        s for s in every if s.layer in (1, 2) and s.component in ("o", *GROUPS["ffn"])
    }
    assert found("LT^C") == {s for s in every if s.region != "LT"}
    assert found("ALL; FE:q=recipient") == {
        s for s in every if (s.region, s.component) != ("FE", "q")
    }


@families
def test_costs(family: str) -> None:
    """Weights times tokens; a token uses one row of the embeddings. Over prompts, costs add up."""
    pair, prompts = pair_of(family), one_of_each()
    costs, each, sizes = (
        site_costs(pair, prompts),
        [site_costs(pair, [p]) for p in prompts],
        numel(pair),
    )
    assert tuple(costs) == all_sites(pair, prompts)
    for site, cost in costs.items():
        tokens = sum(cell == site.region for p in prompts for cell in token_cells(pair, p))
        assert cost == tokens * (
            32 if site.component in ("emb", "pos") else sizes[site.layer, site.component]
        )
        assert cost == sum(one.get(site, 0) for one in each)
