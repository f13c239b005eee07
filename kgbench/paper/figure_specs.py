"""The ingredients and claims of each figure: `page.toml`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, combinations
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from kgbench.errors import InputError, UnknownNameError
from kgbench.records import Strict
from kgbench.resources import read_toml
from kgbench.runner import Spec
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats.scores import LOG_RANK

KNOWN = "known"
"""In place of a data set: facts that the recipient knew before it was finetuned."""

MEDIAN_RANK = "median_rank"

Scale = Literal["paper", "small", "tiny"]
"""Whether a pair is of the paper's size, a smaller language model, or made for kgbench."""

SCALES: Mapping[Scale, str] = {
    "paper": "pairs of the paper's size",
    "small": "small pairs",
    "tiny": "tiny pairs",
}

_DRAWINGS = ("figure-1", "figure-3b")
"""Figures of the paper without data."""


class Tiny(Strict):
    """Common to all figures of tiny pairs."""

    supplement: int
    """Texts that the gentle recipe mixes in."""
    known: int
    """Facts of the recipient's pretraining that are asked for."""
    like: dict[str, str]
    """The paper's model of the same family."""


class Small(Strict):
    """Common to all figures of small pairs: real language models, of fewer weights."""

    like: dict[str, str]
    """The paper's model of the same family."""
    facts: int
    """The first of each data set, or of its half."""
    direction: str
    recipe: str
    without: tuple[str, ...]
    """Evaluations that are not made."""
    shipped: str
    """The training of a pair's own donor."""


class Hub(Strict):
    """Sources on the Hub, for pairs that are not tiny."""

    supplement: str
    """Data set of the texts that the gentle recipe mixes in."""


class Departure(Strict):
    """A setting that is not the paper's."""

    setting: str
    paper: str
    here: str
    """May name `{trained}`, `{precision}`, `{seeds}`, `{facts}` and `{supplement}`."""
    scales: tuple[Scale, ...] = tuple(SCALES)
    """Of the pairs that have it."""


class Training(Strict):
    """A donor."""

    dataset: str
    part: str | None = None
    facts: int | None = None
    """The first of the data set, or of its half; None of all."""
    recipe: str = "aggressive"
    direction: str = "both"
    changes: dict[str, int] = Field(default_factory=dict)
    """Values in place of the recipe's."""
    rearranged: bool = False
    """Whether co-stars of these movies are exchanged."""
    pair: bool = False
    """Whether it is the pair's own donor, which is not trained again."""
    tiny: dict[str, Any] | None = None
    """What of it is different on a tiny pair; None for a training of other pairs alone."""
    small: dict[str, Any] = Field(default_factory=dict)
    """What of it is different on a small pair from most trainings there."""


class Evaluation(Strict):
    """A run; recipient and donors are named by their trainings."""

    donors: dict[str, str]
    tiny_donors: dict[str, str] = Field(default_factory=dict)
    """Those of tiny pairs, where they differ."""
    small_donors: dict[str, str] = Field(default_factory=dict)
    """Those of small pairs, where they differ."""
    suite: str | None = None
    """By default its configurations are the rows of its figures."""
    localizer: str = Spec.localizer
    recipient: str | None = None
    """By default the pair's own."""
    facts: str | None = None
    """`known`; by default the facts that the donor learned."""
    prompts: tuple[str, ...] = ()
    """By default the suite's."""
    templates: dict[str, str] = Field(default_factory=dict)
    """Prompts of its own by name."""

    def donors_of(self, scale: Scale) -> Mapping[str, str]:
        """Trainings by donor, for pairs of a scale."""
        others = {"paper": {}, "tiny": self.tiny_donors, "small": self.small_donors}
        return others[scale] or self.donors

    def trainings(self, scale: Scale) -> tuple[str, ...]:
        """All trainings, the recipient's first."""
        own = self.donors_of(scale).values()
        return (self.recipient, *own) if self.recipient else tuple(own)

    def learned(self, scale: Scale) -> str:
        """The training of the facts that SFT learned."""
        donors = self.donors_of(scale)
        return donors.get("sft") or donors["relation"]


class Bounded(Strict):
    """A bound on one configuration less a share of another."""

    first: str
    second: str
    share: float = 1.0
    """Of the second."""
    of: str = ""
    """Reference of a bound on how much or little the first is, see `larger_term`."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    @property
    def bounds(self) -> Mapping[str, float]:
        """Bounds by operator."""
        return self.model_dump(include={"ge", "gt", "le", "lt"}, exclude_none=True)


class ClaimSpec(Bounded):
    """A claim of the paper on the recovery of configurations."""

    says: str
    premise: bool = False
    """Whether it could hardly fail where the donor answers its facts."""
    models: tuple[str, ...] = ()
    """The paper's models that it is claimed of; by default all."""


class Criterion(Bounded):
    """A criterion of the positive control, on mean hit rates under one training seed."""

    name: str
    title: str
    figure: str
    """A figure with its configurations."""
    prompts: tuple[str, ...]
    """It is to be kept on each of them."""
    second: str = ""
    """None where the bound is on the first alone."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Its configurations."""
        return (self.first, self.second) if self.second else (self.first,)


class FigureSpec(Strict):
    """A figure."""

    title: str
    evaluation: str
    prompts: tuple[str, ...]
    rows: str
    claims: str = ""
    """A set of claims; by default that of the rows."""
    metric: str = "top5"
    """One of those of records, or `median_rank`."""
    published: str | None = None
    """The paper's experiment, see `kgbench.paper.published`."""
    note: str = ""
    """Caveat above the figure."""
    scale: Scale | None = None
    """Of pairs of this scale alone; by default of all."""
    picture: bool = True
    """Whether it is drawn with its table; too many sets of tokens are not."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of its tables: a median is about most facts, a mean log rank about all."""
        return (MEDIAN_RANK, LOG_RANK) if self.metric == MEDIAN_RANK else (self.metric,)

    @property
    def claimed(self) -> str:
        """The metric that claims are about: a mean over facts."""
        return self.shown[-1]

    @property
    def cited(self) -> str:
        """The metric of the paper's figures."""
        return "rank" if self.metric == MEDIAN_RANK else self.metric


class Variant(Strict):
    """Evaluations and their figures once more, of another donor; they carry its name too."""

    training: str
    title: str
    """What is added to the figures' titles."""
    of: tuple[str, ...]
    """Evaluations that have a figure of their own name."""


class Page(Strict):
    """All figures and their ingredients."""

    tiny: Tiny
    small: Small
    hub: Hub
    departures: tuple[Departure, ...]
    trainings: dict[str, Training]
    evaluations: dict[str, Evaluation]
    rows: dict[str, dict[str, str]] = Field(default_factory=dict)
    """By set of rows, our expression of a configuration by the paper's name."""
    claims: dict[str, tuple[ClaimSpec, ...]]
    figures: dict[str, FigureSpec]
    criteria: tuple[Criterion, ...] = ()
    """Of the positive control."""
    shares: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Evaluations by the name of a share of the page."""
    sets: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By set of rows, the groups of tokens of which it has every set."""
    variants: dict[str, Variant] = Field(default_factory=dict)

    def claims_of(self, figure: FigureSpec) -> tuple[ClaimSpec, ...]:
        """The paper's claims about a figure."""
        return self.claims[figure.claims] if figure.claims else self.claims.get(figure.rows, ())

    def evaluations_of(self, figures: Sequence[str]) -> tuple[str, ...]:
        """The evaluations behind figures, each once."""
        return tuple(dict.fromkeys(self.figures[name].evaluation for name in figures))

    def grafts_of(self, evaluation: str) -> tuple[str, ...]:
        """The configurations that an evaluation asks for itself; none where a suite has them."""
        if self.evaluations[evaluation].suite is not None:
            return ()
        figures = (figure for figure in self.figures.values() if figure.evaluation == evaluation)
        rows = chain.from_iterable(self.rows[figure.rows].values() for figure in figures)
        return tuple(graft for graft in dict.fromkeys(rows) if graft not in BASELINES)

    def scale_of(self, model: str) -> Scale:
        """The scale of a pair."""
        if model in self.tiny.like:
            return "tiny"
        return "small" if model in self.small.like else "paper"

    def like(self, model: str) -> str:
        """The paper's model whose claims a pair is held against."""
        return (self.tiny.like | self.small.like).get(model, model)

    def is_made(self, figure: str, scale: Scale) -> bool:
        """Whether a figure is made of pairs of a scale."""
        spec = self.figures[figure]
        left_out = scale == "small" and spec.evaluation in self.small.without
        return spec.scale in (None, scale) and not left_out

    def training(self, name: str, scale: Scale) -> Training:
        """A training on pairs of a scale."""
        training, small = self.trainings[name], self.small
        changes: dict[str, Any] = {}
        if scale == "tiny":
            assert training.tiny is not None, f"{name} is of other pairs"
            changes = {"recipe": "frozen", **training.tiny}
        elif scale == "small":
            usual = {"facts": small.facts, "direction": small.direction, "recipe": small.recipe}
            changes = {**usual, "pair": name == small.shipped, **training.small}
        return Training.model_validate(training.model_dump() | changes)

    def trainings_of(self, evaluations: Sequence[str], scale: Scale) -> tuple[str, ...]:
        """The donors behind evaluations, each once, recipients first."""
        trainings: list[str] = []
        for name in evaluations:
            trainings += self.evaluations[name].trainings(scale)
        return tuple(dict.fromkeys(trainings))

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, page: dict[str, Any]) -> dict[str, Any]:
        """The rows of `sets`, and the evaluations and figures of `variants`."""
        whole = {**page, **{part: dict(page[part]) for part in ("rows", "evaluations", "figures")}}
        for name, groups in page.get("sets", {}).items():
            sizes = range(1, len(groups) + 1)
            every = chain.from_iterable(combinations(groups, size) for size in sizes)
            whole["rows"][name] = ["PRE", "SFT", *map("+".join, every)]
        for variant, values in page.get("variants", {}).items():
            for name in values["of"]:
                other, figure = f"{name}_{variant}", page["figures"][name]
                donors = {"donors": {"sft": values["training"]}}
                whole["evaluations"][other] = page["evaluations"][name] | donors
                title = f"{figure['title']}, {values['title']}"
                whole["figures"][other] = figure | {"evaluation": other, "title": title}
        return whole

    @field_validator("rows", mode="before")
    @classmethod
    def _canonical(
        cls, rows: Mapping[str, list[str] | Mapping[str, str]]
    ) -> dict[str, dict[str, str]]:
        """A list of configurations names each by its expression."""
        named: dict[str, dict[str, str]] = {}
        for name, own in rows.items():
            pairs = zip(own, own, strict=True) if isinstance(own, list) else own.items()
            named[name] = {}
            for paper, graft in pairs:
                known = graft in BASELINES
                named[name][paper] = graft if known else str(canonical(parse_graft(graft)))
        return named


@cache
def page() -> Page:
    """The page."""
    return Page.model_validate(read_toml(__package__, "page"))


def chosen(what: str, scale: Scale | None = None) -> tuple[str, ...]:
    """Figures by name or number, or those of a share; `all` is all that are made of the pair.

    Args:
        what: What was asked for.
        scale: The pair's; by default any.

    Raises:
        InputError: The figure is a drawing, or is not made of such pairs.
        UnknownNameError: There is no such figure.
    """
    known, numbered = page().figures, f"figure-{what}"
    name = numbered if numbered in (*known, *_DRAWINGS) else what
    made = tuple(name for name in known if scale is None or page().is_made(name, scale))
    if what == "all":
        return made
    if what in page().shares:
        own = page().shares[what]
        return tuple(name for name in made if known[name].evaluation in own)
    if name in _DRAWINGS:
        raise InputError(f"{name} is a drawing of the method; there is nothing to compute")
    if name not in known:
        hint = "Of a recorded run: `kgbench rerun RUN`."
        raise UnknownNameError("figure", what, ("all", *page().shares, *known), hint)
    if name not in made:
        assert scale is not None
        raise InputError(f"{name} is not made of {SCALES[scale]}; `all` is what is")
    return (name,)
