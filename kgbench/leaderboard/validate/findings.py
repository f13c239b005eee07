"""What a check found: the file, the field, what is wrong there, and what was expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Finding", "refusals", "shown"]

_LONGEST = 80
"""Characters of a submitter's own text that a finding repeats."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    file: str
    """Folder and name of the file, or the folder."""
    field: str
    """Field of a JSON file, column of the per-fact rows, or what about the file."""
    wrong: str
    expected: str = ""
    refuses: bool = True
    """Whether the result is refused for it; otherwise it is a remark."""

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        return (
            f"{'' if self.refuses else 'note: '}{self.file}: {self.field}: {self.wrong}{expected}"
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = {
            "file": self.file,
            "field": self.field,
            "wrong": self.wrong,
            "expected": self.expected or None,
        }
        return {**found, "kind": "refusal" if self.refuses else "note"}


def refusals(findings: list[Finding]) -> list[Finding]:
    """Those for which a result is refused."""
    return [finding for finding in findings if finding.refuses]


def shown(value: object) -> str:
    """A submitter's value as it can be printed anywhere: escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
