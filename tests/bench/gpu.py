"""What can only be tried on a GPU: the engine's laws and costs at the sizes of real models.

    python tests/bench/gpu.py [MODEL …] [--minutes N] [--device cuda] [--tiny]

Prints a Markdown table as it goes, the most important first, and names what it had no time for.
Weights are random, the donor is a perturbed copy, so nothing is downloaded. Ends with 1 where a bound
does not hold, with 2 where there is no CUDA.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from test_tools import Case
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
from works import PATHWAYS, forward, packed, scan, scan_of_last_token

import kgbench
from kgbench.data import Prompt, load_dataset
from kgbench.engine import EXECUTORS, Engine, grafted_logits, load_pair
from kgbench.engine.grafted_model import as_model
from kgbench.engine.selftest import verify_pair
from kgbench.localizers import create
from kgbench.models.catalog import entry
from kgbench.models.pair import ModelPair, prepare
from kgbench.runner.measure import now
from kgbench.runner.training.finetuning_plan import Wordings, read_batches, tokenized_texts
from kgbench.runner.training.recipes import finetuning_recipe
from kgbench.runner.training.stages import StageRun, Training, half_type
from kgbench.sites import RECIPIENT
from kgbench.testing import PICO_FAMILIES

SIZES: Mapping[str, PreTrainedConfig] = {
    "smollm2-135m": LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49_152,
        tie_word_embeddings=True,
    ),
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
ORDER = ("gemma-2b", "llama-3.2-1b", "smollm2-135m", "gpt2-xl", "pythia-2.8b")
"""The largest question first: what a scan costs at 2.5 billion weights."""
SCANNED = 1.2
"""Scans of grafts cost at most as much more than plain forwards as they have more token rows, times this."""
WRITTEN = 32
"""Tokens that a model writes."""
LONG: Mapping[str, Any] = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN}
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
    _ = pair.weight_hashes  # of the weights before anything ran
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


def unchanged(subject: Subject) -> Iterator[Figure]:
    changed = subject.pair.changed()
    what = "models that are not as before, bit for bit"
    yield Figure(what, ", ".join(changed) or "none", "none", not changed)


# ------------------------------------------------------------------------------------------ costs


def seconds(subject: Subject, work: Callable[[], object]) -> float:
    started = now(subject.pair)
    work()
    return now(subject.pair) - started


def ratio(
    subject: Subject, work: Callable[[], object], reference: Callable[[], object]
) -> tuple[float, str]:
    """Median ratio of seconds of rounds in turns, after one that does not count."""
    ratios = []
    for _ in range(1 + subject.rounds):
        ratios.append(seconds(subject, work) / seconds(subject, reference))
    counted = ratios[1:]
    middle = statistics.median(counted)
    return middle, f"{middle:.2f} [{min(counted):.2f}, {max(counted):.2f}]"


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
        value, text = ratio(subject, work, plain)
        holds = subject.device.type != "cuda" or value <= SCANNED * share
        measured, bound = f"{text}, by token rows {share:.2f}", f"≤ {SCANNED * share:.2f}"
        yield Figure(f"{what} ÷ plain forward", measured, bound, holds, taken)
    yield from budget(subject)


def budget(subject: Subject) -> Iterator[Figure]:
    """What a forward takes as large as it may be, of what is counted for it."""
    engine = Engine(subject.pair, "packed")
    several = list(itertools.islice(itertools.cycle(subject.prompts), 4 * len(subject.prompts)))
    plan = engine.plan(several, PATHWAYS)
    rows, held = max(engine.sizes(plan)), begin(subject.device)
    next(engine.run(plan))
    counted = engine.budget.activations(rows, subject.pair.width, subject.pair.dtype)
    if subject.device.type == "cuda":
        share = (torch.cuda.max_memory_allocated(subject.device) - held) / counted
        what = f"memory of a forward of {rows} rows ÷ what is counted for it"
        yield Figure(what, f"{share:.2f}", "≤ 1", share <= 1)


def gradients(subject: Subject) -> Iterator[Figure]:
    pair, prompts = subject.pair, subject.prompts
    method, held = create("graft_attribution", {}, 0), begin(subject.device)
    _, text = ratio(subject, lambda: method.scores(pair, prompts), forward(pair, prompts))
    yield Figure("graft_attribution ÷ plain forward", text, gib=peak(subject.device, held))


def training(subject: Subject) -> Iterator[Figure]:
    """Steps of the paper's aggressive finetuning, with all that comes with them."""
    recipe, half = finetuning_recipe("aggressive", 10**6), half_type(str(subject.device))
    wordings = Wordings.of(load_dataset("tiny_movies"), "both", (), 0)
    texts = tokenized_texts(subject.pair.tokenizer, wordings, (), recipe.max_length)
    batches, _ = read_batches(texts, 1, recipe.batch_size, 0)
    held = begin(subject.device)
    model = copy.deepcopy(subject.pair.recipient).train().requires_grad_()
    with tempfile.TemporaryDirectory() as folder:
        run = Training(model, recipe.stage, 10**6, StageRun(Path(folder), 0, half=half))
        steps = [0, 0]

        def several() -> None:
            for number in range(subject.rounds):
                loss, rate = run.step(batches[number])
                run.unread.append((number, loss, rate))
                steps[0] += 1
                steps[1] += batches[number]["input_ids"].numel()
            run.read()

        several()
        steps[:] = 0, 0
        taken = seconds(subject, several)
    each = f"{steps[1] / taken:,.0f} tokens a second, {1000 * taken / steps[0]:.0f} ms a step"
    yield Figure("finetuning", each, gib=peak(subject.device, held))


def generation(subject: Subject) -> Iterator[Figure]:
    """Writing under a graft, and with an edit of one activation in other tools."""
    pair, prompt = subject.pair, subject.prompts[0]
    ids = torch.tensor([pair.encode(prompt)] * len(subject.prompts), device=subject.device)
    grafted = as_model(pair, "FE+LT", prompts=[prompt])

    def written(model: PreTrainedModel) -> Tensor:
        return model.generate(input_ids=ids, do_sample=False, pad_token_id=0, **LONG)  # type: ignore[operator]

    held = begin(subject.device)
    _, text = ratio(subject, lambda: written(grafted), lambda: written(pair.recipient))
    yield Figure("generate under FE+LT ÷ plain", text, gib=peak(subject.device, held))
    for name, tool in WRITERS.items():
        try:
            other = tool(subject, ids)
        except ImportError:
            yield Figure(f"generate, {name} ÷ ours", "is not installed: make bench installs it")
            continue
        _, text = ratio(subject, other, lambda: written(grafted))
        yield Figure(f"generate with one edit, {name} ÷ ours", text)


def lens_writer(subject: Subject, ids: Tensor) -> Callable[[], object]:
    """TransformerLens, which adds nothing to one layer's input at the last token of the prompt."""
    bridge = Case(subject.pair, subject.prompts).bridges[RECIPIENT]
    last = ids.shape[1] - 1

    def edit(state: Tensor, hook: Any) -> Tensor:
        if state.shape[1] > last:
            state[:, last] += 0
        return state

    def write() -> object:
        how = {"do_sample": False, "verbose": False, "stop_at_eos": False}
        with bridge.hooks(fwd_hooks=[("blocks.1.hook_resid_pre", edit)]):
            tokens = bridge.generate(ids, max_new_tokens=WRITTEN, **how)
        assert tokens.shape == (len(ids), ids.shape[1] + WRITTEN)
        return tokens

    return write


def nnsight_writer(subject: Subject, ids: Tensor) -> Callable[[], object]:
    """nnsight, with the same edit."""
    from nnsight import TransformersModel

    pair = subject.pair
    model = TransformersModel(
        pair.shared_copy(RECIPIENT), tokenizer=pair.tokenizer, task="text-generation"
    )
    layer = f"{pair.family.layers}.1"

    def write() -> object:
        how = {"do_sample": False, "pad_token_id": 0, **LONG}
        with torch.no_grad(), model.generate(ids, **how) as tracer:
            model.get(layer).input[:, -1] += 0
            tokens = tracer.result.save()
        assert tokens.shape == (len(ids), ids.shape[1] + WRITTEN)
        return None

    return write


WRITERS = {"TransformerLens": lens_writer, "nnsight": nnsight_writer}


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
    if pair.dtype != torch.bfloat16:  # as large pairs are read, and half of the disk's work
        return
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


QUESTIONS = (laws, costs, gradients, generation, training, read_from_disk, unchanged)
"""The most important first, but for whether all that left the models as they were."""

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


def attempted(question: Callable[[], Iterator[Figure]]) -> Iterator[Figure]:
    """Figures of a question, up to where it fails."""
    try:
        yield from question()
    except Exception as error:  # of torch, such as too little memory, or of another tool
        yield Figure("the rest", f"{type(error).__name__}: {error}".splitlines()[0], "runs", False)


def table(
    names: Sequence[str], device: torch.device, until: float, tiny: bool
) -> Iterator[tuple[str, torch.dtype, Figure]]:
    """All figures that there is time for: every size in float32, then in bfloat16."""
    prompts = kgbench.load_prompts("tiny_movies", ["headline"], limit=4 if tiny else 32)
    for dtype, name in itertools.product(ROUNDING, names):
        if time.monotonic() > until:
            yield name, dtype, Figure("all", "no time was left")
            continue
        subject = Subject(random_pair(name, dtype, device, tiny), device, prompts, 1 if tiny else 5)
        for question in QUESTIONS:
            if time.monotonic() > until and question is not unchanged:
                yield name, dtype, Figure(question.__name__, "no time was left")
                continue
            for figure in attempted(partial(question, subject)):
                yield name, dtype, figure
        del subject


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--minutes", type=float, default=30, help="begin nothing after so many")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, to try this script")
    given = parser.parse_args(arguments)
    until = time.monotonic() + 60 * given.minutes
    if unknown := set(given.models) - set(SIZES):
        parser.error(f"no model {unknown.pop()!r}: expected some of {', '.join(SIZES)}")
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("error: no CUDA here; to try the script: --tiny --device cpu", file=sys.stderr)
        return 2
    broken = 0
    logging.disable_progress_bar()
    print(heading(device), flush=True)
    for name, dtype, found in table(given.models or ORDER, device, until, given.tiny):
        cells = (name, str(dtype).removeprefix("torch."), found.what, found.measured)
        verdict = "" if found.holds else "DOES NOT HOLD"
        print(f"| {' | '.join((*cells, found.bound, found.gib, verdict))} |", flush=True)
        broken += not found.holds
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
