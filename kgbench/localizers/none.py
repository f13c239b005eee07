"""The baseline that treats no sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers._base import InterventionLocalizer, Treatments
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, parse_graft


@dataclass(frozen=True)
class NoSites(InterventionLocalizer):
    """No site carries the finetuned behaviour for any expression: the lower bound of a board."""

    name = "none"
    about = "baseline: whatever the sites, the recipient by itself"
    reads_any_token = True
    baseline = True

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The recipient at every site."""
        graft_treatments(pair, prompts, sites)  # raises for expressions that do not fit
        return graft_treatments(pair, prompts, parse_graft("NONE"))
