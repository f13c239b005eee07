"""What can only be tried on a GPU: the engine's laws and costs at the sizes of the paper's models.

    python tests/bench/gpu.py [MODEL …] [--device cuda] [--tiny]

Prints a Markdown table. Weights are random, the donor is a perturbed copy, so nothing is
downloaded. Ends with 1 where a bound does not hold, with 2 where there is no CUDA.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging
from works import PATHWAYS, Rows, forward, packed, scan, scan_of_last_token

import kgbench
from kgbench.data import Prompt
from kgbench.engine import EXECUTORS, grafted_logits, load_pair
from kgbench.engine.selftest import verify_pair
from kgbench.errors import KgbenchError
from kgbench.localizers import create
from kgbench.models.catalog import entry
from kgbench.models.pair import ModelPair, prepare
from kgbench.runner.measure import now
from kgbench.testing import PICO_FAMILIES

SIZES: Mapping[str, PreTrainedConfig] = {
    "gemma-2b": GemmaConfig(
        hidden_size=2048,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        intermediate_size=16384,
        vocab_size=256_000,
    ),
    "llama-3.2-1b": LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "gpt2-xl": GPT2Config(n_embd=1600, n_layer=48, n_head=25),
    "pythia-2.8b": GPTNeoXConfig(
        hidden_size=2560,
        num_hidden_layers=32,
        num_attention_heads=32,
        intermediate_size=10_240,
        vocab_size=50_304,
        tie_word_embeddings=False,
    ),
}
"""The published configurations, by name in the catalog, which says what shipped pair is like one."""
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Types, and the largest root mean square distance of logits, in units of their spread."""
FEW = 2
"""Prompts that laws are tried on."""
GIB = 2**30


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    measured: str
    bound: str = ""
    holds: bool = True
    gib: str = ""
    """Memory of the device at the peak."""


@dataclass(frozen=True)
class Subject:
    """A pair on a device, what is asked of it, and how many rounds are timed."""

    pair: ModelPair
    device: torch.device
    prompts: Sequence[Prompt]
    rounds: int

    @property
    def few(self) -> Sequence[Prompt]:
        return self.prompts[:FEW]


shipped = cache(load_pair)


def random_pair(name: str, dtype: torch.dtype, device: torch.device, tiny: bool) -> ModelPair:
    """A random recipient, and a donor all of whose weights are perturbed."""
    begin(device)
    like, config = shipped(entry(name).like), SIZES[name]
    if tiny:
        config = PICO_FAMILIES[like.family.model_type](len(like.tokenizer), entry(name).tied)
    torch.manual_seed(0)
    with device, torch.no_grad():
        recipient = AutoModelForCausalLM.from_config(config, dtype=dtype)
        donor = copy.deepcopy(recipient)
        for parameter in donor.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    donors = {"sft": prepare(donor)}
    return ModelPair(name, prepare(recipient), donors, like.tokenizer, like.family)


def figures(subject: Subject) -> Iterator[Figure]:
    pair = subject.pair
    _ = pair.weight_hashes  # of the weights before anything ran
    yield from laws(subject)
    yield from costs(subject)
    if pair.dtype == torch.bfloat16:  # as large pairs are read, and half of the disk's work
        yield from read_from_disk(subject)
    changed = pair.changed()
    what = "models that are not as before, bit for bit"
    yield Figure(what, ", ".join(changed) or "none", "none", not changed)


# ------------------------------------------------------------------------------------------- laws


def alike(what: str, one: Tensor, other: Tensor, gib: str = "") -> Figure:
    """Two tables of logits differ by no more than rounding."""
    most, wide = ROUNDING[other.dtype], other.double()
    distance = float((one.double() - wide).square().mean().sqrt() / wide.std())
    return Figure(f"logits: {what}", f"{distance:.1e}", f"≤ {most}", distance <= most, gib)


def alone(model: PreTrainedModel, subject: Subject) -> Tensor:
    """Logits of a model by itself, one prompt at a time."""
    rows = []
    with torch.inference_mode():
        for prompt in subject.few:
            ids = torch.tensor([subject.pair.encode(prompt)], device=subject.device)
            rows.append(model(input_ids=ids, use_cache=False).logits[0, -1])
    return torch.stack(rows)


def laws(subject: Subject) -> Iterator[Figure]:
    pair, few = subject.pair, subject.few
    verify_pair(pair)
    answers = {name: grafted_logits(pair, few, PATHWAYS, name) for name in EXECUTORS}
    one_by_one = answers["sequential"]
    for name in ("packed", "rows"):
        yield alike(f"{name} − sequential", answers[name], one_by_one)
    baselines = {"PRE": ("nothing grafted − recipient", pair.recipient)}
    baselines["SFT"] = ("everything grafted − donor", pair.donors["sft"])
    for configuration, (what, model) in baselines.items():
        grafted = answers["packed"][:, PATHWAYS.index(configuration)]
        yield alike(what, grafted, alone(model, subject))


# ------------------------------------------------------------------------------------------ costs


def ratio(subject: Subject, work: Rows, reference: Rows) -> str:
    """Median ratio of seconds of rounds in turns, after one that does not count."""

    def seconds(some: Rows) -> float:
        started = now(subject.pair)
        some()
        return now(subject.pair) - started

    ratios = [seconds(work) / seconds(reference) for _ in range(1 + subject.rounds)][1:]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def costs(subject: Subject) -> Iterator[Figure]:
    pair, prompts = subject.pair, subject.prompts
    plain, (sites, grafts) = forward(pair, prompts), scan_of_last_token(pair, prompts)
    units, patches = scan(create("activation_patch", {}, 0), pair, prompts)
    works = {
        "8 configurations": packed(pair, prompts, PATHWAYS),
        f"graft_scan of {sites} sites at LT": grafts,
        f"activation_patch scan of {units} hooks × regions": patches,
    }
    rows = plain()
    for what, work in works.items():
        held = begin(subject.device)
        share, taken = work() / rows, peak(subject.device, held)
        measured = f"{ratio(subject, work, plain)}, by token rows {share:.2f}"
        yield Figure(f"{what} ÷ plain forward", measured, gib=taken)


def begin(device: torch.device) -> int:
    """Bytes that are held on the device when a measurement of its peak begins."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak(device: torch.device, held: int) -> str:
    """GiB at the peak since `begin`, and what of them was not held then."""
    if device.type != "cuda":
        return "–"
    most = torch.cuda.max_memory_allocated(device)
    return f"{most / GIB:.2f}, of which {(most - held) / GIB:.2f} new"


def read_from_disk(subject: Subject) -> Iterator[Figure]:
    """The pair read from disk, held on one device and on several."""
    pair, few, device = subject.pair, subject.few, str(subject.device)
    held = grafted_logits(pair, few, PATHWAYS)
    ways: Mapping[str, Mapping[str, Any]] = {
        "both models held": {"device": device},
        "--device-map auto": {"device_map": "auto"},
    }
    with tempfile.TemporaryDirectory() as folder:
        for part, model in {"recipient": pair.recipient, **pair.donors}.items():
            model.save_pretrained(Path(folder, part))
            pair.tokenizer.save_pretrained(Path(folder, part))
        places = {"recipient": f"{folder}/recipient", "donors": {"sft": f"{folder}/sft"}}
        dtype = str(pair.dtype).removeprefix("torch.")
        for what, how in ways.items():
            before = begin(subject.device)
            logits = grafted_logits(load_pair(**places, dtype=dtype, **how), few, PATHWAYS)
            taken = peak(subject.device, before)
            yield alike(f"read, {what} − in memory", logits.to(held.device), held, taken)


# ------------------------------------------------------------------------------------------ table


def heading(device: torch.device) -> str:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return (
        f"## {name}, {versions}, kgbench {kgbench.__version__}\n\n"
        "Logits: root mean square distance in units of their spread. Memory: GiB at the peak.\n\n"
        "| model | type | what | measured | bound | memory | |\n|---|---|---|---|---|---|---|"
    )


def attempted(subject: Callable[[], Subject]) -> Iterator[Figure]:
    """Figures of a pair, up to where it fails."""
    try:
        yield from figures(subject())
    except (KgbenchError, RuntimeError) as error:  # of torch, such as too little memory
        yield Figure("the rest", str(error).splitlines()[0], "runs", False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, to try this script")
    given = parser.parse_args(arguments)
    if unknown := set(given.models) - set(SIZES):
        parser.error(f"no model {unknown.pop()!r}: expected some of {', '.join(SIZES)}")
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("error: no CUDA here; to try the script: --tiny --device cpu", file=sys.stderr)
        return 2
    prompts = kgbench.load_prompts("tiny_movies", ["headline"], limit=4 if given.tiny else 32)
    rounds, broken = 1 if given.tiny else 7, 0
    logging.disable_progress_bar()
    print(heading(device), flush=True)
    for name, dtype in itertools.product(given.models or SIZES, ROUNDING):

        def subject(name: str = name, dtype: torch.dtype = dtype) -> Subject:
            return Subject(random_pair(name, dtype, device, given.tiny), device, prompts, rounds)

        for found in attempted(subject):
            cells = (name, str(dtype).removeprefix("torch."), found.what, found.measured)
            verdict = "" if found.holds else "DOES NOT HOLD"
            print(f"| {' | '.join((*cells, found.bound, found.gib, verdict))} |", flush=True)
            broken += not found.holds
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
