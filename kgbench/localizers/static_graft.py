"""Static weight grafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, parse_graft

__all__ = ["StaticGraft"]


@dataclass(frozen=True)
class StaticGraft(InterventionLocalizer):
    """The donor's weights in the recipient, for the whole run (arXiv 2302.06600): any components and layers, at all tokens.

    `alpha` scales the difference, W + alpha (W' - W), as task arithmetic does (arXiv 2212.04089). Weights have no positions: an expression
    that treats tokens differently is not applicable, and a scan credits a component's value to all regions.
    """

    name = "static_graft"
    about = "donor's weights at all tokens, any components and layers; alpha scales the difference"
    reads_any_token = True
    paper = "arXiv 2302.06600"

    alpha: float = 1.0
    """Share of the difference between donor and recipient; less than 0 or more than 1 goes beyond the two."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: `alpha` is not a finite number.
        """
        if not isfinite(self.alpha):
            raise InputError(f"{self.name} needs a finite alpha, got {self.alpha}")

    @property
    def reaches_donor(self) -> bool:
        """Whether the whole difference is added."""
        return self.alpha == 1

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The graft as it stands, where it is the same at all tokens."""
        grafted = graft_treatments(pair, prompts, sites)
        if any(len(set(treatments)) > 1 for treatments in grafted):
            raise NotApplicableError(
                f"{self.name} has no positions: it swaps weights at all tokens, and '{sites}' names some of them"
            )
        scaled = {treatments[0]: replace(treatments[0], scale=self.alpha) for treatments in grafted}
        return [(scaled[treatments[0]],) * len(treatments) for treatments in grafted]

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """Each component of each layer, at all tokens."""
        sites = all_sites(pair, prompts)
        places = dict.fromkeys((site.layer, site.component) for site in sites)
        return [
            Unit(
                parse_graft(f"ALL:{component}" + ("" if layer is None else f"@{layer}")),
                tuple(site for site in sites if (site.layer, site.component) == (layer, component)),
            )
            for layer, component in places
        ]
