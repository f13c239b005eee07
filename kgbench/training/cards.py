"""Cards: what a built pair or plant is, how it came about and how well it answers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from kgbench.data import Dataset, load_dataset
from kgbench.data.builders.worlds import TINY_DATASETS, world_texts
from kgbench.data.training_texts import training_templates
from kgbench.errors import DataError
from kgbench.training.recipes import Recipe

__all__ = [
    "add_other_seeds",
    "build_identity",
    "hash_of",
    "make_card",
    "read_card",
    "versions",
    "write_card",
]

_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "faker")

Scores = Mapping[str, Mapping[str, float]]


def build_identity(recipe: Recipe, seed: int, facts: Dataset) -> str:
    """SHA-256, in hexadecimal, of all that is chosen in a build: recipe, seed, wordings and facts."""
    chosen = {
        "recipe": recipe.to_json(),
        "seed": seed,
        "templates": asdict(training_templates()),
        "facts": facts.content_hash,
    }
    return hash_of({**chosen, "world": _world()})


def _world() -> Mapping[str, Any]:
    """What the invented world is made of."""
    return {
        "texts": world_texts(),
        "datasets": {name: load_dataset(name).content_hash for name in TINY_DATASETS},
    }


def make_card(
    recipe: Recipe, seed: int, facts: Dataset, scores: Scores, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The card of a built pair.

    Args:
        recipe: How it was made.
        seed: With which seed.
        facts: What the donor learned.
        scores: Share of facts whose target is among the five likeliest next tokens, by prompt and configuration.
        seconds: Time of training, by stage.
    """
    return {
        "name": recipe.name,
        "licence": "MIT",
        "seed": seed,
        "identity": build_identity(recipe, seed, facts),
        "recipe": recipe.to_json(),
        "data": {
            "name": facts.name,
            "facts": len(facts.facts),
            "hash": facts.content_hash,
            "templates_hash": hash_of(asdict(training_templates())),
        },
        "metric": "top5",
        "scores": {prompt: dict(row) for prompt, row in scores.items()},
        "other_seeds": [],
        "seconds": {stage: round(spent, 1) for stage, spent in seconds.items()},
        "versions": versions(),
    }


def read_card(path: Path) -> dict[str, Any]:
    """A card as written by `write_card`.

    Raises:
        DataError: The file is no card.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["identity"], content["seed"], content["scores"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is no card of a tiny pair ({error})") from None
    return dict(content)


def write_card(card: Mapping[str, Any], path: Path) -> None:
    """Write a card, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(_text(card) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _text(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry of an object, and lists on one line."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    lines = [
        f"{inner}{json.dumps(str(key), ensure_ascii=False)}: {_text(own, inner)}"
        for key, own in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def add_other_seeds(path: Path, others: Iterable[Path]) -> None:
    """Put the scores of the same pair, built with other seeds, on its card.

    Args:
        path: The card.
        others: Cards of the other builds; they replace those that the card has.

    Raises:
        DataError: A file is no card, or a card of another pair or recipe.
    """
    card = read_card(path)
    rows = []
    for other in map(read_card, others):
        if (other["recipe"], other["data"]) != (card["recipe"], card["data"]) or other[
            "seed"
        ] == card["seed"]:
            raise DataError(
                f"{path}: expected cards of {card['name']} by the same recipe and data with other seeds than {card['seed']}"
            )
        rows.append({"seed": other["seed"], "scores": other["scores"], "seconds": other["seconds"]})
    write_card({**card, "other_seeds": sorted(rows, key=lambda row: int(row["seed"]))}, path)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what comes out of a training."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def hash_of(content: object) -> str:
    """SHA-256, in hexadecimal, of canonical JSON."""
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
