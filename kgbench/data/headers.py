"""What the first line of a JSONL file of facts may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from kgbench.errors import first_fault


def _file_name(name: str) -> str:
    """A name that may be in records and in names of folders."""
    if not re.fullmatch(r"\w[\w .:+-]{0,99}", name):
        raise ValueError(
            "expected letters, digits, blanks and _.:+-, at most 100 of them, and no path"
        )
    return name


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _with_parameters(readout: Any) -> Any:
    """A readout that is named alone, as one without parameters."""
    return {readout: {}} if isinstance(readout, str) and readout.strip() else readout


class Header(BaseModel):
    """The fields of a header; numbers in it arrive as text."""

    model_config = ConfigDict(extra="forbid")

    kgbench: Literal["1"]
    """Version of the file format."""
    name: Annotated[str, AfterValidator(_file_name)] = "facts"
    subject: Text = ""
    object: Text = ""
    columns: dict[str, Text] = {}
    templates: dict[str, Text] = {}
    training: list[Text] = []
    training_reversed: list[Text] = []
    readout: Annotated[
        dict[str, Any], Field(min_length=1, max_length=1), BeforeValidator(_with_parameters)
    ] = {}
    """What cases are read out by: one name, alone or with its parameters."""


def header_fault(header: Mapping[str, Any]) -> str | None:
    """What is wrong with a header; None for nothing."""
    try:
        Header.model_validate(header)
    except ValidationError as error:
        fields = ", ".join(Header.model_fields)
        return f"the header's field {first_fault(error, 'kgbench')}; it may hold {fields}"
    return None
