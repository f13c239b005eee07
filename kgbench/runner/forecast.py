"""Cost of a run before it is run, from running its first prompts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kgbench.engine import Budget
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import Entry, is_plant
from kgbench.models.checkpoints import Checkpoint, find_here, locate
from kgbench.models.loading import DTYPES, read_empty, read_tokenizer, widest
from kgbench.models.lora import ADAPTER_CONFIG as ADAPTER
from kgbench.numbers import duration_text
from kgbench.readouts import TextReadout
from kgbench.records import Journal, RecordStore
from kgbench.runner.costs import Cost, assumed_seconds, download_bytes, room, weights_bytes
from kgbench.runner.job import (
    Job,
    Pairs,
    job_configurations,
    load_job,
    main_device_of,
)
from kgbench.runner.lookup import Workload, check, made_localizer
from kgbench.runner.measure import GROUP
from kgbench.runner.run import measure_job
from kgbench.runner.sources import Sources, checkpoint_folder
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party_process import isolated
from kgbench.version import __version__

_OPERATIONS = 2
"""Operations per weight and token in a forward pass (arXiv 2001.08361)."""
_RECORD, _ROW = 100_000, 50
"""Bytes of a record with its pictures, and of one of its rows, as those of the tiny pairs take."""
FEW, FIRST = 2, 8
"""Prompts of each template that are run: few, and more where these took less than LONG."""
LONG = 10.0
"""Seconds."""


def dry_run(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Cost:
    """Load and check a job, run its first prompts, and scale up; nothing is written.

    A catalog pair that is not on this machine is not downloaded: its size is the catalog's, as it
    is of one without a donor.

    Raises:
        InputError: Something in the specification is wrong, or the models do not fit into memory.
    """
    return isolated(spec.localizer, run_cost, spec, settings, pairs=pairs)


def run_cost(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Cost:
    """As `dry_run`, in this process."""
    work = check(spec)
    sources, entry = work.sources, work.sources.entry
    if entry and entry.like and sources.recipient in (None, entry.recipient):
        if not find_here(entry.recipient, sources.revision):
            return _assumed_cost(entry, work, settings, entry.recipient)
        if not (sources.donors or entry.donors):
            return _assumed_cost(entry, work, settings, f"a finetuned {entry.name}")
    pairs = pairs or Pairs()
    if work.held.pair is None and pairs.loaded(sources, settings, work.dtype) is None:
        pairs.forget()  # what the one before takes is free
        _refuse_too_large(sources, settings, work.dtype)
    return _measured_cost(load_job(work, settings, pairs))


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


def _refuse_too_large(sources: Sources, settings: Settings, dtype_name: str | None) -> None:
    """Refuse a pair whose weights, each donor's as large as the recipient's, do not fit."""
    recipient = sources.recipient_source
    place = None if recipient is None else find_here(recipient, sources.revision)
    if place is None:
        return
    donors = []
    for source in {**sources.catalog_donors, **sources.donors}.values():
        folder = checkpoint_folder(source)
        if not is_plant(folder) and not (folder / ADAPTER).is_file():
            donors.append(source)
    device = main_device_of(settings)
    name = dtype_name or ("float32" if torch.device(device).type == "cpu" else "auto")
    if (dtype := DTYPES.get(name)) is None:
        here = (find_here(source, sources.revision) for source in donors)
        dtype = widest([place, *filter(None, here)])
    weights = checkpoint_bytes(place, dtype) * (1 + len(donors))
    memory = {"weights": weights}
    cost = Cost("", memory=memory, **room(device, settings.device_map, dtype))
    if not cost.fits:
        raise InputError(f"{cost.verdict}; nothing was loaded")


def _assumed_cost(entry: Entry, work: Workload, settings: Settings, missing: str) -> Cost:
    """Cost of a catalog pair that is not on this machine, by its size and the prompts' tokens.

    Tokens are those of the shipped pair with a like tokenizer. Each configuration counts as a row
    of its own, though configurations share tokens, so that the time is an upper bound; what a
    method does to rank sites is not counted.

    Args:
        entry: The pair.
        work: The job.
        settings: How it would be computed.
        missing: Which of its models is not here.
    """
    assert entry.parameters is not None and entry.width is not None and entry.vocabulary is not None
    assert entry.stored is not None and entry.like is not None
    localizer = made_localizer(work)
    of = (localizer.kind, localizer.floor)
    n = len(job_configurations(work.suite, work.expressions, work.layers, *of))
    prompts = list(chain.from_iterable(work.prompts.values()))
    tokenizer = read_tokenizer(locate(catalog.entry(entry.like).recipient))
    plain = sum(map(len, tokenizer([prompt.text for prompt in prompts])["input_ids"]))
    rows = n * plain
    if isinstance(work.readout, TextReadout):
        rows = n * work.readout.samples * (plain + work.readout.tokens * len(prompts))
    device = main_device_of(settings)
    is_on_cpu = torch.device(device).type == "cpu"
    dtype = DTYPES[work.dtype or ("float32" if is_on_cpu else entry.stored)]
    # A pair holds tied embeddings twice, see `prepare`.
    parameters = entry.parameters + (entry.vocabulary * entry.width if entry.tied else 0)
    weights = (1 + max(1, len(work.sources.donors))) * parameters * dtype.itemsize
    budget = Budget.on(torch.device(device), entry.width, held=weights)
    seconds, speed = assumed_seconds(_OPERATIONS * entry.parameters * (rows + plain), device)
    ranking = ", ranking left out" if localizer.kind == "scoring" else ""
    return Cost(
        f"{work.localizer_name} on {entry.name}",
        seconds,
        f"the catalog's number of parameters, tokens of {entry.like}'s tokenizer, a row for each "
        f"configuration{ranking} and {speed}, since {missing} is not on this machine",
        {
            "configurations": n,
            "prompts": len(prompts),
            "forwards": math.ceil(rows / budget.tokens),
            "token_rows": rows,
            "plain_token_rows": plain,
        },
        _memory(weights, n * entry.vocabulary, rows, entry.width, budget, dtype),
        disk=_RECORD + _ROW * len(prompts) * n,
        download=download_bytes(entry),
        **room(device, settings.device_map, dtype),
    )


def _measured_cost(job: Job) -> Cost:
    """Cost from a run of the first prompts of each template, with the models that are loaded."""
    pair, prompts, n = job.pair, job.all_prompts, len(job.configurations)
    for number in (FEW, FIRST):
        first = replace(job, prompts={name: part[:number] for name, part in job.prompts.items()})
        if number == FEW and job.ranks and not _has_halves(first):
            continue
        with TemporaryDirectory(prefix="kgbench-") as folder:
            journal = Journal(Path(folder), __version__)
            ranking = Counter(measure_job(first, journal, Pairs()).scoring)
            spent = Counter(journal.cost())
        if spent["seconds"] + ranking["seconds"] > LONG:
            break
    scale = len(prompts) / len(first.all_prompts)
    to_rank = _readings(job) / _readings(first) if job.ranks else 0.0
    whole = {key: scale * spent[key] + to_rank * ranking[key] for key in spent | ranking}
    done = RecordStore(job.settings.output_dir).find(job.identity.digest()) is not None
    of_it = f", {duration_text(to_rank * ranking['seconds'])} of it to rank the sites"
    token_rows = round(whole["token_rows"])
    weights, vocabulary = weights_bytes(pair), pair.recipient.config.vocab_size
    on = "" if job.sources.model is None else f" on {job.sources.model}"
    return Cost(
        f"{job.localizer_name}{on}",
        0.0 if done else whole["seconds"] + whole["plain_seconds"],
        f"the first prompts of each template{of_it if job.ranks else ''}",
        {
            "configurations": n,
            "prompts": len(prompts),
            "forwards": round(whole["forwards"]),
            "token_rows": token_rows,
            "plain_token_rows": sum(len(pair.encode(prompt)) for prompt in prompts),
        },
        _memory(weights, n * vocabulary, token_rows, pair.width, job.engine.budget, pair.dtype),
        disk=_RECORD + _ROW * len(prompts) * n,
        done=done,
        **room(str(pair.device), job.settings.device_map, pair.dtype, loaded=weights),
    )


def _has_halves(job: Job) -> bool:
    """Whether there are facts enough to rank sites by one half and measure on the other."""
    try:
        return bool(job.halves)
    except InputError:
        return False


def _readings(job: Job) -> int:
    """How many prompts a method reads to rank sites by each half of the facts."""
    cases = Counter[int]()
    for prompt in job.all_prompts:
        if prompt.group == "on":
            cases[prompt.fact.id in job.halves[1]] += 1
    return sum(map(job.localizer.readings, cases.values()))


def _memory(
    weights: int, logits: int, rows: int, width: int, budget: Budget, dtype: torch.dtype
) -> dict[str, int]:
    """Memory of a run: activations are a rough upper bound, with float32 attention scores.

    Args:
        weights: Bytes of all models.
        logits: Logits of a prompt under all configurations.
        rows: Token rows of all forwards.
        width: Of the models.
        budget: How much is computed at once.
        dtype: Type of the weights.
    """
    return {
        "weights": weights,
        "logits": min(GROUP * logits, Budget.logits) * dtype.itemsize,
        "activations": budget.activations(min(rows, budget.tokens), width, dtype),
    }
