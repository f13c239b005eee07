"""Entries of the leaderboard: records with their submission and verification."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field, ValidationError

from kgbench.errors import DataError, InputError, UnknownNameError, first_fault
from kgbench.leaderboard.folders import (
    Documents,
    MethodFolder,
    document_hash,
    folders_below,
    inside_folder,
    read_folder,
    rows_hash,
)
from kgbench.leaderboard.hits import METRIC, PromptHits, hits_by_prompt
from kgbench.leaderboard.known import Shipped, judged_anew, planted_of, shipped_of
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.models.catalog import describe_organisms
from kgbench.records import (
    Planted,
    Record,
    Result,
    Strict,
    choose_run,
    load_record,
    parse_record,
    read_facts,
    read_record,
)
from kgbench.records.fact_rows import STORED, Spans, spans, with_derived
from kgbench.sites.configurations import parse_top
from kgbench.stats import with_figures

# ---------------------------------------------------------------------------- files of a record


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
    """A document that goes with a record, and the hashes by which a change of either is found."""

    schema_version: Literal[2] = 2
    record: str
    """Id of the record that it goes with."""
    record_hash: str
    """SHA-256 of the record, without figures, as canonical JSON: keys sorted, no blanks, UTF-8."""
    facts_hash: str
    """SHA-256 of the per-fact rows, as of `rows_hash`."""

    def to_json(self) -> dict[str, Any]:
        """The JSON value, as kgbench writes it."""
        return self.model_dump(mode="json", exclude_none=True)


class Submission(Part):
    """The method's name on the board, and where its code is."""

    name: Annotated[str, Field(pattern=NAME)]
    code: Annotated[str, Field(pattern=CODE, max_length=200)]
    paper: Annotated[str, Field(pattern=r"^https://[^\s<>\"']+$", max_length=200)] | None = None
    contract: Contract | None = None
    """Contract test results of the submitter: a claim until verified; None if not run."""
    source: Literal["self-reported"] | None = None
    """None of the project's own runs of its own methods, which no pull request can add."""


class Verification(Part):
    """A sample of facts that was run again, and what came of it."""

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

    def counts(self, record: Result) -> bool:
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


_P = TypeVar("_P", bound=Part)


# ------------------------------------------------------------------------------------------ entries


ENTRIES = Path("leaderboard", "results")
"""Where the entries of the leaderboard are, seen from a checkout."""

BOARDS: Mapping[str, int] = {"planted": 2, "pathways": 1, "budget": 1, "organisms": 1}
"""Version of each board that records have figures for; its name is that of a folder of method
folders. In version 1 of planted, grafts decided what counted as true."""

BOARD_FACTS: Mapping[str, int] = {"budget": 100}
"""Number of facts of a pair, the first ones, in a run of a board; of boards not named, all.

A budget curve takes eleven grafts per prompt, and often a scan of every site besides.
"""

BOARD_METRICS: Mapping[str, str] = {"organisms": "logprob"}
"""Metric of a board; of boards not named, the paper's."""

Badge = Literal["verified", "maintainers", "self-reported", "published", "yours"]
"""Source of figures: verified, the project's own runs of its own methods, self-reported, the paper,
or the reader's own runs.
"""

SOURCES: Mapping[Badge, str] = {
    "verified": "a maintainer ran it again and it agreed",
    "maintainers": "the project's own run of its own method",
    "self-reported": "only the submitter has run it",
    "published": "a paper's figure",
    "yours": "not submitted",
}
"""What each means."""

TRUSTED: tuple[Badge, ...] = ("verified", "maintainers")
"""Those of runs by the project."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A record on the leaderboard."""

    folder: Path
    """Its folder; on the board the method folder and the entry's name."""
    result: Result
    """What was measured; of a run's own folder its record."""
    submission: Submission | None = None
    """None of a reader's own run, which was never submitted."""
    verification: Verification | None = None
    home: MethodFolder | None = None
    """The method folder that it is in; None of a run's own folder."""

    @property
    def documents(self) -> Documents:
        """As they are stored on the board; none of a run's own folder."""
        return {} if self.home is None else self.home.documents[self.folder.name]

    @property
    def method_folder(self) -> Path | None:
        """The method folder that it is in; None of a run's own folder."""
        return None if self.home is None else self.home.path

    @property
    def method(self) -> str:
        """The method's name on the board; a run that was never submitted has a line of its own."""
        return f"{self.localizer} (yours)" if self.submission is None else self.submission.name

    @property
    def verified(self) -> bool:
        """Whether all facts, or enough that were drawn after submission, were run again."""
        return self.verification is not None and self.verification.counts(self.result)

    @property
    def badge(self) -> Badge:
        """`verified`, `maintainers`, `self-reported` or `yours`."""
        if self.submission is None:
            return "yours"
        if self.verified:
            return "verified"
        # No other method may have the name or the code of a built-in one.
        built_in = self.submission.code == f"kgbench=={self.result.provenance.kgbench}"
        return "maintainers" if built_in and not self.submission.source else "self-reported"

    @property
    def contract(self) -> Contract | None:
        """Contract test results, of the verification or else the submission; None if not run."""
        for part in (self.verification, self.submission):
            if part is not None and part.contract is not None:
                return part.contract
        return None

    @property
    def untried(self) -> bool:
        """Whether it was submitted without a trial of the laws on its method."""
        return self.submission is not None and self.contract is None

    @property
    def pair(self) -> str:
        """The name of the model pair."""
        return self.result.model

    @property
    def localizer(self) -> str:
        """The name of the localizer."""
        return self.result.identity.localizer.name

    @property
    def suites(self) -> tuple[str, ...]:
        """Boards that it has figures for, as of `suites_of`."""
        return suites_of(self.result)

    @property
    def suite(self) -> str:
        """The suite that it ran: `planted`, `organisms`, `budget` or `pathways`."""
        return (self.suites or ("pathways",))[-1]

    @property
    def board(self) -> str:
        """That suite with the version of its board."""
        return versioned(self.suite)

    @cached_property
    def record(self) -> Record:
        """With all figures, which on the board follow from its rows.

        Raises:
            DataError: The rows are not those of such a result.
        """
        if isinstance(self.result, Record):
            return self.result
        made = with_figures(self.result, self.facts(), self.result.metric)
        return judged_anew(made, self.planted)

    @cached_property
    def planted(self) -> Planted | None:
        """Its map against the ground truth; pathways are compared in its record alone."""
        if isinstance(self.result, Record):
            return self.result.planted
        return None if self.result.identity.truth is None else planted_of(self.result, self.facts())

    @cached_property
    def hits(self) -> Mapping[str, PromptHits]:
        """Per-fact hits of each prompt."""
        if self.home is None:
            return hits_by_prompt(self.facts())
        return self.home.hits(self.folder.name)

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """Of each document, and of the rows."""
        hashes = {name: document_hash(value) for name, value in self.documents.items()}
        return {**hashes, FACTS: rows_hash(self.rows())}

    @cached_property
    def places(self) -> Spans:
        """Where its rows of each prompt and configuration are."""
        return spans(self.rows())

    @cached_property
    def shipped(self) -> Shipped:
        """What is known of its data and models."""
        return shipped_of(self.result)

    def rows(self) -> pa.Table:
        """Its per-fact rows as stored."""
        if self.home is None:
            return self.facts().select(STORED.names)
        return self.home.rows(self.folder.name)

    def facts(self) -> pa.Table:
        """Its per-fact rows."""
        if self.home is None:
            return read_facts(self.folder / FACTS)
        return with_derived(self.rows())


def versioned(board: str) -> str:
    """The name of a board with its version, such as `planted@2`."""
    return f"{board}@{BOARDS.get(board, 1)}"


def suites_of(record: Result) -> tuple[str, ...]:
    """Boards that a record has figures for: `planted`, `organisms`, or `pathways`, `budget` or both."""
    if record.identity.truth is not None:
        return ("planted",)
    if record.model in describe_organisms():
        return ("organisms",)
    grafts = record.identity.configurations
    pathways = ("pathways",) if "FE+LT" in grafts else ()
    return (*pathways, *(("budget",) if any(map(parse_top, grafts)) else ()))


def metric_of(record: Result) -> str:
    """The metric of ratios on the boards that a record has figures for."""
    return BOARD_METRICS.get((*suites_of(record), "")[0], METRIC)


def entry_name(record: Result, method: str) -> str:
    """The name of an entry: method, pair, prompts, and the first twelve digits of the id.

    Args:
        record: Its record.
        method: The method's name on the board.
    """
    words = _slug("-".join((method, record.model, *record.identity.prompts)))
    return f"{words[:80].strip('-._+')}-{record.id[:12]}"


def folder_name(record: Result, method: str) -> str:
    """The method folder that an entry belongs into, as a path in the results.

    Args:
        record: Its record.
        method: The method's name on the board.

    Raises:
        DataError: The record has figures for no board.
    """
    if not (boards := suites_of(record)):
        raise DataError(f"{entry_name(record, method)}: its configurations are those of no board")
    return folder_of_method(boards[0], method)


def folder_of_method(board: str, method: str) -> str:
    """The folder of a method's entries on a board, as a path in the results."""
    return f"{board}/{_slug(method)}"


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+]+", "-", words).strip("-._+")


# ------------------------------------------------------------------------------------------ reading


def read_entries(results: Path) -> Iterator[Entry]:
    """All entries of a leaderboard's results, those of each method by name.

    Raises:
        DataError: If one does not read; the message names it.
    """
    for folder in map(read_folder, folders_below(results)):
        for name in folder.documents:
            yield _entry(folder, name)


def read_run(folder: Path) -> Entry:
    """A run's own folder as an entry that was not submitted.

    Raises:
        DataError: If the record does not read.
    """
    return Entry(folder, read_record(folder).record)


def _entry(folder: MethodFolder, name: str) -> Entry:
    """An entry of a method folder."""
    place, documents = folder.path / name, folder.documents[name]
    record = parse_record(documents.get(RECORD), place / RECORD, Result)
    submission = _part(place / SUBMISSION, record, documents, Submission)
    verification = _part(place / VERIFICATION, record, documents, Verification)
    return Entry(place, record, submission, verification, folder)


def _part(path: Path, record: Result, documents: Documents, model: type[_P]) -> _P | None:
    """A document that goes with a record; None where there is none."""
    if path.name not in documents:
        return None
    try:
        part = model.model_validate(documents[path.name])
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error, 'content')}") from error
    if part.record != record.id:
        raise DataError(f"{path}: record: it goes with another record than the one here")
    return part


def find_run(run: str | os.PathLike[str], results: Path) -> Entry:
    """The run that a user means.

    Args:
        run: Its folder, its `record.json`, a method folder of the leaderboard with the entry's
            name after it, or the start of its id or name.
        results: Where it is looked up by its start; then among the entries of the leaderboard,
            where there are any.

    Raises:
        DataError: A path is given and no whole record lies there.
        InputError: Several runs start like this.
        UnknownNameError: None does.
    """
    text = os.fspath(run)
    if inside_folder(Path(text)) is None:
        try:
            stored = load_record(text, results)
            return Entry(stored.path, stored.record)
        except UnknownNameError:
            if not ENTRIES.is_dir():
                raise
    return find_entry(text, ENTRIES)


def find_entry(run: str, results: Path) -> Entry:
    """The entry that a user means.

    Args:
        run: The start of its id or of its name, or the path of a method folder, with the entry's
            name after it unless it is the only one.
        results: Where it is looked up by its start.

    Raises:
        DataError: A method folder does not read.
        InputError: Several entries start like this.
        UnknownNameError: None does.
    """
    paths = folders_below(results)
    if (inside := inside_folder(Path(run))) is not None:
        (results, run), paths = inside, [inside[0]]
    folders = {path: read_folder(path) for path in paths}
    ids: dict[Path, str | None] = {}
    for path, folder in folders.items():
        for name, documents in folder.documents.items():
            ids[path / name] = documents.get(RECORD, {}).get("id")
    if not run and len(ids) > 1:
        raise InputError(f"{results} holds {len(ids)} entries: give one as {next(iter(ids))}")
    place = choose_run(run or next(iter(ids)).name, ids, str(results))
    return _entry(folders[place.parent], place.name)
