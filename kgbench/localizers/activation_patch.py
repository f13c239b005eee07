"""Activation patching between two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Copy
from kgbench.engine.treatment import Treatment
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import (
    Reading,
    check_choice,
    donor_runs,
    hook_units,
    read,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["ActivationPatch"]


@dataclass(frozen=True)
class ActivationPatch(InterventionLocalizer):
    """The recipient's run, with the donor's activations on the same prompt in the place of its own at some hooks and tokens.

    An expression's positions and layers are patched: `FE` at every layer, `FE@2` at layer 2 alone. A hook stands for components: `attn_out`
    for those of attention and its norms, `mlp_out` for those of the MLP and its norms, the residual stream for a whole layer; an expression
    that names others is not applicable. Final norm and head are the recipient's unless the expression names them, so that `ALL` is the
    donor's hidden states seen by the recipient's head, and `ALL:all+ln_f+head` the donor. (Patching across models on one prompt is the
    CMAP of arXiv 2402.14811; practice of patching: arXiv 2309.16042.)

    A scan needs the point `resid_post`: at `resid_pre` no hook stands for the last layer, and `attn_out` and `mlp_out` each leave out the
    other's components.
    """

    name = "activation_patch"
    about = "donor's activations on the same prompt copied into the recipient's run"
    reads_any_token = True
    paper = "arXiv 2402.14811"

    point: str = "resid_post"
    """Where activations are copied: `resid_pre`, `attn_out`, `mlp_out` or `resid_post`."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such hook point.
        """
        check_choice(f"hook point of {self.name}", self.point, POINTS)

    @property
    def reaches_donor(self) -> bool:
        """Whether all that a layer outputs is copied."""
        return self.point == "resid_post"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Copies from the run of the donor that each term names."""

        def patched(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            runs = donor_runs(pair, reading)
            return reading.edited(
                lambda token: (
                    Copy(hook, runs[donor]) for hook, donor in reading.kept[token].items()
                )
            )

        return treat_each(prompts, read(self, pair, prompts, sites, (self.point,)), patched)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One hook at one region each."""
        return hook_units(pair, prompts, (self.point,))
