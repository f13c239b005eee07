"""The rows executor: one batch row per prompt and configuration, with the model's causal mask.

For models that do not accept a 4-D mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kgbench.engine.edits import Hook
from kgbench.engine.forward import Activity, Weights, Wiring, reading, treated
from kgbench.engine.indices import Indices
from kgbench.engine.masks import make_masks
from kgbench.engine.plan import Answers, Budget, Plan
from kgbench.engine.schedule import Schedule, make_schedule

Row = tuple[int, int]
"""Prompt and configuration; run r of the prompt, a source of copies, is configuration -1 - r."""


def run_rows(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan chunk by chunk.

    Raises:
        NotApplicableError: The plan has cuts, and the models limit attention in an unknown way.
    """
    wiring = wiring.whole().scaled(plan.scaled)
    for chunk in _chunks(wiring, plan, budget):
        logits = _forward(wiring, plan, chunk)
        yield Answers(
            *_labels(plan, chunk), logits, sum(len(plan.requests[p].ids) for p, _ in chunk)
        )


def rows_sizes(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[int]:
    """Token rows of each forward of `run_rows`, of which none is computed."""
    for chunk in _chunks(wiring, plan, budget):
        yield sum(len(plan.requests[prompt].ids) for prompt, _ in chunk)


def read_activations(
    wiring: Wiring, plan: Plan, budget: Budget, hooks: Sequence[Hook]
) -> list[Float[Tensor, "hook token width"]]:
    """Activations of each prompt at some hooks, after edits, under a plan of one configuration."""
    wiring = wiring.whole().scaled(plan.scaled)
    by_prompt = [torch.empty(0)] * len(plan.requests)
    for chunk in _chunks(wiring, plan, budget):
        seen: dict[Hook, Tensor] = {}
        _forward(wiring, plan, chunk, seen, hooks)
        for row, (prompt, configuration) in enumerate(chunk):
            if configuration == 0:
                n = len(plan.requests[prompt].ids)
                at = [seen[hook][row, :n].to(wiring.pair.device) for hook in hooks]
                by_prompt[prompt] = torch.stack(at)
    return by_prompt


def plain(wiring: Wiring, plan: Plan, budget: Budget) -> int:
    """One plain forward of the recipient over all prompts, the unit of cost.

    Returns:
        Token rows of the forward, without padding.
    """
    rows = 0
    single = Plan(
        plan.table, tuple(type(r)(r.ids, r.treatments[:1], r.readouts) for r in plan.requests)
    )
    for chunk in _chunks(wiring, single, budget):
        ids, positions, leaves = _batch(single, chunk)
        device, indices = wiring.pair.device, Indices()
        inputs, places = indices.add(ids), indices.add(positions)
        with reading(wiring, leaves, ids.shape[1], indices) as model:
            model(input_ids=inputs.on(device), position_ids=places.on(device), use_cache=False)
        rows += sum(len(single.requests[p].ids) for p, _ in chunk)
    return rows


def _forward(
    wiring: Wiring,
    plan: Plan,
    chunk: list[Row],
    seen: dict[Hook, Tensor] | None = None,
    hooks: Sequence[Hook] = (),
) -> Float[Tensor, "answer vocabulary"]:
    """Logits of a chunk; fills `seen` with the activations [row, token, width] at the hooks."""
    ids, positions, leaves = _batch(plan, chunk)
    numbers = np.zeros(ids.shape, dtype=np.int64)
    for row, label in enumerate(chunk):
        treatments = _treatments(plan, label)
        numbers[row, : len(treatments)] = treatments
        # Padding takes the last token's treatment, so that it adds no weight set to any module.
        numbers[row, len(treatments) :] = treatments[-1]
    device, indices = wiring.pair.device, Indices()
    activity = _activity(wiring, plan, chunk, ids.shape[1], indices)
    edits: dict[Hook, Callable[[Tensor], Tensor]] = dict(activity.edits)
    if seen is not None:
        for hook in hooks:
            edits[hook] = partial(_seen, seen, len(chunk), hook, edits.get(hook))
    weights = Weights(plan.table, plan.heads)
    activity = replace(activity, edits=edits, indices=indices)
    inputs, places = indices.add(ids), indices.add(positions)
    tokens, length = numbers.reshape(-1), ids.shape[1]
    with treated(wiring, weights, tokens, leaves, activity, length=length) as model:
        logits: Tensor = model(
            input_ids=inputs.on(device), position_ids=places.on(device), use_cache=False
        ).logits
    return logits


def _seen(
    seen: dict[Hook, Tensor],
    rows: int,
    hook: Hook,
    edit: Callable[[Tensor], Tensor] | None,
    x: Tensor,
) -> Tensor:
    """Record an activation after its edit; it comes as [row, token, width] or flat."""
    edited = edit(x) if edit else x
    seen[hook] = edited.reshape(rows, -1, edited.shape[-1])
    return edited


def _treatments(plan: Plan, row: Row) -> Int[np.ndarray, " token"]:
    request, number = plan.requests[row[0]], row[1]
    rows = request.treatments if number >= 0 else request.run_treatments
    assert rows is not None
    treatments: np.ndarray = rows[number if number >= 0 else -1 - number]
    return treatments


def _activity(
    wiring: Wiring, plan: Plan, chunk: list[Row], width: int, indices: Indices
) -> Activity:
    """Edits and cuts of a chunk; rows share no tokens, unlike paths of a token tree."""
    if not plan.treatments:
        return Activity(indices=indices)
    schedule = Schedule()
    for prompt, rows in _by_prompt(chunk).items():
        request = plan.requests[prompt]
        numbers = np.stack([_treatments(plan, chunk[row]) for row in rows])
        nodes = np.array(rows)[:, None] * width + np.arange(len(request.ids))
        runs = {}
        for i, row in enumerate(rows):
            if chunk[row][1] < 0:
                runs[request.runs[-1 - chunk[row][1]]] = i
        schedule.extend(make_schedule(plan.treatments, numbers, nodes, runs), 0)
    edits = schedule.edits(indices)
    if not any(schedule.cuts.values()):
        return Activity(edits)
    shape = len(chunk), width
    depths = np.broadcast_to(np.arange(width), shape)
    masks = make_masks(wiring.pair, np.full(shape, width), depths, indices)
    return Activity(edits, schedule.masks(masks, indices))


def _by_prompt(chunk: list[Row]) -> Mapping[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, (prompt, _) in enumerate(chunk):
        rows.setdefault(prompt, []).append(row)
    return rows


def _chunks(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[list[Row]]:
    """Group rows by length into chunks within the budget; a row and its runs are in one chunk.

    Prompts whose rotary angles differ are in different chunks.
    """
    vocabulary, angles = wiring.model.config.vocab_size, wiring.rotary.angles
    rows: list[Row] = []
    for prompt, request in enumerate(plan.requests):
        rows += [(prompt, configuration) for configuration in range(len(request.treatments))]
    chunk: dict[Row, None] = {}
    answers = configurations = 0
    chunk_angles: tuple[int, ...] = ()
    for row in sorted(rows, key=lambda r: len(plan.requests[r[0]].ids)):
        request = plan.requests[row[0]]
        runs = [(row[0], -1 - run) for run in request.needs.get(row[1], ())]
        additions = dict.fromkeys([*runs, row])
        full = (
            len(chunk | additions) * len(request.ids) > budget.tokens
            or (answers + len(request.readouts)) * vocabulary > budget.logits
            or (budget.prompts is not None and configurations == budget.prompts)
            or angles(len(request.ids)) != chunk_angles
        )
        chunk_angles = angles(len(request.ids))
        if chunk and full:
            yield list(chunk)
            chunk, answers, configurations = {}, 0, 0
        chunk |= additions
        answers, configurations = answers + len(request.readouts), configurations + 1
    if chunk:
        yield list(chunk)


def _batch(plan: Plan, chunk: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and positions [row, token], padded on the right, and rows of the readout tokens.

    Causal attention never sees padding on the right, so it needs no mask. The padding repeats the
    last token, since models warn about padding tokens without a mask.
    """
    width = max(len(plan.requests[p].ids) for p, _ in chunk)
    ids = np.zeros((len(chunk), width), dtype=np.int64)
    leaves = []
    for row, (prompt, configuration) in enumerate(chunk):
        request = plan.requests[prompt]
        ids[row, : len(request.ids)], ids[row, len(request.ids) :] = request.ids, request.ids[-1]
        leaves += [row * width + readout for readout in request.readouts if configuration >= 0]
    return ids, np.tile(np.arange(width), (len(chunk), 1)), np.array(leaves, dtype=np.int64)


def _labels(plan: Plan, chunk: list[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompt, configuration and readout of each answer; runs have none."""
    rows: list[tuple[int, int, int]] = []
    for prompt, configuration in chunk:
        if configuration >= 0:
            n = len(plan.requests[prompt].readouts)
            rows += [(prompt, configuration, readout) for readout in range(n)]
    labels = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
    prompts, configurations, readouts = labels.unbind(1)
    return prompts, configurations, readouts
