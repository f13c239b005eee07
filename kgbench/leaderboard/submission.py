"""What comes with a result on the leaderboard: who says it, of which code, and who ran it again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kgbench.records import Record, Strict

__all__ = ["CODE", "NAME", "SAMPLE", "Submission", "Verification"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._+()=,-]{0,59}$"
"""Names that methods can have on the board: letters, digits and a few marks, so that they are fit for a page, a file and a table."""

CODE = r"^(https://[A-Za-z0-9.-]+/[A-Za-z0-9._~/-]+@[0-9a-f]{7,40}|[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+)$"
"""Where the code of a method is: `URL@COMMIT`, or `PACKAGE==VERSION`; never in the result itself."""


SAMPLE = 200
"""Facts that a verification runs again; all of them where there are no more."""


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
    record_hash: str | None = None
    """SHA-256 of `record.json`; verifications by kgbench 0.1.0 lack it."""
    facts_hash: str
    """SHA-256 of the `facts.parquet` that was compared."""
    kgbench: str
    """Version that ran it."""
    platform: str
    time: str
    """UTC, ISO 8601."""
    seed: int = Field(ge=0)
    """Of the sample."""
    drawn: Literal[True] | None = None
    """Whether the seed came from the randomness of the machine that verified, after submission."""
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

    def counts(self, record: Record) -> bool:
        """Whether it makes a record verified: all facts, or `SAMPLE` that nobody knew beforehand.

        Args:
            record: The record that was run again.
        """
        what = record.identity
        n = min(what.limit or what.dataset.n, what.dataset.n)
        return self.n >= n or (self.drawn is True and self.n >= SAMPLE)

    @property
    def about(self) -> str:
        """The sample in words, such as `20 known facts`."""
        return f"{self.n} {'facts' if self.drawn else 'known facts'}"

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"
