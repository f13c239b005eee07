"""Many records that never were: a thousand valid entries of a leaderboard, quickly.

`python tests/many_records.py FOLDER [N]` writes them. A few runs of each kind are summarized in
earnest from rows of known rates, and every record is one of these under another method and pair:
ids, names and hashes differ, and figures follow from the rows beside them. They pass for runs on
the shipped pairs, of more facts than there are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from fake_runs import identity
from fake_runs import record as finished
from submissions import sent

from kgbench.data.prompts import prompt_hash
from kgbench.estimate import Estimate
from kgbench.leaderboard.folders import changed
from kgbench.leaderboard.validate.known import known, own_facts
from kgbench.models.catalog import entry, pair_names, plants
from kgbench.records import (
    DatasetRef,
    Effect,
    Identity,
    LocalizerRef,
    Planted,
    Ranking,
    Record,
    SiteScore,
    Truth,
    WeightHashes,
    facts_table,
)
from kgbench.sites import PATHWAYS, SCORED_REGIONS, Graft, parse_graft
from kgbench.sites.configurations import BEST, REST, budget_labels, canonical
from kgbench.stats import best_effects, pathways_of, with_clause
from kgbench.stats.ranking_quality import graded_precision
from kgbench.stats.summary import Ran, summary_of

VARIANTS = 4
"""Different runs of each kind."""
PROMPTS = ("headline", "qa")
LAYERS = 8
PARTS = ("ln_1", "q", "k", "v", "o", "ln_2", "gate", "up", "down")
BUDGETS = (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "pathways": ("PRE", "SFT", "ALL", *PATHWAYS),
    "budget": ("PRE", "SFT", "ALL", *budget_labels(BUDGETS)),
    "planted": ("PRE", "SFT", "ALL", *PATHWAYS, BEST, REST),
}
"""Of each kind of record what was run."""


@dataclass(frozen=True)
class Template:
    """A finished run, to be given other names."""

    record: Record
    facts: pa.Table


def write_many(results: Path, n: int = 1000, facts: int = 2000, variants: int = VARIANTS) -> None:
    """Write entries below a folder, those of one method after another, on all its pairs and plants.

    Args:
        results: The folder, which need not be there.
        n: Number of entries.
        facts: Number of facts of each.
        variants: Number of different runs of each kind.
    """
    entries = []
    for name, record, table in islice(_entries(templates(facts, variants)), n):
        entries.append(sent((record, table), name, "https://example.org/methods@0123abc"))
    for place, own in groupby(sorted(entries, key=lambda entry: entry.place), lambda e: e.place):
        with changed(results / place) as (documents, rows):
            for entry in own:
                documents[entry.name], rows[entry.name] = entry.documents, entry.rows


def templates(facts: int, variants: int) -> dict[str, list[Template]]:
    """Finished runs by kind, and by plant."""
    found: dict[str, list[Template]] = {}
    for kind, labels in CONFIGURATIONS.items():
        for variant in range(variants):
            table = rows(facts, rates(kind, variant), seed=variant)
            run = _summarized(kind, labels, table, variant)
            if kind != "planted":
                found.setdefault(kind, []).append(Template(run, table))
                continue
            effects = best_effects(run, table)
            for plant in plants():
                found.setdefault(plant, []).append(Template(_judged(run, effects, plant), table))
    return found


def rates(kind: str, variant: int) -> dict[str, float]:
    """Hit rates of a run's configurations; higher variants do better."""
    good = 0.2 + 0.6 * variant / VARIANTS
    inner = {
        "FE": 0.3 * good,
        "LT": 0.5 * good,
        "FE+LT": good,
        "(FE+LT)^C": 0.1 * (1 - good),
        "FE^C": 0.6 * good,
        "LT^C": 0.35 * good,
    }
    shares = {
        label: good ** (2 - share / 100) * share / 100
        for label, share in budget_labels(BUDGETS).items()
    }
    all_of = {"PRE": 0.01, "SFT": 0.99, "ALL": 0.93, **inner, **shares, BEST: good, REST: 1 - good}
    return {label: all_of[label] for label in CONFIGURATIONS[kind]}


def rows(n: int, wanted: Mapping[str, float], seed: int) -> pa.Table:
    """Per-fact rows of these hit rates up to noise; a fact that is hard in one configuration is
    hard in the others.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        name: []
        for name in (
            "prompt",
            "fact",
            "graft",
            "position",
            "target",
            "rank",
            "logprob",
            "logit_diff",
        )
    }
    facts = np.array([f"tiny_movies/{i}" for i in range(n)], object)
    for prompt in PROMPTS:
        hardness = rng.random(n)
        for graft, rate in wanted.items():
            rank = np.where(
                hardness + 0.1 * rng.normal(size=n) < rate,
                rng.integers(1, 6, n),
                rng.integers(6, 900, n),
            )
            logprob = np.float32(-np.log(rank + rng.random(n)) - 0.1).astype(float)
            columns["prompt"].append(np.full(n, prompt, object))
            columns["fact"].append(facts)
            columns["graft"].append(np.full(n, graft, object))
            columns["position"].append(np.full(n, 9))
            columns["target"].append(np.arange(n) % 30)
            columns["rank"].append(rank)
            columns["logprob"].append(logprob)
            columns["logit_diff"].append(
                np.float32(3 - np.log(rank) + rng.normal(size=n)).astype(float)
            )
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}  # type: ignore[arg-type]
    return facts_table({**whole, "prob": np.exp(whole["logprob"])})


def _summarized(kind: str, labels: Sequence[str], table: pa.Table, variant: int) -> Record:
    """A run of a kind with every figure that its rows give."""
    ranked = kind != "pathways"
    what = _identity(
        labels, len(table) // len(PROMPTS) // len(labels), "method", "tiny-gemma", ranked
    )
    found = summary_of(Ran(what, "recipient", 0, {}), table, "top5")
    more = (
        {"scores": _scores(variant), "ranking": _ranking(labels, what.dataset.n)} if ranked else {}
    )
    fields = {
        "rows": found.rows,
        "synergy": found.synergy,
        "baselines": found.baselines,
        "curve": found.curve,
        "verdict": found.verdict,
    }
    few = rows(5, rates("pathways", variant), seed=0)  # what only rows can say is replaced
    return finished(
        few,
        what=what,
        dropped={},
        kind="intervention" if kind == "pathways" else "scoring",
        **more,
        **fields,
    )


@cache
def _shipped(pair: str, facts: int) -> dict[str, object]:
    """The parts of an identity that are a shipped pair's, but for the number of facts."""
    dataset, weights = own_facts(pair), dict(known().pairs[pair].weights["float32"])
    assert dataset is not None
    return {
        "dataset": DatasetRef(name="tiny_movies", hash=dataset.content_hash, n=facts),
        "prompts": {prompt: prompt_hash(prompt, dataset) for prompt in PROMPTS},
        "weights": WeightHashes(recipient=weights.pop("recipient"), donors=weights),
        "tokenizer": known().pairs[pair].tokenizer,
    }


def _identity(
    labels: Sequence[str],
    facts: int,
    method: str,
    pair: str,
    ranked: bool,
    truth: Truth | None = None,
) -> Identity:
    return identity(
        **_shipped(pair, facts),
        localizer=LocalizerRef(name=method, version="1", parameters={}),
        configurations=tuple(labels),
        truth=truth,
        ranking_version="1" if ranked else None,
    )


def _scores(variant: int) -> tuple[SiteScore, ...]:
    """A score for every site, which knows less and less of the last layers with the variant."""
    rng = np.random.default_rng(variant)
    sites = [
        (layer, part, region)
        for region in SCORED_REGIONS
        for layer in range(LAYERS)
        for part in PARTS
    ]
    values = rng.gamma(2.0, size=len(sites)) + [variant * layer / LAYERS for layer, _, _ in sites]
    return tuple(
        SiteScore(layer=layer, component=part, region=region, score=float(f"{value:.6g}"))
        for (layer, part, region), value in zip(sites, values, strict=True)
    )


def _ranking(labels: Sequence[str], facts: int) -> Ranking:
    tops = [label for label in labels if label.startswith("top ")]
    agreement = Estimate(value=0.8, low=0.7, high=0.9, n=len(SCORED_REGIONS) * LAYERS * len(PARTS))
    half = (facts // 2, facts - facts // 2)
    return Ranking(
        facts=half,
        agreement=agreement,
        sites={prompt: dict.fromkeys(tops, (8, 8)) for prompt in PROMPTS},
        scan=True,
    )


def _judged(run: Record, effects: tuple[Effect, dict[str, Effect]], name: str) -> Record:
    """The run with how its ranking compares with a plant."""
    planted, what = entry(name), run.identity
    assert planted.plant is not None
    run = _named(run, what.localizer.name, name, Truth(plant=planted.plant, decoy=planted.decoy))
    plant = canonical(parse_graft(planted.plant))
    everywhere = all(str(term.positions) == "ALL" for term in plant.terms)
    true = _planted_sites(plant)
    truth = {site[:2] for site in true} if everywhere else true
    units = _unit_scores(run, everywhere)
    told = np.array([unit in truth for unit in units])
    figure = graded_precision(np.array(list(units.values())), 0.5 * told)
    effect, prompts = effects
    judgement = Planted(
        plant=planted.plant,
        decoy=planted.decoy,
        units="layer and component" if everywhere else "site",
        n_units=len(units),
        n_true=int(told.sum()),
        graded_precision=figure.rounded(),
        chance=0.3,
        auroc_decoy=None,
        k=len(true),
        effect=effect,
        prompts=prompts,
        pathways=None if everywhere else pathways_of(run, plant),
    )
    return with_clause(run.model_copy(update={"planted": judgement}))


def _planted_sites(plant: Graft) -> set[tuple[object, ...]]:
    """(layer, component, region) of everything planted, on a prompt with all regions."""
    regions = {"ALL": SCORED_REGIONS, "FE+LT": ("FE", "LT")}
    places = ((term.sites(LAYERS), str(term.positions)) for term in plant.terms)
    return {
        (*site, region)
        for sites, at in places
        for site in sites
        for region in regions.get(at, (at,))
        if site[1] in PARTS
    }


def _unit_scores(run: Record, everywhere: bool) -> dict[tuple[object, ...], float]:
    """The score of each site, or of each (layer, component) the largest of its regions."""
    found: dict[tuple[object, ...], float] = {}
    for site in run.scores or ():
        unit = (
            (site.layer, site.component)
            if everywhere
            else (site.layer, site.component, site.region)
        )
        found[unit] = max(site.score, found.get(unit, -np.inf))
    return found


def _named(run: Record, method: str, pair: str, truth: Truth | None = None) -> Record:
    """The same run of another method on another pair."""
    old = run.identity
    ranked = old.ranking_version is not None
    what = _identity(old.configurations, old.dataset.n, method, pair, ranked, truth or old.truth)
    return run.model_copy(update={"id": what.digest(), "model": pair, "identity": what})


def _entries(made: Mapping[str, Sequence[Template]]) -> Iterator[tuple[str, Record, pa.Table]]:
    """Method after method on every pair and plant, the baselines first, without end."""
    pairs = [name for name in pair_names() if name.startswith("tiny-") and name not in plants()]
    variants, number = len(made["pathways"]), 0
    while True:
        method = (
            ("none", "all", "random", "oracle")[number] if number < 4 else f"method-{number:03d}"
        )
        kinds = {"oracle": (), "random": ("budget",)}.get(
            method, ("pathways", "budget")
        )  # random ranks only
        cells = [(kind, pair) for pair in pairs for kind in kinds]
        for place, (kind, pair) in enumerate([*cells, *((plant, plant) for plant in plants())]):
            template = made[kind][(number + place) % variants]
            yield method, _named(template.record, method, pair), template.facts
        number += 1


if __name__ == "__main__":
    write_many(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
