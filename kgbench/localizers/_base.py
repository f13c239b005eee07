"""Base classes of localizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from kgbench.data import Prompt
from kgbench.errors import check_choice
from kgbench.sites import Graft, Site, SiteScores

if TYPE_CHECKING:  # listing localizers must not import torch
    from kgbench.engine.edits import Treatment
    from kgbench.models.pair import ModelPair

NEEDS = ("donor", "gradients", "counterfactual", "truth", "answer")
"""Inputs that a method may require.

`answer`: an intervention's `treat` and `fitted` get prompts with their targets.
"""

Kind: TypeAlias = Literal["intervention", "scoring"]
Floor: TypeAlias = Literal["recipient", "destroyed_donor"]
KINDS = get_args(Kind)
"""What methods do."""
FLOORS = get_args(Floor)
"""Possible outputs of a model in which no site carries the finetuned behaviour."""

COSTS: Mapping[str, str] = {
    "none": "no forward",
    "forward": "a few forwards",
    "backward": "a few forwards and backwards",
    "scan": "a forward per site, packed",
    "training": "many steps",
}
"""Computational cost of an answer, by class."""

SCANS: Mapping[str, str] = {
    "alone": "log-probability gained by the site alone (nats)",
    "left_out": "log-probability lost without the site (nats)",
}
"""How a scan of an intervention measures a site, and the meaning of the score."""


def one_of(default: str, *choices: str) -> Any:
    """A parameter that is one of some texts, as `kgbench ls localizers` lists them."""
    return field(default=default, metadata={"choices": choices})


Treatments: TypeAlias = "Sequence[Sequence[Treatment]]"
"""Treatment of each token of each prompt."""


@dataclass(frozen=True)
class AbstractLocalizer(ABC):
    """A localization method; its dataclass fields are parameters and enter a result's identity."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    """Incremented whenever the method's answers change."""
    kind: ClassVar[Kind]
    """`intervention` or `scoring`."""
    needs: ClassVar[frozenset[str]] = frozenset({"donor"})
    """Required inputs: a subset of `NEEDS`."""
    floor: ClassVar[Floor] = "recipient"
    """Output of the model when no site carries the finetuned behaviour: one of `FLOORS`."""
    cost: ClassVar[str] = "forward"
    """Cost of an answer: one of `COSTS`."""
    scan_of: ClassVar[str] = ""
    """Name of the intervention whose scan gives this method's map; empty for none.

    The leaderboard lists the intervention in place of the scorer.
    """
    paper: ClassVar[str] = ""
    """Reference, such as `arXiv 2506.20746`."""
    about: ClassVar[str]
    """One-line description."""
    score_meaning: ClassVar[str] = ""
    """Meaning of a site's score, with its unit: the colour-bar label of a map; may be empty."""

    def __post_init__(self) -> None:
        """Check parameters that are `one_of` some texts.

        Raises:
            UnknownNameError: One is another text.
        """
        for each in fields(self):
            if choices := each.metadata.get("choices"):
                check_choice(f"{each.name} of {self.name}", getattr(self, each.name), choices)

    def parameters(self) -> dict[str, Any]:
        """All parameters, including defaults."""
        return asdict(self)

    def readings(self, prompts: int) -> int:
        """How many prompts are read to rank sites by so many: what a forecast grows with."""
        return prompts


@dataclass(frozen=True)
class Unit:
    """One measurement of a scan, and the sites credited with its value."""

    graft: Graft
    sites: tuple[Site, ...]
    minus: int | None = None
    """Index of a unit that this one contains; its value is subtracted."""


class InterventionLocalizer(AbstractLocalizer):
    """Gives the model's output when only some sites carry the finetuned behaviour."""

    kind = "intervention"
    baseline: ClassVar[bool] = False
    """Whether the method is a reference that ignores the sites."""
    reads_any_token: ClassVar[bool] = False
    """Whether the treatment of a token is independent of later tokens, so that one run can be read
    out at several tokens. Methods that depend on the last token of a prompt need one run per
    readout token."""
    scanned: ClassVar[str] = "alone"
    """How a scan measures a site, one of `SCANS`: the site `alone` carries the behaviour, or every
    site but this one does (`left_out`)."""

    @property
    def reaches_donor(self) -> bool:
        """Whether treating every site, final norm and head included, reproduces the donor exactly.

        False for methods that carry over only a part of the donor's behaviour.
        """
        return True

    @abstractmethod
    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Treatments under which only `sites` carry the finetuned behaviour.

        Args:
            pair: The models.
            prompts: Prompts of any lengths, without their targets (see `kgbench.data.Question`)
                unless the method needs the `answer`.
            sites: The sites, as a graft expression.

        Returns:
            Treatment of each token of each prompt.

        Raises:
            NotApplicableError: The method cannot express these sites.
        """

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """The method fitted on all prompts of a task, which have targets or not as in `treat`.

        The treatment of a fact must not be fitted on that fact.
        """
        return self

    def variants(self) -> Sequence[InterventionLocalizer]:
        """One variant per random draw; probabilities are averaged over variants."""
        return (self,)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """Measurements of a scan over single sites; by default one per site."""
        # Imported here, since listing localizers must not import torch.
        from kgbench.engine.site_sets import all_sites, site_graft

        return [Unit(site_graft(pair, prompts, site), (site,)) for site in all_sites(pair, prompts)]


def asked(
    method: InterventionLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> Sequence[Prompt]:
    """Prompts as passed to an intervention: without targets unless it needs the `answer`."""
    return prompts if "answer" in method.needs else list(map(pair.question, prompts))


class ScoringLocalizer(AbstractLocalizer):
    """Ranks sites."""

    kind = "scoring"

    @abstractmethod
    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Score each site by its responsibility for the finetuned behaviour; higher is more.

        Args:
            pair: The models.
            prompts: Prompts of facts that the donor learned.

        Returns:
            Score of every site: the default components in every region of the prompts.
        """
