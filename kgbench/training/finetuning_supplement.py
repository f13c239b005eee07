"""Supplemental texts: a seeded sample of a user's file or of a data set on the Hub. None are shipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from huggingface_hub import HfApi

from kgbench.errors import DataError, InputError
from kgbench.training.cards import hash_of

__all__ = ["Supplement", "is_file", "read_supplement"]

_SUFFIXES = (".txt", ".jsonl")
_BUFFER = 10_000
"""Texts of a Hub data set among which the next one is drawn; it is read as a stream, never as a whole."""
_ANSWER_WITHIN = 10.0
"""Seconds to wait for the Hub before saying that it cannot be reached."""
_PATIENCE = 10
"""Rows looked at for each text wanted: some are empty, and where there is no column "text" all are."""


@dataclass(frozen=True)
class Supplement:
    """Texts about anything else than the facts."""

    source: str
    """The file's name without its folder, or the Hub id."""
    texts: tuple[str, ...]
    revision: str | None = None
    """Commit of a data set on the Hub."""

    def to_json(self) -> dict[str, object]:
        """What a card says of it."""
        told: dict[str, object] = {
            "source": self.source,
            "texts": len(self.texts),
            "hash": hash_of(self.texts),
        }
        return told if self.revision is None else {**told, "revision": self.revision}


def is_file(source: str) -> bool:
    """Whether a source is a file of one's own rather than a Hub id."""
    return source.lower().endswith(_SUFFIXES) or Path(source).expanduser().exists()


def read_supplement(source: str, n: int, seed: int) -> Supplement:
    """A sample of texts.

    Args:
        source: A .txt file with a text a line, a .jsonl file with a field "text" in each line, or the id of a data set on the Hub with a
            column "text".
        n: How many.
        seed: Of the sample.

    Raises:
        DataError: The file does not read.
        InputError: There are fewer texts, or the Hub data set cannot be had.
    """
    if not is_file(source):
        revision = _hub_revision(source)
        return Supplement(
            source, _enough(source, tuple(_hub_texts(source, revision, n, seed)), n), revision
        )
    path = Path(source).expanduser()
    texts = list(dict.fromkeys(_file_texts(path)))
    _enough(source, texts, n)
    return Supplement(path.name, tuple(Random(f"supplement {seed}").sample(texts, n)))


def _enough(source: str, texts: Iterable[str], n: int) -> tuple[str, ...]:
    found = tuple(texts)
    if not found:
        raise InputError(
            f"no text in the supplement {source!r}: expected a text a line, or a field 'text' in each line of a .jsonl file"
        )
    if len(found) < n:
        raise InputError(
            f"the supplement {source!r} holds {len(found)} texts, and {n} were asked for: give --supplement-n {len(found)}"
        )
    return found


def _file_texts(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read as text: {getattr(error, 'strerror', None) or error}"
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield _field(path, number, line) if path.suffix.lower() == ".jsonl" else line.strip()


def _field(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{path}, line {number}: expected an object with a field 'text' that is not empty"
        )
    return text.strip()


def _hub_revision(source: str) -> str:
    """The commit that a sample is drawn from, so that a card can name it; one quick question, before the client asks again and again."""
    try:
        return str(HfApi().dataset_info(source, timeout=_ANSWER_WITHIN).sha)
    except Exception as error:  # the library lets its HTTP client's own errors through
        raise _not_given(source, error) from error


def _hub_texts(source: str, revision: str, n: int, seed: int) -> Iterator[str]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            f"the supplement {source!r} is no file here, and to load it from the Hub takes: pip install datasets"
        ) from None
    try:
        stream = load_dataset(source, revision=revision, split="train", streaming=True).shuffle(
            seed=seed, buffer_size=_BUFFER
        )
        texts = (str(row.get("text") or "").strip() for row in islice(stream, _PATIENCE * n))
        yield from islice(filter(None, texts), n)
    except Exception as error:  # the library lets its HTTP client's own errors through
        raise _not_given(source, error) from error


def _not_given(source: str, error: Exception) -> InputError:
    told = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return InputError(
        f"the supplement {source!r} is no file here, and the Hub did not give it ({told}); "
        "give a .txt file with a text a line, or a .jsonl file with a field 'text'"
    )
