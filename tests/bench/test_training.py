"""What a training costs besides the steps of its model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path

import torch
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns, measure
from torch import nn

from kgbench.data import load_dataset
from kgbench.models.pair import ModelPair
from kgbench.runner.training.finetuning_plan import Wordings, read_batches, tokenized_texts
from kgbench.runner.training.recipes import finetuning_recipe
from kgbench.runner.training.stages import StageRun, Training, half_type

STEPS, ROUNDS = 3, 7
BETWEEN = 50
"""Steps between checkpoints of a donor, at least."""


@group("a training")
def test_training(
    tiny: ModelPair, benchmark: BenchmarkFixture, claim: Callable[..., None], tmp_path: Path
) -> None:
    """Batches, losses and learning rate cost little more than forward, backward, clipping and
    AdamW alone, and a checkpoint little of the steps before it, though all of it counts that is
    done in the background.
    """
    recipe, half = finetuning_recipe("aggressive", 10**6), half_type()
    wordings = Wordings.of(load_dataset("tiny_movies"), "both", (), 0)
    texts = tokenized_texts(tiny.tokenizer, wordings, (), recipe.max_length)
    batches, _ = read_batches(texts, 1, recipe.batch_size, 0)
    ready = [batches[number] for number in range(STEPS)]
    model, other = (deepcopy(tiny.recipient).train().requires_grad_() for _ in range(2))
    training = Training(model, recipe.stage, 10**6, StageRun(tmp_path, 0, half=half))
    optimizer = torch.optim.AdamW(other.parameters(), recipe.learning_rate)

    def trained() -> None:
        for number in range(STEPS):
            loss, rate = training.step(batches[number])
            training.unread.append((number, loss, rate))
        training.read()

    def bare() -> None:
        for batch in ready:
            with torch.autocast("cpu", half, enabled=half is not None):
                loss = other(**batch, use_cache=False).loss
            loss.backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    ratio = in_turns(benchmark, trained, {"bare": bare}, ROUNDS)["bare"]
    claim("tiny: training ÷ its steps alone", ratio, "≤ 1.05", ratio.value <= 1.05)
    step, number = measure(bare) / STEPS, count()

    def saved() -> None:
        training.save(next(number))
        training.wait()

    share = statistics.median(measure(saved) for _ in range(ROUNDS)) / (BETWEEN * step)
    claim(f"tiny: a checkpoint ÷ {BETWEEN} steps", f"{share:.3f}", "≤ 0.03", share <= 0.03)
