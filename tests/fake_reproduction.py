"""Rows behind figures of the paper that nobody measured: a reproduction without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from kgbench.paper.figure_specs import Page, page
from kgbench.paper.pair_rows import SCHEMA, About, Donor, Evaluated, PairRows

RECIPE = {
    "name": "aggressive",
    "epochs": 12,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "weight_decay": 0.01,
    "warmup_steps": 30,
}


def small(facts: int, changes: Mapping[str, int]) -> Page:
    """The page with so few facts in each training of a tiny pair, and with these values in place of
    the recipes'.
    """
    trainings, few = {}, {"facts": facts, "changes": dict(changes)}
    for name, one in page().trainings.items():
        tiny = one.tiny and one.tiny | few
        trainings[name] = one.model_copy(update={"tiny": tiny})
    return page().model_copy(
        update={"trainings": trainings, "tiny": page().tiny.model_copy(update={"known": facts})}
    )


def measured(
    figures: Sequence[str], facts: int = 40, seeds: Sequence[int] = (0, 1, 2), spread: float = 0.3
) -> PairRows:
    """Rows of figures; SFT is best, PRE worst, and seeds differ by this much on the scale of log
    ranks.
    """
    known, rng = page(), np.random.default_rng(0)
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    for evaluation in known.evaluations_of(figures):
        own = [
            known.figures[name] for name in figures if known.figures[name].evaluation == evaluation
        ]
        cells = dict.fromkeys(
            (prompt, graft)
            for one in own
            for prompt in one.prompts
            for graft in ("PRE", "SFT", *known.rows[one.rows].values())
        )
        hard = rng.normal(0, 1, facts)
        for prompt, graft in sorted(cells):
            centre = {"PRE": 6.0, "SFT": -1.0}.get(graft, rng.uniform(-1, 6))
            for seed in seeds:
                shift = 0 if graft in ("PRE", "SFT") else rng.normal(0, spread)
                logs = centre + shift + hard + rng.normal(0, 0.7, facts)
                columns["seed"] += [seed] * facts
                columns["evaluation"] += [evaluation] * facts
                columns["prompt"] += [prompt] * facts
                columns["configuration"] += [graft] * facts
                columns["fact"] += [f"{evaluation}/{i:04}" for i in range(facts)]
                columns["rank"] += list(np.clip(np.exp(logs), 1, 3000).astype(int))
    trainings = known.trainings_of(known.evaluations_of(figures), "tiny")
    donor = Donor(
        data="d", texts=9, steps=9, seconds=1, weights="w" * 64, recipe=RECIPE, precision="fp32"
    )
    origin = {"kgbench": "0", "torch": "0", "device": "cpu", "platform": "here"}
    run = Evaluated(data="d", record="r" * 64, seconds=1, identity="i" * 64, **origin)
    about = About(
        model="tiny-gemma",
        tiny=True,
        donors={seed: dict.fromkeys(trainings, donor) for seed in seeds},
        evaluations={seed: dict.fromkeys(known.evaluations_of(figures), run) for seed in seeds},
    )
    return PairRows(about, pa.table(columns, schema=SCHEMA))
