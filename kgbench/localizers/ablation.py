"""Ablation: destroy the activations of the donor's run at all but some sites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import Edit, Hook, Treatment, Values, Write
from kgbench.engine.site_sets import token_cells
from kgbench.errors import InputError
from kgbench.localizers._base import Treatments, Unit, one_of
from kgbench.localizers._fit import Corpus, FittedLocalizer, run_activations, seeded_key
from kgbench.localizers._hooks import (
    Reading,
    hook_units,
    one_donor,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

Fill = Callable[[int, Hook], Values]
"""Replacement [width] of the activation of a token at a hook."""

Means = Mapping[tuple[tuple[str, str], str], Mapping[Hook, Values]]
"""Mean activations by ((template, fact), scored region) and hook."""

NOTHING = (0, torch.zeros((), dtype=torch.float64))
"""Number of tokens and sum of activations over an empty set."""

POINTS = ("attn_out+mlp_out", "attn_out", "mlp_out")


@dataclass(frozen=True)
class Ablation(FittedLocalizer):
    """The donor's run, with outputs of attention and MLP destroyed outside the kept sites.

    Replacements of an activation (arXiv 2404.15255):

    - `zero`: zero.
    - `mean`: the donor's mean at the same hook over all tokens of the same scored region in prompts
      of the same template about other facts.
    - `resample`: the donor's activation at a token of the same region in the same template's prompt
      of another fact: the next one in a seeded order of facts that has the region, with its tokens
      in turn.

    Embeddings stay the donor's. Final norm and head are the recipient's unless the expression names
    them.

    A scan leaves out one hook at one region at a time. The embeddings, which are never destroyed,
    share the value of the first hook. A scan needs the point `attn_out+mlp_out`: either hook alone
    misses the other's components.
    """

    name = "ablation"
    about = (
        "the donor's run with attention and MLP outputs zeroed, averaged or resampled "
        "at all other sites"
    )
    reads_any_token = True
    paper = "arXiv 2404.15255"
    floor = "destroyed_donor"
    scanned = "left_out"

    method: str = one_of("mean", "zero", "mean", "resample")
    """What is written in place of an activation."""
    point: str = one_of("attn_out+mlp_out", *POINTS)
    """What is destroyed."""
    seed: int = 0
    """Of the order of facts in `resample`."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Write a constant at every hook that is not kept.

        Raises:
            InputError: There is no prompt of another fact to average over or to resample from, or
                the method was fitted on prompts of other templates or regions.
        """
        donor, points = one_donor(self, pair, sites), self.point.split("+")
        readings = read_sites(self, pair, prompts, sites, points, donor)
        hooks: list[Hook] = []
        for layer in range(pair.n_layers):
            hooks += [Hook(layer, point) for point in points]
        fills = self._fills(pair, prompts, donor, hooks)

        def destroy(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            fill = fills(prompt)

            def edits(token: int) -> Iterator[Edit]:
                for hook in hooks:
                    if hook not in reading.kept[token]:
                        yield Write(hook, fill(token, hook))

            return reading.edited(edits)

        apart: Mapping[str, Callable[[Prompt], Hashable]] = {
            "zero": lambda p: None,
            "mean": _key,
            "resample": lambda p: p,
        }
        return treat_each(prompts, readings, destroy, apart[self.method])

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per hook and region."""
        return hook_units(pair, prompts, self.point.split("+"))

    def _fills(
        self, pair: ModelPair, prompts: Sequence[Prompt], donor: int, hooks: Sequence[Hook]
    ) -> Callable[[Prompt], Fill]:
        if self.method == "zero":
            zeros = Values(torch.zeros(pair.width, dtype=pair.dtype, device=pair.device))
            return lambda prompt: lambda token, hook: zeros
        corpus = self.corpus(prompts)
        if self.method == "mean":
            means = corpus.latest(
                "means",
                (donor, frozenset(prompts)),
                lambda: _means(pair, corpus, prompts, donor, hooks),
            )
            return lambda prompt: _mean_fill(pair, prompt, means)
        sources = {prompt: _sources(pair, corpus, prompt, self.seed) for prompt in prompts}
        distinct: set[Prompt] = set()
        for by_region in sources.values():
            distinct.update(by_region.values())
        ordered = sorted(distinct, key=lambda p: (p.name, p.fact.id, p.text))
        by_prompt = corpus.latest(
            "resampled",
            (donor, tuple(ordered)),
            lambda: dict(run_activations(pair, ordered, donor, hooks)),
        )
        return lambda prompt: _resample_fill(pair, prompt, sources[prompt], by_prompt, hooks)


def _key(prompt: Prompt) -> tuple[str, str]:
    """Template and fact."""
    return prompt.name, prompt.fact.id


def _means(
    pair: ModelPair, corpus: Corpus, prompts: Sequence[Prompt], donor: int, hooks: Sequence[Hook]
) -> Means:
    """Means over tokens of the same region in prompts of the same template about other facts.

    The sum over other facts is the sum over all facts minus that over the fact itself.
    """
    keys = frozenset(map(_key, prompts))
    by_fact = _sums(pair, [p for p in corpus.prompts if _key(p) in keys], donor, hooks, _key)
    means: dict[tuple[tuple[str, str], str], Mapping[Hook, Values]] = {}
    for prompt in prompts:
        add_up = partial(_sums, pair, corpus.like(prompt), donor, hooks, attrgetter("name"))
        by_template = corpus.once(("sums", prompt.name, donor), add_up)
        for place in {(_key(prompt), cell) for cell in token_cells(pair, prompt)} - means.keys():
            count, total = by_template.get((prompt.name, place[1]), NOTHING)
            fact_count, fact_total = by_fact.get(place, NOTHING)
            if count == fact_count:
                raise InputError(
                    f"ablation has no prompt {prompt.name!r} of another fact to average "
                    f"{place[1]} over: give it two facts or more"
                )
            mean = ((total - fact_total) / (count - fact_count)).to(pair.dtype)
            means[place] = dict(zip(hooks, map(Values, mean), strict=True))
    return means


def _sums(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    donor: int,
    hooks: Sequence[Hook],
    group: Callable[[Prompt], Hashable],
) -> Mapping[tuple[Hashable, str], tuple[int, Tensor]]:
    """Number of tokens and sum [hook, width] of their activations, by group and region."""
    sums: dict[tuple[Hashable, str], tuple[int, Tensor]] = {}
    for prompt, by_hook in run_activations(pair, prompts, donor, hooks):
        for token, cell in enumerate(token_cells(pair, prompt)):
            count, total = sums.get((group(prompt), cell), NOTHING)
            sums[group(prompt), cell] = count + 1, total + by_hook[:, token].double()
    return sums


def _mean_fill(pair: ModelPair, prompt: Prompt, means: Means) -> Fill:
    cells, key = token_cells(pair, prompt), _key(prompt)
    return lambda token, hook: means[key, cells[token]][hook]


def _sources(pair: ModelPair, corpus: Corpus, prompt: Prompt, seed: int) -> Mapping[str, Prompt]:
    """Prompt of another fact from which each region of a prompt is resampled.

    The prompts with a region form a ring in a seeded order of their facts; a prompt is resampled
    from the next fact on the ring.
    """

    def ring(cell: str) -> Sequence[tuple[tuple[int, str], Prompt]]:
        members = [p for p in corpus.like(prompt) if cell in token_cells(pair, p)]
        return sorted(((seeded_key(p.fact.id, seed), p) for p in members), key=itemgetter(0))

    sources, prompt_key = {}, seeded_key(prompt.fact.id, seed)
    for cell in token_cells(pair, prompt):
        members = corpus.once(("ring", prompt.name, cell), partial(ring, cell))
        others = [(key, p) for key, p in members if key != prompt_key]
        if not others:
            raise InputError(
                f"ablation has no prompt {prompt.name!r} of another fact to resample {cell} from: "
                "give it two facts or more"
            )
        sources[cell] = next((p for key, p in others if key > prompt_key), others[0][1])
    return sources


def _resample_fill(
    pair: ModelPair,
    prompt: Prompt,
    sources: Mapping[str, Prompt],
    by_prompt: Mapping[Prompt, Tensor],
    hooks: Sequence[Hook],
) -> Fill:
    cells, numbers = token_cells(pair, prompt), {hook: i for i, hook in enumerate(hooks)}

    def fill(token: int, hook: Hook) -> Values:
        source = sources[cells[token]]
        tokens = []
        for other, cell in enumerate(token_cells(pair, source)):
            if cell == cells[token]:
                tokens.append(other)
        # The i-th token of a region takes the i-th of the source's, modulo their number.
        turn = cells[:token].count(cells[token])
        return Values(by_prompt[source][numbers[hook], tokens[turn % len(tokens)]])

    return fill
