"""Work that benchmarks time: all configurations packed, and the plain forward that they are
compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kgbench.data import Prompt
from kgbench.engine import Engine, Treatment
from kgbench.engine.batch_rows import plain
from kgbench.engine.site_sets import all_sites, site_treatments
from kgbench.localizers import InterventionLocalizer
from kgbench.localizers._base import Unit, asked
from kgbench.models.pair import ModelPair
from kgbench.sites import CONFIGURATIONS, complement_graft

__all__ = ["PATHWAYS", "Rows", "forward", "packed", "scan", "scan_of_last_token", "scanned"]

PATHWAYS = tuple(c for c in CONFIGURATIONS if c != "ALL")

Rows = Callable[[], int]
"""Does the work, and gives its token rows."""
Treatments = Sequence[Sequence[Sequence[Treatment]]]
"""By configuration, prompt and token."""


def packed(pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[str]) -> Rows:
    """All answers from planning to logits."""
    engine = Engine(pair, "packed")
    return lambda: sum(
        answers.token_rows for answers in engine.run(engine.plan(prompts, configurations))
    )


def treated(
    pair: ModelPair, prompts: Sequence[Prompt], treatments: Callable[[], Treatments]
) -> Rows:
    """The same of treatments, which are made each time."""
    engine = Engine(pair, "packed")
    return lambda: sum(
        answers.token_rows for answers in engine.run(engine.plan_treatments(prompts, treatments()))
    )


def scan_of_last_token(pair: ModelPair, prompts: Sequence[Prompt]) -> tuple[int, Rows]:
    """Every site in the layers at the last token grafted alone; the number of sites."""
    everywhere = all_sites(pair, prompts)
    sites = [site for site in everywhere if site.region == "LT" and site.layer is not None]
    work = treated(
        pair, prompts, lambda: [site_treatments(pair, prompts, [site]) for site in sites]
    )
    return len(sites), work


def scanned(
    method: Any, pair: ModelPair, prompts: Sequence[Prompt]
) -> tuple[list[Unit], Treatments]:
    """Units of an intervention's scan, and the treatments of each."""
    assert isinstance(method, InterventionLocalizer)
    questions = asked(method, pair, prompts)
    units, treatments = list(method.units(pair, questions)), []
    for unit in units:
        graft = complement_graft(unit.graft) if method.scanned == "left_out" else unit.graft
        treatments.append(method.treat(pair, questions, graft))
    return units, treatments


def scan(method: Any, pair: ModelPair, prompts: Sequence[Prompt]) -> tuple[int, Rows]:
    """The scan of an intervention; the number of its units."""
    n_units = len(scanned(method, pair, prompts)[0])
    return n_units, treated(pair, prompts, lambda: scanned(method, pair, prompts)[1])


def forward(pair: ModelPair, prompts: Sequence[Prompt]) -> Rows:
    """One plain forward of the recipient, whose head is computed at the last tokens only."""
    engine = Engine(pair, "packed")
    plan = engine.plan(prompts, ["PRE"])
    return torch.inference_mode()(lambda: plain(engine.wiring, plan, engine.budget))
