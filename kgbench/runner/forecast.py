"""Forecast of a job's time, memory and disk, from timing its first group of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from kgbench.data import Prompt
from kgbench.engine import Budget
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import is_foreign
from kgbench.models import catalog
from kgbench.models.catalog import FLOPS, Entry, find_donor, is_plant, zoo_path
from kgbench.models.checkpoints import Checkpoint, find_here, locate, read_model_config
from kgbench.models.family_map import load_family
from kgbench.models.loading import DTYPES, pair_sources, read_empty, read_tokenizer
from kgbench.models.lora import ADAPTER_CONFIG as ADAPTER
from kgbench.models.pair import ModelPair, prepare
from kgbench.models.placement import free_memory, named_devices
from kgbench.models.streaming import streamed
from kgbench.numbers import duration_text, number_text
from kgbench.records import RecordStore
from kgbench.runner.job import Job, Pairs, device_map_of, main_device_of, prepare_job
from kgbench.runner.measure import (
    GROUP,
    Measurement,
    expressed,
    ranked,
    run_group,
    warm_up,
    without_ranking,
)
from kgbench.runner.ranking import counted, now, score_sites
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import blamed, isolated
from kgbench.runner.workload import check
from kgbench.sites import RECIPIENT

__all__ = [
    "Forecast",
    "Memory",
    "StandIns",
    "absent_entry",
    "activation_bytes",
    "checkpoint_bytes",
    "dry_run",
    "free_bytes",
    "itemsize",
    "piece_bytes",
    "refuse_unless_fits",
    "scaled",
    "size",
    "stand_ins",
    "weights_bytes",
    "with_some_donor",
]

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
    def needed(self) -> int:
        """Sum of all needs."""
        return self.weights + self.logits + self.activations

    @property
    def fits(self) -> bool:
        """Whether the needs fit into free memory."""
        return self.needed <= self.free

    def verdict(self, settings: Settings, dtype: str | None = None) -> str:
        """Verdict in words, with options to try where it does not fit."""
        said = f"needs {size(self.needed)}, {size(self.free)} free on {self.device}"
        if self.fits:
            return f"fits: {said}"
        tries = [
            *(["--dtype bfloat16"] if dtype is None or DTYPES[dtype].itemsize > 2 else []),
            *(["--stream-donor"] if not settings.stream_donors else []),
            *(["--device-map auto"] if settings.device_map is None else []),
        ]
        return f"does not fit: {said}" + (f"; try {', '.join(tries)}" if tries else "")


def size(n: int) -> str:
    """Bytes as text, in MiB or GiB."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def weights_bytes(pair: ModelPair) -> int:
    """Memory of a pair's weights, shared storage once; of a streamed donor its largest layer."""
    held: dict[int, int] = {}
    pieces = 0
    for model in (pair.recipient, *pair.donors.values()):
        source, left = streamed(model), dict[str, int]()
        for name, tensor in model.state_dict().items():
            if source is not None and tensor.is_meta:
                group = source.group(name)
                left[group] = left.get(group, 0) + tensor.numel() * tensor.element_size()
            else:
                held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        pieces += max(left.values(), default=0)
    return sum(held.values()) + pieces


def piece_bytes(parameters: int, layers: int, embeddings: int, itemsize: int) -> int:
    """Most memory that a streamed donor holds at once: a layer, or the embeddings.

    Args:
        parameters: Of the model, tied embeddings once.
        layers: Number of its layers.
        embeddings: Number of weights of its embeddings.
        itemsize: Bytes a weight.
    """
    return max((parameters - embeddings) // layers, embeddings) * itemsize


def activation_bytes(shape: Mapping[str, Any], budget: Budget, itemsize: int) -> int:
    """Rough upper bound of a forward's activations: rows of a layer and float32 attention scores.

    Args:
        shape: A model's configuration.
        budget: How much is computed at once.
        itemsize: Bytes a number.
    """
    width = next((shape[key] for key in ("hidden_size", "n_embd", "d_model") if shape.get(key)), 0)
    inner = next(
        (shape[key] for key in ("intermediate_size", "n_inner", "ffn_dim") if shape.get(key)),
        4 * width,
    )
    heads = next((shape[key] for key in ("num_attention_heads", "n_head") if shape.get(key)), 1)
    rows = budget.tokens * (_ROWS * width + _INNER_ROWS * inner) * itemsize
    return int(
        rows + heads * budget.tokens * min(budget.tree, budget.tokens) * torch.float32.itemsize
    )


def free_bytes(settings: Settings, device: str) -> tuple[int, str]:
    """Bytes that are free where a job would be computed, and what to call the place."""
    free, wanted = free_memory(), device_map_of(settings)
    if wanted is None:
        return free[_listed(torch.device(device))], device
    named = set(map(_listed, named_devices(wanted))) or set(free)
    return sum(free[name] for name in named), "all devices together"


def _listed(device: torch.device) -> str:
    """What `free_memory` calls a device; what it does not list has the processor's."""
    return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"


def checkpoint_bytes(place: Checkpoint, dtype: str | None) -> int:
    """Memory of a checkpoint's weights, by its configuration; embeddings and head count apart.

    Args:
        place: A checkpoint.
        dtype: Type of the weights; None for the stored one, half precision where it is unknown.

    Raises:
        ModelError: The library makes no model of its configuration.
    """
    wanted = (
        DTYPES[dtype]
        if dtype
        else getattr(read_model_config(place.directory), "dtype", None) or torch.bfloat16
    )
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in read_empty(place, wanted, "eager").state_dict().values()
    )


def refuse_unless_fits(memory: Memory, settings: Settings, dtype: str | None) -> None:
    """Refuse what would not fit before anything of it is loaded.

    Raises:
        InputError: It does not fit.
    """
    if not memory.fits:
        raise InputError(f"{memory.verdict(settings, dtype)}; nothing was loaded")


_SIZES = {"hidden_size": 16, "n_embd": 16, "intermediate_size": 32, "n_inner": 32, "head_dim": 8}
_READS = {"max_position_embeddings": 4096, "n_positions": 4096}
"""Upper bound of a prompt's tokens; tokenizers of tiny pairs make more than those of large ones."""
_OPERATIONS = 2
"""Operations per weight and token in a forward pass (arXiv 2001.08361)."""


def absent_entry(spec: Spec) -> Entry | None:
    """Catalog entry of a recipient of known size that is not on this machine; else None."""
    entry = catalog.entry(spec.model) if spec.model is not None else None
    if entry is None or entry.like is None or spec.recipient not in (None, entry.recipient):
        return None
    return entry if find_here(entry.recipient, spec.revision) is None else None


def with_some_donor(spec: Spec) -> Spec:
    """Take the recipient as donor where none is named or trained yet: costs are the same."""
    entry = catalog.entry(spec.model) if spec.model is not None else None
    if entry is None or entry.like is None or spec.donors or entry.donors:
        return spec
    return replace(
        spec,
        recipient=spec.recipient or entry.recipient,
        donors={"sft": spec.recipient or entry.recipient},
    )


@lru_cache(maxsize=1)
def stand_ins(model: str) -> Pairs:
    """Small models in place of a catalog pair, cached for the evaluations of a figure."""
    return StandIns(catalog.entry(model))


class StandIns(Pairs):
    """Gives small models in place of one pair, whatever checkpoints are named."""

    def __init__(self, entry: Entry) -> None:
        """Name the pair.

        Args:
            entry: Its entry, with its number of layers and a shipped pair of like tokenizer.
        """
        super().__init__()
        assert entry.like is not None
        self._entry, self._like = entry, locate(catalog.entry(entry.like).recipient)
        self._made: ModelPair | None = None

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The small models, on a CPU; their tokenizer has no chat template."""
        names = tuple(spec.donors)
        if self._made is None or tuple(self._made.donors) != names:
            family = load_family(str(self._like.config["model_type"]))
            donors = {name: self._model(1 + number) for number, name in enumerate(names)}
            origins = {"recipient": self._entry.recipient, **spec.donors}
            self._made = ModelPair(
                self._entry.name, self._model(), donors, read_tokenizer(self._like), family, origins
            )
        return self._made

    def _model(self, number: int = 0) -> PreTrainedModel:
        """A small model, each weight of which differs from that of other numbers."""
        said = self._like.config
        small = {key: size for key, size in {**_SIZES, **_READS}.items() if key in said}
        depth: dict[str, Any] = {
            key: self._entry.layers for key in ("num_hidden_layers", "n_layer") if key in said
        }
        made: dict[str, Any] = {**said, **small, **depth, "dtype": "float32"}
        with torch.random.fork_rng(devices=[]):
            model = prepare(AutoModelForCausalLM.from_config(AutoConfig.for_model(**made)))
        for weight in model.parameters():
            weight.data += 0.01 * number
        return model


def itemsize(entry: Entry, spec: Spec, settings: Settings) -> int:
    """Bytes of each weight of a pair, as it would be loaded."""
    assert entry.stored is not None
    on_cpu = torch.device(main_device_of(settings)).type == "cpu"
    return DTYPES[spec.dtype or ("float32" if on_cpu else entry.stored)].itemsize


def scaled(counted: Forecast, entry: Entry, spec: Spec, settings: Settings) -> Forecast:
    """Forecast of a job, scaled up from the small models.

    Args:
        counted: Forecast with the small models.
        entry: The pair.
        spec: The job, with its donors.
        settings: How it would be computed.
    """
    assert entry.parameters is not None and entry.width is not None and entry.vocabulary is not None
    assert entry.layers is not None and entry.stored is not None
    kind, size, embeddings = (
        torch.device(main_device_of(settings)).type,
        itemsize(entry, spec, settings),
        entry.vocabulary * entry.width,
    )
    # A pair holds tied embeddings twice, see `prepare`.
    held = (entry.parameters + (embeddings if entry.tied else 0)) * size
    donor = (
        piece_bytes(entry.parameters, entry.layers, embeddings, size)
        if settings.stream_donors
        else held
    )
    token = _OPERATIONS * entry.parameters / FLOPS[kind]
    share = counted.scoring_seconds / counted.seconds if counted.seconds else 0.0
    seconds = token * (counted.token_rows + counted.plain_token_rows)
    return replace(
        counted,
        weights_bytes=held + len(spec.donors) * donor,
        logits_bytes=min(GROUP * counted.configurations * entry.vocabulary, Budget.logits) * size,
        seconds=seconds,
        scoring_seconds=seconds * share,
        download_bytes=entry.parameters * DTYPES[entry.stored].itemsize,
        basis=f"the catalog's number of parameters, tokens of {entry.like}'s tokenizer and "
        f"{FLOPS[kind] / 1e12:g} Tflop/s assumed on {kind}, since {entry.recipient} is not on "
        "this machine",
    )


TIMED = 16
"""Prompts of each template that are timed: they fill about two forwards."""
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

    A catalog pair that is not on this machine is not downloaded; small models are counted instead.

    Raises:
        InputError: Something in the specification is wrong.
    """
    if is_foreign(spec.localizer):
        check(spec)
        if pairs is not None:
            pairs.forget()  # there may be no room for the models twice
        return isolated(spec.localizer, _forecast, spec, settings)
    return _forecast(spec, settings, pairs)


def _forecast(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Forecast:
    spec = with_some_donor(check(spec).spec)
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
    """Memory of a pair's weights, donors as large as the recipient; 0 where they are not here."""
    _, named = pair_sources(spec.model, spec.recipient, spec.donors)
    sources = {part: str(source) for part, source in named.items()}
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
    """Whether a donor has weights of its own: no adapter and no plant."""
    folder = zoo_path(source) or find_donor(source) or Path(source).expanduser()
    return not is_plant(folder) and not (folder / ADAPTER).is_file()


def _absent(found: Forecast, entry: Entry, spec: Spec, settings: Settings) -> Forecast:
    """Forecast of a catalog pair that is not on this machine, with its memory."""
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
        plain_token_rows=sum(len(job.pair.encode(prompt)) for prompt in job.all_prompts),
        weights_bytes=weights,
        logits_bytes=logits,
        seconds=sum(p["seconds"] + p["plain_seconds"] for p in parts) + scoring["seconds"],
        scoring_seconds=scoring["seconds"],
        known=RecordStore(settings.output_dir).find(job.identity.digest()) is not None,
        disk_bytes=_RECORD + _ROW * sum(map(len, job.prompts.values())) * len(job.configurations),
    )
    return _with(found, memory, settings, str(job.pair.dtype).removeprefix("torch."))


def _ready(job: Job) -> tuple[Measurement, dict[str, float]]:
    """The job ranked on a few facts, and the cost of ranking on all."""
    measurement, nothing = (
        expressed(job, GROUP),
        {"forwards": 0.0, "token_rows": 0.0, "seconds": 0.0},
    )
    warm_up(job)
    if not job.ranks:
        return measurement, nothing
    facts = sorted(frozenset.union(*job.halves))
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
    """Cost of all prompts of a template, extrapolated from the first ones."""
    first = prompts[:TIMED]
    _, cost = run_group(measurement, first)
    return {what: value * len(prompts) / len(first) for what, value in cost.items()}
