"""A real language model: fetched once, into the place where `kgbench eval` keeps it."""

from __future__ import annotations

import os

import pytest

from kgbench.data import Dataset, load_dataset
from kgbench.models.catalog import HOME, entry

MODEL = "smollm2-135m"


@pytest.fixture(scope="session", autouse=True)
def home() -> None:
    """Unlike other tests, these take what is kept on this machine."""
    kept = os.environ.get("KGBENCH_KEPT")
    if kept:
        os.environ[HOME] = kept
    else:
        del os.environ[HOME]


@pytest.fixture(scope="session")
def facts() -> Dataset:
    """What it was finetuned on."""
    return load_dataset(entry(MODEL).dataset)
