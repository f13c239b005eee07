"""What a job would take, found by timing its first group of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kgbench.data import Prompt
from kgbench.engine import Budget
from kgbench.errors import NotApplicableError
from kgbench.localizers import is_foreign
from kgbench.models.adapter import CONFIG as ADAPTER
from kgbench.models.catalog import Entry, is_plant, zoo_path
from kgbench.models.checkpoints import find_here
from kgbench.models.pair import pair_sources
from kgbench.models.trained import find_donor
from kgbench.numbers import duration_text, number_text
from kgbench.records import RecordStore
from kgbench.runner.absent import absent_entry, itemsize, scaled, stand_ins, with_some_donor
from kgbench.runner.counting import counted
from kgbench.runner.donors import with_donor
from kgbench.runner.foreign import blamed, isolated
from kgbench.runner.job import Job, prepare_job
from kgbench.runner.measure import GROUP, Measurement, run_group
from kgbench.runner.memory import (
    Memory,
    activation_bytes,
    checkpoint_bytes,
    free_bytes,
    refuse_unless_fits,
    size,
    weights_bytes,
)
from kgbench.runner.pairs import Pairs, main_device_of
from kgbench.runner.ready import expressed, ranked, warm_up, without_ranking
from kgbench.runner.scoring import now, score_sites
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.workload import check
from kgbench.sites import RECIPIENT

__all__ = ["Forecast", "dry_run"]

SAMPLE = 4
"""Facts whose prompts a scoring is timed on."""
_RECORD, _ROW = 100_000, 50
"""Bytes of a record with its pictures, and of one of its rows, as those of the tiny pairs take."""


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
    disk_bytes: int = 0
    """Of the record, roughly."""
    download_bytes: int = 0
    """Of a recipient that is not on this machine."""
    basis: str = "the first prompts of each kind"
    """Where the figures are from."""
    activations_bytes: int = 0
    """Memory of what one forward holds beside weights and logits, at most, roughly."""
    free_bytes: int = 0
    """Memory that is free where it would be computed, before anything is loaded."""
    fits: bool = True
    """Whether all of it fits there."""
    memory: str = ""
    """The same in words, and what to try where it does not."""

    def rows(self) -> list[tuple[str, str]]:
        """What to print."""
        ratio = f"{number_text(self.token_rows / self.plain_token_rows)} × the prompts' own {self.plain_token_rows}"
        ranked = (
            f", {duration_text(self.scoring_seconds)} of them to rank the sites"
            if self.scoring_seconds
            else ""
        )
        time = (
            "none: the record exists"
            if self.known
            else f"about {duration_text(self.seconds)}{ranked}"
        )
        download = f", and {size(self.download_bytes)} to download" if self.download_bytes else ""
        return [
            ("configurations", str(self.configurations)),
            ("prompts", str(self.prompts)),
            ("forwards", str(self.forwards)),
            ("token rows", f"{self.token_rows} ({ratio})"),
            ("memory for weights", size(self.weights_bytes)),
            ("memory for logits", f"at most {size(self.logits_bytes)}"),
            ("memory for activations", f"at most about {size(self.activations_bytes)}"),
            ("memory", self.memory),
            ("disk", f"about {size(self.disk_bytes)} for the record{download}"),
            ("time", time),
            ("from", self.basis),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return asdict(self)


def dry_run(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    """Load and check a job, time its first group of each prompt, and scale up; nothing is written.

    A pair of the catalog that is not on this machine is not downloaded: a small stand-in is counted in its place.

    Raises:
        InputError: Something in the specification is wrong.
    """
    check(spec)
    if is_foreign(spec.localizer):
        if pairs is not None:
            pairs.forget()  # there may be no room for the models twice
        return isolated(spec.localizer, _forecast, spec, settings)
    return _forecast(spec, settings, pairs)


def _forecast(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    spec = with_some_donor(with_donor(spec, check(spec).dataset))
    entry = absent_entry(spec)
    if entry is None:
        pairs = pairs or Pairs()
        if not pairs.holds(spec, settings):
            pairs.forget()  # what the one before takes is free
            refuse_unless_fits(_before_loading(spec, settings), settings, spec.dtype)
        return _measured(spec, settings, pairs)
    return _absent(
        scaled(_measured(spec, settings, stand_ins(entry.name)), entry, spec, settings),
        entry,
        spec,
        settings,
    )


def _before_loading(spec: Spec, settings: Settings) -> Memory:
    """The weights of a pair, every donor that is held taken to be as large as the recipient; nothing where they are not here."""
    _, sources = pair_sources(spec.model, spec.recipient, spec.donors)
    device = main_device_of(settings)
    free, where = free_bytes(settings, device)
    place = find_here(sources.pop(RECIPIENT), spec.revision)
    if place is None:
        return Memory(0, 0, 0, free, where)
    held = 0 if settings.stream_donors else sum(map(_whole, sources.values()))
    one = checkpoint_bytes(
        place, spec.dtype or ("float32" if torch.device(device).type == "cpu" else None)
    )
    return Memory(one * (1 + held), 0, 0, free, where)


def _whole(source: str) -> bool:
    """Whether a donor is a model of its own: neither an adapter nor a plant."""
    folder = zoo_path(source) or find_donor(source) or Path(source).expanduser()
    return not is_plant(folder) and not (folder / ADAPTER).is_file()


def _absent(found: Forecast, entry: Entry, spec: Spec, settings: Settings) -> Forecast:
    """A forecast of a pair of the catalog that is not here, with what it would take of memory."""
    device = main_device_of(settings)
    activations = activation_bytes(
        {"hidden_size": entry.width},
        Budget.on(torch.device(device)),
        itemsize(entry, spec, settings),
    )
    memory = Memory(
        found.weights_bytes, found.logits_bytes, activations, *free_bytes(settings, device)
    )
    return _with(found, memory, settings, spec.dtype)


def _with(found: Forecast, memory: Memory, settings: Settings, dtype: str | None) -> Forecast:
    return replace(
        found,
        weights_bytes=memory.weights,
        activations_bytes=memory.activations,
        free_bytes=memory.free,
        fits=memory.fits,
        memory=memory.verdict(settings, dtype),
    )


def _measured(spec: Spec, settings: Settings, pairs: Pairs | None) -> Forecast:
    job = prepare_job(spec, settings, pairs)
    with blamed(job):
        measurement, scoring = _ready(job)
        parts = [_part(measurement, prompts) for prompts in job.prompts.values()]
    answers = max(GROUP * len(job.configurations), 1)
    vocabulary = job.pair.recipient.config.vocab_size
    config, bytes_each, weights = (
        job.pair.recipient.config,
        job.pair.dtype.itemsize,
        weights_bytes(job.pair),
    )
    logits = min(answers * vocabulary, job.engine.budget.logits) * bytes_each
    free, where = free_bytes(settings, str(job.pair.device))
    # What the weights take is in use by now.
    memory = Memory(
        weights,
        logits,
        activation_bytes(config.to_dict(), job.engine.budget, bytes_each),
        free + weights,
        where,
    )
    found = Forecast(
        configurations=len(job.configurations),
        prompts=sum(map(len, job.prompts.values())),
        forwards=round(sum(p["forwards"] for p in (*parts, scoring))),
        token_rows=round(sum(p["token_rows"] for p in (*parts, scoring))),
        plain_token_rows=sum(
            len(job.pair.encode(p)) for prompts in job.prompts.values() for p in prompts
        ),
        weights_bytes=weights,
        logits_bytes=logits,
        seconds=sum(p["seconds"] + p["plain_seconds"] for p in parts) + scoring["seconds"],
        scoring_seconds=scoring["seconds"],
        known=RecordStore(settings.output_dir).find(job.identity.digest()) is not None,
        disk_bytes=_RECORD + _ROW * sum(map(len, job.prompts.values())) * len(job.configurations),
    )
    return _with(found, memory, settings, str(job.pair.dtype).removeprefix("torch."))


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
    cost = {
        "forwards": count.forwards,
        "token_rows": count.token_rows,
        "seconds": now(job.pair) - started,
    }
    scale = len(job.all_prompts) / len(sample)
    return ranked(measurement, (scores, scores)), {
        what: value * scale for what, value in cost.items()
    }


def _part(measurement: Measurement, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Cost of all prompts of one kind, from the first of them."""
    first = prompts[:GROUP]
    _, cost = run_group(measurement, first)
    return {what: value * len(prompts) / len(first) for what, value in cost.items()}
