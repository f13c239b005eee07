"""The rows executor: one batch row per prompt and configuration, with the model's causal mask.

For models that do not accept a 4-D mask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.engine.attention_masks import make_masks
from kgbench.engine.edits import Hook
from kgbench.engine.forward import Activity, Weights, Wiring, treated
from kgbench.engine.indices import Indices
from kgbench.engine.plan import Answers, Budget, Chunk, Plan, Request
from kgbench.engine.schedule import Schedule, make_schedule

Row = tuple[int, int]
"""Prompt, and row of its request: a configuration, or a run that configurations copy from."""


def run_rows(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Chunk]:
    """Forwards that answer a plan.

    Raises:
        NotApplicableError: The plan has cuts, and the models limit attention in an unknown way.
    """
    wiring = wiring.whole.scaled(plan.scaled)
    for rows in _chunks(wiring, plan, budget):
        token_rows = sum(len(plan.requests[prompt].ids) for prompt, _ in rows)
        yield Chunk(token_rows, partial(_answer, wiring, plan, rows, token_rows))


def _answer(wiring: Wiring, plan: Plan, rows: list[Row], token_rows: int) -> Answers:
    labels: list[tuple[int, int, int]] = []
    for prompt, row in rows:
        n = len(plan.requests[prompt].read_in(row))
        labels += [(prompt, row, readout) for readout in range(n)]
    logits, _ = _forward(wiring, plan, rows)
    prompts, configurations, readouts = torch.tensor(labels, dtype=torch.int64).unbind(1)
    return Answers(prompts, configurations, readouts, logits, token_rows)


def read_activations(
    wiring: Wiring, plan: Plan, budget: Budget, hooks: Sequence[Hook]
) -> list[Float[Tensor, "hook token width"]]:
    """Activations of each prompt at some hooks, after edits, under a plan of one configuration."""
    wiring = wiring.whole.scaled(plan.scaled)
    by_prompt = [torch.empty(0)] * len(plan.requests)
    for rows in _chunks(wiring, plan, budget):
        _, seen = _forward(wiring, plan, rows, hooks)
        for place, (prompt, row) in enumerate(rows):
            if row == 0:
                n = len(plan.requests[prompt].ids)
                at = [seen[hook][place, :n].to(wiring.pair.device) for hook in hooks]
                by_prompt[prompt] = torch.stack(at)
    return by_prompt


def plain(wiring: Wiring, plan: Plan, budget: Budget) -> int:
    """One plain forward of the recipient over all prompts, the unit of cost.

    Returns:
        Token rows of the forward, without padding.
    """
    requests = []
    for each in plan.requests:
        untreated = np.zeros((1, len(each.ids)), dtype=np.int64)
        requests.append(Request(each.ids, untreated, each.readouts))
    recipient = Plan(np.zeros_like(plan.table[:1]), tuple(requests))
    return sum(chunk.answers().token_rows for chunk in run_rows(wiring, recipient, budget))


def _forward(
    wiring: Wiring, plan: Plan, rows: list[Row], hooks: Sequence[Hook] = ()
) -> tuple[Float[Tensor, "answer vocabulary"], dict[Hook, Float[Tensor, "row token width"]]]:
    """Logits of a chunk, and its activations at the hooks.

    Rows are padded on the right, which causal attention never sees, so that they need no mask. The
    padding repeats the last token, since models warn about padding tokens without a mask, and its
    treatment, so that it adds no weight set to any module.
    """
    width = max(len(plan.requests[prompt].ids) for prompt, _ in rows)
    ids, numbers = (np.zeros((len(rows), width), dtype=np.int64) for _ in range(2))
    leaves: list[int] = []
    for row, (prompt, number) in enumerate(rows):
        request = plan.requests[prompt]
        n, treatments = len(request.ids), request.treatments[number]
        ids[row, :n], ids[row, n:] = request.ids, request.ids[-1]
        numbers[row, :n], numbers[row, n:] = treatments, treatments[-1]
        leaves += [row * width + readout for readout in request.read_in(number)]
    device, indices, seen = wiring.pair.device, Indices(), dict[Hook, Tensor]()
    activity = _activity(wiring, plan, rows, width, indices)
    edits = dict(activity.edits)
    for hook in hooks:
        edits[hook] = partial(_seen, seen, len(rows), hook, edits.get(hook))
    weights, activity = Weights(plan.table, plan.heads), replace(activity, edits=edits)
    positions = np.tile(np.arange(width), (len(rows), 1))
    inputs, places = indices.add(ids), indices.add(positions)
    tokens, read = numbers.reshape(-1), np.array(leaves, dtype=np.int64)
    with treated(wiring, weights, tokens, read, activity, length=width) as model:
        logits: Tensor = model(
            input_ids=inputs.on(device), position_ids=places.on(device), use_cache=False
        ).logits
    return logits, seen


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


def _activity(
    wiring: Wiring, plan: Plan, rows: list[Row], width: int, indices: Indices
) -> Activity:
    """Edits and cuts of a chunk; rows share no tokens, unlike paths of a token tree."""
    if not plan.treatments:
        return Activity(indices=indices)
    by_prompt: dict[int, dict[int, int]] = defaultdict(dict)
    for place, (prompt, row) in enumerate(rows):
        by_prompt[prompt][row] = place
    schedule = Schedule()
    for prompt, places in by_prompt.items():
        request = plan.requests[prompt]
        nodes = np.array([*places.values()])[:, None] * width + np.arange(len(request.ids))
        runs = {}
        for number, row in enumerate(places):
            if row >= request.configurations:
                runs[request.runs[row - request.configurations]] = number
        numbers = request.treatments[list(places)]
        schedule.extend(make_schedule(plan.treatments, numbers, nodes, runs), 0)
    edits, shape = schedule.edits(indices), (len(rows), width)
    if not any(schedule.cuts.values()):
        return Activity(edits, indices=indices)
    depths = np.broadcast_to(np.arange(width), shape)
    masks = make_masks(wiring.pair, np.full(shape, width), depths, indices)
    return Activity(edits, schedule.masks(masks, indices), indices=indices)


def _chunks(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[list[Row]]:
    """Group rows by length into chunks within the budget; a row and its runs are in one chunk.

    Prompts whose rotary angles differ are in different chunks.
    """
    vocabulary, angles = wiring.model.config.vocab_size, wiring.rotary.angles
    rows: list[Row] = []
    for prompt, request in enumerate(plan.requests):
        rows += [(prompt, configuration) for configuration in range(request.configurations)]
    chunk: dict[Row, None] = {}
    answers = configurations = 0
    chunk_angles: tuple[int, ...] = ()
    for prompt, configuration in sorted(rows, key=lambda r: len(plan.requests[r[0]].ids)):
        request = plan.requests[prompt]
        additions = dict.fromkeys((prompt, row) for row in request.rows_of(configuration))
        full = (
            len(chunk | additions) * len(request.ids) > budget.tokens
            or (answers + len(request.readouts)) * vocabulary > budget.logits
            or configurations == budget.prompts
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
