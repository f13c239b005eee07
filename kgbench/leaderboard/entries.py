"""Entries of the leaderboard: records with their submission and verification."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field, ValidationError

from kgbench.errors import DataError, InputError, UnknownNameError, first_fault
from kgbench.leaderboard.hits import COLUMNS, PromptHits, RankGrid, hits_by_prompt, rank_grid
from kgbench.leaderboard.limits import FACTS, FILES, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.packs import SUFFIX, inside_pack, packs_below, read_pack
from kgbench.records import (
    FIGURES,
    Record,
    Strict,
    choose_run,
    claimed_id,
    load_record,
    parse_record,
    read_facts,
    read_record,
)
from kgbench.sites.configurations import parse_top

# ---------------------------------------------------------------------------- files beside a record


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


_P = TypeVar("_P", bound=Part)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """The text of each schema by the name of its file, without the ending."""
    contents = {
        "record": _record_schema(),
        "submission": Submission.model_json_schema(),
        "verification": Verification.model_json_schema(),
    }
    texts = {}
    for name, schema in contents.items():
        texts[name] = json.dumps({"$schema": _DIALECT, **schema}, indent=1, ensure_ascii=False)
    return texts


def _record_schema() -> dict[str, Any]:
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


# ------------------------------------------------------------------------------------------ entries


ENTRIES = Path("leaderboard", "results")
"""Where the entries of the leaderboard are, seen from a checkout."""

BOARDS = ("planted", "pathways", "budget")
"""Boards that records have figures for, each the name of a folder of packs."""

BOARD_FACTS: Mapping[str, int] = {"budget": 100}
"""Number of facts of a pair, the first ones, in a run of a board; of boards not named, all.

A budget curve takes eleven grafts per prompt, and often a scan of every site besides.
"""

Badge = Literal["verified", "self-reported", "published", "yours"]
"""Source of figures: verified, self-reported, the paper, or the reader's own runs."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A record on the leaderboard."""

    folder: Path
    """Its folder; of a packed entry the path of the pack and the entry's name in it."""
    record: Record
    submission: Submission | None
    """None of a reader's own run, which was never submitted."""
    verification: Verification | None
    packed: Mapping[str, bytes] | None = None
    """The files of a packed entry."""

    @property
    def pack(self) -> Path | None:
        """The pack that it is in."""
        return None if self.packed is None else self.folder.parent

    def content(self, name: str) -> bytes:
        """The bytes of one of its files."""
        return (self.folder / name).read_bytes() if self.packed is None else self.packed[name]

    def files(self) -> Mapping[str, bytes]:
        """Name and bytes of each of its files."""
        if self.packed is not None:
            return self.packed
        return {name: self.content(name) for name in FILES if (self.folder / name).is_file()}

    @property
    def method(self) -> str:
        """The method's name on the board; a run that was never submitted has a line of its own."""
        return f"{self.localizer} (yours)" if self.submission is None else self.submission.name

    @property
    def verified(self) -> bool:
        """Whether all facts, or enough that were drawn after submission, were run again."""
        return self.verification is not None and self.verification.counts(self.record)

    @property
    def badge(self) -> Badge:
        """`verified`, `self-reported` or `yours`."""
        if self.submission is None:
            return "yours"
        return "verified" if self.verified else "self-reported"

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
        return self.record.model

    @property
    def localizer(self) -> str:
        """The name of the localizer."""
        return self.record.identity.localizer.name

    @property
    def suite(self) -> str:
        """The suite that it ran: `planted`, `budget` or `pathways`."""
        return suite_of(self.record)

    @cached_property
    def ranks(self) -> RankGrid:
        """Ranks of all facts under all configurations."""
        return rank_grid(read_facts(self.folder / FACTS, self.content(FACTS), COLUMNS))

    @cached_property
    def hits(self) -> Mapping[str, PromptHits]:
        """Per-fact hits of each prompt."""
        return hits_by_prompt(self.ranks)

    def facts(self) -> pa.Table:
        """Its per-fact rows."""
        return read_facts(self.folder / FACTS, self.content(FACTS))


def suites_of(record: Record) -> tuple[str, ...]:
    """Boards that a record has figures for: `planted`, or `pathways`, `budget` or both."""
    if record.planted is not None:
        return ("planted",)
    asked = record.identity.configurations
    pathways = ("pathways",) if "FE+LT" in asked else ()
    return (*pathways, *(("budget",) if any(map(parse_top, asked)) else ()))


def suite_of(record: Record) -> str:
    """The suite that a record is of: `planted`, `budget` or `pathways`."""
    return (suites_of(record) or ("pathways",))[-1]


def entry_name(record: Record, method: str) -> str:
    """The name of an entry: method, pair, prompts, and the first twelve digits of the id.

    Args:
        record: Its record.
        method: The method's name on the board.
    """
    words = _slug("-".join((method, record.model, *record.identity.prompts)))
    return f"{words[:80].strip('-._+')}-{record.id[:12]}"


def pack_name(record: Record, method: str) -> str:
    """The pack that an entry belongs into, as a path in the results; arguments as of `entry_name`.

    Raises:
        DataError: The record has figures for no board.
    """
    if not (boards := suites_of(record)):
        raise DataError(f"{entry_name(record, method)}: its configurations are those of no board")
    return pack_of(boards[0], method)


def pack_of(board: str, method: str) -> str:
    """The pack of a method's entries on a board, as a path in the results."""
    return f"{board}/{_slug(method)}{SUFFIX}"


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+]+", "-", words).strip("-._+")


# ------------------------------------------------------------------------------------------ reading


def read_entries(results: Path) -> Iterator[Entry]:
    """All entries below a folder: those that are folders, by name, then those of each pack.

    Raises:
        DataError: If one does not read; the message names it.
    """
    yield from map(read_entry, loose_entries(results))
    for pack in packs_below(results):
        for name, files in read_pack(pack).items():
            yield _packed(pack / name, files)


def loose_entries(results: Path) -> list[Path]:
    """The entries of a folder that are folders themselves."""
    return sorted(path.parent for path in results.glob(f"*/{RECORD}"))


def read_entry(folder: Path) -> Entry:
    """One entry that is a folder.

    Raises:
        DataError: If a part of it does not read, or goes with another record.
    """
    record = read_record(folder).record
    beside = {name: folder / name for name in FILES[2:] if (folder / name).is_file()}
    return _entry(folder, record, {name: path.read_bytes() for name, path in beside.items()})


def _packed(place: Path, files: Mapping[str, bytes]) -> Entry:
    """A packed entry."""
    for name in FILES[:2]:
        if name not in files:
            raise DataError(f"{place / name}: it is missing")
    record = parse_record(files[RECORD], place / RECORD)
    return replace(_entry(place, record, files), packed=files)


def _entry(place: Path, record: Record, files: Mapping[str, bytes]) -> Entry:
    submission = _part(place / SUBMISSION, record, files, Submission)
    verification = _part(place / VERIFICATION, record, files, Verification)
    return Entry(place, record, submission, verification)


def _part(path: Path, record: Record, files: Mapping[str, bytes], model: type[_P]) -> _P | None:
    """A file that goes with a record; None where there is none."""
    if path.name not in files:
        return None
    try:
        part = model.model_validate_json(files[path.name])
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error, 'content')}") from error
    if part.record != record.id:
        raise DataError(f"{path}: record: it goes with another record than the one beside it")
    return part


def find_run(run: str | os.PathLike[str], results: Path) -> Entry:
    """The run that a user means.

    Args:
        run: Its folder, its `record.json`, a pack of the leaderboard with the entry's name after
            it, or the start of its id or name.
        results: Where it is looked up by its start; then among the entries of the leaderboard,
            where there are any.

    Raises:
        DataError: A path is given and no whole record lies there.
        InputError: Several runs start like this.
        UnknownNameError: None does.
    """
    text = os.fspath(run)
    if inside_pack(Path(text)) is not None:
        return find_entry(text, ENTRIES)
    try:
        return read_entry(load_record(text, results).path)
    except UnknownNameError:
        if not ENTRIES.is_dir():
            raise
    return find_entry(text, ENTRIES)


def find_entry(run: str, results: Path) -> Entry:
    """The entry that a user means.

    Args:
        run: The start of its id or of its name, or the path of a pack, with the entry's name after
            it unless it is the only one.
        results: Where it is looked up by its start.

    Raises:
        DataError: A pack does not read.
        InputError: Several entries start like this.
        UnknownNameError: None does.
    """
    inside = inside_pack(Path(run))
    packs, loose, wanted = packs_below(results), loose_entries(results), run
    if inside is not None:
        results, wanted = inside
        packs, loose = [results], []
    packed: dict[Path, Mapping[str, bytes]] = {}
    for pack in packs:
        packed |= {pack / name: files for name, files in read_pack(pack).items()}
    ids = {place: claimed_id(files.get(RECORD, b"")) for place, files in packed.items()}
    ids |= {folder: claimed_id((folder / RECORD).read_bytes()) for folder in loose}
    if inside is not None and not wanted:
        first, *more = [place.name for place in ids]
        if more:
            raise InputError(f"{run} holds {len(ids)} entries: give one as {results / first}")
        wanted = first
    place = choose_run(wanted, ids, str(results))
    return _packed(place, packed[place]) if place in packed else read_entry(place)
