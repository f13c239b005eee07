"""An estimate: a value with a 95 % interval and its number of facts, or why there is none.

It is the same in statistics, in records and in what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SerializationInfo
    from pydantic_core import CoreSchema

DIGITS = 6
"""Significant digits of a stored estimate: more than any interval resolves."""

_FORMAT = f".{DIGITS}g"
_LISTS = (list, tuple)


def rounded(number: float) -> float:
    """The number as it is stored."""
    return float(format(number, _FORMAT))


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, or the reason why there is none; in JSON as `stored` writes it.

    Raises:
        ValueError: If it is neither complete (finite, low <= value <= high) nor without an
            interval and with a reason.
    """

    value: float | None = None
    """The estimate from all facts."""
    low: float | None = None
    """Lower end of the interval."""
    high: float | None = None
    """Upper end of the interval."""
    n: int = 0
    """Number of facts."""
    undefined: str | None = None
    """Why there is no value or, where there is one, why it has no interval."""

    def __post_init__(self) -> None:
        value, low, high = self.value, self.low, self.high
        if self.undefined is not None:
            valid = bool(self.undefined) and low is None and high is None
            valid = valid and (value is None or isfinite(value))
        elif value is None or low is None or high is None:
            valid = False
        else:
            valid = isfinite(low) and isfinite(high) and low <= value <= high
        if not valid:
            raise ValueError(
                "an estimate holds finite low <= value <= high, or the reason why it has no "
                f"interval and no ends: {(value, low, high)}, {self.undefined!r}"
            )

    @property
    def numbers(self) -> tuple[float, float, float] | None:
        """Value, low and high end; None without an interval."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return self.value, self.low, self.high

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and 0 is not in it."""
        return self.numbers is not None and not self.numbers[1] <= 0 <= self.numbers[2]

    @classmethod
    def hull(cls, value: float, n: int, *intervals: tuple[float, float]) -> Estimate:
        """The estimate with the smallest interval that holds the value and all given intervals."""
        ends = [float(value)]
        for low, high in intervals:
            ends += [float(low), float(high)]
        return cls(float(value), min(ends), max(ends), n)

    @classmethod
    def missing(cls, reason: str, n: int = 0) -> Estimate:
        """The estimate that is undefined for this reason."""
        return cls(n=n, undefined=reason)

    @classmethod
    def alone(cls, value: float, n: int, reason: str) -> Estimate:
        """The value that has no interval for this reason."""
        return cls(float(value), n=n, undefined=reason)

    def one_minus(self) -> Estimate:
        """The estimate of 1 - x; undefined stays undefined."""
        if self.value is None:
            return self
        if self.numbers is None:
            return Estimate(1 - self.value, n=self.n, undefined=self.undefined)
        value, low, high = self.numbers
        return Estimate(1 - value, 1 - high, 1 - low, self.n)

    def within(self, low: float, high: float) -> Estimate:
        """The estimate with the part of its interval that lies between these bounds."""
        if self.numbers is None:
            return self
        value, start, end = self.numbers
        return Estimate(value, min(value, max(low, start)), max(value, min(high, end)), self.n)

    def rounded(self) -> Estimate:
        """The estimate as a record holds it, with `DIGITS` significant digits."""
        value, low, high = self.value, self.low, self.high
        return Estimate(
            None if value is None else rounded(value),
            None if low is None else rounded(low),
            None if high is None else rounded(high),
            int(self.n),
            self.undefined,
        )

    def answer(self) -> dict[str, Any]:
        """`{"value", "low", "high"}`, or `{"undefined": reason}` with the value if there is one."""
        if self.undefined is None:
            return {"value": self.value, "low": self.low, "high": self.high}
        value = {} if self.value is None else {"value": self.value}
        return {**value, "undefined": self.undefined}

    def to_json(self) -> dict[str, Any]:
        """As `answer`, with the number of facts `"n"`."""
        return {**self.answer(), "n": self.n}

    def stored(self) -> list[Any] | dict[str, Any]:
        """As in `record.json`: `[value, low, high, n]`, or as `to_json` where it has a reason."""
        if self.undefined is None:
            return [self.value, self.low, self.high, self.n]
        return self.to_json()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        number = core_schema.nullable_schema(core_schema.float_schema(allow_inf_nan=False))
        fields = {}
        for name in ("value", "low", "high"):
            fields[name] = core_schema.typed_dict_field(number, required=False)
        fields["n"] = core_schema.typed_dict_field(core_schema.int_schema(ge=0))
        reason = core_schema.nullable_schema(core_schema.str_schema())
        fields["undefined"] = core_schema.typed_dict_field(reason, required=False)
        return core_schema.no_info_wrap_validator_function(
            _read,
            core_schema.typed_dict_schema(fields, extra_behavior="forbid"),
            serialization=core_schema.plain_serializer_function_ser_schema(_write, info_arg=True),
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        number, count = {"type": "number"}, {"type": "integer", "minimum": 0}
        complete = {
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
        about = (
            "Value, low and high end of its 95 % interval, and number of facts; "
            "or the reason why there is none."
        )
        return {"title": "Estimate", "description": about, "anyOf": [complete, missing]}


def _read(data: Any, fields: Callable[[Any], Mapping[str, Any]]) -> Estimate:
    """An estimate of a record, from an estimate or one of the forms of `Estimate.stored`."""
    if isinstance(data, Estimate):
        return data
    if isinstance(data, _LISTS):
        if len(data) != 4:
            raise ValueError("an estimate is a list of value, low, high and n")
        value, low, high, n = data
        data = {"value": value, "low": low, "high": high, "n": n}
    return Estimate(**fields(data))


def _write(estimate: Estimate, info: SerializationInfo) -> Any:
    return estimate.stored() if info.mode == "json" else dict(vars(estimate))


def plain(value: Any, counted: bool = False) -> Any:
    """The value as JSON: estimates, dataclasses and models as objects, sequences as lists.

    Args:
        value: Estimates, dataclasses, models, mappings and sequences of these; others stay.
        counted: Whether estimates have their number of facts.
    """
    if isinstance(value, Estimate):
        return value.to_json() if counted else value.answer()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump"):
        value = dict(value)
    if isinstance(value, Mapping):
        return {key: plain(item, counted) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, counted) for item in value]
    return value
