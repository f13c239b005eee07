"""Interventions on activations and attention as their papers state them, in plain PyTorch.

Hooks on the library's own modules, one prompt and one run at a time. Independent of the package on
purpose: it shares with it neither the engine, nor the localizers, nor the family maps. What a graft
expression means is the oracle's reading of it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import oracle
import torch
from torch import nn

Place = tuple[int, str]
"""Layer and hook point."""
Activations = dict[Place, torch.Tensor]
"""[token, width] each."""
Change = Callable[[torch.Tensor], torch.Tensor]

ATTENTION = ("ln_1", "q", "k", "v", "o")
MLP = ("ln_2", "gate", "up", "down")
STANDS_FOR = {
    "resid_pre": (*ATTENTION, *MLP),
    "attn_out": ATTENTION,
    "mlp_out": MLP,
    "resid_post": (*ATTENTION, *MLP),
}
REGIONS = ("LT", "FE", "M", "RP", "R", "P", "BOS")


# ----------------------------------------------------------------------------- one run of one model


def run(
    model: Any,
    ids: Sequence[int],
    changes: Mapping[Place, Change] | None = None,
    cuts: Mapping[int, Any] | None = None,
) -> Activations:
    """All activations of a model on one prompt.

    Args:
        model: A causal language model of the library.
        ids: Tokens of the prompt.
        changes: What becomes of the activations at some places.
        cuts: Per layer, for each token the tokens that it does not attend to.
    """
    return (
        _computed(model, ids, changes or {}, cuts or {})
        if changes or cuts
        else _untouched(model, tuple(ids))
    )


@cache
def _untouched(model: Any, ids: Sequence[int]) -> Activations:
    return _computed(model, ids, {}, {})


def _computed(
    model: Any, ids: Sequence[int], changes: Mapping[Place, Change], cuts: Mapping[int, Any]
) -> Activations:
    seen = Activations()

    def changed(place: Place, value: torch.Tensor) -> torch.Tensor:
        new = changes[place](value[0].clone())[None] if place in changes else value
        seen[place] = new[0].clone()
        return new

    def before(layer: int) -> Any:
        return lambda module, inputs: (changed((layer, "resid_pre"), inputs[0]), *inputs[1:])

    def after(place: Place) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            return (
                (changed(place, output[0]), *output[1:])
                if isinstance(output, tuple)
                else changed(place, output)
            )

        return hook

    with ExitStack() as stack, torch.no_grad():
        for number, layer in enumerate(_layers(model)):
            attention = next(
                getattr(layer, name)
                for name in ("attn", "attention", "self_attn")
                if hasattr(layer, name)
            )
            handles = [
                layer.register_forward_pre_hook(before(number)),
                attention.register_forward_hook(after((number, "attn_out"))),
                layer.mlp.register_forward_hook(after((number, "mlp_out"))),
                layer.register_forward_hook(after((number, "resid_post"))),
            ]
            if number in cuts:
                handles.append(
                    attention.register_forward_pre_hook(
                        _masking(cuts[number], model.dtype), with_kwargs=True
                    )
                )
            for handle in handles:
                stack.callback(handle.remove)
        model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    return seen


def _layers(model: Any) -> Any:
    return {"gpt2": lambda: model.transformer.h, "gpt_neox": lambda: model.gpt_neox.layers}.get(
        model.config.model_type, lambda: model.model.layers
    )()


def _masking(cut: Sequence[Collection[int]], dtype: torch.dtype) -> Any:
    mask = torch.full((len(cut), len(cut)), torch.finfo(dtype).min, dtype=dtype).triu(1)
    for token, others in enumerate(cut):
        mask[token, sorted(others)] = torch.finfo(dtype).min
    return lambda module, inputs, options: (inputs, {**options, "attention_mask": mask[None, None]})


# ------------------------------------------------------------------ one prompt under one expression


@dataclass(frozen=True)
class Case:
    """A prompt, the models, and what is to carry the finetuned behaviour."""

    recipient: Any
    donors: Mapping[str, Any]
    ids: Sequence[int]
    regions: Mapping[str, Sequence[int]]
    graft: str

    @property
    def tokens(self) -> range:
        return range(len(self.ids))

    @property
    def layers(self) -> range:
        return range(self.recipient.config.num_hidden_layers)

    @cached_property
    def told(self) -> list[dict[str, str]]:
        """Per token, the donor of each place that has one."""
        return [
            dict(a)
            for a in oracle.assignments(self.graft, self.regions, len(self.ids), len(self.layers))
        ]

    def donor(self, token: int, places: Sequence[str]) -> str | None:
        """The donor of all of these places, at a token."""
        (only,) = {self.told[token].get(place) for place in places if _has(self.recipient, place)}
        return only

    def kept(self, token: int, layer: int, point: str) -> str | None:
        """The donor whose behaviour an activation is to carry."""
        named = [f"{layer}.{component}" for component in STANDS_FOR[point]]
        return self.donor(token, named) if any(name in self.told[token] for name in named) else None

    def cells(self) -> list[str]:
        """The region that each token is scored under."""
        return cells(self.regions, len(self.ids))

    def answer(self, seen: Activations) -> torch.Tensor:
        """Logits [vocabulary] of the last token, through the norm and the head that the expression
        chooses.
        """
        hidden = seen[self.layers[-1], "resid_post"][-1]
        norm, head = (
            {None: self.recipient, **self.donors}[self.donor(-1, [name])]
            for name in ("ln_f", "head")
        )
        path = {"gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}.get(
            norm.config.model_type, "model.norm"
        )
        with torch.no_grad():
            return head.lm_head(norm.get_submodule(path)(hidden))


@cache
def _has(model: Any, place: str) -> bool:
    return bool(oracle.weights(model, place))


def cells(regions: Mapping[str, Sequence[int]], n: int) -> list[str]:
    """The first region that applies to each token."""
    return [
        next((name for name in REGIONS if token in regions.get(name, ())), "REST")
        for token in range(n)
    ]


def seeded(*parts: object) -> int:
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big")


# -------------------------------------------------------------------------------------- the methods


def activation_patch(case: Case, point: str) -> torch.Tensor:
    runs = {name: run(donor, case.ids) for name, donor in case.donors.items()}

    def patch(layer: int) -> Change:
        def change(h: torch.Tensor) -> torch.Tensor:
            for token in case.tokens:
                if donor := case.kept(token, layer, point):
                    h[token] = runs[donor][layer, point][token]
            return h

        return change

    return case.answer(
        run(case.recipient, case.ids, {(layer, point): patch(layer) for layer in case.layers})
    )


def directional_patch(
    case: Case, point: str, directions: Mapping[tuple[str, int], torch.Tensor]
) -> torch.Tensor:
    theirs = run(case.donors["sft"], case.ids)

    def patch(layer: int) -> Change:
        def change(h: torch.Tensor) -> torch.Tensor:
            for token, cell in enumerate(case.cells()):
                if case.kept(token, layer, point):
                    for u in directions.get((cell, layer), ()):
                        along = u.type(h.dtype)
                        h[token] += ((theirs[layer, point][token] - h[token]) @ along) * along
            return h

        return change

    return case.answer(
        run(case.recipient, case.ids, {(layer, point): patch(layer) for layer in case.layers})
    )


def ablation(
    case: Case, points: Sequence[str], fill: Callable[[int, Place], torch.Tensor]
) -> torch.Tensor:
    def destroy(layer: int, point: str) -> Change:
        def change(h: torch.Tensor) -> torch.Tensor:
            for token in case.tokens:
                if not case.kept(token, layer, point):
                    h[token] = fill(token, (layer, point))
            return h

        return change

    changes = {(layer, point): destroy(layer, point) for layer in case.layers for point in points}
    return case.answer(run(case.donors["sft"], case.ids, changes))


def causal_trace(case: Case, points: Sequence[str], noise: torch.Tensor) -> torch.Tensor:
    donor = case.donors["sft"]
    clean = run(donor, case.ids)

    def disturb(h: torch.Tensor) -> torch.Tensor:
        for token, added in zip(case.regions["FE"], noise, strict=True):
            if not case.donor(token, ["emb"]):
                h[token] += added
        return h

    def restore(layer: int, point: str, first: Change) -> Change:
        def change(h: torch.Tensor) -> torch.Tensor:
            h = first(h)
            for token in case.tokens:
                if case.kept(token, layer, point):
                    h[token] = clean[layer, point][token]
            return h

        return change

    changes: dict[Place, Change] = {(0, "resid_pre"): disturb}
    for place in ((layer, point) for layer in case.layers for point in points):
        changes[place] = restore(*place, changes.get(place, lambda h: h))
    return case.answer(run(donor, case.ids, changes))


def attention_knockout(case: Case) -> torch.Tensor:
    def cut(layer: int) -> list[set[int]]:
        return [
            {other for other in range(token) if not case.kept(other, layer, "resid_pre")}
            for token in case.tokens
        ]

    return case.answer(
        run(case.donors["sft"], case.ids, cuts={layer: cut(layer) for layer in case.layers})
    )


def static_graft(case: Case, alpha: float) -> torch.Tensor:
    model = copy.deepcopy(case.recipient)
    for place, donor in case.told[0].items():
        for ours, theirs in zip(
            oracle.weights(model, place), oracle.weights(case.donors[donor], place), strict=True
        ):
            ours.copy_(ours + alpha * (theirs - ours))
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(case.ids)])).logits[0, -1]


def path_patch(case: Case, receiver: str) -> torch.Tensor:
    ours, theirs = run(case.recipient, case.ids), run(case.donors["sft"], case.ids)
    point, _, number = receiver.partition("@")
    place = (int(number), point) if number else None

    def embed(h: torch.Tensor) -> torch.Tensor:
        for token in case.tokens:
            if case.donor(token, ["emb"]):
                h[token] = theirs[0, "resid_pre"][token]
        return h

    def freeze(where: Place) -> Change:
        def change(h: torch.Tensor) -> torch.Tensor:
            return torch.stack(
                [
                    (theirs if case.kept(token, *where) else ours)[where][token]
                    for token in case.tokens
                ]
            )

        return change

    changes = {
        (layer, point): freeze((layer, point))
        for layer in case.layers
        for point in ("attn_out", "mlp_out")
    }
    if place is not None:
        del changes[place]
    hidden = run(case.recipient, case.ids, {(0, "resid_pre"): embed, **changes})
    return case.answer(
        hidden if place is None else run(case.recipient, case.ids, {place: lambda h: hidden[place]})
    )


# --------------------------------------------------------------------- what they learn from prompts


@dataclass(frozen=True)
class Seen:
    """A prompt that a method learns from."""

    template: str
    fact: str
    ids: Sequence[int]
    regions: Mapping[str, Sequence[int]]

    def cells(self) -> list[str]:
        return cells(self.regions, len(self.ids))


def other_half(prompts: Sequence[Seen], own: Seen, seed: int) -> list[Seen]:
    """Prompts of the same template about the facts that stand at every other place of a seeded
    order.
    """
    like = [p for p in prompts if p.template == own.template]
    order = sorted({p.fact for p in like}, key=lambda fact: (seeded(seed, fact), fact))
    return [p for p in like if order.index(p.fact) % 2 != order.index(own.fact) % 2]


def directions(
    recipient: Any, donor: Any, prompts: Sequence[Seen], point: str, k: int | None
) -> dict[tuple[str, int], torch.Tensor]:
    """Unit vectors by region and layer: along the mean of donor minus recipient, or the first k
    principal ones.
    """
    found: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)
    for prompt in prompts:
        theirs, ours = run(donor, prompt.ids), run(recipient, prompt.ids)
        for layer in range(recipient.config.num_hidden_layers):
            for token, cell in enumerate(prompt.cells()):
                found[cell, layer].append((theirs[layer, point] - ours[layer, point])[token])

    def unit(rows: torch.Tensor) -> torch.Tensor:
        if k is None:
            mean = rows.mean(0, keepdim=True)
            return mean / mean.norm() if mean.norm() > 0 else mean[:0]
        squares, vectors = torch.linalg.eigh(rows.T @ rows)
        largest = squares.flip(0)[: min(k, len(rows))]
        return vectors.flip(1).T[: len(largest)][largest > 1e-12 * largest[0]]

    return {
        place: unit(torch.stack(rows).double()).to(rows[0].dtype) for place, rows in found.items()
    }


def means(
    donor: Any, prompts: Sequence[Seen], points: Sequence[str]
) -> dict[tuple[str, Place], torch.Tensor]:
    """The mean activation by region and place."""
    found: dict[tuple[str, Place], list[torch.Tensor]] = defaultdict(list)
    for prompt in prompts:
        seen = run(donor, prompt.ids)
        for (layer, point), values in seen.items():
            for token, cell in enumerate(prompt.cells()):
                if point in points:
                    found[cell, (layer, point)].append(values[token])
    return {key: torch.stack(values).mean(0) for key, values in found.items()}


def resampled(
    donor: Any, prompts: Sequence[Seen], own: Seen, token: int, seed: int
) -> Callable[[Place], torch.Tensor]:
    """The activation at a token of the same region in the prompt of the next fact, in a seeded
    order of facts.
    """
    cell = own.cells()[token]
    ring = sorted(
        (p for p in prompts if p.template == own.template and cell in p.cells()),
        key=lambda p: (seeded(seed, p.fact), p.fact),
    )
    source = ring[(ring.index(own) + 1) % len(ring)]
    there = [other for other, name in enumerate(source.cells()) if name == cell]
    seen = run(donor, source.ids)
    return lambda place: seen[place][there[own.cells()[:token].count(cell) % len(there)]]


def noise(
    donor: Any, prompts: Sequence[Seen], own: Seen, level: float, draw: int, seed: int
) -> torch.Tensor:
    """Normal noise [token, width] for the tokens of the first entity."""
    table = donor.get_input_embeddings()
    with torch.no_grad():
        embeddings = torch.cat(
            [table(torch.tensor([p.ids[token] for token in p.regions["FE"]])) for p in prompts]
        )
    drawn = np.random.default_rng(seeded(seed, draw, own.fact)).standard_normal(
        (len(own.regions["FE"]), embeddings.shape[1])
    )
    return level * embeddings.std() * torch.from_numpy(drawn).to(embeddings.dtype)
