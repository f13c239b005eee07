"""What comes with a result on the leaderboard: who says it, of which code, and who ran it again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kgbench.records import Strict

__all__ = ["CODE", "NAME", "Submission", "Verification"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._+()=,-]{0,59}$"
"""Names that methods can have on the board: letters, digits and a few marks, so that they are fit for a page, a file and a table."""

CODE = r"^(https://[A-Za-z0-9.-]+/[A-Za-z0-9._~/-]+@[0-9a-f]{7,40}|[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+)$"
"""Where the code of a method is: `URL@COMMIT`, or `PACKAGE==VERSION`; never in the result itself."""


class Submission(Strict):
    """`submission.json`: the method's name on the board, and where its code is."""

    schema_version: Literal[1] = 1
    record: str
    """Id of the record that it goes with."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of `record.json` and of `facts.parquet`, so that a damaged byte is told wherever it is."""
    name: Annotated[str, Field(pattern=NAME)]
    code: Annotated[str, Field(pattern=CODE, max_length=200)]
    paper: Annotated[str, Field(pattern=r"^https://[^\s<>\"']+$", max_length=200)] | None = None

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


class Verification(Strict):
    """`verification.json`: a sample of facts that was run again, and what came of it."""

    schema_version: Literal[1] = 1
    record: str
    """Id of the record that it goes with."""
    facts_hash: str
    """SHA-256 of the `facts.parquet` that was compared."""
    kgbench: str
    """Version that ran it."""
    platform: str
    time: str
    """UTC, ISO 8601."""
    seed: int
    """Of the sample."""
    n: int = Field(ge=1)
    """Facts in it."""
    rows: int = Field(ge=1)
    """Per-fact rows compared."""
    largest_difference: float = Field(ge=0)
    """Of log-probabilities, in nats."""
    changed_hits: int = Field(ge=0)
    """Rows whose top-5 hit came out otherwise."""
    tolerance: float = Field(gt=0)
    """Largest difference at which a row counts as the same."""

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(indent=1) + "\n"
