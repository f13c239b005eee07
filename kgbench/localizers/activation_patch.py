"""Activation patching between two models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kgbench.data import Prompt
from kgbench.engine.edits import HEADS, POINTS, Copy, Edit, Hook, Treatment, Values
from kgbench.engine.treatment import donor_index, graft_treatments, heads_width, n_heads
from kgbench.errors import NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit, one_of
from kgbench.localizers._hooks import (
    Reading,
    donor_runs,
    hook_units,
    own_run,
    read_sites,
    treat_each,
)
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, head_of


@dataclass(frozen=True)
class ActivationPatch(InterventionLocalizer):
    """The recipient's run, with the donor's activations on the same prompt at some sites.

    The positions and layers of an expression are patched: `FE` at every layer, `FE@2` at layer 2
    only. A hook represents components: `attn_out` those of attention and its norms, `mlp_out` those
    of the MLP and its norms, the residual stream a whole layer; an expression with any other set of
    components is not applicable. Final norm and head are the recipient's unless the expression
    names them, so that `ALL` is the recipient's head on the donor's hidden states, and
    `ALL:all+ln_f+head` the donor. Patching across models on one prompt is CMAP (arXiv 2402.14811);
    for best practice see arXiv 2309.16042.

    At the point `heads` the outputs of attention heads are patched: `LT:o.h3@5` is what head 3 of
    layer 5 hands to `o`, and `LT:o@5` that of all heads. Such a patch ranks no sites.

    A scan needs the point `resid_post`: no hook at `resid_pre` represents the last layer, and
    `attn_out` and `mlp_out` each miss the other's components.
    """

    name = "activation_patch"
    about = "donor's activations on the same prompt copied into the recipient's run"
    reads_any_token = True
    paper = "arXiv 2402.14811"

    point: str = one_of("resid_post", *POINTS, HEADS)
    """Where activations are copied."""

    @property
    def reaches_donor(self) -> bool:
        """Whether the full output of a layer is copied."""
        return self.point == "resid_post"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Copy activations from the run of each term's donor."""
        if self.point == HEADS:
            return _patched_heads(pair, prompts, sites)

        def patch(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            runs = donor_runs(pair, reading)

            def edits(token: int) -> Iterator[Edit]:
                for hook, donor in reading.kept[token].items():
                    yield Copy(hook, runs[donor])

            return reading.edited(edits)

        return treat_each(prompts, read_sites(self, pair, prompts, sites, (self.point,)), patch)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per hook and region."""
        if self.point == HEADS:
            raise NotApplicableError(f"{self.name} of single heads ranks no sites")
        return hook_units(pair, prompts, (self.point,))


def _patched_heads(pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
    """Copy outputs of attention heads from the run of each term's donor."""
    graft_treatments(pair, prompts, sites)  # raises for expressions that do not fit
    for term in sites.terms:
        if {head_of(name)[0] for name in term.component_names()} != {"o"}:
            raise NotApplicableError(
                f"a patch of heads is of what they hand to o, and the term '{term}' names other "
                "components: expected such as LT:o.h3@5 or LT:o@5"
            )
    by_key: dict[tuple[object, ...], tuple[Treatment, ...]] = {}
    treatments = []
    for prompt in prompts:
        encoded = pair.encoded(prompt)
        layout = (len(encoded.ids), *encoded.located(sites.regions()).items())
        if layout not in by_key:
            donors = _donors_of_heads(pair, encoded, sites)
            base = own_run(pair, len(encoded.ids), 0).treatments
            by_key[layout] = tuple(
                replace(plain, edits=tuple(_head_copies(pair, by_head, len(base))))
                for plain, by_head in zip(base, donors, strict=True)
            )
        treatments.append(by_key[layout])
    return treatments


def _donors_of_heads(
    pair: ModelPair, encoded: Encoded, sites: Graft
) -> list[dict[tuple[int, int], int]]:
    """For each token, the weight set of each patched (layer, head)."""
    n, count = len(encoded.ids), n_heads(pair, "o")
    regions = encoded.located(sites.regions())
    donors: list[dict[tuple[int, int], int]] = [{} for _ in range(n)]
    for term in sites.terms:
        named: list[tuple[int, int]] = []
        for layer, name in term.sites(pair.n_layers):
            assert layer is not None
            head = head_of(name)[1]
            named += [(layer, h) for h in (range(count) if head is None else (head,))]
        for token in term.positions.tokens(regions, n):
            donors[token] |= dict.fromkeys(named, donor_index(pair, term.donor))
    return donors


def _head_copies(
    pair: ModelPair, by_head: Mapping[tuple[int, int], int], n_tokens: int
) -> Iterator[Edit]:
    groups: dict[tuple[int, int], list[int]] = {}
    for (layer, head), donor in sorted(by_head.items()):
        if donor:
            groups.setdefault((layer, donor), []).append(head)
    for (layer, donor), heads in groups.items():
        run, basis = own_run(pair, n_tokens, donor), _basis(pair, tuple(heads))
        yield Copy(Hook(layer, HEADS), run, basis)


def _basis(pair: ModelPair, heads: tuple[int, ...]) -> Values | None:
    """Unit vectors of the columns of some heads; None for all of them."""
    count = n_heads(pair, "o")
    if len(heads) == count:
        return None
    width = heads_width(pair)
    unit = torch.eye(width).reshape(count, -1, width)
    return Values(unit[list(heads)].flatten(0, 1))
