"""What every localizer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kgbench.data import Prompt
from kgbench.sites import Graft, Site, SiteScores

if TYPE_CHECKING:  # the names of all localizers are known without torch
    from kgbench.engine.treatment import Treatment
    from kgbench.models.pair import ModelPair

__all__ = [
    "COSTS",
    "FLOORS",
    "NEEDS",
    "AbstractLocalizer",
    "InterventionLocalizer",
    "ScoringLocalizer",
    "Treatments",
    "Unit",
    "asked",
]

NEEDS = ("donor", "gradients", "counterfactual", "truth", "answer")
"""What a method may have to be given. `answer`: an intervention's `treat` and `fitted` get prompts with their targets."""

FLOORS = ("recipient", "destroyed_donor")
"""What a model may output when no site carries the finetuned behaviour."""

COSTS: Mapping[str, str] = {
    "none": "no forward",
    "forward": "a few forwards",
    "backward": "a few forwards and backwards",
    "scan": "a forward per site, packed",
    "training": "many steps",
}
"""What an answer takes."""

SCANS: Mapping[str, str] = {
    "alone": "log-probability gained by the site alone (nats)",
    "left_out": "log-probability lost without the site (nats)",
}
"""How a scan of an intervention measures a site, and what a score then says."""

Treatments: TypeAlias = "Sequence[Sequence[Treatment]]"
"""For each prompt and each of its tokens, what the engine is to do."""


@dataclass(frozen=True)
class AbstractLocalizer(ABC):
    """A method. Its dataclass fields are its parameters: they enter a result's identity."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    """Raised whenever the method's answers change."""
    kind: ClassVar[str]
    """`intervention` or `scoring`."""
    needs: ClassVar[frozenset[str]] = frozenset({"donor"})
    """Some of `NEEDS`: what the method must be given."""
    floor: ClassVar[str] = "recipient"
    """What the model outputs when no site carries the finetuned behaviour: one of `FLOORS`."""
    cost: ClassVar[str] = "forward"
    """What an answer takes: one of `COSTS`."""
    scan_of: ClassVar[str] = ""
    """The intervention whose scan is this method's map; on boards that one has the line. Empty for a map of its own."""
    paper: ClassVar[str] = ""
    """Where the method is from, such as `arXiv 2506.20746`."""
    about: ClassVar[str]
    """One line."""
    score_meaning: ClassVar[str] = ""
    """What a site's score says, with its unit, as at the colour bar of a map; empty where nothing is said of it."""

    def parameters(self) -> dict[str, Any]:
        """All parameters, the defaults included."""
        return asdict(self)


@dataclass(frozen=True)
class Unit:
    """What a scan measures at once, and the sites that are credited with it."""

    graft: Graft
    sites: tuple[Site, ...]
    minus: int | None = None
    """Number of the unit whose value is subtracted first, where this one contains it."""


class InterventionLocalizer(AbstractLocalizer):
    """Says what the model outputs when only some sites carry the finetuned behaviour."""

    kind = "intervention"
    baseline: ClassVar[bool] = False
    """Whether the method answers the same whatever the sites, as a point of reference."""
    reads_any_token: ClassVar[bool] = False
    """Whether what is done to a token is the same whatever tokens follow it, so that one run answers at several tokens. Where it is not,
    as where a method looks for the last token of a prompt, the prompt is run anew for every token that is read."""
    scanned: ClassVar[str] = "alone"
    """How a scan measures a site, one of `SCANS`: it carries the behaviour `alone`, or it is `left_out` and everything else does."""

    @property
    def reaches_donor(self) -> bool:
        """Whether everything treated, final norm and head included, is the donor; not so where only a part of it is carried over."""
        return True

    @abstractmethod
    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Describe what the engine is to do so that only `sites` carry the finetuned behaviour.

        Args:
            pair: The models.
            prompts: Prompts of any lengths. They are questions, see `kgbench.data.Question`: they have no target, unless
                the method needs the `answer`.
            sites: The sites, as a graft expression.

        Returns:
            Treatments of each token of each prompt.

        Raises:
            NotApplicableError: The method cannot express these sites.
        """

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """The same method with what it learns from all prompts of a task, which it gets as `treat` does.

        What it says of a fact it must not learn from that fact.
        """
        return self

    def variants(self) -> Sequence[InterventionLocalizer]:
        """The same method once per random draw, where it draws: the probabilities of all are averaged."""
        return (self,)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """What a scan of single sites measures; by default each site by itself."""
        from kgbench.engine.site_sets import (
            all_sites,
            site_graft,
        )  # torch is not needed to know a localizer's name

        return [Unit(site_graft(pair, prompts, site), (site,)) for site in all_sites(pair, prompts)]


def asked(
    method: InterventionLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> Sequence[Prompt]:
    """Prompts as an intervention gets them: without their answers, unless it says that it needs these."""
    return prompts if "answer" in method.needs else [pair.question(prompt) for prompt in prompts]


class ScoringLocalizer(AbstractLocalizer):
    """Ranks sites."""

    kind = "scoring"

    @abstractmethod
    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """How responsible each site is for the finetuned behaviour; higher is more.

        Args:
            pair: The models.
            prompts: Prompts whose facts the donor learned.

        Returns:
            A score for every site of the default components in every region that a prompt has.
        """
