"""Ablation: destroy everything but some sites in the donor's run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import Edit, Hook, Values, Write
from kgbench.engine.site_sets import token_cells
from kgbench.engine.treatment import Treatment
from kgbench.errors import InputError
from kgbench.localizers._base import Treatments, Unit
from kgbench.localizers._fit import Corpus, FittedLocalizer, activations, seeded_key
from kgbench.localizers._hooks import Reading, check_choice, hook_units, one_donor, read, treat_each
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["Ablation"]

Fill = Callable[[int, Hook], Values]
"""What a token's activation at a hook becomes."""

Means = Mapping[tuple[tuple[str, str], str], Mapping[Hook, Values]]
"""By template and fact, scored region and hook."""

NOTHING = (0, torch.zeros((), dtype=torch.float64))
"""Of no tokens, the number and the sum."""

POINTS = ("attn_out+mlp_out", "attn_out", "mlp_out")


@dataclass(frozen=True)
class Ablation(FittedLocalizer):
    """The donor's run, with what attention and MLP add to the stream destroyed wherever the expression does not keep it.

    What an activation becomes: `zero`, nothing at all; `mean`, the donor's mean at the same hook over all tokens of the same scored region
    in the same template's prompts of other facts; `resample`, the donor's activation at a token of the same region in the same template's
    prompt of another fact (facts in a seeded order: each takes the next one that has the region; its tokens in turn). Embeddings stay the
    donor's. Final norm and head are the recipient's unless the expression names them.

    A scan leaves one hook at one region out at a time; the embeddings, which are never destroyed, share the value of the first hook. It
    needs the point `attn_out+mlp_out`: either alone leaves out the other's components.
    (Kinds of ablation: arXiv 2404.15255.)
    """

    name = "ablation"
    about = "the donor's run with attention and MLP outputs zeroed, averaged or resampled at all other sites"
    reads_any_token = True
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
            InputError: No other fact has a prompt to take a mean over or to resample from, or the method was fitted on prompts of other
                templates or regions.
        """
        donor, points = one_donor(self, pair, sites), self.point.split("+")
        readings = read(self, pair, prompts, sites, points, donor)
        hooks = [Hook(layer, point) for layer in range(pair.n_layers) for point in points]
        fills = self._fills(pair, prompts, donor, hooks)

        def destroyed(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            fill = fills(prompt)

            def edits(token: int) -> Iterator[Edit]:
                return (
                    Write(hook, fill(token, hook))
                    for hook in hooks
                    if hook not in reading.kept[token]
                )

            return reading.edited(edits)

        apart: Mapping[str, Callable[[Prompt], Hashable]] = {
            "zero": lambda p: None,
            "mean": _who,
            "resample": lambda p: p,
        }
        return treat_each(prompts, readings, destroyed, apart[self.method])

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One hook at one region each."""
        return hook_units(pair, prompts, self.point.split("+"))

    def _fills(
        self, pair: ModelPair, prompts: Sequence[Prompt], donor: int, hooks: Sequence[Hook]
    ) -> Callable[[Prompt], Fill]:
        if self.method == "zero":
            nothing = Values(
                torch.zeros(pair.recipient.config.hidden_size, dtype=pair.dtype, device=pair.device)
            )
            return lambda prompt: lambda token, hook: nothing
        corpus = self.corpus(prompts)
        if self.method == "mean":
            means = corpus.latest(
                "means",
                (donor, frozenset(prompts)),
                lambda: _means(pair, corpus, prompts, donor, hooks),
            )
            return lambda prompt: _averaged(pair, prompt, means)
        sources = {prompt: _sources(pair, corpus, prompt, self.seed) for prompt in prompts}
        wanted = sorted(
            {p for found in sources.values() for p in found.values()},
            key=lambda p: (p.name, p.fact.id, p.text),
        )
        seen = corpus.latest(
            "resampled",
            (donor, tuple(wanted)),
            lambda: dict(activations(pair, wanted, donor, hooks)),
        )
        return lambda prompt: _resampled(pair, prompt, sources[prompt], seen, hooks)


def _who(prompt: Prompt) -> tuple[str, str]:
    """Template and fact."""
    return prompt.name, prompt.fact.id


def _means(
    pair: ModelPair, corpus: Corpus, prompts: Sequence[Prompt], donor: int, hooks: Sequence[Hook]
) -> Means:
    """The mean over tokens of the same region in the same template's prompts of other facts."""
    wanted = frozenset(map(_who, prompts))
    own = _sums(pair, [p for p in corpus.prompts if _who(p) in wanted], donor, hooks, _who)
    found: dict[tuple[tuple[str, str], str], Mapping[Hook, Values]] = {}
    for prompt in prompts:
        add_up = partial(_sums, pair, corpus.like(prompt), donor, hooks, attrgetter("name"))
        everything = corpus.once(("sums", prompt.name, donor), add_up)
        for place in {(_who(prompt), cell) for cell in token_cells(pair, prompt)} - found.keys():
            (count, total), (own_count, own_total) = (
                everything.get((prompt.name, place[1]), NOTHING),
                own.get(place, NOTHING),
            )
            if count == own_count:
                raise InputError(
                    f"ablation has no prompt {prompt.name!r} of another fact to average {place[1]} over: give it two facts or more"
                )
            mean = ((total - own_total) / (count - own_count)).to(pair.dtype)
            found[place] = dict(zip(hooks, map(Values, mean), strict=True))
    return found


def _sums(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    donor: int,
    hooks: Sequence[Hook],
    whose: Callable[[Prompt], Hashable],
) -> Mapping[tuple[Hashable, str], tuple[int, Tensor]]:
    """Number of tokens, and the sum [hook, width] of their activations, by what a prompt counts for and by region."""
    sums: dict[tuple[Hashable, str], tuple[int, Tensor]] = {}
    for prompt, found in activations(pair, prompts, donor, hooks):
        for token, cell in enumerate(token_cells(pair, prompt)):
            count, total = sums.get((whose(prompt), cell), NOTHING)
            sums[whose(prompt), cell] = count + 1, total + found[:, token].double()
    return sums


def _averaged(pair: ModelPair, prompt: Prompt, means: Means) -> Fill:
    cells, who = token_cells(pair, prompt), _who(prompt)
    return lambda token, hook: means[who, cells[token]][hook]


def _sources(pair: ModelPair, corpus: Corpus, prompt: Prompt, seed: int) -> Mapping[str, Prompt]:
    """For each region of a prompt, the prompt of another fact that it is resampled from."""

    def ring(cell: str) -> Sequence[tuple[tuple[int, str], Prompt]]:
        having = [p for p in corpus.like(prompt) if cell in token_cells(pair, p)]
        return sorted(((seeded_key(p.fact.id, seed), p) for p in having), key=itemgetter(0))

    found, own = {}, seeded_key(prompt.fact.id, seed)
    for cell in token_cells(pair, prompt):
        others = [
            (key, p)
            for key, p in corpus.once(("ring", prompt.name, cell), partial(ring, cell))
            if key != own
        ]
        if not others:
            raise InputError(
                f"ablation has no prompt {prompt.name!r} of another fact to resample {cell} from: give it two facts or more"
            )
        found[cell] = next((p for key, p in others if key > own), others[0][1])
    return found


def _resampled(
    pair: ModelPair,
    prompt: Prompt,
    sources: Mapping[str, Prompt],
    seen: Mapping[Prompt, Tensor],
    hooks: Sequence[Hook],
) -> Fill:
    cells, numbers = token_cells(pair, prompt), {hook: i for i, hook in enumerate(hooks)}

    def fill(token: int, hook: Hook) -> Values:
        source = sources[cells[token]]
        tokens = [
            other for other, cell in enumerate(token_cells(pair, source)) if cell == cells[token]
        ]
        turn = cells[:token].count(cells[token])
        return Values(seen[source][numbers[hook], tokens[turn % len(tokens)]])

    return fill
