"""Known pairs, methods and suites, against which results are checked.

`known.json.xz` is written by `tests/write_known.py` from the loaded pairs, so that results are checked without loading any model.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from kgbench.data import Dataset, is_shipped, load_dataset
from kgbench.leaderboard.hits import TOP
from kgbench.models import catalog
from kgbench.records import Planted, Record, Result, Strict, Truth
from kgbench.sites import BASELINES, RECIPIENT, SCORED_REGIONS, Graft, Site, parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats import Ground, judged, with_planted

Spot = tuple[int | None, str]
"""A layer and a component; None outside the layers."""


class KnownPair(Strict):
    """A shipped pair."""

    weights: Mapping[str, Mapping[str, str]]
    """By dtype, the hash of the recipient and of each donor."""
    tokenizer: str
    places: tuple[Spot, ...]
    """The default components, in the order of computation."""
    regions: Mapping[str, Sequence[str]]
    """By built-in prompt, the regions that its tokens are scored under."""
    changed: tuple[int, ...]
    """Which of the places have other weights in the donor than in the recipient."""


class KnownLocalizer(Strict):
    """A built-in method."""

    version: str
    kind: str
    floor: str
    needs: Sequence[str]
    baseline: bool
    """Whether it is a point of reference, which is shown under its own name only."""
    parameters: Sequence[str]
    about: str
    """What it does, in a line."""
    scan_of: str
    """The intervention whose scan is its map and has the line on boards; otherwise empty."""
    paper: str
    """Where it is described, such as `arXiv 2202.05262`; empty where nowhere."""


class Known(Strict):
    """All of it."""

    metric_version: str
    ranking_version: str
    made_with: Mapping[str, str]
    """Versions of the packages on which the hashes of pairs depend."""
    pairs: Mapping[str, KnownPair]
    localizers: Mapping[str, KnownLocalizer]
    suites: Mapping[str, Mapping[str, Sequence[str]]]
    """Configurations by suite and kind of method (`scoring`, or `intervention` and its floor)."""
    answers: Any
    """By pair and prompt of the board, in the order of the pair's facts and in single precision:
    `position`, `target`, log-probabilities in nats under `PRE` and `SFT`, and top-5 hits,
    `PRE hits` and `SFT hits`; of a replica nothing under `SFT`."""


@cache
def known() -> Known:
    """What is shipped with this version."""
    packed = files(__package__).joinpath("known.json.xz").read_bytes()
    return Known(**json.loads(lzma.decompress(packed)))


@cache
def own_facts(model: str) -> Dataset | None:
    """The facts that the donor of a pair learned; None where the catalog has no such pair."""
    entry = catalog.published(model)
    if entry is None or not entry.dataset:
        return None
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)


@cache
def known_answers(model: str, prompt: str, graft: str) -> pa.Table | None:
    """Rows of a shipped pair's own facts under PRE or SFT, by fact, as per-fact rows are sorted.

    A hit has rank 1, others none of a hit.
    """
    answers, dataset = known().answers.get(model, {}).get(prompt, {}), own_facts(model)
    if graft not in answers or dataset is None:
        return None
    columns = {name: answers[name] for name in ("position", "target")}
    rank = np.where(answers[f"{graft} hits"], 1, TOP + 1)
    ids = [fact.id for fact in dataset.facts]
    table = pa.table({"fact": ids, **columns, "logprob": answers[graft], "rank": rank})
    return table.sort_by("fact").combine_chunks()


@dataclass(frozen=True)
class Shipped:
    """What is shipped of a result's facts, models and plant; None of what is not known."""

    dataset: Dataset | None
    """The data set of its facts, the pair's own or another."""
    answers: Mapping[tuple[str, str], pa.Table]
    """By prompt and configuration, rows of a shipped pair's own facts, where it is of these."""
    sites: tuple[Site, ...] | None
    """All sites of the pair on built-in prompts."""
    ground: Ground | None
    """What is known of its plant."""


def shipped_of(result: Result) -> Shipped:
    """What is shipped of a result's facts, models and plant."""
    stated, dataset, answers = result.identity.dataset, own_facts(result.model), {}
    if dataset is None or dataset.content_hash != stated.hash:
        # Anything but a shipped name could be a path.
        dataset = load_dataset(stated.name) if is_shipped(stated.name) else None
    if dataset is not None and dataset.content_hash != stated.hash:
        dataset = None
    pair, prompts = pair_of(result), result.identity.prompts
    if pair is not None and dataset is own_facts(result.model):
        for prompt, graft in product(prompts, BASELINES):
            if (rows := known_answers(result.model, prompt, graft)) is not None:
                answers[prompt, graft] = rows
    sites = None if pair is None else shipped_sites(pair, prompts)
    return Shipped(dataset, answers, sites, ground_of(result))


def pair_of(record: Result) -> KnownPair | None:
    """The shipped pair of a record; None where its weights are others."""
    pair, weights = known().pairs.get(record.model), record.identity.weights
    if pair is None or pair.weights.get(record.identity.dtype) != weights.by_part:
        return None
    return pair


# ---------------------------------------------------------------------------- sites and the truth


def shipped_sites(pair: KnownPair, prompts: Collection[str]) -> tuple[Site, ...] | None:
    """All sites of a shipped pair on built-in prompts of its own facts; None for other prompts."""
    present: set[str] = set()
    for prompt in prompts:
        if prompt not in pair.regions:
            return None
        present.update(pair.regions[prompt])
    return _all_sites(pair.places, tuple(filter(present.__contains__, SCORED_REGIONS)))


@lru_cache(maxsize=100)
def _all_sites(places: Sequence[Spot], regions: Sequence[str]) -> tuple[Site, ...]:
    return tuple(Site(*place, region) for place, region in product(places, regions))


def planted_sites(sites: Collection[Site], graft: Graft) -> frozenset[Site]:
    """The sites that a graft gives a donor's weights at all of their tokens.

    Regions in which tokens are scored share no token, so that a prompt with one token in each
    represents all prompts; a region within a scored one, as P within LT where the preposition
    comes last, is taken for that one.

    Args:
        sites: All sites.
        graft: The graft.
    """
    present = {site.region for site in sites}
    cells = [region for region in SCORED_REGIONS if region in present]
    tokens = {}
    for region in SCORED_REGIONS[:-1]:
        if region in cells or region == "P":
            tokens[region] = [cells.index(region if region in cells else "LT")]
    n_layers = len({site.layer for site in sites} - {None})
    planted: set[Site] = set()
    for term in graft.terms:
        inside = {cells[token] for token in term.positions.tokens(tokens, len(cells))}
        places = set(term.sites(n_layers))
        for site in sites:
            if site.region in inside and (site.layer, site.component) in places:
                (planted.discard if term.donor == RECIPIENT else planted.add)(site)
    return frozenset(planted)


def planted_of(result: Result, facts: pa.Table) -> Planted | None:
    """A result against the ground truth, without pathways; None where it is of no shipped plant.

    Args:
        result: The result.
        facts: Its per-fact rows.
    """
    ground = ground_of(result)
    return None if ground is None else judged(result, facts, ground)


def judged_anew(record: Record, planted: Planted | None) -> Record:
    """The record with its ground-truth figures, where its plant is a shipped one.

    Args:
        record: The record.
        planted: As of `planted_of`.
    """
    return record if planted is None else with_planted(record, planted)


def ground_of(result: Result) -> Ground | None:
    """What is known of the plant that a result is of; None where it is of no shipped one."""
    pair, what = pair_of(result), result.identity
    if pair is None or what.truth is None or shipped_sites(pair, what.prompts) is None:
        return None
    return _ground(result.model, what.truth, tuple(what.prompts))


@lru_cache(maxsize=1000)
def _ground(model: str, truth: Truth, prompts: tuple[str, ...]) -> Ground:
    """What is known of a shipped pair's sites where facts are said to be planted so."""
    pair = known().pairs[model]
    sites = shipped_sites(pair, prompts)
    assert sites is not None
    return Ground(
        truth.plant,
        truth.decoy,
        sites=sites,
        planted=planted_sites(sites, canonical(parse_graft(truth.plant))),
        changed=frozenset(pair.places[i] for i in pair.changed),
    )
