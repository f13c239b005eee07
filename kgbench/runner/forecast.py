"""Forecast of a job's time, memory and disk, from timing its first group of prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch

from kgbench.data import Prompt
from kgbench.engine import Budget
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import create, is_foreign
from kgbench.models import catalog
from kgbench.models.catalog import FLOPS, Entry, is_plant
from kgbench.models.checkpoints import Checkpoint, find_here, locate
from kgbench.models.fetching import fetched_model
from kgbench.models.loading import DTYPES, pair_sources, read_empty, read_tokenizer, widest
from kgbench.models.lora import ADAPTER_CONFIG as ADAPTER
from kgbench.models.pair import ModelPair
from kgbench.models.placement import free_memory, named_devices
from kgbench.numbers import duration_text, number_text, size_text
from kgbench.records import RecordStore
from kgbench.runner.guard import blamed
from kgbench.runner.job import (
    Job,
    Pairs,
    device_map_of,
    job_configurations,
    main_device_of,
    prepare_job,
)
from kgbench.runner.measure import (
    GROUP,
    Measurement,
    chunks,
    counted,
    expressed,
    mixed,
    now,
    ranked,
    score_sites,
    scored,
    warm_up,
    without_ranking,
)
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import isolated
from kgbench.runner.workload import check, checkpoint_folder, localizer_arguments
from kgbench.sites import RECIPIENT

_ROWS, _INNER_ROWS = 8, 4
"""Rows of residual and of MLP width that a layer holds per token, with a second weight set."""


@dataclass(frozen=True)
class Memory:
    """Memory needed on a device and free there, in bytes."""

    weights: int
    logits: int
    activations: int
    free: int
    """Before anything is loaded."""
    device: str

    @property
    def fits(self) -> bool:
        """Whether the needs fit into free memory."""
        return self.weights + self.logits + self.activations <= self.free

    def verdict(self, settings: Settings, dtype: str | None = None) -> str:
        """Verdict in words, with options to try where it does not fit."""
        needed = self.weights + self.logits + self.activations
        said = f"needs {size_text(needed)}, {size_text(self.free)} free on {self.device}"
        if self.fits:
            return f"fits: {said}"
        tries = {
            "--dtype bfloat16": dtype is None or DTYPES[dtype].itemsize > 2,
            "--device-map auto": settings.device_map is None,
        }
        options = ", ".join(option for option, helps in tries.items() if helps)
        return f"does not fit: {said}" + (f"; try {options}" if options else "")

    def fields(self, settings: Settings, dtype: str | None) -> dict[str, Any]:
        """Fields of a forecast."""
        return {
            "weights_bytes": self.weights,
            "logits_bytes": self.logits,
            "activations_bytes": self.activations,
            "free_bytes": self.free,
            "fits": self.fits,
            "memory": self.verdict(settings, dtype),
        }


def weights_bytes(pair: ModelPair) -> int:
    """Memory of a pair's weights, shared storage once."""
    held: dict[int, int] = {}
    for model in (pair.recipient, *pair.donors.values()):
        for tensor in model.state_dict().values():
            held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(held.values())


def activation_bytes(shape: Mapping[str, Any], budget: Budget, itemsize: int) -> int:
    """Rough upper bound of a forward's activations: rows of a layer and float32 attention scores.

    Args:
        shape: A model's configuration.
        budget: How much is computed at once.
        itemsize: Bytes a number.
    """

    def first(default: int, *keys: str) -> int:
        return next((shape[key] for key in keys if shape.get(key)), default)

    width = first(0, "hidden_size", "n_embd", "d_model")
    inner = first(4 * width, "intermediate_size", "n_inner", "ffn_dim")
    heads = first(1, "num_attention_heads", "n_head")
    rows = budget.tokens * (_ROWS * width + _INNER_ROWS * inner) * itemsize
    scores = heads * budget.tokens * min(budget.tree, budget.tokens)
    return int(rows + scores * torch.float32.itemsize)


def free_bytes(settings: Settings, device: str) -> tuple[int, str]:
    """Bytes that are free where a job would be computed, and what to call the place."""
    free, wanted = free_memory(), device_map_of(settings)

    def listed(device: torch.device) -> str:
        """What `free_memory` calls a device; what it does not list has the processor's."""
        return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"

    if wanted is None:
        return free[listed(torch.device(device))], device
    named = set(map(listed, named_devices(wanted))) or set(free)
    return sum(free[name] for name in named), "all devices together"


def checkpoint_bytes(place: Checkpoint, dtype: torch.dtype) -> int:
    """Memory of a checkpoint's weights, by its configuration; embeddings and head count apart.

    Args:
        place: A checkpoint.
        dtype: Type of the weights.

    Raises:
        ModelError: The library makes no model of its configuration.
    """
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in read_empty(place, dtype, "eager").state_dict().values()
    )


_OPERATIONS = 2
"""Operations per weight and token in a forward pass (arXiv 2001.08361)."""


def _assumed(entry: Entry, spec: Spec, settings: Settings) -> Forecast:
    """Forecast of a catalog pair that is not on this machine, by its size and the prompts' tokens.

    Tokens are those of the shipped pair with a like tokenizer. Each configuration counts as a row
    of its own, though configurations share tokens, so that the time is an upper bound; what a
    method does to rank sites is not counted.

    Args:
        entry: The pair.
        spec: The job, with its donors.
        settings: How it would be computed.
    """
    assert entry.parameters is not None and entry.width is not None and entry.vocabulary is not None
    assert entry.stored is not None and entry.like is not None
    workload = check(spec)
    localizer = create(spec.localizer, localizer_arguments(spec), spec.seed)
    n = len(job_configurations(spec, workload.suite, localizer.kind, localizer.floor))
    prompts = list(chain.from_iterable(workload.prompts.values()))
    texts = [prompt.text for prompt in prompts]
    tokenizer = read_tokenizer(locate(catalog.entry(entry.like).recipient))
    plain = sum(map(len, tokenizer(texts)["input_ids"]))
    device, embeddings = main_device_of(settings), entry.vocabulary * entry.width
    kind = torch.device(device).type
    itemsize = DTYPES[spec.dtype or ("float32" if kind == "cpu" else entry.stored)].itemsize
    # A pair holds tied embeddings twice, see `prepare`.
    held = (entry.parameters + (embeddings if entry.tied else 0)) * itemsize
    budget = Budget.on(torch.device(device), entry.width)
    memory = Memory(
        (1 + len(spec.donors)) * held,
        min(GROUP * n * entry.vocabulary, Budget.logits) * itemsize,
        activation_bytes({"hidden_size": entry.width}, budget, itemsize),
        *free_bytes(settings, device),
    )
    ranking = ", ranking left out" if localizer.kind == "scoring" else ""
    fetched = fetched_model(entry.recipient)
    stored = entry.parameters * DTYPES[entry.stored].itemsize
    return Forecast(
        configurations=n,
        prompts=len(prompts),
        forwards=math.ceil(n * plain / budget.tokens),
        token_rows=n * plain,
        plain_token_rows=plain,
        seconds=_OPERATIONS * entry.parameters / FLOPS[kind] * (n + 1) * plain,
        scoring_seconds=0.0,
        known=False,
        disk_bytes=_RECORD + _ROW * len(prompts) * n,
        download_bytes=fetched.download if fetched else stored,
        basis=f"the catalog's number of parameters, tokens of {entry.like}'s tokenizer, a row for "
        f"each configuration{ranking} and {FLOPS[kind] / 1e12:g} Tflop/s assumed on {kind}, since "
        f"{entry.recipient} is not on this machine",
        **memory.fields(settings, spec.dtype),
    )


FIRST = 16
"""Prompts of each template whose forwards are counted, the first of which is timed."""
SAMPLE = 4
"""Facts whose prompts a scoring is timed on."""
_RECORD, _ROW = 100_000, 50
"""Bytes of a record with its pictures, and of one of its rows, as those of the tiny pairs take."""


@dataclass(frozen=True)
class Forecast:
    """Forecast of a job."""

    configurations: int
    prompts: int
    forwards: int
    token_rows: int
    """Token rows computed, padding left out."""
    plain_token_rows: int
    """Token rows of each prompt alone, once."""
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
    """Rough upper bound of a forward's activations, in bytes."""
    free_bytes: int = 0
    """Free memory of the device, before anything is loaded."""
    fits: bool = True
    """Whether the job fits into free memory."""
    memory: str = ""
    """Verdict on memory in words, with options to try."""

    def rows(self) -> list[tuple[str, str]]:
        """Rows of the printed table."""
        plain = self.plain_token_rows
        ratio = f"{number_text(self.token_rows / plain)} × the prompts' own {plain}"
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
        download = (
            f", and {size_text(self.download_bytes)} to download" if self.download_bytes else ""
        )
        return [
            ("configurations", str(self.configurations)),
            ("prompts", str(self.prompts)),
            ("forwards", str(self.forwards)),
            ("token rows", f"{self.token_rows} ({ratio})"),
            ("memory for weights", size_text(self.weights_bytes)),
            ("memory for logits", f"at most {size_text(self.logits_bytes)}"),
            ("memory for activations", f"at most about {size_text(self.activations_bytes)}"),
            ("memory", self.memory),
            ("disk", f"about {size_text(self.disk_bytes)} for the record{download}"),
            ("time", time),
            ("from", self.basis),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return asdict(self)


def dry_run(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    """Load and check a job, time its first group of each prompt, and scale up; nothing is written.

    A catalog pair that is not on this machine is not downloaded: its size is the catalog's.

    Raises:
        InputError: Something in the specification is wrong.
    """
    if is_foreign(spec.localizer):
        check(spec)
    return isolated(spec.localizer, _forecast, spec, settings, pairs=pairs)


def _forecast(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    spec = check(spec).spec
    entry = spec.entry
    if entry is not None and entry.like is not None:
        recipient = spec.recipient or entry.recipient
        if not (spec.donors or entry.donors):  # with the recipient as donor costs are the same
            spec = replace(spec, recipient=recipient, donors={"sft": recipient})
        if recipient == entry.recipient and find_here(recipient, spec.revision) is None:
            return _assumed(entry, spec, settings)
    pairs = pairs or Pairs()
    if pairs.loaded(spec, settings) is None:
        pairs.forget()  # what the one before takes is free
        memory = _before_loading(spec, settings)
        if not memory.fits:
            raise InputError(f"{memory.verdict(settings, spec.dtype)}; nothing was loaded")
    return _measured(spec, settings, pairs)


def _before_loading(spec: Spec, settings: Settings) -> Memory:
    """Memory of a pair's weights, donors as large as the recipient; 0 where they are not here."""
    _, named = pair_sources(spec.model, spec.recipient, spec.donors)
    sources = {part: str(source) for part, source in named.items()}
    device, weights = main_device_of(settings), 0
    place = find_here(sources.pop(RECIPIENT), spec.revision)
    if place is not None:
        whole = list(filter(_is_whole, sources.values()))
        wanted = spec.dtype or ("float32" if torch.device(device).type == "cpu" else "auto")
        if (kind := DTYPES.get(wanted)) is None:
            donors = (find_here(source, spec.revision) for source in whole)
            kind = widest([place, *filter(None, donors)])
        weights = checkpoint_bytes(place, kind) * (1 + len(whole))
    return Memory(weights, 0, 0, *free_bytes(settings, device))


def _is_whole(source: str) -> bool:
    """Whether a donor has weights of its own: no adapter and no plant."""
    folder = checkpoint_folder(source)
    return not is_plant(folder) and not (folder / ADAPTER).is_file()


def _measured(spec: Spec, settings: Settings, pairs: Pairs) -> Forecast:
    """Forecast from the first prompts of each template, with the models that are loaded."""
    job = prepare_job(spec, settings, pairs)
    pair, n = job.pair, len(job.configurations)
    with pair.lock, blamed(job.localizer, job.spec.localizer):
        measurement, scoring = _ready(job)
        parts = [_part(measurement, prompts) for prompts in job.prompts.values()]
    costs, config, itemsize = [*parts, scoring], pair.recipient.config, pair.dtype.itemsize
    answers = max(GROUP * n, 1) * config.vocab_size
    weights, (free, where) = weights_bytes(pair), free_bytes(settings, str(pair.device))
    memory = Memory(
        weights,
        min(answers, job.engine.budget.logits) * itemsize,
        activation_bytes(config.to_dict(), job.engine.budget, itemsize),
        free + weights,  # what the weights take is in use by now
        where,
    )
    return Forecast(
        configurations=n,
        prompts=len(job.all_prompts),
        forwards=round(sum(cost["forwards"] for cost in costs)),
        token_rows=round(sum(cost["token_rows"] for cost in costs)),
        plain_token_rows=sum(len(pair.encode(prompt)) for prompt in job.all_prompts),
        seconds=sum(cost["seconds"] for cost in costs),
        scoring_seconds=scoring["seconds"],
        known=RecordStore(settings.output_dir).find(job.identity.digest()) is not None,
        disk_bytes=_RECORD + _ROW * len(job.all_prompts) * n,
        **memory.fields(settings, str(pair.dtype).removeprefix("torch.")),
    )


_warm: WeakSet[ModelPair] = WeakSet()
"""Pairs whose first forward, with its start-up costs, was run by an earlier forecast."""


def _ready(job: Job) -> tuple[Measurement, dict[str, float]]:
    """The job ranked on a few facts, and the cost of ranking on all."""
    measurement = expressed(job, FIRST)
    cost = {"forwards": 0.0, "token_rows": 0.0, "seconds": 0.0}
    if job.pair not in _warm:
        warm_up(job)
        _warm.add(job.pair)
    if not job.ranks:
        return measurement, cost
    facts = sorted(frozenset.union(*job.halves))
    sample = [prompt for prompt in job.all_prompts if prompt.fact.id in facts[:SAMPLE]]
    started = now(job.pair)
    try:
        with counted(job.pair) as count:
            scores = score_sites(measurement.method, job.pair, sample)
    except NotApplicableError as error:
        return without_ranking(measurement, str(error)), cost
    cost = {**vars(count), "seconds": now(job.pair) - started}
    scale = len(job.all_prompts) / len(sample)
    scaled = {what: value * scale for what, value in cost.items()}
    return ranked(measurement, (scores, scores)), scaled


def _part(measurement: Measurement, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Cost of all prompts of a template, from counts of the first ones and their first forward.

    A plain forward of each prompt is added, whose rows are taken to cost as much as others.
    """
    first, job = prompts[:FIRST], measurement.job
    plain = sum(len(job.pair.encoded(prompt).ids) for prompt in first)
    started, parts = now(job.pair), list(chunks(first, measurement.at_once))
    plans, labels = zip(*map(measurement.plan, parts), strict=True)
    planning, sizes = now(job.pair) - started, list[int]()
    for plan in plans:
        sizes += job.engine.sizes(plan)
    started = now(job.pair)
    answers = next(job.engine.run(plans[0]))
    for some in mixed([answers], labels[0]):
        scored(measurement, parts[0], some)
    each = (now(job.pair) - started) / answers.token_rows
    rows = sum(sizes)
    cost = {
        "forwards": float(len(sizes)),
        "token_rows": float(rows),
        "seconds": planning + each * (rows + plain),
    }
    return {what: value * len(prompts) / len(first) for what, value in cost.items()}
