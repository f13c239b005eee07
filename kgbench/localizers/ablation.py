"""Ablation: destroy everything but some sites in the donor's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import Edit, Hook, Values, Write
from kgbench.engine.site_sets import token_cells
from kgbench.engine.treatment import Treatment
from kgbench.errors import InputError
from kgbench.localizers._base import Treatments, Unit
from kgbench.localizers._fit import Corpus, FittedLocalizer, activations, found_at, seeded_key
from kgbench.localizers._hooks import Reading, check_choice, hook_units, one_donor, read, treat_each
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["Ablation"]

Fill = Callable[[int, Hook], Values]
"""What a token's activation at a hook becomes."""

POINTS = ("attn_out+mlp_out", "attn_out", "mlp_out")


@dataclass(frozen=True)
class Ablation(FittedLocalizer):
    """The donor's run, with what attention and MLP add to the stream destroyed wherever the expression does not keep it.

    What an activation becomes: `zero`, nothing at all; `mean`, the donor's mean at the same hook over all tokens of the same scored region
    in prompts of the same template; `resample`, the donor's activation at a token of the same region in the same template's prompt of
    another fact (facts in a seeded order: each takes the next one that has the region; its tokens in turn). Embeddings stay the donor's.
    Final norm and head are the recipient's unless the expression names them.

    A scan leaves one hook at one region out at a time; the embeddings, which are never destroyed, share the value of the first hook.
    (Kinds of ablation: arXiv 2404.15255.)
    """

    name = "ablation"
    about = "the donor's run with attention and MLP outputs zeroed, averaged or resampled at all other sites"
    paper = "arXiv 2404.15255"
    floor = "destroyed_donor"
    scanned = "left_out"

    method: str = "mean"
    """`zero`, `mean` or `resample`."""
    point: str = "attn_out+mlp_out"
    """What is destroyed: `attn_out+mlp_out`, `attn_out` or `mlp_out`."""
    seed: int = 0
    """Of the order of facts in `resample`."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such method or hook point.
        """
        check_choice(f"method of {self.name}", self.method, ("zero", "mean", "resample"))
        check_choice(f"hook point of {self.name}", self.point, POINTS)

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Constants in the place of all that is not kept.

        Raises:
            InputError: No other fact has a prompt to resample from, or the method was fitted on prompts of other templates or regions.
        """
        donor, points = one_donor(self, pair, sites), self.point.split("+")
        readings = read(self, pair, prompts, sites, points, donor)
        hooks = [Hook(layer, point) for layer in range(pair.n_layers) for point in points]
        fills = self._fills(pair, prompts, donor, hooks)

        def destroyed(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            fill = fills(prompt)

            def edits(token: int) -> Iterator[Edit]:
                return (Write(hook, fill(token, hook)) for hook in hooks if hook not in reading.kept[token])

            return reading.edited(edits)

        apart: Mapping[str, Callable[[Prompt], Hashable]] = {"zero": lambda p: None, "mean": lambda p: p.name, "resample": lambda p: p}
        return treat_each(prompts, readings, destroyed, apart[self.method])

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One hook at one region each."""
        return hook_units(pair, prompts, self.point.split("+"))

    def _fills(self, pair: ModelPair, prompts: Sequence[Prompt], donor: int, hooks: Sequence[Hook]) -> Callable[[Prompt], Fill]:
        if self.method == "zero":
            nothing = Values(torch.zeros(pair.recipient.config.hidden_size, dtype=pair.dtype, device=pair.device))
            return lambda prompt: lambda token, hook: nothing
        corpus = self.corpus(prompts)
        if self.method == "mean":
            return lambda prompt: _averaged(pair, corpus, prompt, donor, hooks)
        sources = {prompt: _sources(pair, corpus, prompt, self.seed) for prompt in prompts}
        wanted = sorted({p for found in sources.values() for p in found.values()}, key=lambda p: (p.name, p.fact.id, p.text))
        seen = corpus.latest("resampled", (donor, tuple(wanted)), lambda: dict(activations(pair, wanted, donor, hooks)))
        return lambda prompt: _resampled(pair, prompt, sources[prompt], seen, hooks)


def _averaged(pair: ModelPair, corpus: Corpus, prompt: Prompt, donor: int, hooks: Sequence[Hook]) -> Fill:
    """The mean over tokens of the same region in prompts of the same template."""
    like, cells = corpus.like(prompt), token_cells(pair, prompt)

    def means() -> Mapping[tuple[str, Hook], Values]:
        sums: dict[str, Tensor] = {}
        counts = Counter(cell for some in like for cell in token_cells(pair, some))
        for some, found in activations(pair, like, donor, hooks):
            for token, cell in enumerate(token_cells(pair, some)):
                sums[cell] = sums.get(cell, torch.zeros_like(found[:, 0], dtype=torch.float64)) + found[:, token]
        averages = {cell: (total / counts[cell]).to(pair.dtype) for cell, total in sums.items()}
        return {(cell, hook): Values(mean) for cell, each in averages.items() for hook, mean in zip(hooks, each, strict=True)}

    made = corpus.once(("means", prompt.name, donor), means)
    return lambda token, hook: found_at(made, cells[token], hook)


def _sources(pair: ModelPair, corpus: Corpus, prompt: Prompt, seed: int) -> Mapping[str, Prompt]:
    """For each region of a prompt, the prompt of another fact that it is resampled from."""

    def ring(cell: str) -> Sequence[tuple[tuple[int, str], Prompt]]:
        having = [p for p in corpus.like(prompt) if cell in token_cells(pair, p)]
        return sorted(((seeded_key(p.fact.id, seed), p) for p in having), key=itemgetter(0))

    found, own = {}, seeded_key(prompt.fact.id, seed)
    for cell in token_cells(pair, prompt):
        others = [(key, p) for key, p in corpus.once(("ring", prompt.name, cell), partial(ring, cell)) if key != own]
        if not others:
            raise InputError(f"ablation has no prompt {prompt.name!r} of another fact to resample {cell} from: give it two facts or more")
        found[cell] = next((p for key, p in others if key > own), others[0][1])
    return found


def _resampled(
    pair: ModelPair, prompt: Prompt, sources: Mapping[str, Prompt], seen: Mapping[Prompt, Tensor], hooks: Sequence[Hook]
) -> Fill:
    cells, numbers = token_cells(pair, prompt), {hook: i for i, hook in enumerate(hooks)}

    def fill(token: int, hook: Hook) -> Values:
        source = sources[cells[token]]
        tokens = [other for other, cell in enumerate(token_cells(pair, source)) if cell == cells[token]]
        turn = cells[:token].count(cells[token])
        return Values(seen[source][numbers[hook], tokens[turn % len(tokens)]])

    return fill
