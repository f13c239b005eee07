"""What a job would take, found by timing its first group of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from kgbench.data import Prompt
from kgbench.errors import NotApplicableError
from kgbench.models.pair import ModelPair
from kgbench.records import RecordStore
from kgbench.runner.counting import counted
from kgbench.runner.foreign import blamed
from kgbench.runner.job import Job, prepare_job
from kgbench.runner.measure import GROUP, Measurement, run_group
from kgbench.runner.pairs import Pairs
from kgbench.runner.ready import expressed, ranked, warm_up, without_ranking
from kgbench.runner.scoring import now, score_sites
from kgbench.runner.spec import Settings, Spec

__all__ = ["Forecast", "dry_run"]

SAMPLE = 4
"""Facts whose prompts a scoring is timed on."""


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
    scoring_seconds: float
    """Those of them that ranking the sites takes, taken to grow with the number of facts."""
    known: bool
    """Whether the record exists already, so that nothing would be computed."""

    def rows(self) -> list[tuple[str, str]]:
        """What to print."""
        ratio = f"{self.token_rows / self.plain_token_rows:.2f} × the prompts' own {self.plain_token_rows}"
        ranked = f", {self.scoring_seconds:.1f} s of them to rank the sites" if self.scoring_seconds else ""
        time = "none: the record exists" if self.known else f"about {self.seconds:.1f} s, from the first prompts of each kind{ranked}"
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


def dry_run(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    """Load and check a job, time its first group of each prompt, and scale up; nothing is written.

    Raises:
        InputError: Something in the specification is wrong.
    """
    job = prepare_job(spec, settings, pairs)
    with blamed(job):
        measurement, scoring = _ready(job)
        parts = [_part(measurement, prompts) for prompts in job.prompts.values()]
    answers = max(GROUP * len(job.configurations), 1)
    vocabulary = job.pair.recipient.config.vocab_size
    return Forecast(
        configurations=len(job.configurations),
        prompts=sum(map(len, job.prompts.values())),
        forwards=round(sum(p["forwards"] for p in (*parts, scoring))),
        token_rows=round(sum(p["token_rows"] for p in (*parts, scoring))),
        plain_token_rows=sum(len(job.pair.encode(p)) for prompts in job.prompts.values() for p in prompts),
        weights_bytes=_weights(job.pair),
        logits_bytes=min(answers * vocabulary, job.engine.budget.logits) * job.pair.dtype.itemsize,
        seconds=sum(p["seconds"] + p["plain_seconds"] for p in parts) + scoring["seconds"],
        scoring_seconds=scoring["seconds"],
        known=RecordStore(settings.output_dir).find(job.identity.digest()) is not None,
    )


def _ready(job: Job) -> tuple[Measurement, dict[str, float]]:
    """The job with a ranking by a few facts, and what a ranking by all would cost."""
    measurement, nothing = expressed(job), {"forwards": 0.0, "token_rows": 0.0, "seconds": 0.0}
    warm_up(job)
    if not job.ranks:
        return measurement, nothing
    facts = sorted(fact for half in job.halves for fact in half)
    sample = [prompt for prompt in job.all_prompts if prompt.fact.id in facts[:SAMPLE]]
    started = now(job.pair)
    try:
        with counted(job.pair) as count:
            scores = score_sites(measurement.method, job.pair, sample)
    except NotApplicableError as error:
        return without_ranking(measurement, str(error)), nothing
    cost = {"forwards": count.forwards, "token_rows": count.token_rows, "seconds": now(job.pair) - started}
    scale = len(job.all_prompts) / len(sample)
    return ranked(measurement, (scores, scores)), {what: value * scale for what, value in cost.items()}


def _part(measurement: Measurement, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Cost of all prompts of one kind, from the first of them."""
    first = prompts[:GROUP]
    _, cost = run_group(measurement, first)
    return {what: value * len(prompts) / len(first) for what, value in cost.items()}


def _weights(pair: ModelPair) -> int:
    seen: dict[int, torch.Tensor] = {}
    for model in (pair.recipient, *pair.donors.values()):
        seen |= {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in seen.values())
