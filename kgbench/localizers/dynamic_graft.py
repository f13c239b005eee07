"""Dynamic weight grafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers._base import InterventionLocalizer, Treatments
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft


@dataclass(frozen=True)
class DynamicGraft(InterventionLocalizer):
    """The donor's weights at some tokens, layers and components, the recipient's elsewhere.

    Dynamic weight grafting, arXiv 2506.20746.
    """

    name = "dynamic_graft"
    about = "donor's weights at some tokens, layers and components, the recipient's elsewhere"
    reads_any_token = True
    paper = "arXiv 2506.20746"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Treatments of the graft itself."""
        return graft_treatments(pair, prompts, sites)
