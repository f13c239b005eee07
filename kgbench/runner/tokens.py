"""Likeliest next tokens of a few facts under some grafts (arXiv 2506.20746, appendix C.7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch

from kgbench.errors import InputError
from kgbench.metrics import score_logits
from kgbench.runner.job import prepare_job
from kgbench.runner.spec import Settings, Spec

__all__ = ["Answered", "Likely", "likeliest"]


@dataclass(frozen=True)
class Likely:
    """A token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Answered:
    """A prompt under one configuration."""

    fact: str
    prompt: str
    text: str
    """The prompt's text."""
    target: Likely
    """The first token of the answer."""
    rank: int
    """1 + the number of other tokens that are at least as probable."""
    graft: str
    tokens: tuple[Likely, ...]
    """The likeliest, the first one first."""

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench tokens --json` prints."""
        return asdict(self)


def likeliest(spec: Spec, settings: Settings, n_facts: int, top: int = 10) -> list[Answered]:
    """Read off what is most probable after the prompts of some facts.

    Args:
        spec: Pair, facts, prompts and grafts; its seed chooses the facts.
        settings: How it is computed.
        n_facts: How many facts.
        top: How many tokens of each.

    Returns:
        By fact, then prompt, then configuration; PRE and SFT come first.

    Raises:
        InputError: The specification is wrong, or the model has fewer tokens than requested.
    """
    job = prepare_job(spec, settings)
    vocabulary = int(job.pair.recipient.config.vocab_size)
    if top > vocabulary:
        raise InputError(f"the model has {vocabulary} tokens, fewer than the {top} asked for")
    ids = sorted({prompt.fact.id for prompt in job.all_prompts})
    chosen = set(Random(spec.seed).sample(ids, min(n_facts, len(ids))))
    prompts = sorted(
        (prompt for prompt in job.all_prompts if prompt.fact.id in chosen),
        key=lambda prompt: ids.index(prompt.fact.id),
    )
    grafts = list(dict.fromkeys(["PRE", "SFT", *spec.grafts]))
    logits = job.engine.logits(job.engine.plan(prompts, grafts))[:, :, 0]
    tokenizer = job.pair.tokenizer
    found = []
    for prompt, rows in zip(prompts, logits, strict=True):
        target = job.pair.encoded(prompt).target
        for graft, row in zip(grafts, rows, strict=True):
            probabilities = torch.softmax(row.double(), 0)
            values, tokens = probabilities.topk(top)
            shown = [
                Likely(str(tokenizer.decode([token])), value)
                for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
            ]
            own = Likely(str(tokenizer.decode([target])), float(probabilities[target]))
            which = [f"configuration {graft}, fact {prompt.fact.id}, prompt {prompt.name!r}"]
            scored = score_logits(row[None], torch.tensor([target]), which.__getitem__)
            found.append(
                Answered(
                    prompt.fact.id,
                    prompt.name,
                    prompt.text,
                    own,
                    int(scored["rank"][0]),
                    graft,
                    tuple(shown),
                )
            )
    return found
