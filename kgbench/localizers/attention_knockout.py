"""Attention knockout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgbench.data import Prompt
from kgbench.engine.edits import Cut, Hook, Treatment
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import (
    Reading,
    check_counts,
    hook_units,
    one_donor,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

KEPT = "resid_post"
"""Hook that marks a token as kept in a layer; its activation is not edited."""


@dataclass(frozen=True)
class AttentionKnockout(InterventionLocalizer):
    """The donor's run, with attention from later tokens to all tokens that are not kept cut.

    Edges are cut in all heads (arXiv 2304.14767). `FE^C` cuts, in every layer, each edge from a
    later token to a token of `FE`; `ALL; FE@4-8=recipient` does so in layers 4 to 8 only. A token
    always attends to itself. The method blocks the flow of information from a position, not the
    computation of a component, so expressions with components are not applicable. Final norm and
    head are the recipient's unless the expression names them.

    A scan cuts the edges to one region in a window of layers, and credits all components of the
    layer at the window's centre; the embeddings share the value of layer 0.
    """

    name = "attention_knockout"
    about = "the donor's run with attention edges to all other tokens cut"
    reads_any_token = True
    paper = "arXiv 2304.14767"
    floor = "destroyed_donor"
    scanned = "left_out"

    window: int = 1
    """Layers that a scan cuts at once; the paper has 9 of 48."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: The window is empty.
        """
        check_counts(self, window=self.window)

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Cut each token's attention to earlier tokens that are not kept."""

        def cut(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            def cuts(token: int) -> tuple[Cut, ...]:
                by_layer = []
                for layer in range(pair.n_layers):
                    hook = Hook(layer, KEPT)
                    keys = frozenset(t for t in range(token) if hook not in reading.kept[t])
                    if keys:
                        by_layer.append(Cut(layer, keys))
                return tuple(by_layer)

            return tuple(
                replace(treatment, cuts=cuts(token)) for token, treatment in enumerate(reading.base)
            )

        return treat_each(
            prompts,
            read_sites(self, pair, prompts, sites, (KEPT,), one_donor(self, pair, sites)),
            cut,
        )

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per window of layers and region."""
        return [
            replace(unit, minus=None) for unit in hook_units(pair, prompts, (KEPT,), self.window)
        ]
