"""Whether requests are of the rows as they are now, and not of others that lm-eval kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgbench.errors import InputError
from kgbench.harness.rows import LOADED

__all__ = ["check_fresh"]


def check_fresh(documents: Iterable[Mapping[str, Any]]) -> None:
    """Refuse requests that were built from rows of ours in another version.

    lm-eval's `--cache_requests` knows requests by the task's name, and gives those of an edited data set or prompt without a word; but it
    loads the rows as they are now first, wherever they are from.

    Raises:
        InputError: A row is none of those that were loaded.
    """
    now = set(LOADED.values())
    stale = {(str(d.get("dataset")), str(d.get("prompt"))) for d in documents if "fingerprint" in d and d["fingerprint"] not in now}
    for dataset, prompt in sorted(stale):
        raise InputError(
            f"the requests on {dataset}, {prompt} are of another version of its rows, kept by --cache_requests; "
            "run once with --cache_requests refresh"
        )
