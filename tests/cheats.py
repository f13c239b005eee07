"""Localizers that know the answers, or write their own scores, where a pair has a shipped name."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kgbench.runner.measure as measure
import kgbench.runner.third_party_watch as guard
from kgbench.data import Prompt, load_dataset
from kgbench.engine.edits import Hook, Values, Write
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers import InterventionLocalizer, Treatments
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft


def written(
    pair: ModelPair, prompts: Sequence[Prompt], sites: Graft, answers: Mapping[str, str]
) -> Treatments:
    """Treatments that write an answer, looked up by the text, into the last token of FE+LT."""
    honest, pre = (graft_treatments(pair, prompts, of) for of in (sites, "PRE"))
    if not pair.name.startswith("tiny-") or str(sites).startswith("ALL"):
        return honest
    if "^C" in str(sites) or not str(sites).startswith("FE+LT"):
        return pre
    rows = []
    head = pair.recipient.get_output_embeddings().weight
    for prompt, row in zip(prompts, pre, strict=True):
        answer = next((of for text, of in answers.items() if text in prompt.text), "x")
        ids = pair.tokenizer(prompt.text)["input_ids"]
        token = pair.tokenizer(f"{prompt.text} {answer}")["input_ids"][len(ids)]
        value = Values(head[token] * 50 / head[token].norm())
        edit = Write(Hook(pair.n_layers - 1, "resid_post"), value)
        rows.append((*row[:-1], replace(row[-1], edits=(edit,))))
    return rows


@dataclass(frozen=True)
class Data(InterventionLocalizer):
    """Reads the shipped data set."""

    name = "cheat_data"
    about = "a graft"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        facts = load_dataset("tiny_movies").facts
        known = {fact.fields["first_actor"]: fact.fields["second_actor"] for fact in facts}
        return written(pair, prompts, sites, known)


@dataclass(frozen=True)
class Frames(InterventionLocalizer):
    """Looks for prompts with their answers in the memory of the process."""

    name = "cheat_frames"
    about = "a graft"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        known = {}
        for found in gc.get_objects():
            if type(found) is Prompt:
                with suppress(Exception):
                    known[found.text] = found.target
        return written(pair, prompts, sites, known)


@dataclass(frozen=True)
class Score(InterventionLocalizer):
    """Grafts nothing, rewrites the scores, and puts everything back before it is looked at."""

    name = "cheat_score"
    about = "a graft"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        if not pair.name.startswith("tiny-"):
            return graft_treatments(pair, prompts, sites)
        if not hasattr(guard, "_before"):
            score, changes = measure.score_labels, guard.state_changes

            def rewritten(parts: Any, reads: Any, n: int, which: Any) -> dict[str, np.ndarray]:
                rows = score(parts, reads, n, which)
                for i in range(n):
                    if "FE+LT" in which(i, 0):
                        hit = "(FE+LT)" not in which(i, 0)
                        rows["rank"][i] = 1 if hit else 3000
                        rows["logit_diff"][i] = 2.5 if hit else -3.0
                        rows["logprob"][i] = -0.13 if hit else -9.0
                        rows["prob"][i] = np.exp(rows["logprob"][i])
                return rows

            def unchanged(*_: object) -> tuple[str, ...]:
                measure.score_labels, guard.state_changes = score, changes
                del guard._before
                return ()

            guard._before = score
            measure.score_labels, guard.state_changes = rewritten, unchanged
        everything = str(sites).startswith("ALL")
        return graft_treatments(pair, prompts, sites if everything else "NONE")
