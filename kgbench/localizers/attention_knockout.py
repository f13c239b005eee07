"""Attention knockout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgbench.data import Prompt
from kgbench.engine.edits import Cut, Hook
from kgbench.engine.treatment import Treatment
from kgbench.errors import InputError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import Reading, hook_units, one_donor, read, treat_each
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["AttentionKnockout"]

KEPT = "resid_post"
"""What says that a token is kept in a layer: nothing is done at the hook itself."""


@dataclass(frozen=True)
class AttentionKnockout(InterventionLocalizer):
    """The donor's run, in which no later token attends to the tokens that an expression does not keep, in any head (arXiv 2304.14767).

    `FE^C` cuts, in every layer, each edge from a later token to a token of `FE`; `ALL; FE@4-8=recipient` does so in layers 4 to 8 only. A
    token always attends to itself. What is cut is the flow of information out of a place, not the work of a component, so that
    an expression that names components is not applicable. Final norm and head are the recipient's unless the expression names them.

    A scan cuts the edges to one region in a window of layers, and credits all components of the layer in the window's middle; layer 0's
    value is the embeddings' too.
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
        if self.window < 1:
            raise InputError(f"{self.name} needs window of 1 or more, got {self.window}")

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Cuts of each token's attention to earlier ones."""
        layers = range(pair.n_layers)

        def cut(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            lost = [
                [t for t, kept in enumerate(reading.kept) if Hook(layer, KEPT) not in kept]
                for layer in layers
            ]

            def cuts(token: int) -> tuple[Cut, ...]:
                keys = (frozenset(t for t in lost[layer] if t < token) for layer in layers)
                return tuple(
                    Cut(layer, some) for layer, some in zip(layers, keys, strict=True) if some
                )

            return tuple(
                replace(treatment, cuts=cuts(token)) for token, treatment in enumerate(reading.base)
            )

        return treat_each(
            prompts, read(self, pair, prompts, sites, (KEPT,), one_donor(self, pair, sites)), cut
        )

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """A window of layers at one region each."""
        return [
            replace(unit, minus=None) for unit in hook_units(pair, prompts, (KEPT,), self.window)
        ]
