"""The record of one evaluation, as `record.json` holds it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from kgbench.records.identity import Identity, Strict, canonical_json, private_text
from kgbench.records.provenance import Provenance

__all__ = ["Cost", "Environment", "Estimate", "Operands", "Record", "Row", "SiteScore"]

_ANSWERED = ("prompt", "graft", "n", "dropped", "top1", "top5", "mrr", "rank", "prob", "logprob", "sufficiency", "necessity")


class Estimate(Strict):
    """A figure as it is stored: value, low and high, or the reason why it is undefined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = Field(ge=0)
    undefined: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Estimate:
        if self.undefined is not None:
            complete = bool(self.undefined) and self.value is None and self.low is None and self.high is None
        else:
            complete = self.value is not None and self.low is not None and self.high is not None and self.low <= self.value <= self.high
        if not complete:
            raise ValueError("an estimate holds low <= value <= high, or the reason why it is undefined, and not both")
        return self

    def answer(self) -> dict[str, Any]:
        """`{"value", "low", "high"}` or `{"undefined": reason}`."""
        if self.undefined is not None:
            return {"undefined": self.undefined}
        return {"value": self.value, "low": self.low, "high": self.high}


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


class Environment(Strict):
    """How the result was computed; no part of the identity."""

    batch_size: int | None = None
    device: str
    executor: str
    attention: str
    threads: int | None = None


class Cost(Strict):
    """What the result cost; a resumed run adds up what each of its processes computed."""

    forwards: int = Field(ge=0)
    token_rows: int = Field(ge=0)
    seconds: float = Field(ge=0)
    plain_forward_ratio: Estimate
    """Seconds divided by those of one plain batched forward of the same prompts in the same run."""
    measured_on: str
    """What the ratio was measured on."""


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
    scores: tuple[SiteScore, ...] | None = None
    """For scoring localizers."""
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
            "verdict": self.verdict,
        }


def _answer_row(row: Row) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in _ANSWERED}
    return {name: field.answer() if isinstance(field, Estimate) else field for name, field in fields.items()}
