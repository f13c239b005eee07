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
from kgbench.sites import Graft, Site, parse_graft


@dataclass(frozen=True)
class StaticGraft(InterventionLocalizer):
    """The donor's weights in the recipient at all tokens (arXiv 2302.06600).

    `alpha` scales the difference, W + alpha (W' - W), as in task arithmetic (arXiv 2212.04089).
    Weights have no positions: an expression that treats tokens differently is not applicable, and a
    scan credits a component's value to all regions.
    """

    name = "static_graft"
    about = "donor's weights at all tokens, any components and layers; alpha scales the difference"
    reads_any_token = True
    paper = "arXiv 2302.06600"

    alpha: float = 1.0
    """Share of the difference between donor and recipient; less than 0 or more than 1 goes beyond
    the two."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: `alpha` is not a finite number.
        """
        if not isfinite(self.alpha):
            raise InputError(f"{self.name} needs a finite alpha, got {self.alpha}")

    @property
    def reaches_donor(self) -> bool:
        """Whether the full difference is added."""
        return self.alpha == 1

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Scaled treatments of the graft.

        Raises:
            NotApplicableError: The graft treats tokens differently.
        """
        grafted = graft_treatments(pair, prompts, sites)
        if any(len(set(treatments)) > 1 for treatments in grafted):
            raise NotApplicableError(
                f"{self.name} has no positions: it swaps weights at all tokens, "
                f"and '{sites}' names some of them"
            )
        scaled = {treatments[0]: replace(treatments[0], scale=self.alpha) for treatments in grafted}
        return [(scaled[treatments[0]],) * len(treatments) for treatments in grafted]

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per component of each layer, at all tokens."""
        by_place: dict[tuple[int | None, str], list[Site]] = {}
        for site in all_sites(pair, prompts):
            by_place.setdefault((site.layer, site.component), []).append(site)
        units = []
        for (layer, component), sites in by_place.items():
            graft = parse_graft(f"ALL:{component}" + ("" if layer is None else f"@{layer}"))
            units.append(Unit(graft, tuple(sites)))
        return units
