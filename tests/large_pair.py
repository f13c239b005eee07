"""What a pair of the size of Llama 3.1 8B takes, on paper: prints the documentation's tables.

    python tests/large_pair.py memory    # where its layers go, on empty tensors
    python tests/large_pair.py work      # token rows and hours of runs and of a study

Token rows depend on layers, components and prompts, and on no width: they are counted on a pair with
as many layers that is 32 wide. Its tokenizer is that of tiny-llama, which has more tokens a text.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging

from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.errors import InputError
from kgbench.models.catalog import FLOPS
from kgbench.models.placement import devices_of
from kgbench.numbers import duration_text
from kgbench.runner import Settings, Spec, dry_run
from kgbench.runner.training.finetuning_plan import Wordings, tokenized_texts
from kgbench.runner.training.recipes import finetuning_recipe

__all__ = ["memory_table", "work_table"]

SIZE = LlamaConfig(
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14_336,
    vocab_size=128_256,
    max_position_embeddings=131_072,
    tie_word_embeddings=False,
)
PARAMETERS = 8_030_261_248
"""Of the published checkpoint; a test counts them."""
GIB = 2**30
CARDS: Sequence[tuple[str, tuple[int, ...], int]] = (
    ("one of 24 GiB", (24,), 64),
    ("one of 48 GiB", (48,), 64),
    ("one of 80 GiB", (80,), 64),
    ("two of 24 GiB", (24, 24), 64),
    ("four of 24 GiB", (24,) * 4, 64),
    ("none", (), 64),
    ("none", (), 24),
)
"""Accelerators, GiB of each, and GiB of the processor's memory."""
SEEDS = 5
RUNS = {
    "the pathways": ("dynamic_graft", "pathways"),
    "components at LT, by halves and quarters of the layers": ("dynamic_graft", "components"),
    "layers by quarters": ("dynamic_graft", "layers"),
    "budgets of `graft_attribution`": ("graft_attribution", "budget"),
    "budgets of `dynamic_graft`, every site grafted alone": ("dynamic_graft", "budget"),
    "budgets of `activation_patch`": ("activation_patch", "budget"),
}
"""Method and suite of each run of the study."""


def memory_table() -> str:
    """Where the layers of base and finetuned model go, in bfloat16."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SIZE, dtype=torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == PARAMETERS
    lines = [
        "| accelerators | processor | base and LoRA | base and full finetune |",
        "|---|---|---|---|",
    ]
    for name, cards, memory in CARDS:
        free = {f"cuda:{i}": size * GIB for i, size in enumerate(cards)}
        cells = [name, f"{memory} GiB"]
        for models in (1, 2):
            cells.append(placed(model, models, {**free, "cpu": memory * GIB}))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def placed(model: torch.nn.Module, models: int, free: dict[str, int]) -> str:
    """Layers on each device."""
    try:
        devices = devices_of(model, "model.layers", "sequential", models, free)
    except InputError:
        return "does not fit"
    layers = Counter(
        str(device) for at, device in devices.items() if at.startswith("model.layers.")
    )
    return ", ".join(f"{count} on {device}" for device, count in layers.items())


def token_rows(folder: Path) -> dict[str, int]:
    """Token rows of each run, with all facts of the paper's larger data set."""
    shipped = load_pair("tiny-llama")
    narrow = LlamaConfig(
        **{
            **SIZE.to_dict(),
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "intermediate_size": 64,
            "vocab_size": len(shipped.tokenizer),
            "bos_token_id": shipped.tokenizer.bos_token_id,
            "eos_token_id": shipped.tokenizer.eos_token_id,
        }
    )
    for seed, part in enumerate(("base", "finetuned")):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(narrow).save_pretrained(folder / part)
        shipped.tokenizer.save_pretrained(folder / part)
    rows, donors = {}, {"sft": str(folder / "finetuned")}
    for name, (method, suite) in RUNS.items():
        spec = Spec(
            localizer=method,
            recipient=str(folder / "base"),
            donors=donors,
            dataset="fake_movies_fake_actors",
            suite=suite,
        )
        counts = dry_run(spec, Settings(device="cpu", output_dir=folder / "runs")).counts
        rows[name] = counts["token_rows"]
    return rows


def training_rows() -> int:
    """Tokens of one LoRA training, all its epochs."""
    recipe = finetuning_recipe("lora", 10**6)
    wordings = Wordings.of(load_dataset("fake_movies_fake_actors"), "both", (), 0)
    texts = tokenized_texts(load_pair("tiny-llama").tokenizer, wordings, (), recipe.max_length)
    return recipe.epochs * texts.tokens


def spread(seconds: Sequence[float], cards: int) -> float:
    """When the last card is done that takes the longest run that is left, again and again."""
    ends = [0.0] * cards
    for each in sorted(seconds, reverse=True):
        ends[ends.index(min(ends))] += each
    return max(ends)


def work_table() -> str:
    """Token rows and time of each run, and of a study of several seeds on 1, 8 and 64 cards."""
    with TemporaryDirectory(prefix="kgbench-") as folder:
        rows = token_rows(Path(folder))
    trained = training_rows()
    work = {"a LoRA training": 6 * PARAMETERS * trained}
    for name, count in rows.items():
        work[name] = 2 * PARAMETERS * count
    rows = {"a LoRA training": trained, **rows}
    lines = ["| what | token rows | Pflop | one card |", "|---|---|---|---|"]
    for name, operations in work.items():
        time = duration_text(operations / FLOPS["cuda"])
        lines.append(f"| {name} | {rows[name]:,} | {operations / 1e15:,.0f} | {time} |")
    seconds = {name: operations / FLOPS["cuda"] for name, operations in work.items()}
    first = seconds.pop("a LoRA training")
    for cards in (1, 8, 64):
        whole = spread([first] * SEEDS, cards) + spread([*seconds.values()] * SEEDS, cards)
        lines.append(
            f"| all of it under {SEEDS} seeds, on {cards} card{'s' * (cards > 1)} | | | "
            f"{duration_text(whole)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    logging.disable_progress_bar()
    print({"memory": memory_table, "work": work_table}[sys.argv[1]]())
