"""The rows executor: one row per prompt and configuration with a plain causal mask, for models that take no 4-D mask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kgbench.engine.forward import Wiring, reading, treated
from kgbench.engine.plan import Answers, Budget, Plan

__all__ = ["plain", "run"]

Row = tuple[int, int]
"""Prompt and configuration."""


def run(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan chunk by chunk."""
    for chunk in _chunks(plan, budget, wiring.model.config.vocab_size):
        ids, positions, leaves = _batch(plan, chunk)
        numbers = np.zeros(ids.shape, dtype=np.int64)
        for row, (prompt, configuration) in enumerate(chunk):
            treatments = plan.requests[prompt].treatments[configuration]
            numbers[row, : len(treatments)], numbers[row, len(treatments) :] = treatments, treatments[-1]
        device = wiring.pair.device
        with treated(wiring, plan.table, numbers.reshape(-1), torch.from_numpy(leaves).to(device)) as model:
            batch = {"input_ids": torch.from_numpy(ids).to(device), "position_ids": torch.from_numpy(positions).to(device)}
            logits = model(**batch, use_cache=False).logits
        yield Answers(*_labels(plan, chunk), logits, sum(len(plan.requests[p].ids) for p, _ in chunk))


def plain(wiring: Wiring, plan: Plan, budget: Budget) -> int:
    """One plain forward of the recipient over all prompts, as the measure of cost; returns its token rows."""
    rows = 0
    single = Plan(plan.table, tuple(type(r)(r.ids, r.treatments[:1], r.readouts) for r in plan.requests))
    for chunk in _chunks(single, budget, wiring.model.config.vocab_size):
        ids, positions, leaves = _batch(single, chunk)
        device = wiring.pair.device
        with reading(wiring, torch.from_numpy(leaves).to(device)) as model:
            model(input_ids=torch.from_numpy(ids).to(device), position_ids=torch.from_numpy(positions).to(device), use_cache=False)
        rows += sum(len(single.requests[p].ids) for p, _ in chunk)
    return rows


def _chunks(plan: Plan, budget: Budget, vocabulary: int) -> Iterator[list[Row]]:
    """Rows of like length together, as many as the budget allows."""
    rows = [(p, c) for p, request in enumerate(plan.requests) for c in range(len(request.treatments))]
    chunk: list[Row] = []
    answers = 0
    for row in sorted(rows, key=lambda r: len(plan.requests[r[0]].ids)):
        request = plan.requests[row[0]]
        full = (
            (len(chunk) + 1) * len(request.ids) > budget.tokens
            or (answers + len(request.readouts)) * vocabulary > budget.logits
            or (budget.prompts is not None and len(chunk) == budget.prompts)
        )
        if chunk and full:
            yield chunk
            chunk, answers = [], 0
        chunk.append(row)
        answers += len(request.readouts)
    if chunk:
        yield chunk


def _batch(plan: Plan, chunk: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and positions [row, token], padded on the right, and the readout tokens of the flattened batch.

    Causal attention never looks right, so padding there needs no mask.
    """
    width = max(len(plan.requests[p].ids) for p, _ in chunk)
    ids = np.zeros((len(chunk), width), dtype=np.int64)
    leaves = []
    for row, (prompt, _) in enumerate(chunk):
        request = plan.requests[prompt]
        ids[row, : len(request.ids)] = request.ids
        leaves += [row * width + readout for readout in request.readouts]
    return ids, np.tile(np.arange(width), (len(chunk), 1)), np.array(leaves, dtype=np.int64)


def _labels(plan: Plan, chunk: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = [(p, c, r) for p, c in chunk for r in range(len(plan.requests[p].readouts))]
    prompts, configurations, readouts = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).unbind(1)
    return prompts, configurations, readouts
