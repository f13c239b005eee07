"""Texts of a data set on the Hub, which a training reads among its facts."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from huggingface_hub import HfApi

from kgbench.errors import InputError, first_line
from kgbench.runner.training.finetuning_plan import Supplement

_BUFFER = 10_000
"""Shuffle buffer of a Hub data set, which is read as a stream."""
_ANSWER_WITHIN = 10.0
"""Timeout of the first question to the Hub, in seconds."""
_PATIENCE = 10
"""Rows read for each text wanted: some are empty, and without a column "text" all are."""
_LONG = " the" * 512
"""A text of 512 tokens: web pages are mostly longer, and cut."""


def is_on_hub(source: str | Supplement | None) -> bool:
    """Whether a source is a Hub id rather than a local file."""
    if not isinstance(source, str):
        return False
    path = Path(source).expanduser()
    return path.suffix.lower() not in (".txt", ".jsonl") and not path.exists()


def assumed_texts(source: str, n: int) -> Supplement:
    """As many texts of the usual length, for a forecast."""
    return Supplement(source, (_LONG,) * n)


def hub_texts(source: str, n: int, seed: int) -> Supplement:
    """A seeded sample of texts of a data set on the Hub with a column "text".

    Raises:
        InputError: There are fewer, or the Hub does not give the data set.
    """
    try:
        # One quick question, before the client retries without end.
        revision = str(HfApi().dataset_info(source, timeout=_ANSWER_WITHIN).sha)
        if find_spec("datasets") is None:
            raise InputError(
                f"the supplement {source!r} is no file here, "
                "and to load it from the Hub takes: pip install datasets"
            )
        from datasets import load_dataset

        stream = load_dataset(source, revision=revision, split="train", streaming=True)
        stream = stream.shuffle(seed=seed, buffer_size=_BUFFER)
        texts = (str(row.get("text") or "").strip() for row in islice(stream, _PATIENCE * n))
        sample = tuple(islice(filter(None, texts), n))
    except InputError:
        raise
    except Exception as error:  # also errors of its HTTP client
        raise InputError(
            f"the supplement {source!r} is no file here, "
            f"and the Hub did not give it ({first_line(error)}); "
            "give a .txt file with one text per line, or a .jsonl file with a field 'text'"
        ) from error
    if len(sample) < n:
        raise InputError(f"the supplement {source!r} gave {len(sample)} texts, expected {n}")
    return Supplement(source, sample, revision)
