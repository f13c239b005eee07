"""The published JSON Schemas of an entry's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kgbench.leaderboard.submission import Submission, Verification
from kgbench.records import FIGURES, Record

__all__ = ["schema_names", "schemas"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_names() -> tuple[str, ...]:
    """Of which files there are schemas, without their endings."""
    return ("record", "submission", "verification")


def schemas() -> Iterator[tuple[str, str]]:
    """Name and text of each schema, such as `record.schema.json`."""
    for name, schema in zip(
        schema_names(),
        (_record(), Submission.model_json_schema(), Verification.model_json_schema()),
        strict=True,
    ):
        yield (
            f"{name}.schema.json",
            json.dumps({"$schema": _DIALECT, **schema}, indent=1, ensure_ascii=False) + "\n",
        )


def _record() -> dict[str, Any]:
    """The record's schema; in JSON a row that the method cannot express is a line with its reason."""
    schema = Record.model_json_schema()
    rows = schema["$defs"]
    rows["MeasuredRow"] = {**rows.pop("Row"), "title": "MeasuredRow"}
    kept = {
        key: field
        for key, field in rows["MeasuredRow"]["properties"].items()
        if key in ("prompt", "graft", "dropped")
    }
    absent = {"type": "string", "description": "Why the method cannot express the configuration."}
    rows["AbsentRow"] = {
        "title": "AbsentRow",
        "description": f"A configuration without figures ({', '.join(FIGURES)}).",
        "type": "object",
        "properties": {**kept, "absent": absent},
        "required": [*kept, "absent"],
        "additionalProperties": False,
    }
    rows["Row"] = {"anyOf": [{"$ref": "#/$defs/MeasuredRow"}, {"$ref": "#/$defs/AbsentRow"}]}
    return schema
