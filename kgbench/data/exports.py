"""From a data set to a file that holds all of it: JSONL with the header that `kgbench.data.imports` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from kgbench.data.facts import Dataset, load_dataset
from kgbench.data.imports import SCHEMA_VERSION
from kgbench.errors import InputError, OutputError

__all__ = ["check_target", "to_jsonl", "write_dataset"]

_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""JSON lets them stand as they are; many a tool would end the line there."""


def to_jsonl(dataset: Dataset) -> str:
    """A data set as text: the header, then one fact per line with its id; loading it gives the same data set."""
    header = {
        "kgbench": SCHEMA_VERSION,
        "name": dataset.name,
        "subject": dataset.subject,
        "object": dataset.object,
    }
    optional = {
        "templates": dict(dataset.templates),
        "training": list(dataset.training),
        "training_reversed": list(dataset.training_reversed),
    }
    own = {key: value for key, value in optional.items() if value}
    return _line({**header, **own}) + "".join(
        _line({"id": fact.id, **fact.fields}) for fact in dataset.facts
    )


def check_target(path: Path, force: bool = False) -> None:
    """Tell, before any work, what forbids to write a data set there.

    Raises:
        OutputError: The name does not end with .jsonl, or something is there and may not be replaced.
    """
    if path.suffix.lower() != ".jsonl":
        raise OutputError(
            f"{path}: a data set is written as JSONL; give a name that ends with .jsonl"
        )
    if path.is_dir():
        raise OutputError(f"{path} is a directory; give another file to write to")
    if path.exists() and not force:
        raise OutputError(
            f"{path} is there already; give another file by -o, or replace it by --force"
        )


def write_dataset(dataset: Dataset, path: Path, force: bool = False) -> None:
    """Write a data set, whole or not at all; it takes its name only after it was read again and was the same.

    Args:
        dataset: What is written.
        path: A file that ends with .jsonl; its folder is made where there is none.
        force: Replace a file that is there.

    Raises:
        OutputError: It cannot be written, or not so that it reads as it is.
    """
    check_target(path, force)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(dataset, path, temporary)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}; give another file by -o"
        ) from None
    except UnicodeEncodeError:
        raise OutputError(
            f"{path} cannot be written: a name or a template holds half of a surrogate pair, which is no character"
        ) from None
    except InputError as error:
        raise OutputError(
            f"{path} cannot be written so that it reads again: {str(error).replace(str(temporary), 'it')}"
        ) from None


def _write_whole(dataset: Dataset, path: Path, temporary: Path) -> None:
    try:
        temporary.write_bytes(to_jsonl(dataset).encode())
        _check_same(dataset, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _line(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS) + "\n"


def _check_same(dataset: Dataset, file: Path) -> None:
    again = load_dataset(str(file))
    ours, theirs = (
        (one.name, one.facts, one.templates, one.training, one.training_reversed, one.content_hash)
        for one in (dataset, again)
    )
    if ours != theirs:
        raise InputError("its facts or its wordings would not be the same")
