"""Activation patching along a few directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Copy, Edit, Hook, Treatment, Values
from kgbench.engine.site_sets import token_cells
from kgbench.errors import InputError
from kgbench.localizers._base import Treatments, Unit, one_of
from kgbench.localizers._fit import Corpus, FittedLocalizer, run_activations, seeded_key
from kgbench.localizers._hooks import (
    Reading,
    check_counts,
    donor_runs,
    hook_units,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

Bases = Mapping[tuple[str, Hook], Values | None]
"""Orthonormal directions [k, width] by scored region and hook; None where the models agree."""


@dataclass(frozen=True)
class DirectionalPatch(FittedLocalizer):
    """Activation patching along some directions: h := h + BᵀB (h_donor - h), B's rows orthonormal.

    With one direction this is equation 1 of arXiv 2506.20746. Directions are fitted to the
    differences d = h_donor - h_recipient on the same prompt and hook, over all tokens of the same
    scored region in prompts of the same template; regions rather than positions, since token
    positions differ between prompts:

    - `mean`: the mean of d, normalised.
    - `pca`: the first k right singular vectors of the d, not centred: the k directions with the
      largest share of the squared difference.
    - `fact`: the mean of d over the task's other prompts of the same fact, in the same region;
      regions that these prompts lack are not patched.

    `mean` and `pca` are fitted on other facts than they are used on: the facts, in a seeded order,
    alternate between two halves, and each half is patched along the directions of the other. What
    facts with different answers share is their task rather than their answers, hence `fact`.

    The component orthogonal to the directions stays the recipient's, so that even
    `ALL:all+ln_f+head` is not exactly the donor. A scan needs the point `resid_post`, as for
    activation_patch.
    """

    name = "directional_patch"
    about = "activation_patch of the component along a mean difference or principal directions"
    reads_any_token = True
    paper = "arXiv 2506.20746"

    point: str = one_of("resid_post", *POINTS)
    """Where activations are copied."""
    directions: str = one_of("mean", "mean", "pca", "fact")
    """What directions are found by."""
    k: int = 1
    """Number of principal directions."""
    facts: int = 64
    """Most facts of a half that directions are fitted on."""
    seed: int = 0
    """Of the halves."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such hook point or no such way to find directions.
            InputError: A number is out of range.
        """
        super().__post_init__()
        check_counts(self, k=self.k, facts=self.facts)
        if self.directions != "pca" and self.k != 1:
            raise InputError(
                f"{self.name} has one mean direction, so k={self.k} needs directions=pca"
            )

    @property
    def reaches_donor(self) -> bool:
        """False: the component orthogonal to the directions is not copied."""
        return False

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Copy activations along directions from the run of each term's donor.

        Raises:
            InputError: There are fewer than two facts (for `fact`, fewer than two prompts of one),
                or the method was fitted on prompts of other templates or regions.
        """
        readings = read_sites(self, pair, prompts, sites, (self.point,))
        corpus = self.corpus(prompts)

        def patch(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            cells, runs = token_cells(pair, prompt), donor_runs(pair, reading)
            bases = {donor: self._bases(pair, corpus, prompt, donor) for donor in runs}

            def edits(token: int) -> Iterator[Edit]:
                for hook, donor in reading.kept[token].items():
                    basis = self._basis_at(bases[donor], cells[token], hook)
                    if basis is not None:
                        yield Copy(hook, runs[donor], basis)

            return reading.edited(edits)

        return treat_each(prompts, readings, patch, lambda prompt: self._group(corpus, prompt))

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per hook and region."""
        return hook_units(pair, prompts, (self.point,))

    def _half(self, corpus: Corpus, prompt: Prompt) -> int | None:
        """Half of the facts that a prompt belongs to; None for a fact that is not in the corpus."""

        def halves() -> Mapping[str, int]:
            facts = {p.fact.id for p in corpus.like(prompt)}
            ordered = sorted(facts, key=lambda fact: seeded_key(fact, self.seed))
            return {fact: i % 2 for i, fact in enumerate(ordered)}

        return corpus.once(("halves", prompt.name), halves).get(prompt.fact.id)

    def _basis_at(self, bases: Bases, region: str, hook: Hook) -> Values | None:
        """The directions of a scored region at a hook; None where nothing is patched.

        Raises:
            InputError: The method was fitted on prompts without the region.
        """
        if self.directions != "fact" and (region, hook) not in bases:
            raise InputError(
                f"the method was fitted on prompts without the region {region}; "
                "fit it on all prompts that it is to treat"
            )
        return bases.get((region, hook))

    def _group(self, corpus: Corpus, prompt: Prompt) -> tuple[str, str | int | None]:
        """Group of a prompt; prompts of one group have the same directions."""
        if self.directions == "fact":
            return prompt.name, prompt.fact.id
        return prompt.name, self._half(corpus, prompt)

    def _bases(self, pair: ModelPair, corpus: Corpus, prompt: Prompt, donor: int) -> Bases:
        """Directions for a prompt."""
        if self.directions == "fact":
            return self._bases_of_fact(pair, corpus, prompt, donor)
        return self._bases_of_others(pair, corpus, prompt, donor)

    def _bases_of_fact(self, pair: ModelPair, corpus: Corpus, prompt: Prompt, donor: int) -> Bases:
        """Directions from other prompts of the same fact, cached for the latest fact only."""

        def fit() -> Bases:
            same = [
                p for p in corpus.prompts if p.fact.id == prompt.fact.id and p.name != prompt.name
            ]
            if not same:
                raise InputError(
                    f"{self.name} with directions=fact takes them from other prompts of the same "
                    "fact, so it needs two prompts or more, such as --prompt headline,qa"
                )
            return self._fit(pair, same, donor)

        return corpus.latest(f"fact {donor}", (prompt.name, prompt.fact.id), fit)

    def _bases_of_others(
        self, pair: ModelPair, corpus: Corpus, prompt: Prompt, donor: int
    ) -> Bases:
        """Directions from prompts of the same template about the other half of the facts."""
        half = self._half(corpus, prompt)

        def fit() -> Bases:
            others = [p for p in corpus.like(prompt) if self._half(corpus, p) != half]
            if not others:
                raise InputError(
                    f"{self.name} takes its directions from other facts than it is used on, "
                    "so it needs two facts or more"
                )
            facts = sorted(
                {p.fact.id for p in others}, key=lambda fact: seeded_key(fact, self.seed)
            )[: self.facts]
            return self._fit(pair, [p for p in others if p.fact.id in facts], donor)

        return corpus.once(("bases", prompt.name, half, donor), fit)

    def _fit(self, pair: ModelPair, prompts: Sequence[Prompt], donor: int) -> Bases:
        hooks = [Hook(layer, self.point) for layer in range(pair.n_layers)]
        samples: dict[tuple[str, Hook], list[Tensor]] = defaultdict(list)
        by_prompt = zip(
            run_activations(pair, prompts, donor, hooks),
            run_activations(pair, prompts, 0, hooks),
            strict=True,
        )
        for (prompt, theirs), (_, ours) in by_prompt:
            for token, cell in enumerate(token_cells(pair, prompt)):
                for hook, difference in zip(hooks, (theirs - ours)[:, token], strict=True):
                    samples[cell, hook].append(difference)
        return {
            place: self._basis(torch.stack(differences)) for place, differences in samples.items()
        }

    def _basis(self, differences: Float[Tensor, "token width"]) -> Values | None:
        """Orthonormal directions [k, width]; None if all differences are 0."""
        wide = differences.double()
        if self.directions != "pca":
            mean = wide.mean(0, keepdim=True)
            rows = mean / mean.norm() if mean.norm() > 0 else mean[:0]
        else:
            _, lengths, right = torch.linalg.svd(wide, full_matrices=False)
            rows = right[: self.k][lengths[: self.k] > 1e-6 * lengths[0]]
        return Values(rows.to(differences.dtype)) if len(rows) else None
