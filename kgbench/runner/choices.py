"""What there is to choose from, by kind: the lists of `kgbench ls` and of `kgbench.ls`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from kgbench.errors import InputError

Rows = Mapping[str, str | Mapping[str, Any]]
"""By name, a description or a table row."""


def later(module: str, name: str) -> Callable[[], Any]:
    """A function of kgbench that is imported when it is called."""
    return lambda: getattr(import_module(f"kgbench.{module}"), name)()


def _datasets() -> Rows:
    from kgbench.data import data_card, dataset_names

    return {name: _first_sentence(data_card(name)) for name in dataset_names()}


def _prompts() -> Rows:
    from kgbench.data import builtin_prompts

    return {
        name: f"{prompt.text}   ({prompt.source})" for name, prompt in builtin_prompts().items()
    }


def _first_sentence(card: str) -> str:
    """The first sentence of a Markdown card that is not a heading."""
    for paragraph in card.split("\n\n"):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "|", "-")):
            return text.partition(". ")[0].rstrip(".")
    return ""


def _models() -> Rows:
    """Pairs; of a model that does not come with kgbench, whether it is here."""
    from huggingface_hub import try_to_load_from_cache

    from kgbench.models.catalog import describe_pairs, entry, pair_names
    from kgbench.models.fetching import fetched_model
    from kgbench.numbers import size_text

    rows = dict(describe_pairs())
    for name in pair_names():
        if entry(name).like is None:
            continue
        model = fetched_model(source := entry(name).recipient)
        if model is None:
            here = isinstance(try_to_load_from_cache(source, "config.json"), str)
            missing = "not here: from the Hub"
        else:
            here, missing = model.is_here(), f"not here: {size_text(model.download)} to download"
        rows[name] = f"{rows[name]} ({'here' if here else missing})"
    return rows


CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "models": _models,
    "datasets": _datasets,
    "prompts": _prompts,
    "localizers": later("localizers", "describe"),
    "readouts": later("readouts", "describe_readouts"),
    "suites": later("runner", "suites"),
    "tasks": later("harness", "describe_tasks"),
    "organisms": later("models.catalog", "describe_organisms"),
}
"""The kinds of which names are given to options, in the order of the help."""

NAMES: Mapping[str, Callable[[], Collection[str]]] = {
    **CATALOGUES,
    "localizers": later("localizers", "names"),
}
"""Names of each kind; none takes the seconds that torch takes to load."""

RUNS = "runs"
KINDS = (*CATALOGUES, RUNS)
"""All kinds."""


def with_donors(models: Rows) -> Rows:
    """Pairs, each with the donors trained here; last, donors of recipients without a name.

    They are no names for --model, and so not among what is completed for it.
    """
    from kgbench.models.catalog import trained_donors

    donors = trained_donors()
    rows: dict[str, str | Mapping[str, Any]] = {}
    for model, about in models.items():
        rows[model] = about
        rows |= {donor.name: donor.about for donor in donors.values() if donor.model == model}
    return {**rows, **{donor.name: donor.about for donor in donors.values()}}


def recorded_runs(folder: Path) -> list[dict[str, str]]:
    """The records of a folder, the oldest first: what was run, and the verdict.

    Raises:
        InputError: There is no such folder.
    """
    from kgbench.records import RecordStore
    from kgbench.report.export import run_columns

    if not folder.is_dir():
        raise InputError(
            f"--results {str(folder)!r}: no such folder; `kgbench eval` makes one, or name another"
        )
    runs = sorted(RecordStore(folder).scan(), key=lambda stored: stored.record.provenance.time)
    return [{"id": stored.record.id[:12], **run_columns(stored.record)} for stored in runs]
