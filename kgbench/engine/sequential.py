"""The sequential executor: one prompt, configuration and token at a time, with a key-value cache.

Deliberately naive: the algorithm of arXiv 2506.20746, a reference for the other executors. Source
runs come first, and their activations at every hook are stored for copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from kgbench.engine.attention_masks import known_windows
from kgbench.engine.edits import Add, Copy, Edit, Hook, SourceRun, Treatment
from kgbench.engine.forward import Activity, Weights, Wiring, one_treatment
from kgbench.engine.plan import Answers, Budget, Chunk, Plan

Kept = dict[tuple[Hook, int], Tensor]
"""Activations [1, 1, width] of one run by hook and token."""


def run_sequential(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Chunk]:
    """Answer a plan one prompt and configuration at a time; the budget is ignored.

    Raises:
        NotApplicableError: The plan has cuts, and the models limit attention in an unknown way.
    """
    wiring = wiring.scaled(plan.scaled)
    for number, request in enumerate(plan.requests):
        prompt = _Prompt(wiring, plan, number)
        for configuration in range(request.configurations):
            yield Chunk(len(request.ids), partial(prompt.answers, configuration))


class _Prompt:
    """Runs over one prompt."""

    def __init__(self, wiring: Wiring, plan: Plan, number: int) -> None:
        self.wiring, self.plan, self.number = wiring, plan, number
        self.request = plan.requests[number]
        self.kept: dict[SourceRun, Kept] = {}
        edited: set[Hook] = set()
        for treatment in plan.treatments:
            edited.update(edit.hook for edit in treatment.edits)
        self.hooks = sorted(edited)

    def answers(self, configuration: int) -> Answers:
        """Those under a configuration, after the runs that any configuration copies from."""
        request = self.request
        if not self.kept:
            rows = request.treatments[request.configurations :]
            for source, row in zip(request.runs, rows, strict=True):
                self.kept[source] = {}
                self.logits(row, self.kept[source])
        read, n = self.logits(request.treatments[configuration], {}), len(request.readouts)
        labels = torch.full((n,), self.number), torch.full((n,), configuration), torch.arange(n)
        logits = torch.stack([read[token] for token in request.readouts])
        return Answers(*labels, logits, len(request.ids))

    def logits(self, row: np.ndarray, keep: Kept) -> dict[int, Tensor]:
        """Logits [vocabulary] of each token; fills `keep` with the activations at all hooks."""
        cache = DynamicCache(config=self.wiring.model.config)
        weights, read = Weights(self.plan.table, self.plan.heads), dict[int, Tensor]()
        for token, number in enumerate(row.tolist()):
            activity = self._activity(number, token, keep)
            with one_treatment(self.wiring, weights, number, activity, len(row)) as model:
                ids = torch.tensor([[self.request.ids[token]]], device=self.wiring.pair.device)
                logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
            read[token] = logits[0, -1]
        return read

    def _activity(self, number: int, token: int, keep: Kept) -> Activity:
        if not self.plan.treatments:
            return Activity()
        treatment = self.plan.treatments[number]
        return Activity(
            {hook: partial(self._at, treatment, hook, token, keep) for hook in self.hooks},
            self._masks(treatment, token),
        )

    def _at(self, treatment: Treatment, hook: Hook, token: int, keep: Kept, x: Tensor) -> Tensor:
        for edit in treatment.edits:
            if edit.hook == hook:
                x = self._after(edit, token, x)
        keep[hook, token] = x
        return x

    def _after(self, edit: Edit, token: int, x: Tensor) -> Tensor:
        if not isinstance(edit, Copy):
            value = edit.value.tensor.to(x).expand_as(x)
            return x + value if isinstance(edit, Add) else value
        source = self.kept[edit.source][edit.hook, token]
        if edit.basis is None:
            return source
        rows = edit.basis.tensor.to(x)
        return x + (source - x) @ rows.T @ rows

    def _masks(self, treatment: Treatment, token: int) -> Mapping[int, Callable[[], Tensor]]:
        """Masks [1, 1, 1, key] of the layers in which this token's attention is cut."""
        if not treatment.cuts:
            return {}
        pair, masks, layers = self.wiring.pair, dict[int, Tensor](), known_windows(self.wiring.pair)
        for cut in treatment.cuts:
            # The cache of a windowed layer holds the last `seen` tokens only, from `first` on.
            seen = layers.seen(cut.layer, token)
            mask = masks.setdefault(
                cut.layer, torch.zeros(1, 1, 1, seen, dtype=pair.dtype, device=pair.device)
            )
            first = token + 1 - seen
            mask[..., [key - first for key in sorted(cut.keys) if first <= key < token]] = (
                torch.finfo(mask.dtype).min
            )
        return {layer: partial(masks.__getitem__, layer) for layer in masks}
