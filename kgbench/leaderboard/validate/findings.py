"""Findings of checks, and how they show what a submitter wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LONGEST = 80
"""Characters of a submitter's own text that a finding repeats."""

_HARMLESS = re.compile(r"[\w +()^%.:@=,-]{1,120}", re.ASCII)
"""Names and keys that can be shown as they are."""


@dataclass(frozen=True)
class Finding:
    """What a check says of a field; nothing where its value is the expected one."""

    field: str
    """Field of a JSON file, column of the per-fact rows, or property of the file."""
    value: object
    """What it is; `clause` shows it."""
    expected: object = ""
    clause: str = "it is {}"
    """What is wrong; braces stand for the value."""
    refuses: bool = True
    """Whether the result is refused for it; otherwise it is a remark."""
    file: str = ""
    """Folder and name of the file, or the folder; set by `CheckedEntry.add`."""

    @property
    def wrong(self) -> str:
        """What is wrong, in words that can be printed anywhere."""
        return self.clause.replace("{}", shown(self.value))

    def __str__(self) -> str:
        note = "" if self.refuses else "note: "
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{note}{self.file}: {self.field}: {self.wrong}{expected}"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "file": self.file,
            "field": self.field,
            "wrong": self.wrong,
            "expected": str(self.expected) or None,
            "kind": "refusal" if self.refuses else "note",
        }


def shown(value: object) -> str:
    """A submitter's value as it can be printed anywhere: escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def shown_name(name: str) -> str:
    """A name or key as findings give it: as it is where it is harmless."""
    return name if _HARMLESS.fullmatch(name) else shown(name)
