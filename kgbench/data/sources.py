"""External data sets: where they are, and how one relation of them becomes facts with wordings.

They are on the Hugging Face Hub, at one revision, or in local files.

A wording is a template of `kgbench.data.templates` whose subject is a field, so that the region FE
follows from it: it is the source's own template, or its prompt with the subject replaced by the
field. The rows are then imported as a user's own file is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from kgbench.data.facts import NO_PROMPT
from kgbench.data.imports import SCHEMA_VERSION, ImportOptions
from kgbench.data.rows import LACKING, Row, cell_at, cell_fault, read_rows, rows_of, text_cells
from kgbench.data.templates import PLACE, has_place, parse_template
from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.resources import read_toml

NO_VALUE = "without a value"
"""Reason for dropping a row: its subject, its object or a field of a template is empty."""

_NAMED = 12
"""Most relations that an error lists with their sizes, the largest first."""
_LISTED = 50
"""Most relations that a message names; of more only the close matches."""


@dataclass(frozen=True)
class FactSource:
    """A row of sources.toml, which documents each field; or a set on the Hub with named columns."""

    name: str
    about: str = ""
    licence: str | None = None
    hub: str | None = None
    split: str = "train"
    files: str | None = None
    relation: str | None = None
    subject: str | None = None
    object: str | None = None
    prompt: str | None = None
    frame: str = "{}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read in addition to subject and object."""
        return tuple(column for column in (self.relation, self.prompt) if column)

    def framed(self, wording: str) -> str:
        """A wording in the source's frame, such as ``Q: {} A:``."""
        return self.frame.replace("{}", wording)


@dataclass(frozen=True)
class Relation:
    """The facts of one relation, and its source's wordings for it."""

    name: str
    """Name of the data set."""
    facts: Mapping[int, Mapping[str, str]] = field(hash=False)
    """By row number, from 1 on: the fact's fields, as text."""
    asked: tuple[str, ...]
    """Wordings to evaluate in."""
    trained: tuple[str, ...]
    """Wordings to finetune in, up to the object."""
    dropped: Mapping[str, Sequence[int]] = field(hash=False)
    """By reason, the rows that were left out."""

    def to_jsonl(self, templates: Mapping[str, str]) -> str:
        """The file that a user would have written by hand, for `kgbench.data.imports`.

        Args:
            templates: Evaluation templates by name, in place of the source's own, which are then
                all for training. No training wording begins as an evaluation template does.
        """
        asked = dict(templates)
        if not asked:
            for number, wording in enumerate(self.asked, 1):
                asked[f"ask-{number}"] = wording
        begins = tuple(_unmarked(name, text) for name, text in asked.items())
        spare = (*self.asked, *self.trained) if templates else self.trained
        training = [f"{wording} {{object}}." for wording in spare if not wording.startswith(begins)]
        header = {
            "kgbench": SCHEMA_VERSION,
            "name": self.name,
            "templates": asked,
            "training": training,
        }
        rows = ({"id": f"{self.name}/{number}", **fact} for number, fact in self.facts.items())
        return "".join(json.dumps(row) + "\n" for row in (header, *rows))


_sources = partial(read_toml, __package__, "sources")


def source_names() -> tuple[str, ...]:
    """Names of the sources in sources.toml."""
    return tuple(_sources())


def load_source(name: str) -> FactSource:
    """A row of sources.toml.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _sources():
        hint = "Any set on the Hub can be read as hub:OWNER/NAME."
        raise UnknownNameError("source", name, _sources(), hint)
    return FactSource(name, **_sources()[name])


def named_relation(source: FactSource, asked: str | None) -> tuple[FactSource, str | None]:
    """A source, and the relation that ``--relation`` names.

    Where the source has no column of relations, ``COLUMN=VALUE`` names one, and ``COLUMN`` all.
    """
    if source.relation is not None or asked is None:
        return source, asked
    column, _, value = asked.partition("=")
    return replace(source, relation=column), value or None


def choose_fields(
    source: FactSource, given: ImportOptions
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Which columns of a source become which fields.

    Args:
        source: The source; the fields of a known one are named subject and object.
        given: Columns that the user names for subject, object and more fields, and templates,
            whose fields are taken too.

    Returns:
        From field to column, first the subject's and the object's; and the fields that no row may
        lack.

    Raises:
        InputError: A template does not read, or subject and object are the same.
    """
    subject, column = _role(
        source.subject, given.subject, ("subject", "first_actor"), given.columns
    )
    object_, other = _role(source.object, given.object, ("object", "second_actor"), given.columns)
    if column == other:
        raise InputError(
            f"{source.name}: subject and object are both the column {column!r}; "
            "name two different ones"
        )
    fields = {subject: column, object_: other, **given.columns}
    needed = {subject: None, object_: None}
    columns = dict(zip(fields, fields, strict=True))
    for name, text in given.templates.items():
        for part in parse_template(name, text).parts:
            if part.is_field and part.text not in ("subject", "object"):
                needed[part.text] = None
                columns[part.text] = part.text
    return {**columns, **fields}, tuple(needed)


def _role(
    known: str | None, given: str | None, names: tuple[str, str], columns: Mapping[str, str]
) -> tuple[str, str]:
    """The field that is subject or object, and its column."""
    if known is not None:
        return names[0], columns.get(names[0], given or known)
    name = given or next((name for name in reversed(names) if name in columns), names[0])
    field = next((field for field, column in columns.items() if column == name), name)
    return field, columns.get(field, field)


def read_relations(
    source: FactSource,
    records: Sequence[Row],
    fields: Mapping[str, str],
    needed: Sequence[str],
) -> Mapping[str, Relation]:
    """Sort the rows of a source by relation, and find its wordings.

    Args:
        source: The source.
        records: Its records.
        fields: From the name of a field, first subject and object, to the column that holds it.
        needed: Fields without which a row is dropped.

    Returns:
        Relations by the source's name for them, the largest first; under "" where it has no column
        of relations.

    Raises:
        DataError: There are no rows, or a value is no text.
        UnknownNameError: A column is lacking.
    """
    if not records:
        expected = f"; expected what is at {source.files}" if source.files else ""
        raise DataError(f"{source.name}: there are no facts in it{expected}")
    paths = (*fields.values(), *source.columns)
    _check_columns(source, records[0], paths)
    texts = {path: _texts(source, records, path) for path in paths}
    groups: dict[str, list[int]] = {}
    for number in range(1, len(records) + 1):
        name = texts[source.relation][number] if source.relation else ""
        groups.setdefault(name, []).append(number)
    relations = []
    for name, numbers in groups.items():
        relations.append((name, _relation(source, name, numbers, texts, fields, needed)))
    return dict(sorted(relations, key=lambda item: -len(item[1].facts)))


def choose_relation(
    source: FactSource, relations: Mapping[str, Relation], asked: str | None
) -> Relation:
    """The relation that was asked for, or the only one.

    Raises:
        UnknownNameError: There is none of this name.
        InputError: It has no facts, or none of several was asked for.
    """
    if asked is None and len(relations) > 1:
        sizes = [f"{name} ({len(each.facts)} facts)" for name, each in relations.items()]
        more = f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else ""
        raise InputError(
            f"{source.name} has {len(sizes)} relations, {', '.join(sizes[:_NAMED])}{more}: choose "
            "one by --relation"
        )
    if asked is not None and asked not in relations:
        known = relations if len(relations) <= _LISTED else get_close_matches(asked, relations)
        raise UnknownNameError(f"relation of {source.name}", asked, known)
    relation = relations[next(iter(relations)) if asked is None else asked]
    if not relation.facts:
        reasons = ", ".join(f"{len(rows)} {reason}" for reason, rows in relation.dropped.items())
        raise InputError(f"{relation.name}: no row is left ({reasons})")
    return relation


Texts = Mapping[str, Mapping[int, str]]
"""By column, the text of each row by its number."""


def _relation(
    source: FactSource,
    name: str,
    numbers: Sequence[int],
    texts: Texts,
    fields: Mapping[str, str],
    needed: Sequence[str],
) -> Relation:
    facts: dict[int, Mapping[str, str]] = {}
    dropped: dict[str, list[int]] = {NO_VALUE: [], NO_PROMPT: []}
    whole = []
    for number in numbers:
        facts[number] = {key: texts[path][number] for key, path in fields.items()}
        if all(facts[number][key] for key in needed):
            whole.append(number)
        else:
            dropped[NO_VALUE].append(number)
    wordings: Mapping[int, str | None] = {}
    if source.prompt is not None:
        prompts = texts[source.prompt]
        asked = {number: (prompts[number], facts[number]["subject"]) for number in whole}
        wordings = _wordings(source, asked)
    usable, frequency = [], Counter[str]()
    for number in whole:
        if not wordings.get(number) and source.prompt is not None:
            dropped[NO_PROMPT].append(number)
            continue
        usable.append(number)
        frequency.update(filter(None, (wordings.get(number),)))
    ranked = [wording for wording, _ in frequency.most_common()]
    return Relation(
        name=re.sub(r"[^\w.-]+", "-", f"{source.name}-{name}").strip("-"),
        facts={number: facts[number] for number in usable},
        asked=tuple(ranked[:1]),
        trained=tuple(ranked[1:]),
        dropped={reason: sorted(rows) for reason, rows in dropped.items() if rows},
    )


# --------------------------------------------------------------------------------------- wordings


def _wordings(source: FactSource, asked: Mapping[int, tuple[str, str]]) -> Mapping[int, str | None]:
    """By row, its wording with a field in place of the subject, where it holds that.

    Args:
        source: The source.
        asked: By row, its prompt and its subject.
    """
    possible: dict[int, list[str]] = {}
    for number, (prompt, subject) in asked.items():
        possible[number] = []
        if has_place(prompt, subject):
            marked = "{subject}".join(map(escaped, prompt.split(PLACE)))
            possible[number].append(source.framed(marked))
            continue
        # A field in place of each mention of the subject in turn.
        for match in re.finditer(f"(?={re.escape(subject)})", prompt):
            before, after = prompt[: match.start()], prompt[match.start() + len(subject) :]
            cleared = f"{escaped(before)}{{subject}}{escaped(after)}"
            possible[number].append(source.framed(cleared))
    # A name may be a word of the prompt too: then the wording that most rows share is meant.
    shared = Counter[str]()
    for wordings in possible.values():
        shared.update(wordings)
    best = {}
    for number, wordings in possible.items():
        best[number] = max(wordings, key=shared.__getitem__, default=None)
    return best


def escaped(text: str) -> str:
    """A text as part of a template, in which braces are doubled."""
    return text.replace("{", "{{").replace("}", "}}")


def _unmarked(name: str, text: str) -> str:
    """A template without the marks of its regions."""
    parts = parse_template(name, text).parts
    return "".join(f"{{{part.text}}}" if part.is_field else escaped(part.text) for part in parts)


# --------------------------------------------------------------------------------- rows and columns


def _texts(source: FactSource, records: Sequence[Row], path: str) -> Mapping[int, str]:
    """The column of a path as text, by the number of the row.

    Raises:
        DataError: A cell holds a list or an object.
    """
    cells = (cell_at(row, path) for row in records)
    texts = text_cells([None if cell is LACKING else cell for cell in cells])
    for number, text in enumerate(texts, 1):
        if (fault := cell_fault(path, text)) is not None:
            raise DataError(f"{source.name}, row {number}: column {path!r}: {fault}")
    return dict(enumerate(texts, 1))


def _column_names(row: Row, prefix: str = "") -> Iterator[str]:
    """The columns of a row that hold no object."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _column_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _check_columns(source: FactSource, row: Row, paths: Iterable[str]) -> None:
    for path in paths:
        if cell_at(row, path) is LACKING:
            hint = ""
            for name in source_names():
                other = load_source(name)
                named = filter(None, (other.subject, other.object, *other.columns))
                fits = all(cell_at(row, column) is not LACKING for column in named)
                if fits:
                    hint = f"It reads as --source {name}."
                    break
            raise UnknownNameError(f"column of {source.name}", path, _column_names(row), hint)


# ------------------------------------------------------------------------------- Hub and files

PREFIX = "hub:"
"""Prefix of a data set on the Hub: ``hub:OWNER/NAME``, then ``:CONFIG`` and ``@REVISION``."""

_HUB = re.compile(r"hub:(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@]+))?(?:@(?P<revision>.+))?")
_TIMEOUT = 10.0
"""Seconds for the request of a data set's metadata."""
_LONGEST = 300
"""Characters of another library's message that are passed on."""


@dataclass(frozen=True)
class Origin:
    """A place that exists, and whose rows are still to be read."""

    source: FactSource
    place: str
    """A file or folder, or ``hub:OWNER/NAME@REVISION`` with the commit of today."""
    split: str | None
    """Part of the data set; None for a file, which has none."""
    licence: str
    """What is known of the licence, and from where."""

    def lines(self) -> Iterator[str]:
        """Place and licence, to be shown before anything is read."""
        split = f", split {self.split}" if self.split else ""
        about = f": {self.source.about}" if self.source.about else ""
        yield f"from {self.place}{split}{about}"
        yield f"licence: {self.licence}"


def locate_source(source: FactSource | None, place: str | None, split: str | None) -> Origin:
    """Find a source without reading its rows; the Hub is asked for the commit and the licence.

    Args:
        source: The known source; None for a set on the Hub that is not known.
        place: A file, a folder or `PREFIX` with an id; None for the source's place on the Hub.
        split: The part to take, in place of the source's.

    Raises:
        InputError: There is no such place, or the Hub does not answer.
    """
    chosen = place if place is not None else f"{PREFIX}{source.hub if source else ''}"
    if chosen.startswith(PREFIX):
        return _on_hub(source, chosen, split)
    if source is None:
        raise InputError(f"{chosen}: to read a file as what it is, name its --source")
    chosen = str(Path(chosen).expanduser())
    has_splits = Path(chosen).is_dir()
    if not has_splits and not Path(chosen).is_file():
        raise InputError(f"{chosen}: there is no such file; {_alternative(source)}")
    if split is not None and not has_splits:
        raise InputError(f"{chosen} is read whole and has no splits; leave out --split")
    return Origin(
        source, chosen, (split or source.split) if has_splits else None, str(source.licence)
    )


def fetch_rows(origin: Origin) -> list[Row]:
    """Read the rows of a source, from the Hub through the library datasets, without its code.

    Raises:
        InputError: The library is lacking, or what it reads is not there.
        DataError: A file does not read.
    """
    if origin.place.startswith(PREFIX):
        parts = _parts(origin.place)
        return _through_datasets(origin, parts["id"], parts["config"], parts["revision"])
    path = Path(origin.place)
    if path.is_dir():
        return _through_datasets(origin, str(path), None, None)
    return [row for _, row in read_rows(path)]


# -------------------------------------------------------------------------------------------- Hub


def _parts(place: str) -> Mapping[str, Any]:
    match = _HUB.fullmatch(place)
    if match is None:
        raise InputError(
            f"{place!r} names no data set on the Hub: expected {PREFIX}OWNER/NAME, then :CONFIG "
            "and @REVISION if needed"
        )
    return match.groupdict()


def _on_hub(source: FactSource | None, place: str, split: str | None) -> Origin:
    """The data set at its commit of today, with the licence on its card."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    parts = _parts(place)
    name, revision = parts["id"], parts["revision"]
    try:
        info = HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT)
    except GatedRepoError as error:
        raise InputError(
            f"data set {name!r} is gated: accept its terms on the Hub and log in with "
            "'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f"data set {name!r} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"the Hub has no data set {name!r} that you may read") from error
    except HfHubHTTPError as error:
        raise InputError(f"the Hub gave no data set {name!r}: {_message(error)}") from error
    except Exception as error:  # the client lets its HTTP library's own errors through
        alternative = "connect, or save its rows as a CSV or JSONL file and import that"
        if source:
            alternative = _alternative(source)
        raise InputError(
            f"the Hugging Face Hub cannot be reached for {name!r} ({_message(error)}); "
            f"{alternative}"
        ) from error
    card = info.card_data.get("license") if info.card_data else None
    card = ", ".join(card) if isinstance(card, list) else card
    known = source or FactSource(name.rpartition("/")[2])
    on_card = f"its card on the Hub says {card}" if card else "its card on the Hub names none"
    licence = f"{known.licence}; {on_card}" if known.licence else on_card
    config = f":{parts['config']}" if parts["config"] else ""
    return Origin(known, f"{PREFIX}{name}{config}@{info.sha}", split or known.split, licence)


def _alternative(source: FactSource) -> str:
    return f"fetch it from {source.files}, and give the file: --source {source.name} FILE"


def _through_datasets(
    origin: Origin, name: str, config: str | None, revision: str | None
) -> list[Row]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            f"to read {origin.place} takes the library datasets ({_message(error)}): pip install "
            "'kgbench[hub]'"
        ) from None
    options = {"split": origin.split, "revision": revision}
    try:
        # Versions that could run a repository's code are refused it; later ones have no such code.
        table = load_dataset(name, config, **options, trust_remote_code=False)
        return list(rows_of(table))
    except Exception as error:  # the library has no base class of its errors
        raise InputError(
            f"{origin.place}, split {origin.split}, cannot be read: {_message(error)}"
        ) from error


def _message(error: Exception) -> str:
    """The message of another library, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
