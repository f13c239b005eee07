"""The baseline that treats all sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers._base import InterventionLocalizer, Treatments
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, parse_graft


@dataclass(frozen=True)
class All(InterventionLocalizer):
    """All sites carry the finetuned behaviour for any expression: sufficient, never necessary."""

    name = "all"
    about = "baseline: whatever the sites, the donor's weights at every token"
    reads_any_token = True
    baseline = True

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The donor at every site of the default components."""
        graft_treatments(pair, prompts, sites)  # raises for expressions that do not fit
        return graft_treatments(pair, prompts, parse_graft("ALL"))
