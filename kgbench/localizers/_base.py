"""What every localizer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kgbench.data import Prompt
from kgbench.sites import Graft, SiteScores

if TYPE_CHECKING:  # the names of all localizers are known without torch
    from kgbench.engine.treatment import Treatment
    from kgbench.models.pair import ModelPair

__all__ = ["AbstractLocalizer", "InterventionLocalizer", "ScoringLocalizer", "Treatments"]

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
    """Of `donor`, `gradients`, `counterfactual`, `truth`: what the method must be given."""
    floor: ClassVar[str] = "recipient"
    """What the model outputs when no site carries the finetuned behaviour: `recipient` or `destroyed_donor`."""
    about: ClassVar[str]
    """One line."""

    def parameters(self) -> dict[str, Any]:
        """All parameters, the defaults included."""
        return asdict(self)


class InterventionLocalizer(AbstractLocalizer):
    """Says what the model outputs when only some sites carry the finetuned behaviour."""

    kind = "intervention"

    @abstractmethod
    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Describe what the engine is to do so that only `sites` carry the finetuned behaviour.

        Args:
            pair: The models.
            prompts: Prompts of any lengths.
            sites: The sites, as a graft expression.

        Returns:
            Treatments of each token of each prompt.
        """


class ScoringLocalizer(AbstractLocalizer):
    """Ranks sites."""

    kind = "scoring"

    @abstractmethod
    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """How responsible each site is for the finetuned behaviour; higher is more.

        Args:
            pair: The models.
            prompts: Prompts whose facts the donor learned.
        """
