"""A ranking against the truth, made anew from the record's map and the plant's expression."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict

from kgbench.effects import Ground, against_truth, pathways_of, with_clause
from kgbench.estimate import Estimate
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.identity import pair_of
from kgbench.leaderboard.validate.known import KnownPair
from kgbench.leaderboard.validate.recomputed import differences
from kgbench.models import catalog
from kgbench.records import Record
from kgbench.sites import RECIPIENT, SCORED_REGIONS, Graft, Site, parse_graft
from kgbench.sites.configurations import BEST, canonical

__all__ = ["check_planted", "check_sites", "judged_anew", "planted_sites", "shipped_sites"]


def shipped_sites(pair: KnownPair, prompts: Collection[str]) -> tuple[Site, ...] | None:
    """All sites of a shipped pair on some built-in prompts of its own facts; None where one of them is not known."""
    if any(prompt not in pair.regions for prompt in prompts):
        return None
    present = {region for prompt in prompts for region in pair.regions[prompt]}
    regions = [region for region in SCORED_REGIONS if region in present]
    return tuple(
        Site(layer, component, region) for layer, component in pair.places for region in regions
    )


def planted_sites(sites: Collection[Site], graft: Graft, n_layers: int) -> frozenset[Site]:
    """The sites that a graft gives a donor's weights at all of their tokens.

    Regions in which tokens are scored share no token, so that a prompt with one token in each stands for all prompts; a region that only
    lies within a scored one, as P within LT where the preposition comes last, is taken for that.

    Args:
        sites: All sites.
        graft: The graft.
        n_layers: Layers of the model.
    """
    cells = [region for region in SCORED_REGIONS if any(site.region == region for site in sites)]
    tokens = {
        region: [cells.index(region if region in cells else "LT")]
        for region in SCORED_REGIONS[:-1]
        if region in cells or region == "P"
    }
    found: set[Site] = set()
    for term in graft.terms:
        inside = {cells[token] for token in term.positions.tokens(tokens, len(cells))}
        places = set(term.sites(n_layers))
        named = {
            site
            for site in sites
            if site.region in inside and (site.layer, site.component) in places
        }
        found = found - named if term.donor == RECIPIENT else found | named
    return frozenset(found)


def check_sites(record: Record, sites: Collection[Site], at: str) -> Iterator[Finding]:
    """The map has a score for every site of the pair, and no others."""
    if record.scores is None:
        return
    have = {Site(score.layer, score.component, score.region) for score in record.scores}
    if missing := sorted(set(sites) - have, key=str):
        yield Finding(
            at,
            "scores",
            f"{len(missing)} sites were removed, such as {_named(missing[0])}",
            f"all {len(sites)} of the pair",
        )
    if added := sorted(have - set(sites), key=str):
        yield Finding(
            at,
            "scores",
            f"{len(added)} sites are none of the pair's, such as {_named(added[0])}",
            f"the {len(sites)} of the pair",
        )


def _named(site: Site) -> str:
    return f"{site.region}:{site.component}" + ("" if site.layer is None else f"@{site.layer}")


def judged_anew(record: Record) -> Record:
    """The record with what its map says of the truth made anew, where its plant is a shipped one; otherwise as it is."""
    pair = pair_of(record)
    sites = shipped_sites(pair, record.identity.prompts) if pair is not None else None
    if record.planted is None or pair is None or sites is None:
        return record
    return with_clause(
        record.model_copy(
            update={"planted": record.planted.model_copy(update=_judged(record, pair, sites))}
        )
    )


def check_planted(
    record: Record, pair: KnownPair, sites: Collection[Site], at: str
) -> Iterator[Finding]:
    """Every figure of the comparison with the truth that does not come from per-fact rows.

    Args:
        record: A record with a truth.
        pair: What is known of its pair.
        sites: All sites of the pair on the record's prompts.
        at: How findings name the file.
    """
    own, truth = record.planted, record.identity.truth
    assert own is not None and truth is not None
    made = _judged(record, pair, sites)
    for name, figure in made.items():
        for field, one, other in differences(
            _plain(getattr(own, name)), _plain(figure), f"planted.{name}"
        ):
            yield Finding(
                at,
                field,
                f"it is {shown(one)}",
                f"{shown(other)}, as the record's map and the plant give",
            )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Estimate):
        return asdict(value)
    return value.model_dump() if hasattr(value, "model_dump") else value


def _judged(record: Record, pair: KnownPair, sites: Collection[Site]) -> dict[str, object]:
    """Fields of `Planted` by name."""
    truth, graded = record.identity.truth, catalog.entry(record.model).truth
    assert truth is not None
    ground = Ground(
        truth.plant,
        truth.decoy,
        sites=sites,
        planted=planted_sites(sites, canonical(parse_graft(truth.plant)), pair.n_layers),
        decoys=planted_sites(sites, parse_graft(truth.decoy), pair.n_layers) if truth.decoy else (),
        changed=pair.changed,
        relevance=None if graded is None else graded.relevance,
    )
    scores = (
        {Site(s.layer, s.component, s.region): s.score for s in record.scores}
        if record.scores is not None
        else None
    )
    made = against_truth(ground, scores, record.not_applicable.get(BEST, ""))
    return {**made, "pathways": None if ground.everywhere else pathways_of(record, ground.graft)}
