"""Which donor a job is about, where its specification names a pair but no donor."""

from __future__ import annotations

from dataclasses import replace

from kgbench.data import Dataset, load_dataset
from kgbench.data.parts import PARTS
from kgbench.models import catalog
from kgbench.models.trained import choose_donor
from kgbench.runner.spec import Spec

__all__ = ["with_donor"]


def with_donor(spec: Spec, dataset: Dataset) -> Spec:
    """The specification with a trained donor, where the catalog's has not learned the facts and one that has was trained here.

    Args:
        spec: What is evaluated.
        dataset: Its facts.

    Returns:
        The specification as it is where checkpoints are named, where the catalog's donor learned the facts, and where none was trained.

    Raises:
        ModelError: Several would do, see `choose_donor`.
    """
    if spec.model is None or spec.recipient is not None or spec.donors:
        return spec
    entry = catalog.entry(spec.model)
    wanted = _hashes(spec, dataset)
    if entry.plant is not None or (entry.donors and load_dataset(entry.dataset).content_hash in wanted):
        return spec
    found = choose_donor(entry.name, wanted)
    return spec if found is None else replace(spec, donors={"sft": found.name})


def _hashes(spec: Spec, dataset: Dataset) -> set[str]:
    """Content hashes of the facts, and where they are half of a data set, of the whole."""
    whole, _, part = (spec.dataset or "").rpartition(":")
    return {dataset.content_hash, *((load_dataset(whole, spec.imports).content_hash,) if whole and part in PARTS else ())}
