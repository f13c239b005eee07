"""A figure as it is stored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from kgbench.records.identity import Strict

__all__ = [
    "DIGITS",
    "NO_INTERVAL_OF_RANKS",
    "NO_INTERVAL_OF_SITES",
    "Estimate",
    "MeanRank",
    "OverSites",
    "rounded",
]

DIGITS = 6
"""Significant digits of a stored figure: more than any interval knows."""


def rounded(number: float) -> float:
    """The number as it is stored."""
    return float(f"{number:.{DIGITS}g}")


class Estimate(Strict):
    """A figure as it is stored: value, low and high, or the reason why it is undefined.

    A value may stand without an interval, with the reason. In JSON it is `[value, low, high, n]`, `{"undefined": reason, "n": n}` or
    `{"value": value, "undefined": reason, "n": n}`.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = Field(ge=0)
    undefined: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        if isinstance(data, list | tuple):
            if len(data) != 4:
                raise ValueError("an estimate is a list of value, low, high and n")
            return dict(zip(("value", "low", "high", "n"), data, strict=True))
        return data

    @field_validator("value", "low", "high")
    @classmethod
    def _stored(cls, number: float | None) -> float | None:
        return None if number is None else rounded(number)

    @model_validator(mode="after")
    def _check(self) -> Estimate:
        if self.undefined is not None:
            complete = bool(self.undefined) and self.low is None and self.high is None
        else:
            complete = (
                self.value is not None
                and self.low is not None
                and self.high is not None
                and self.low <= self.value <= self.high
            )
        if not complete:
            raise ValueError(
                "an estimate holds low <= value <= high, or the reason why it has no interval and no ends"
            )
        return self

    @model_serializer(mode="wrap")
    def _short(self, whole: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        if info.mode != "json":
            return whole(self)
        if self.undefined is None:
            return [self.value, self.low, self.high, self.n]
        return {
            **({} if self.value is None else {"value": self.value}),
            "undefined": self.undefined,
            "n": self.n,
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        number, count = {"type": "number"}, {"type": "integer", "minimum": 0}
        figure = {
            "type": "array",
            "prefixItems": [number, number, number, count],
            "items": False,
            "minItems": 4,
        }
        missing = {
            "type": "object",
            "properties": {
                "value": number,
                "undefined": {"type": "string", "minLength": 1},
                "n": count,
            },
            "required": ["undefined", "n"],
            "additionalProperties": False,
        }
        about = "Value, low and high end of its 95 % interval, and number of facts; or the reason why there is none."
        return {"title": "Estimate", "description": about, "anyOf": [figure, missing]}

    def answer(self) -> dict[str, Any]:
        """`{"value", "low", "high"}` or `{"undefined": reason}`, with a `"value"` where there is one without an interval."""
        if self.undefined is not None:
            return {
                **({} if self.value is None else {"value": self.value}),
                "undefined": self.undefined,
            }
        return {"value": self.value, "low": self.low, "high": self.high}


NO_INTERVAL_OF_RANKS = "see median_rank"
"""Why a mean rank stands alone."""

NO_INTERVAL_OF_SITES = "all sites there are, not a sample: see the mean over plants"
"""Why a figure over sites stands alone."""


def _alone(reason: str) -> BeforeValidator:
    """Takes the interval off that records made before have."""

    def value_only(data: Any) -> Any:
        whole = isinstance(data, list | tuple) and len(data) == 4
        return {"value": data[0], "undefined": reason, "n": data[3]} if whole else data

    return BeforeValidator(value_only)


MeanRank = Annotated[Estimate, _alone(NO_INTERVAL_OF_RANKS)]
OverSites = Annotated[Estimate, _alone(NO_INTERVAL_OF_SITES)]
