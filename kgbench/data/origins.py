"""Origins of external data sets: the Hugging Face Hub, at one revision, or local files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.data.sources import FactSource, SourceRow
from kgbench.errors import DataError, InputError

__all__ = ["PREFIX", "Origin", "fetch_rows", "locate_source"]

PREFIX = "hub:"
"""Prefix of a data set on the Hub: ``hub:OWNER/NAME``, then ``:CONFIG`` and ``@REVISION``."""

_HUB = re.compile(r"hub:(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@]+))?(?:@(?P<revision>.+))?")
_TIMEOUT = 10.0
"""Seconds for the request of a data set's metadata."""
_LONGEST = 300
"""Characters of another library's message that are passed on."""
_CELL = 1 << 24
"""Most characters in a cell of a CSV file: lists of aliases are long."""


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
    if place is None and source is not None and source.hub is None:
        raise InputError(
            f"source {source.name} is not on the Hub: fetch it from {source.files}, "
            "and give the file"
        )
    chosen = place if place is not None else f"{PREFIX}{source.hub if source else ''}"
    if chosen.startswith(PREFIX):
        return _on_hub(source, chosen, split)
    if source is None:
        raise InputError(f"{chosen}: to read a file as what it is, name its --source")
    folder = Path(chosen).is_dir()
    if not folder and not Path(chosen).is_file():
        raise InputError(f"{chosen}: there is no such file; {_alternative(source)}")
    has_splits = folder and source.shape is None
    if split is not None and not has_splits:
        raise InputError(f"{chosen} is read whole and has no splits; leave out --split")
    return Origin(
        source, chosen, (split or source.split) if has_splits else None, str(source.licence)
    )


def fetch_rows(origin: Origin) -> list[SourceRow]:
    """Read the rows of a source, from the Hub through the library datasets, without its code.

    Raises:
        InputError: The library is lacking, or what it reads is not there.
        DataError: A file does not read.
    """
    if origin.place.startswith(PREFIX):
        parts = _parts(origin.place)
        return _through_datasets(origin, parts["id"], parts["config"], parts["revision"])
    path = Path(origin.place)
    if not path.is_dir():
        return _read(path)
    if origin.source.shape is None:
        return _through_datasets(origin, str(path), None, None)
    rows: list[SourceRow] = []
    for file in sorted(path.rglob("*.json")):
        rows += _read(file)
    return rows


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
    parts = _parts(place)
    commit, card = _metadata(parts["id"], parts["revision"], source)
    known = source or FactSource(parts["id"].rpartition("/")[2])
    on_card = f"its card on the Hub says {card}" if card else "its card on the Hub names none"
    licence = f"{known.licence}; {on_card}" if known.licence else on_card
    config = f":{parts['config']}" if parts["config"] else ""
    return Origin(known, f"{PREFIX}{parts['id']}{config}@{commit}", split or known.split, licence)


def _metadata(name: str, revision: str | None, source: FactSource | None) -> tuple[str, str | None]:
    """The commit of a data set and the licence on its card."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

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
    licence = info.card_data.get("license") if info.card_data else None
    return str(info.sha), ", ".join(licence) if isinstance(licence, list) else licence


def _alternative(source: FactSource) -> str:
    return f"fetch it from {source.files}, and give the file: --source {source.name} FILE"


def _through_datasets(
    origin: Origin, name: str, config: str | None, revision: str | None
) -> list[SourceRow]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            f"to read {origin.place} takes the library datasets: pip install 'kgbench[hub]'"
        ) from None
    options = {"split": origin.split, "revision": revision}
    try:
        # Versions that could run a repository's code are refused it; later ones have no such code.
        return list(load_dataset(name, config, **options, trust_remote_code=False))
    except Exception as error:  # the library has no base class of its errors
        raise InputError(
            f"{origin.place}, split {origin.split}, cannot be read: {_message(error)}"
        ) from error


def _message(error: Exception) -> str:
    """The message of another library, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


# ------------------------------------------------------------------------------------------ files


def _read(path: Path) -> list[SourceRow]:
    """The records of a file: the objects in JSON, or the rows of a table."""
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise DataError(f"{path}: expected a file that ends with {', '.join(_READERS)}")
    try:
        records = list(_READERS[kind](path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, csv.Error, RecursionError) as error:
        # json, unicode and pyarrow raise ValueErrors.
        raise DataError(f"{path}: is not {path.suffix[1:].upper()}: {_message(error)}") from None
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is no object of fields: {str(record)[:40]}")
        if None in record:  # where csv puts cells without a name
            columns = ", ".join(filter(None, record))
            raise DataError(
                f"{path}: row {number} holds more cells than there are columns ({columns})"
            )
    return records


def _read_json(path: Path) -> list[Any]:
    value = json.loads(path.read_text("utf-8-sig"))
    return value if isinstance(value, list) else [value]


def _read_jsonl(path: Path) -> list[Any]:
    # Not splitlines: a JSON string may hold U+2028 and its like as they are.
    lines = path.read_text("utf-8-sig").split("\n")
    return [json.loads(line) for line in lines if line.strip()]


def _read_csv(path: Path) -> list[Any]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    before = csv.field_size_limit(_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, delimiter=delimiter, strict=True))
    finally:
        csv.field_size_limit(before)


def _read_parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())


_READERS: Mapping[str, Callable[[Path], Iterable[Any]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
"""By the end of a file's name, its reader."""
