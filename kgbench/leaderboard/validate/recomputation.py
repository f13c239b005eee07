"""Figures recomputed from per-fact rows, and ground-truth figures from the map and the plant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from itertools import islice, product
from math import isclose
from typing import Any

import numpy as np
import pyarrow as pa

from kgbench.estimate import Estimate
from kgbench.leaderboard.validate.entry_files import Finding, shown
from kgbench.leaderboard.validate.known import KnownPair
from kgbench.leaderboard.validate.record_checks import pair_of
from kgbench.models import catalog
from kgbench.numbers import same_sentence
from kgbench.records import Record, facts_table
from kgbench.sites import RECIPIENT, SCORED_REGIONS, Graft, Site, parse_graft
from kgbench.sites.configurations import BEST, canonical
from kgbench.stats import Ground, against_truth, pathways_of, rescored, with_clause

__all__ = [
    "check_figures",
    "check_planted",
    "check_sites",
    "json_differences",
    "judged_anew",
    "planted_sites",
    "shipped_sites",
]

# ----------------------------------------------------------------------------------------- figures


_FIGURES = ("metric", "rows", "synergy", "baselines", "curve", "planted", "verdict")
"""Fields of a record that follow from its rows."""

_RELATIVE, _ABSOLUTE = 2e-5, 1e-6
"""Figures are stored to six digits; a bootstrap on another machine may differ in the last."""

_MOST = 5
"""Fields that are named of one record."""


def check_figures(record: Record, table: pa.Table) -> Iterator[Finding]:
    """All figures against those that the rows give; figures that need models are not among them.

    Args:
        record: A record whose rows are complete.
        table: Its per-fact rows.
    """
    try:
        anew = rescored(record, facts_table(_whole(table)))
    except Exception as error:  # untrusted rows can raise any error
        reason = f"{type(error).__name__}: {shown(str(error))}"
        yield Finding("rows", f"no figures can be made of its per-fact rows ({reason})")
        return
    left = _MOST
    for name in _FIGURES:
        own, made = getattr(record, name), getattr(anew, name)
        if name == "verdict" and same_sentence(own, made):
            continue
        for finding in islice(_apart(own, made, name, "per-fact rows"), left):
            left -= 1
            yield finding


def _apart(own: object, made: object, name: str, source: str) -> Iterator[Finding]:
    """Findings on a field that differs from what its source gives."""
    for field, stated, expected in json_differences(_plain(own), _plain(made), name):
        yield Finding(field, f"it is {shown(stated)}", f"{shown(expected)}, as the {source} give")


def _whole(table: pa.Table) -> pa.Table:
    """The rows with the probability, which files need not hold."""
    if "prob" in table.column_names:
        return table
    return table.append_column("prob", pa.array(np.exp(table["logprob"].to_numpy())))


def _plain(value: Any) -> Any:
    """Models as mappings."""
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Estimate):
        return asdict(value)
    return value.model_dump() if hasattr(value, "model_dump") else value


def json_differences(own: Any, made: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Places where two JSON values differ by more than rounding, and both values.

    Args:
        own: One value.
        made: The other.
        where: Their field.
    """
    if isinstance(own, Mapping) and isinstance(made, Mapping):
        for key in dict.fromkeys([*own, *made]):
            name = key if str(key).isidentifier() else shown(key)
            yield from json_differences(own.get(key), made.get(key), f"{where}.{name}")
    elif isinstance(own, list | tuple) and isinstance(made, list | tuple):
        if len(own) != len(made):
            yield where, f"{len(own)} of them", f"{len(made)} of them"
        for index, (one, other) in enumerate(zip(own, made, strict=False)):
            yield from json_differences(one, other, f"{where}[{index}]")
    elif not _same(own, made):
        yield where, own, made


def _same(own: Any, made: Any) -> bool:
    if isinstance(own, str) and isinstance(made, str):
        # Joints of lists were `and` throughout in early records.
        joints = re.compile(r" and |, ")
        return joints.split(own) == joints.split(made)
    if isinstance(made, float) and type(own) in (int, float):
        return isclose(own, made, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return own == made and isinstance(own, bool) == isinstance(made, bool)


# ------------------------------------------------------------------------------------ ground truth


def shipped_sites(pair: KnownPair, prompts: Collection[str]) -> tuple[Site, ...] | None:
    """All sites of a shipped pair on built-in prompts of its own facts; None for other prompts."""
    present: set[str] = set()
    for prompt in prompts:
        if prompt not in pair.regions:
            return None
        present.update(pair.regions[prompt])
    regions = [region for region in SCORED_REGIONS if region in present]
    return tuple(Site(*place, region) for place, region in product(pair.places, regions))


def planted_sites(sites: Collection[Site], graft: Graft, n_layers: int) -> frozenset[Site]:
    """The sites that a graft gives a donor's weights at all of their tokens.

    Regions in which tokens are scored share no token, so that a prompt with one token in each
    represents all prompts; a region within a scored one, as P within LT where the preposition
    comes last, is taken for that one.

    Args:
        sites: All sites.
        graft: The graft.
        n_layers: Layers of the model.
    """
    present = {site.region for site in sites}
    cells = [region for region in SCORED_REGIONS if region in present]
    tokens = {
        region: [cells.index(region if region in cells else "LT")]
        for region in SCORED_REGIONS[:-1]
        if region in cells or region == "P"
    }
    planted: set[Site] = set()
    for term in graft.terms:
        inside = {cells[token] for token in term.positions.tokens(tokens, len(cells))}
        places = set(term.sites(n_layers))
        for site in sites:
            if site.region in inside and (site.layer, site.component) in places:
                (planted.discard if term.donor == RECIPIENT else planted.add)(site)
    return frozenset(planted)


def check_sites(record: Record, sites: Collection[Site]) -> Iterator[Finding]:
    """The map has a score for every site of the pair, and no others."""
    if record.scores is None:
        return
    have = {Site(score.layer, score.component, score.region) for score in record.scores}
    if missing := sorted(set(sites) - have, key=str):
        wrong = f"{len(missing)} sites were removed, such as {_named(missing[0])}"
        yield Finding("scores", wrong, f"all {len(sites)} of the pair")
    if added := sorted(have - set(sites), key=str):
        wrong = f"{len(added)} sites are none of the pair's, such as {_named(added[0])}"
        yield Finding("scores", wrong, f"the {len(sites)} of the pair")


def _named(site: Site) -> str:
    return f"{site.region}:{site.component}" + ("" if site.layer is None else f"@{site.layer}")


def judged_anew(record: Record) -> Record:
    """The record with its ground-truth figures recomputed, where its plant is a shipped one."""
    pair = pair_of(record)
    sites = shipped_sites(pair, record.identity.prompts) if pair is not None else None
    if record.planted is None or pair is None or sites is None:
        return record
    planted = record.planted.model_copy(update=_judged(record, pair, sites))
    return with_clause(record.model_copy(update={"planted": planted}))


def check_planted(record: Record, pair: KnownPair, sites: Collection[Site]) -> Iterator[Finding]:
    """Every figure of the comparison with the truth that does not come from per-fact rows.

    Args:
        record: A record with a truth.
        pair: What is known of its pair.
        sites: All sites of the pair on the record's prompts.
    """
    for name, made in _judged(record, pair, sites).items():
        own = getattr(record.planted, name)
        yield from _apart(own, made, f"planted.{name}", "record's map and the plant")


def _judged(record: Record, pair: KnownPair, sites: Collection[Site]) -> dict[str, object]:
    """Fields of `Planted` by name."""
    truth, graded = record.identity.truth, catalog.graded_truth(record.model)
    assert truth is not None
    decoys: Collection[Site] = ()
    if truth.decoy:
        decoys = planted_sites(sites, parse_graft(truth.decoy), pair.n_layers)
    ground = Ground(
        truth.plant,
        truth.decoy,
        sites=sites,
        planted=planted_sites(sites, canonical(parse_graft(truth.plant)), pair.n_layers),
        decoys=decoys,
        changed=pair.changed,
        relevance=None if graded is None else graded.relevance,
    )
    scores = None
    if record.scores is not None:
        scores = {Site(s.layer, s.component, s.region): s.score for s in record.scores}
    made = against_truth(ground, scores, record.not_applicable.get(BEST, ""))
    return {**made, "pathways": None if ground.everywhere else pathways_of(record, ground.graft)}
