"""The parts of a record that judge a ranking of sites: recovery at growing budgets, and the comparison with the truth."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kgbench.estimate import Estimate
from kgbench.records.identity import Strict

__all__ = [
    "NO_INTERVAL_OF_RANKS",
    "NO_INTERVAL_OF_SITES",
    "Curve",
    "CurvePoint",
    "Effect",
    "MeanRank",
    "OverSites",
    "Pathway",
    "Planted",
    "Stored",
]

NO_INTERVAL_OF_RANKS = "see median_rank"
"""Why a mean rank stands alone."""

NO_INTERVAL_OF_SITES = "all sites there are, not a sample: see the mean over plants"
"""Why a figure over sites stands alone."""


Stored = Annotated[Estimate, AfterValidator(Estimate.rounded)]
"""An estimate as a record holds it."""


def _alone(reason: str) -> BeforeValidator:
    """Takes the interval off that records made before have."""

    def value_only(data: Any) -> Any:
        whole = isinstance(data, list | tuple) and len(data) == 4
        return {"value": data[0], "undefined": reason, "n": data[3]} if whole else data

    return BeforeValidator(value_only)


MeanRank = Annotated[Stored, _alone(NO_INTERVAL_OF_RANKS)]
OverSites = Annotated[Stored, _alone(NO_INTERVAL_OF_SITES)]


class CurvePoint(Strict):
    """Recovery where the best-ranked sites are grafted up to a budget."""

    budget: float = Field(ge=0, le=100)
    """Per cent of all default components × tokens."""
    recovery: Stored


class Curve(Strict):
    """Recovery at growing budgets, on one prompt."""

    points: tuple[CurvePoint, ...]
    area: Stored
    """Mean recovery over the logarithm of the budget, from .1 to 100 %."""

    def answer(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        points = [
            {"budget": point.budget, "recovery": point.recovery.answer()} for point in self.points
        ]
        return {"points": points, "area": self.area.answer()}


class Effect(Strict):
    """What as many best-ranked sites as the truth has carry by themselves, and what is lost without them."""

    sufficiency: Stored
    necessity: Stored

    def answer(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"sufficiency": self.sufficiency.answer(), "necessity": self.necessity.answer()}


class Pathway(Strict):
    """Whether a method finds the planted pathway, and not another one, on one prompt."""

    planted: str
    other: str
    recovery_planted: Stored
    recovery_other: Stored
    found: bool | None = None
    """Whether the estimates are at least .9 and at most .1; None where one is undefined."""
    told: Literal["told", "not told", "undecided", "not applicable"]
    """Whether the whole intervals are (`told`), one of them lies beyond altogether (`not told`), or neither."""

    def answer(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        figures = {
            "recovery_planted": self.recovery_planted.answer(),
            "recovery_other": self.recovery_other.answer(),
        }
        return {**self.model_dump(mode="json"), **figures}


class Planted(Strict):
    """A ranking of sites against the truth."""

    plant: str
    decoy: str | None = None
    units: Literal["site", "layer and component"]
    """What is ranked: where whole weights were planted, a (layer, component) takes the largest score of its regions."""
    n_units: int
    """How many there are whose weights changed: places are ranked among these."""
    n_true: int
    """How many of them were planted."""
    graded_precision: OverSites
    """Graded average precision: the mean of average precision over thresholds of relevance."""
    chance: float | None = None
    """What a random order is expected to get, and one that knows no more than which weights changed; None without a graded truth."""
    auroc_decoy: OverSites | None = None
    """Chance that a planted place is ranked above one of the decoy's."""
    k: int
    """Sites of the truth: as many of the method's best are grafted for sufficiency and necessity."""
    effect: Effect
    """Over all prompts asked, facts resampled whole."""
    prompts: dict[str, Effect]
    pathways: dict[str, Pathway] | None = None
    """By prompt, for intervening methods where positions were planted."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_all_places(cls, data: Any) -> Any:
        """Records made before were judged among all places, changed or not."""
        if not isinstance(data, dict) or "auroc" not in data:
            return data
        older = {
            "undefined": "the record was made before: `kgbench rescore` makes it from the map",
            "n": 0,
        }
        gone = ("auroc", "average_precision", "recall_at_k", "expected")
        return {
            "graded_precision": older,
            **{key: value for key, value in data.items() if key not in gone},
        }

    def answer(self) -> dict[str, Any]:
        """The figures as `--json` prints them."""
        return {
            "graded_precision": self.graded_precision.answer(),
            "chance": self.chance,
            **self.effect.answer(),
            "expression": self.plant,
            "decoy": self.decoy,
            "auroc_decoy": self.auroc_decoy.answer() if self.auroc_decoy is not None else None,
            "units": self.units,
            "n_units": self.n_units,
            "n_true": self.n_true,
            "k": self.k,
            "prompts": {prompt: effect.answer() for prompt, effect in self.prompts.items()},
            "pathways": {prompt: found.answer() for prompt, found in self.pathways.items()}
            if self.pathways is not None
            else None,
            "notes": list(self.notes),
        }
