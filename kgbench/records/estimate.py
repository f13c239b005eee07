"""A figure as it is stored."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from kgbench.records.identity import Strict

__all__ = ["Estimate"]


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
