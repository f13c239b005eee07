"""Activation patching between two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Copy, Edit
from kgbench.engine.treatment import Treatment
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import (
    Reading,
    check_choice,
    donor_runs,
    hook_units,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["ActivationPatch"]


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

    A scan needs the point `resid_post`: no hook at `resid_pre` represents the last layer, and
    `attn_out` and `mlp_out` each miss the other's components.
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
        """Whether the full output of a layer is copied."""
        return self.point == "resid_post"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Copy activations from the run of each term's donor."""

        def patch(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            runs = donor_runs(pair, reading)

            def edits(token: int) -> Iterator[Edit]:
                for hook, donor in reading.kept[token].items():
                    yield Copy(hook, runs[donor])

            return reading.edited(edits)

        return treat_each(prompts, read_sites(self, pair, prompts, sites, (self.point,)), patch)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per hook and region."""
        return hook_units(pair, prompts, (self.point,))
