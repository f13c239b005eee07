"""The localizer that reads the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.errors import NotApplicableError
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import parse_relevance
from kgbench.sites import SiteScores, parse_graft


@dataclass(frozen=True)
class Oracle(ScoringLocalizer):
    """Relevance of each site to the planted facts: the upper bound of a ranking, no competitor.

    Without graded relevances, 1 for the sites at which the facts were planted and 0 for all others.
    """

    name = "oracle"
    version = "2"
    needs = frozenset({"truth"})
    cost = "none"
    about = "privileged: how far the planted facts use each site"
    score_meaning = "relevance of the site, 0 where nothing changed (no unit)"

    truth: str = ""
    """The plant, a graft expression; the runner fills it in from the catalog."""
    graded: str = ""
    """Relevances from the plant's card, such as `LT:down@3=0.25 LT:up@3=0.1`; the runner fills them
    in, where the card has them."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Graded relevance of each site; without it, whether all of its tokens are planted."""
        sites = all_sites(pair, prompts)
        if self.graded:
            known = parse_relevance(self.graded)
            return {
                site: known.get(site, known.get((site.layer, site.component), 0.0))
                for site in sites
            }
        if not self.truth:
            raise NotApplicableError(
                "oracle needs to be told where the facts were planted, and nothing was planted in "
                f"{pair.name}: choose a planted pair, or "
                "give the place as a graft expression (--localizer-arg truth=GRAFT)"
            )
        planted = graft_sites(pair, prompts, parse_graft(self.truth))
        return {site: float(site in planted) for site in sites}
