"""Whether requests are of the rows as they are now, and not of others that lm-eval kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgbench.data import dataset_names, load_dataset
from kgbench.errors import InputError
from kgbench.harness.rows import fingerprint

__all__ = ["check_fresh"]


def check_fresh(documents: Iterable[Mapping[str, Any]]) -> None:
    """Refuse requests that were built from rows of ours in another version.

    lm-eval's `--cache_requests` knows requests by the task's name, and gives those of an edited data set or prompt without a word.

    Raises:
        InputError: The data set or the prompt of a row is not what is installed.
    """
    seen = {(d.get("dataset"), d.get("prompt"), d["fingerprint"]) for d in documents if "fingerprint" in d}
    for dataset, prompt, known in sorted(seen, key=str):
        if dataset in dataset_names() and fingerprint(load_dataset(str(dataset)), str(prompt)) != known:
            raise InputError(
                f"the requests on {dataset}, {prompt} are of another version of its rows, kept by --cache_requests; "
                "run once with --cache_requests refresh"
            )
