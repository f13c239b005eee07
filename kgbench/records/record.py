"""The record of one evaluation, as `record.json` holds it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from kgbench.records.estimate import Estimate
from kgbench.records.identity import Identity, Strict, canonical_json, private_text
from kgbench.records.planted import Curve, Planted
from kgbench.records.provenance import Provenance

__all__ = [
    "NOT_APPLICABLE",
    "Cost",
    "Environment",
    "Estimate",
    "Operands",
    "Ranking",
    "Record",
    "Row",
    "Scoring",
    "SiteScore",
]

NOT_APPLICABLE = "not applicable: "
"""How the reason begins why a configuration has no figures that the method cannot express."""

_ANSWERED = ("prompt", "graft", "n", "dropped", "top1", "top5", "mrr", "rank", "prob", "logprob", "sufficiency", "necessity")


class Operands(Strict):
    """What the ratios of a row were made of: means of the record's metric."""

    pre: Estimate
    sft: Estimate
    all: Estimate
    s: Estimate
    """The row's own configuration."""
    complement: Estimate
    """The configuration of all other sites."""
    gain: Estimate
    """m(SFT) - m(PRE), the denominator."""


class Row(Strict):
    """One configuration on one prompt."""

    prompt: str
    graft: str
    n: int = Field(ge=0)
    dropped: int = Field(ge=0)
    top1: Estimate
    top5: Estimate
    top10: Estimate
    top20: Estimate
    top50: Estimate
    top100: Estimate
    mrr: Estimate
    rank: Estimate
    prob: Estimate
    logprob: Estimate
    logit_diff: Estimate
    sufficiency: Estimate
    necessity: Estimate
    complement: str | None
    """The configuration that necessity was computed from, if one was run."""
    operands: Operands

    @property
    def applicable(self) -> bool:
        """Whether the method could express the configuration."""
        return not (self.sufficiency.undefined or "").startswith(NOT_APPLICABLE)

    def estimate(self, metric: str) -> Estimate:
        """The mean of a metric; `rr` is the mean reciprocal rank."""
        found = getattr(self, "mrr" if metric == "rr" else metric)
        assert isinstance(found, Estimate)
        return found


class SiteScore(Strict):
    """How responsible a scoring localizer holds a site."""

    layer: int | None
    """None outside the layers."""
    component: str
    region: str
    score: float


class Ranking(Strict):
    """How a ranking of sites came about: each half of the facts ranks, and the other half is measured."""

    facts: tuple[int, int]
    """Facts of the halves."""
    agreement: Estimate
    """Spearman's correlation of the two halves' scores over all sites."""
    sites: dict[str, dict[str, tuple[int, int]]]
    """By prompt and configuration: how many of the prompt's sites got the donor's weights, by each half's ranking."""
    scan: bool = False
    """Whether the method intervenes, and its scores are its effects at single sites."""


class Environment(Strict):
    """How the result was computed; no part of the identity."""

    batch_size: int | None = None
    device: str
    executor: str
    attention: str
    threads: int | None = None


class Scoring(Strict):
    """What the scores of all sites took, both halves together; part of the whole cost."""

    forwards: int = Field(ge=0)
    token_rows: int = Field(ge=0)
    """Padding included."""
    seconds: float = Field(ge=0)
    plain_forward_ratio: Estimate


class Cost(Strict):
    """What the result cost; a resumed run adds up what each of its processes computed."""

    forwards: int = Field(ge=0)
    token_rows: int = Field(ge=0)
    """Of the configurations, padding left out; what ranking the sites took is counted by itself."""
    seconds: float = Field(ge=0)
    plain_forward_ratio: Estimate
    """Seconds divided by those of one plain batched forward of the same prompts in the same run."""
    measured_on: str
    """What the ratio was measured on."""
    scoring: Scoring | None = None
    """The part of it that ranking the sites took."""


class Record(Strict):
    """The result of one evaluation."""

    schema_version: Literal[1] = 1
    id: str
    model: str
    """The pair as the user named it; the identity holds its hashes."""
    metric: str
    """The metric of the ratios."""
    verdict: str
    identity: Identity
    rows: tuple[Row, ...]
    synergy: dict[str, Estimate]
    """Per prompt: suff(FE+LT) - suff(FE) - suff(LT)."""
    dropped: dict[str, int]
    """Reason to count of the facts left out."""
    baselines: dict[str, dict[str, Estimate]]
    """Name of the baseline, then prompt."""
    cost: Cost
    environment: Environment
    provenance: Provenance
    kind: str = "intervention"
    """Of the localizer: `intervention` or `scoring`."""
    floor: str = "recipient"
    """What the model outputs when no site carries the finetuned behaviour: `recipient` or `destroyed_donor` (then the row `NONE`)."""
    not_applicable: dict[str, str] = Field(default_factory=dict)
    """Configurations that the method cannot express, with the reason."""
    scores: tuple[SiteScore, ...] | None = None
    """The localization map, where sites were ranked: the mean of both halves' scores."""
    ranking: Ranking | None = None
    curve: dict[str, Curve] | None = None
    """By prompt: recovery at growing budgets."""
    planted: Planted | None = None
    """How the ranking compares with where the facts were planted."""
    notes: dict[str, JsonValue] = Field(default_factory=dict)
    """What else a localizer wants to keep."""

    @model_validator(mode="after")
    def _check(self) -> Record:
        if self.id != self.identity.digest():
            raise ValueError("the id is not the hash of the identity")
        canonical_json(self.notes)
        if found := private_text(self.model_dump(mode="json")):
            raise ValueError(f"a record holds no absolute path and no credential, but {found}")
        return self

    def to_json(self) -> str:
        """The text of `record.json`: indented, fields in the order of the model; equal records give equal bytes."""
        return self.model_dump_json(indent=1) + "\n"

    def answer(self, path: str) -> dict[str, Any]:
        """The object that `--json` prints.

        Args:
            path: Where the record lies, as the user should see it.
        """
        ratio = self.cost.plain_forward_ratio
        curves = {prompt: curve.answer() for prompt, curve in (self.curve or {}).items()}
        return {
            "id": self.id,
            "model": self.model,
            "dataset": self.identity.dataset.name,
            "localizer": self.identity.localizer.name,
            "path": path,
            "seconds": self.cost.seconds,
            "plain_forward_ratio": ratio.answer() if ratio.undefined else ratio.value,
            "rows": [_answer_row(row) for row in self.rows],
            "synergy": {prompt: estimate.answer() for prompt, estimate in self.synergy.items()},
            **({"curve": curves} if curves else {}),
            **({"planted": self.planted.answer()} if self.planted is not None else {}),
            "verdict": self.verdict,
        }


def _answer_row(row: Row) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in _ANSWERED}
    return {name: field.answer() if isinstance(field, Estimate) else field for name, field in fields.items()}
