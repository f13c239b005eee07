"""Files of an entry in addition to its result: the submission, and the verification of a rerun."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from kgbench.records import Record, Strict

__all__ = [
    "CODE",
    "LAW",
    "NAME",
    "SAMPLE",
    "Contract",
    "Part",
    "Submission",
    "Verification",
    "law_names",
]

NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._+()=,-]{0,59}$"
"""Names of methods on the board: letters, digits and a few marks, fit for pages and files."""

CODE = (
    r"^(https://[A-Za-z0-9.-]+/[A-Za-z0-9._~/-]+@[0-9a-f]{7,40}"
    r"|[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+)$"
)
"""Location of a method's code: `URL@COMMIT`, or `PACKAGE==VERSION`; never in the result itself."""

LAW = r"^[a-z][a-z0-9_]{0,79}$"
"""Names of laws."""

SAMPLE = 200
"""Facts that a verification runs again; all of them where there are no more."""


def law_names(laws: Iterable[str]) -> str:
    """Laws in words."""
    return ", ".join(law.replace("_", " ") for law in laws)


class Contract(Strict):
    """What came of trying on a method the laws that localizers keep (`kgbench check-localizer`)."""

    kgbench: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+){2}$", max_length=20)]
    """Version that tried them."""
    laws: int = Field(ge=1, le=1000)
    """How many were tried, each on several families of models."""
    broken: tuple[Annotated[str, Field(pattern=LAW)], ...] = Field(default=(), max_length=100)
    """Names of those that do not hold."""

    @property
    def about(self) -> str:
        """The outcome in words."""
        if not self.broken:
            return f"all {self.laws} laws hold"
        return f"{len(self.broken)} of {self.laws} laws broken: {law_names(self.broken)}"


class Part(Strict):
    """A file that goes with a record."""

    schema_version: Literal[1] = 1
    record: str
    """Id of the record that it goes with."""

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


class Submission(Part):
    """`submission.json`: the method's name on the board, and where its code is."""

    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of `record.json` and of `facts.parquet`, by which any damaged byte is detected."""
    name: Annotated[str, Field(pattern=NAME)]
    code: Annotated[str, Field(pattern=CODE, max_length=200)]
    paper: Annotated[str, Field(pattern=r"^https://[^\s<>\"']+$", max_length=200)] | None = None
    contract: Contract | None = None
    """Contract test results of the submitter: a claim until verified; None if not run."""


class Verification(Part):
    """`verification.json`: a sample of facts that was run again, and what came of it."""

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
    contract: Contract | None = None
    """The laws as whoever verified found them; None where only rows were compared."""

    def counts(self, record: Record) -> bool:
        """Whether it makes a record verified: all facts, or `SAMPLE` drawn after submission.

        Args:
            record: The record that was run again.
        """
        enough = self.n >= record.identity.n_facts
        return enough or (self.drawn is True and self.n >= SAMPLE)

    @property
    def about(self) -> str:
        """The sample in words, such as `20 known facts`."""
        return f"{self.n} {'facts' if self.drawn else 'known facts'}"
