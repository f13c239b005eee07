"""What a job would take, found by timing its first group of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kgbench.data import Prompt
from kgbench.models.pair import ModelPair
from kgbench.records import RecordStore
from kgbench.runner.job import GROUP, Job, prepare_job, run_group
from kgbench.runner.spec import Settings, Spec

__all__ = ["Forecast", "dry_run"]


@dataclass(frozen=True)
class Forecast:
    """What a job would take."""

    configurations: int
    prompts: int
    forwards: int
    token_rows: int
    """Token rows computed, padding left out."""
    plain_token_rows: int
    """Those of the prompts by themselves, once each."""
    weights_bytes: int
    """Memory of all weights, as loaded."""
    logits_bytes: int
    """Memory of the logits held at once, at most."""
    seconds: float
    """Estimated from timing the first prompts of each kind."""
    known: bool
    """Whether the record exists already, so that nothing would be computed."""

    def rows(self) -> list[tuple[str, str]]:
        """What to print."""
        ratio = f"{self.token_rows / self.plain_token_rows:.2f} × the prompts' own {self.plain_token_rows}"
        time = "none: the record exists" if self.known else f"about {self.seconds:.1f} s, from the first {GROUP} prompts of each kind"
        return [
            ("configurations", str(self.configurations)),
            ("prompts", str(self.prompts)),
            ("forwards", str(self.forwards)),
            ("token rows", f"{self.token_rows} ({ratio})"),
            ("memory for weights", f"{self.weights_bytes / 2**20:.1f} MiB"),
            ("memory for logits", f"at most {self.logits_bytes / 2**20:.1f} MiB"),
            ("time", time),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return asdict(self)


def dry_run(spec: Spec, settings: Settings) -> Forecast:
    """Load and check a job, time its first group of each prompt, and scale up; nothing is written.

    Raises:
        InputError: Something in the specification is wrong.
    """
    job = prepare_job(spec, settings)
    parts = [_part(job, prompts) for prompts in job.prompts.values()]
    answers = max(GROUP * len(job.configurations), 1)
    vocabulary = job.pair.recipient.config.vocab_size
    return Forecast(
        configurations=len(job.configurations),
        prompts=sum(map(len, job.prompts.values())),
        forwards=round(sum(p["forwards"] for p in parts)),
        token_rows=round(sum(p["token_rows"] for p in parts)),
        plain_token_rows=sum(len(job.pair.encode(p)) for prompts in job.prompts.values() for p in prompts),
        weights_bytes=_weights(job.pair),
        logits_bytes=min(answers * vocabulary, job.engine.budget.logits) * job.pair.dtype.itemsize,
        seconds=sum(p["seconds"] + p["plain_seconds"] for p in parts),
        known=RecordStore(settings.output_dir).find(job.identity.digest()) is not None,
    )


def _part(job: Job, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Cost of all prompts of one kind, from the first of them."""
    first = prompts[:GROUP]
    _, cost = run_group(job, first)
    return {what: value * len(prompts) / len(first) for what, value in cost.items()}


def _weights(pair: ModelPair) -> int:
    seen: dict[int, torch.Tensor] = {}
    for model in (pair.recipient, *pair.donors.values()):
        seen |= {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in seen.values())
