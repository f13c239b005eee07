"""Where the rows of a source come from: the Hugging Face Hub, at one revision, or files on this machine."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.data.sources import Source
from kgbench.data.sources_shapes import Record
from kgbench.errors import DataError, InputError

__all__ = ["PREFIX", "Origin", "fetch", "locate"]

PREFIX = "hub:"
"""What begins the place of a data set on the Hub: ``hub:OWNER/NAME``, then ``:CONFIG`` and ``@REVISION`` where they are needed."""

_HUB = re.compile(r"hub:(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@]+))?(?:@(?P<revision>.+))?")
_ANSWER_WITHIN = 10.0
"""Seconds for the one question that is asked of the Hub first."""
_LONGEST = 300
"""Characters of another library's message that are passed on."""
_CELL = 1 << 24
"""Most characters in a cell of a CSV file: lists of aliases are long."""


@dataclass(frozen=True)
class Origin:
    """A place that was found, and whose rows are still to be read."""

    source: Source
    place: str
    """A file or folder, or ``hub:OWNER/NAME@REVISION`` with the commit that was found."""
    split: str | None
    """Part of the data set; None for a file, which has none."""
    licence: str
    """What is known of the licence, and from where."""

    def lines(self) -> Iterator[str]:
        """What is to be known of it before it is read."""
        split = f", split {self.split}" if self.split else ""
        about = f": {self.source.about}" if self.source.about else ""
        yield f"from {self.place}{split}{about}"
        yield f"licence: {self.licence}"


def locate(source: Source | None, place: str | None, split: str | None) -> Origin:
    """Find a source, without reading its rows; the Hub is asked for the commit and for what the card says of the licence.

    Args:
        source: What is known of it; None for a set on the Hub that is not known.
        place: A file, a folder or `PREFIX` with an id; None for the source's own place on the Hub.
        split: The part to take, in place of the source's.

    Raises:
        InputError: There is no such place, or the Hub does not tell of it.
    """
    if place is None and source is not None and source.hub is None:
        raise InputError(
            f"source {source.name} is not on the Hub: fetch it from {source.files}, and give the file"
        )
    chosen = place if place is not None else f"{PREFIX}{source.hub if source else ''}"
    if chosen.startswith(PREFIX):
        return _on_hub(source, chosen, split)
    if source is None:
        raise InputError(f"{chosen}: to read a file as what it is, name its --source")
    folder = Path(chosen).is_dir()
    if not folder and not Path(chosen).is_file():
        raise InputError(f"{chosen}: there is no such file; {_elsewhere(source)}")
    if split is not None and not (folder and source.shape is None):
        raise InputError(f"{chosen} is read whole and has no splits; leave out --split")
    return Origin(
        source,
        chosen,
        (split or source.split) if folder and source.shape is None else None,
        str(source.licence),
    )


def fetch(origin: Origin) -> list[Record]:
    """Read its rows, from the Hub through the library datasets; no code of a repository is ever run.

    Raises:
        InputError: The library is lacking, or what it reads is not there.
        DataError: A file does not read.
    """
    if origin.place.startswith(PREFIX):
        found = _parts(origin.place)
        return _through_datasets(origin, found["id"], found["config"], found["revision"])
    path = Path(origin.place)
    if not path.is_dir():
        return _read(path)
    if origin.source.shape is None:
        return _through_datasets(origin, str(path), None, None)
    return [record for file in sorted(path.rglob("*.json")) for record in _read(file)]


# -------------------------------------------------------------------------------------------------------------------- Hub


def _parts(place: str) -> Mapping[str, Any]:
    found = _HUB.fullmatch(place)
    if found is None:
        raise InputError(
            f"{place!r} names no data set on the Hub: expected {PREFIX}OWNER/NAME, then :CONFIG and @REVISION if needed"
        )
    return found.groupdict()


def _on_hub(source: Source | None, place: str, split: str | None) -> Origin:
    parts = _parts(place)
    commit, card = _asked(parts["id"], parts["revision"], source)
    known = source or Source(parts["id"].rpartition("/")[2])
    says = f"its card on the Hub says {card}" if card else "its card on the Hub names none"
    licence = "; ".join(filter(None, (known.licence, says)))
    config = f":{parts['config']}" if parts["config"] else ""
    return Origin(known, f"{PREFIX}{parts['id']}{config}@{commit}", split or known.split, licence)


def _asked(name: str, revision: str | None, source: Source | None) -> tuple[str, str | None]:
    """The commit of a data set and the licence on its card."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().dataset_info(name, revision=revision, timeout=_ANSWER_WITHIN)
    except GatedRepoError as error:
        raise InputError(
            f"data set {name!r} is gated: accept its terms on the Hub and log in with 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f"data set {name!r} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"the Hub has no data set {name!r} that you may read") from error
    except HfHubHTTPError as error:
        raise InputError(f"the Hub did not tell of data set {name!r}: {_told(error)}") from error
    except Exception as error:  # the client lets its HTTP library's own errors through
        elsewhere = (
            _elsewhere(source)
            if source
            else "connect, or save its rows as a CSV or JSONL file and import that"
        )
        raise InputError(
            f"the Hugging Face Hub cannot be reached for {name!r} ({_told(error)}); {elsewhere}"
        ) from error
    licence = info.card_data.get("license") if info.card_data else None
    return str(info.sha), ", ".join(licence) if isinstance(licence, list) else licence


def _elsewhere(source: Source) -> str:
    return f"fetch it from {source.files}, and give the file: --source {source.name} FILE"


def _through_datasets(
    origin: Origin, name: str, config: str | None, revision: str | None
) -> list[Record]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            f"to read {origin.place} takes the library datasets: pip install 'kgbench[hub]'"
        ) from None
    try:
        # Said to versions that would ask; later ones run no code of a repository at all.
        return list(
            load_dataset(
                name, config, split=origin.split, revision=revision, trust_remote_code=False
            )
        )
    except Exception as error:  # the library has no error of its own that all others are
        raise InputError(
            f"{origin.place}, split {origin.split}, cannot be read: {_told(error)}"
        ) from error


def _told(error: Exception) -> str:
    """The message of another library, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


# ------------------------------------------------------------------------------------------------------------------ files


def _read(path: Path) -> list[Record]:
    """The records of a file: the objects in JSON, or the rows of a table."""
    readers = {
        ".json": _read_json,
        ".jsonl": _read_jsonl,
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: expected a file that ends with {', '.join(readers)}")
    try:
        records = list(readers[path.suffix.lower()](path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (
        ValueError,
        csv.Error,
        RecursionError,
    ) as error:  # those of json, unicode and pyarrow are ValueErrors
        raise DataError(f"{path}: is not {path.suffix[1:].upper()}: {_told(error)}") from None
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is no object of fields: {str(record)[:40]}")
        if None in record:  # where csv puts cells without a name
            raise DataError(
                f"{path}: row {number} holds more cells than there are columns ({', '.join(filter(None, record))})"
            )
    return records


def _read_json(path: Path) -> list[Any]:
    value = json.loads(path.read_text("utf-8-sig"))
    return value if isinstance(value, list) else [value]


def _read_jsonl(path: Path) -> Iterator[Any]:
    # Not splitlines: a JSON string may hold U+2028 and its like as they are.
    return (json.loads(line) for line in path.read_text("utf-8-sig").split("\n") if line.strip())


def _read_csv(path: Path) -> list[Any]:
    before = csv.field_size_limit(_CELL)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(
                csv.DictReader(
                    file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True
                )
            )
    finally:
        csv.field_size_limit(before)


def _read_parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())
