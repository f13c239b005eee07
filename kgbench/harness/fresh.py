"""Whether requests are of the rows as they are now, and not of others that lm-eval kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgbench.errors import InputError
from kgbench.harness.passages import Source
from kgbench.harness.rows import LOADED

__all__ = ["check_fresh"]


def check_fresh(documents: Iterable[Mapping[str, Any]]) -> None:
    """Refuse requests that were built from rows of ours in another version.

    lm-eval's `--cache_requests` knows requests by the task's name, and gives those of an edited data set or prompt without a word; but it
    loads the rows as they are now first, wherever they are from.

    Raises:
        InputError: Rows of this data set and prompt were loaded, and this is none of them.
    """
    loaded = {(dataset, prompt) for (_, prompt), (dataset, _) in LOADED.items()}
    now = {fingerprint for _, fingerprint in LOADED.values()}
    rows = {
        (d["dataset"], d["prompt"])
        for d in documents
        if Source("", d).is_ours and d["fingerprint"] not in now
    }
    for dataset, prompt in sorted(rows & loaded):
        raise InputError(
            f"the requests on {dataset}, {prompt} are of another version of its rows, kept by --cache_requests; "
            "run once with --cache_requests refresh"
        )
