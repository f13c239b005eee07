"""The localizer that reads the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.errors import NotApplicableError
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores, parse_graft


@dataclass(frozen=True)
class Oracle(ScoringLocalizer):
    """1 for the sites at which the facts were planted, 0 for all others: no competitor."""

    name = "oracle"
    version = "3"
    needs = frozenset({"truth"})
    cost = "none"
    about = "privileged: the sites at which facts were planted"
    score_meaning = "1 where facts were planted, else 0 (no unit)"

    truth: str = ""
    """The plant, a graft expression; the runner fills it in from the catalog."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Whether all tokens of a site are planted."""
        if not self.truth:
            raise NotApplicableError(
                "oracle needs to know where the facts were planted, and nothing was planted in "
                f"{pair.name}: choose a planted pair, or "
                "give the place as a graft expression (--localizer-arg truth=GRAFT)"
            )
        planted = graft_sites(pair, prompts, parse_graft(self.truth))
        return {site: float(site in planted) for site in all_sites(pair, prompts)}
