"""The record of one evaluation, as `record.json` holds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from kgbench.estimate import Estimate, plain, rounded
from kgbench.records.identity import Identity, Strict, canonical_json, private_text
from kgbench.records.provenance import Provenance
from kgbench.sites import COMPONENTS, Site, SiteScores, region_order

NOT_APPLICABLE = "not applicable: "
"""Begins the reason why a configuration that the method cannot express has no figures."""

NO_INTERVAL_OF_RANKS = "see median_rank"
"""Why a mean rank has no interval."""

NO_INTERVAL_OF_SITES = "all sites there are, not a sample: see the mean over plants"
"""Why a figure over sites has no interval."""

Stored = Annotated[Estimate, AfterValidator(Estimate.rounded)]
"""An estimate as a record holds it, rounded."""


def _alone(reason: str) -> BeforeValidator:
    """Removes the interval that earlier records have."""

    def value_only(data: Any) -> Any:
        complete = isinstance(data, list | tuple) and len(data) == 4
        return {"value": data[0], "undefined": reason, "n": data[3]} if complete else data

    return BeforeValidator(value_only)


MeanRank = Annotated[Stored, _alone(NO_INTERVAL_OF_RANKS)]
OverSites = Annotated[Stored, _alone(NO_INTERVAL_OF_SITES)]

_ANSWERED = (
    *("prompt", "graft", "n", "dropped", "top1", "top5", "mrr", "rank", "median_rank", "log_rank"),
    *("prob", "logprob", "sufficiency", "necessity"),
)
"""Fields of a row that `--json` prints."""


BOUNDS = {"logprob": (-inf, 0.0), "log_rank": (0.0, inf)}
"""What scores without an end on one side can be."""


class Row(Strict):
    """One configuration on one prompt."""

    prompt: str
    graft: str
    n: int = Field(ge=0)
    dropped: int = Field(ge=0)
    top1: Stored
    top5: Stored
    top10: Stored
    top20: Stored
    top50: Stored
    top100: Stored
    mrr: Stored
    rank: MeanRank
    """The mean of the ranks."""
    median_rank: Stored
    log_rank: Stored
    """Mean of the ranks' natural logarithms."""
    prob: Stored
    logprob: Stored
    logit_diff: Stored
    sufficiency: Stored
    necessity: Stored
    complement: str | None = None
    """The configuration that necessity was computed from, if one was run."""
    gain: Stored
    """m(SFT) - m(PRE) on the metric of the ratios, their denominator; numerators follow from the
    rows' means."""
    difference: Stored | None = None
    """m(S) - m(PRE) on that metric, where it is more reliable than the ratio: the gain is within a few
    standard errors of 0, or the ratio is beyond 2."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """The row from its short form, and from those of earlier records."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(reason := data.get("absent"), str):
            del data["absent"]
            nothing = {"undefined": NOT_APPLICABLE + reason, "n": 0}
            data = {**dict.fromkeys(FIGURES, nothing), **data, "n": 0}
        if "rank" in data and "median_rank" not in data:  # the mean of the ranks only
            older = {
                "undefined": "the record was made before: `kgbench show --metric` makes it from the rows",
                "n": data.get("n", 0),
            }
            data |= {"median_rank": older, "log_rank": older}
        if isinstance(operands := data.get("operands"), dict):
            # Version 1 repeated the means of other rows next to the gain.
            del data["operands"]
            data["gain"] = operands.get("gain")
        return data

    @model_serializer(mode="wrap")
    def _short(self, serializer: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        """In JSON a configuration that the method cannot express is one line with its reason."""
        if info.mode != "json" or self.applicable:
            return serializer(self)
        reason = (self.sufficiency.undefined or "").removeprefix(NOT_APPLICABLE)
        short = {name: getattr(self, name) for name in ("prompt", "graft", "dropped")}
        return {**short, "absent": reason}

    @property
    def applicable(self) -> bool:
        """Whether the method could express the configuration."""
        return not (self.sufficiency.undefined or "").startswith(NOT_APPLICABLE)

    def estimate(self, metric: str) -> Estimate:
        """The mean of a metric, or another figure; `rr` is `mrr` in earlier records.

        No mean lies beyond what a score can be, and so neither does its interval here.
        """
        figure = getattr(self, "mrr" if metric == "rr" else metric)
        assert isinstance(figure, Estimate)
        return figure.within(*BOUNDS[metric]) if metric in BOUNDS else figure


FIGURES = tuple(name for name, field in Row.model_fields.items() if field.annotation is Estimate)
"""Fields of a row that are figures."""


# ---------------------------------------------------------------------------------------- ranking


class SiteScore(Strict):
    """Score of a site by a scoring localizer."""

    layer: int | None
    """None outside the layers."""
    component: str
    region: str
    score: float

    @field_validator("score")
    @classmethod
    def _stored(cls, score: float) -> float:
        return rounded(score)


NestedScores = dict[str, dict[str, dict[str, float]]]
"""Stored scores by region, component and layer; outside the layers the layer is empty."""

_NESTED = TypeAdapter(NestedScores)
_COMPONENTS = {name: place for place, name in enumerate(COMPONENTS)}


def _nested(scores: Sequence[SiteScore]) -> NestedScores:
    by_layer: NestedScores = {}
    for s in scores:
        layers = by_layer.setdefault(s.region, {}).setdefault(s.component, {})
        layers["" if s.layer is None else str(s.layer)] = s.score
    return by_layer


def _flat(scores: Any) -> Any:
    """Sites one by one, in the order of computation, from stored scores; else the value itself."""
    if not isinstance(scores, dict):
        return scores
    sites = []
    for region, components in _NESTED.validate_python(scores).items():
        order = region_order(region)
        for component, layers in components.items():
            place = _COMPONENTS.get(component, len(COMPONENTS))
            # Embeddings, the layers, final norm and head.
            outside = -1.0 if component in ("emb", "pos") else inf
            for text, score in layers.items():
                if text and not (text.isascii() and text.isdigit()):
                    raise ValueError(
                        f"a layer is a number, or empty outside the layers, not {text!r}"
                    )
                layer = int(text) if text else None
                key = (outside if layer is None else float(layer), place, order)
                site = {"layer": layer, "component": component, "region": region, "score": score}
                sites.append((key, site))
    return tuple(site for _, site in sorted(sites, key=itemgetter(0)))


SiteMap = Annotated[
    tuple[SiteScore, ...],
    BeforeValidator(_flat),
    PlainSerializer(_nested, when_used="json"),
    WithJsonSchema(_NESTED.json_schema()),
]
"""Scores of sites: a tuple in Python, nested in JSON."""


class Ranking(Strict):
    """How sites were ranked: each half of the facts ranks, and the other half is measured."""

    facts: tuple[int, int]
    """Facts of the halves."""
    agreement: OverSites
    """Spearman's correlation of the two halves' scores over all sites."""
    sites: dict[str, dict[str, tuple[int, int]]]
    """By prompt and configuration: grafted sites of the prompt, by each half's ranking."""
    scan: bool = False
    """Whether the method intervenes, and its scores are its effects at single sites."""


# ------------------------------------------------------------------------ curve and ground truth


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


class Effect(Strict):
    """Sufficiency and necessity of the best-ranked sites, as many as were planted."""

    sufficiency: Stored
    necessity: Stored


class Pathway(Strict):
    """Whether a method finds the planted pathway, and not another one, on one prompt."""

    planted: str
    other: str
    recovery_planted: Stored
    recovery_other: Stored
    outcome: Literal["identified", "not identified", "undecided", "not applicable"]
    """`identified` where both intervals are within the bounds (at least .9, at most .1), `not
    identified` where one is outside them."""

    @model_validator(mode="before")
    @classmethod
    def _from_told(cls, data: Any) -> Any:
        """Earlier records have the outcome by another name."""
        if not isinstance(data, dict) or "told" not in data:
            return data
        fields = {name: value for name, value in data.items() if name not in ("found", "told")}
        return {**fields, "outcome": str(data["told"]).replace("told", "identified")}


class Planted(Strict):
    """A ranking of sites against the truth."""

    plant: str
    decoy: str | None = None
    units: Literal["block", "block and region"]
    """Ranked units, each of which takes the largest score of its sites: a layer's attention or FFN;
    where facts were planted at some tokens, in a region."""
    n_units: int
    """Number of units whose weights changed, among which places are ranked."""
    n_true: int
    """Number of them that were planted."""
    average_precision: OverSites
    """Mean, over planted units, of the precision down to each of them."""
    chance: float | None = None
    """Expected value of a random order of the changed units."""
    k: int
    """Number of planted sites, and of best-ranked sites grafted for sufficiency and necessity."""
    effect: Effect
    """Over all prompts, facts resampled whole."""
    prompts: dict[str, Effect]
    pathways: dict[str, Pathway] | None = None
    """By prompt, for intervening methods where positions were planted."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_grafts(cls, data: Any) -> Any:
        """Earlier records were judged by grafts of places, which plants no longer are."""
        if not isinstance(data, dict) or not {"auroc", "graded_precision"} & data.keys():
            return data
        fields = {name: data[name] for name in cls.model_fields if name in data}
        older = {"undefined": "an earlier version judged this, by grafts: run it again", "n": 0}
        return {**fields, "units": "block", "average_precision": older}

    def answer(self) -> dict[str, Any]:
        """The figures as `--json` prints them."""
        fields = plain(self)
        order = ("decoy", "units", "n_units", "n_true", "k")
        return {
            "average_precision": fields["average_precision"],
            "chance": self.chance,
            **fields["effect"],
            "expression": self.plant,
            **{name: fields[name] for name in (*order, "prompts", "pathways", "notes")},
        }


# ----------------------------------------------------------------------------------------- record


class Environment(Strict):
    """How the result was computed; no part of the identity."""

    batch_size: int | None = None
    device: str
    executor: str
    attention: str
    threads: int | None = None


def measured_on(executor: str, wrote: bool = False) -> str:
    """Description of what the cost of a run was measured on.

    Args:
        executor: Name of the executor.
        wrote: Whether texts were written, token by token with a cache.
    """
    how = "with a key-value cache, texts" if wrote else f"by the {executor} executor, scoring"
    return f"all prompts and configurations {how} included"


class Scoring(Strict):
    """Cost of scoring all sites, both halves together; part of the whole cost."""

    forwards: int = Field(ge=0)
    token_rows: int = Field(ge=0)
    """Padding included."""
    seconds: float = Field(ge=0)
    plain_forward_ratio: Stored


class Cost(Strict):
    """Cost of the result; a resumed run adds up the costs of its processes."""

    forwards: int = Field(ge=0)
    token_rows: int = Field(ge=0)
    """Of the configurations, without padding; ranking the sites is counted separately."""
    seconds: float = Field(ge=0)
    plain_forward_ratio: Stored
    """Seconds divided by those of one plain batched forward of the same prompts in the same run."""
    measured_on: str
    """What the ratio was measured on."""
    scoring: Scoring | None = None
    """The part of it that ranking the sites took."""


Counts = tuple[Annotated[int, Field(ge=1)], ...]


class Result(Strict):
    """The result of one evaluation, without the figures that follow from its per-fact rows."""

    schema_version: Literal[2] = 2
    id: str
    model: str
    """The pair as the user named it; the identity holds its hashes."""
    metric: str
    """The metric of the ratios."""
    identity: Identity
    dropped: dict[str, int]
    """Reason to count of the facts left out."""
    cost: Cost
    environment: Environment
    provenance: Provenance
    kind: Literal["intervention", "scoring"] = "intervention"
    """Of the localizer: `intervention` or `scoring`."""
    floor: Literal["recipient", "destroyed_donor"] = "recipient"
    """Model without finetuned sites: `recipient`, or `destroyed_donor` (then the row `NONE`)."""
    not_applicable: dict[str, str] = Field(default_factory=dict)
    """Configurations that the method cannot express, with the reason."""
    scores: SiteMap | None = None
    """The localization map, where sites were ranked: the mean of both halves' scores."""
    ranking: Ranking | None = None
    notes: dict[str, JsonValue] = Field(default_factory=dict)
    """Other values that a localizer keeps."""

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, data: Any) -> Any:
        """Version 1 holds the same at more length; the parts read both."""
        is_older = isinstance(data, dict) and data.get("schema_version") == 1
        return {**data, "schema_version": 2} if is_older else data

    @model_validator(mode="after")
    def _check(self) -> Result:
        if self.id != self.identity.digest():
            raise ValueError("the id is not the hash of the identity")
        canonical_json(self.notes)
        # Sites by themselves: a map has hundreds of them, with few names.
        data = self.model_dump(mode="json", exclude={"scores"})
        sites = {(site.component, site.region) for site in self.scores or ()}
        if private_text([data, *sites]):
            private = private_text(self.model_dump(mode="json"))
            raise ValueError(f"a record holds no absolute path and no credential, but {private}")
        return self

    @cached_property
    def by_site(self) -> SiteScores | None:
        """The localization map by site; None where sites were not ranked."""
        if self.scores is None:
            return None
        return {Site(s.layer, s.component, s.region): s.score for s in self.scores}

    def document(self) -> dict[str, Any]:
        """The JSON value, without figures."""
        return self.model_dump(mode="json", include=set(Result.model_fields), exclude_none=True)


class GroupContrast(Strict):
    """What the cases of a prompt have beyond its controls, under one configuration."""

    graft: str
    difference: Stored
    """Mean of the cases minus mean of the controls, on the metric of the ratios."""
    recovery: Stored
    """Share of what finetuning added to that difference."""


class Record(Result):
    """The result of one evaluation with its figures."""

    verdict: str
    rows: tuple[Row, ...]
    synergy: dict[str, Stored]
    """Per prompt: suff(FE+LT) - suff(FE) - suff(LT)."""
    baselines: dict[str, dict[str, Stored]]
    """Name of the baseline, then prompt."""
    answers: dict[str, Counts] | None = None
    """By prompt, how often each distinct first token is the answer, the most frequent first; None
    in earlier records."""
    curve: dict[str, Curve] | None = None
    """By prompt: recovery at growing budgets."""
    planted: Planted | None = None
    """Comparison of the ranking with the ground truth."""
    contrast: dict[str, tuple[GroupContrast, ...]] | None = None
    """By prompt, where it has controls."""

    @property
    def by_prompt(self) -> dict[str, dict[str, Row]]:
        """The rows, by prompt and configuration."""
        rows: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            rows.setdefault(row.prompt, {})[row.graft] = row
        return rows

    def to_json(self) -> str:
        """The text of `record.json`: a line per field and per row, in the order of the model.

        Equal records give equal bytes.
        """
        lines = []
        for name, value in self.model_dump(mode="json", exclude_none=True).items():
            text = _text(value)
            if isinstance(value, list) and value and isinstance(value[0], dict):
                text = "[\n" + ",\n".join(map(_text, value)) + "\n]"
            lines.append(f"{_text(name)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def answer(self, path: str) -> dict[str, Any]:
        """The object that `--json` prints.

        Args:
            path: The record's folder, as the user should see it.
        """
        ratio = self.cost.plain_forward_ratio
        rows = []
        first_tokens = {}
        for prompt, counts in (self.answers or {}).items():
            first_tokens[prompt] = {"distinct": len(counts), "facts": sum(counts)}
        for row in self.rows:
            bounded = {name: row.estimate(name) for name in BOUNDS}
            rows.append({name: plain(bounded.get(name, getattr(row, name))) for name in _ANSWERED})
            if row.difference is not None:
                rows[-1]["difference"] = row.difference.answer()
        return {
            "id": self.id,
            "model": self.model,
            "dataset": self.identity.dataset.name,
            "localizer": self.identity.localizer.name,
            "metric": self.metric,
            "path": path,
            "seconds": self.cost.seconds,
            "plain_forward_ratio": ratio.answer() if ratio.undefined else ratio.value,
            "rows": rows,
            "synergy": plain(self.synergy),
            "first_tokens": first_tokens,
            **({"curve": plain(self.curve)} if self.curve else {}),
            **({"contrast": plain(self.contrast)} if self.contrast else {}),
            **({"planted": self.planted.answer()} if self.planted is not None else {}),
            "verdict": self.verdict,
        }


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
