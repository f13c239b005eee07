"""The record of a submission as boards take it: the laws of its single fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from kgbench.data import is_shipped
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import NAME
from kgbench.records import Cost, DatasetRef, Identity, Result, measured_on
from kgbench.records.identity import LocalizerRef, WeightHashes
from kgbench.records.provenance import Provenance
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import budget_labels, parse_top
from kgbench.stats.scores import METRICS
from kgbench.version import __version__


def _law(holds: Callable[[Any], object], expected: str) -> AfterValidator:
    """A law of one field that its type does not express."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


METRIC_NAMES = (*METRICS, "rr")
"""Metrics of ratios, and an earlier name of one."""


def is_configuration(name: str) -> bool:
    """Whether a name is a baseline, a graft expression or a budget as kgbench writes it."""
    try:
        top = parse_top(name)
        if name not in BASELINES and top is None:
            parse_graft(name)
    except (KgbenchError, ValueError):
        return False
    if top is None or top.percent is None:
        return True
    return 0 <= top.percent <= 100 and name in budget_labels([top.percent])


def _has_been(text: str) -> bool:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00")).replace(tzinfo=None)
    except ValueError:
        return False
    # Another machine's clock and time zone may be two days ahead.
    return time.year >= 2024 and time < datetime.now() + timedelta(days=2)


def _is_released(version: str) -> bool:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){2}", version):
        return False
    numbers, newest = (list(map(int, text.split("."))) for text in (version, __version__))
    return numbers <= newest


_MOST = 500
"""Configurations, and prompts."""

_EXECUTORS = {measured_on(executor) for executor in ("packed", "rows", "sequential")}

Name = Annotated[str, Field(pattern=NAME)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Configuration = Annotated[
    str,
    Field(max_length=300),
    _law(is_configuration, "PRE, SFT, a graft expression or a budget"),
]


class _Dataset(DatasetRef):
    name: Annotated[  # those that are shipped have parts, such as NAME:first200
        str,
        _law(
            lambda name: is_shipped(name) or re.fullmatch(NAME, name),
            "letters, digits, blanks and . _ + ( ) = , -, at most 60",
        ),
    ]
    hash: Hash


class _Weights(WeightHashes):
    recipient: Hash
    donors: dict[Name, Hash]


class _Localizer(LocalizerRef):
    name: Name


class _Identity(Identity):
    dataset: _Dataset
    prompts: Annotated[dict[Name, Hash], Field(min_length=1, max_length=_MOST)]
    weights: _Weights
    tokenizer: Hash
    localizer: _Localizer
    configurations: Annotated[
        tuple[Configuration, ...],
        Field(max_length=_MOST),
        _law(lambda names: {*BASELINES} <= {*names}, "PRE and SFT, the ends of every ratio"),
        _law(lambda names: len({*names}) == len(names), "each configuration once"),
    ]
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)]]


class _Cost(Cost):
    forwards: int = Field(ge=1)
    seconds: float = Field(ge=1e-9, le=90 * 86400)
    measured_on: Annotated[str, _law(_EXECUTORS.__contains__, min(_EXECUTORS))]


class _Provenance(Provenance):
    kgbench: Annotated[str, _law(_is_released, f"{__version__} or an earlier version")]
    time: Annotated[
        str, _law(_has_been, "when it ended, in ISO 8601, such as 2026-01-31T12:00:00+00:00")
    ]


class SubmittedResult(Result):
    """A result as boards take it: its names end up in tables, links and files."""

    model: Name
    metric: Annotated[str, _law(METRIC_NAMES.__contains__, ", ".join(METRICS))]
    identity: _Identity
    cost: _Cost
    provenance: _Provenance

    @field_validator("not_applicable")
    @classmethod
    def _of_configurations(cls, reasons: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        grafts = info.data["identity"].configurations if "identity" in info.data else reasons
        if strange := sorted({*reasons} - {*grafts} | {*reasons} & {*BASELINES}):
            raise ValueError(f"{strange[0]!a} was not asked for, or is PRE or SFT")
        return reasons
