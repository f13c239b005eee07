"""Runs that never happened: per-fact rows and records of known rates, for tests of what is made of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from kgbench.estimate import Estimate
from kgbench.records import (
    FACTS_SCHEMA,
    Cost,
    DatasetRef,
    Environment,
    Identity,
    LocalizerRef,
    Record,
    WeightHashes,
    collect_provenance,
    facts_table,
    measured_on,
)
from kgbench.stats.summary import summarize

RATES = {
    "PRE": 0.01,
    "SFT": 0.99,
    "ALL": 0.98,
    "FE": 0.17,
    "LT": 0.29,
    "FE+LT": 0.97,
    "(FE+LT)^C": 0.01,
    "FE^C": 0.3,
    "LT^C": 0.2,
}


def rows(
    n: int = 50,
    rates: Mapping[str, float] = RATES,
    prompts: Sequence[str] = ("headline", "qa"),
    seed: int = 0,
) -> pa.Table:
    """Per-fact rows whose top-5 hit rates are the rates, exactly up to rounding; a fact that one
    graft hits, better ones hit too.
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {name: [] for name in FACTS_SCHEMA.names}
    for prompt in prompts:
        order = rng.permutation(n)
        for graft, rate in rates.items():
            hit = order < round(rate * n)
            rank = np.where(hit, rng.integers(1, 6, n), rng.integers(6, 900, n))
            prob = np.where(hit, rng.uniform(0.5, 0.99, n), rng.uniform(1e-5, 0.01, n))
            columns["prompt"] += [prompt] * n
            columns["fact"] += [f"tiny_movies/{i}" for i in range(n)]
            columns["graft"] += [graft] * n
            columns["position"] += [9] * n
            columns["target"] += list(range(n))
            columns["rank"] += list(rank)
            columns["prob"] += list(np.exp(np.log(prob)))
            columns["logprob"] += list(np.log(prob))
            columns["logit_diff"] += list(np.log(prob / (1 - prob)))
    return facts_table(columns)


def identity(**changes: object) -> Identity:
    """An identity, with some parts changed."""
    parts: dict[str, object] = {
        "dataset": DatasetRef(name="tiny_movies", hash="d" * 64, n=150),
        "prompts": {"headline": "h" * 64, "qa": "q" * 64},
        "weights": WeightHashes(recipient="r" * 64, donors={"sft": "s" * 64}),
        "tokenizer": "t" * 64,
        "localizer": LocalizerRef(
            name="dynamic_graft", version="1", parameters={"grafts": ["FE", "LT"]}
        ),
        "configurations": tuple(RATES),
        "metric_version": "1",
        "dtype": "float32",
        "seeds": (0,),
        "limit": None,
    }
    return Identity.model_validate({**parts, **changes})


def record(
    facts: pa.Table | None = None,
    metric: str = "top5",
    what: Identity | None = None,
    **changes: object,
) -> Record:
    """The record of such a run."""
    what, facts = what or identity(), rows() if facts is None else facts
    found = summarize(facts, metric=metric, dropped={"qa": 3}, limited=what.limited)
    parts: dict[str, object] = {
        "id": what.digest(),
        "model": "tiny-gemma",
        "metric": found.metric,
        "verdict": found.verdict,
        "identity": what,
        "rows": found.rows,
        "synergy": found.synergy,
        "dropped": {"the subject is not in the prompt": 3},
        "baselines": found.baselines,
        "answers": found.answers,
        "cost": Cost(
            forwards=12,
            token_rows=18231,
            seconds=7.84,
            plain_forward_ratio=Estimate(value=4.6, low=4.5, high=4.8, n=5),
            measured_on=measured_on("packed"),
        ),
        "environment": Environment(device="cpu", executor="packed", attention="sdpa"),
        "provenance": collect_provenance("a processor"),
    }
    return Record.model_validate({**parts, **changes})
