"""The published JSON Schemas of an entry's files."""

from __future__ import annotations

import json
from typing import Any

from kgbench.leaderboard.submission import Submission, Verification
from kgbench.records import FIGURES, Record

__all__ = ["schemas"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """The text of each schema by the name of its file, without the ending."""
    contents = {
        "record": _record(),
        "submission": Submission.model_json_schema(),
        "verification": Verification.model_json_schema(),
    }
    texts = {}
    for name, schema in contents.items():
        texts[name] = json.dumps({"$schema": _DIALECT, **schema}, indent=1, ensure_ascii=False)
    return texts


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
