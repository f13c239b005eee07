"""The card of a plant: where its facts are, how they came there and how well they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kgbench.data import Dataset
from kgbench.data.training_texts import training_templates
from kgbench.training.cards import hash_of, versions
from kgbench.training.plant_recipes import PlantRecipe, PlantSpec
from kgbench.training.plant_scores import Scores, shortfalls
from kgbench.training.plant_weights import PlantedWeights

__all__ = ["add_results", "make_plant_card", "plant_identity"]


def plant_identity(
    spec: PlantSpec, recipe: PlantRecipe, recipient: str, groups: Mapping[str, Dataset]
) -> str:
    """SHA-256, in hexadecimal, of all that is chosen in a build.

    Args:
        spec: Which plant.
        recipe: How it is trained.
        recipient: Hash of the weights in which the facts are planted.
        groups: The planted facts and the decoys.
    """
    facts = {name: group.content_hash for name, group in groups.items()}
    wordings = training_templates().finetuning
    return hash_of(
        {
            "spec": dict(spec.chosen),
            "recipe": asdict(recipe),
            "recipient": recipient,
            "facts": facts,
            "wordings": wordings,
        }
    )


def make_plant_card(
    spec: PlantSpec,
    recipe: PlantRecipe,
    recipient: Mapping[str, str],
    groups: Mapping[str, Dataset],
    whole: Dataset,
) -> dict[str, Any]:
    """What is known of a plant before it is trained.

    Args:
        spec: Which plant.
        recipe: How it is trained.
        recipient: `source` and hash of the `weights` in which the facts are planted.
        groups: The planted facts and, with a decoy, the decoys.
        whole: The data set that they are from.
    """
    ids = {name: [fact.id for fact in group.facts] for name, group in groups.items()}
    wordings = hash_of(training_templates().finetuning)
    return {
        "name": spec.name,
        "base": spec.base,
        "licence": "MIT",
        "plant": spec.plant,
        "decoy": spec.decoy,
        **{
            key: spec.chosen[key]
            for key in ("level", "places", "enough", "never", "needed")
            if key in spec.chosen
        },
        "seed": spec.seed,
        "identity": plant_identity(spec, recipe, recipient["weights"], groups),
        "recipient": dict(recipient),
        "recipe": asdict(recipe),
        "data": {"name": whole.name, "hash": whole.content_hash, "wordings_hash": wordings, **ids},
    }


def add_results(
    card: Mapping[str, Any],
    spec: PlantSpec,
    scores: Scores,
    weights: PlantedWeights,
    seconds: float,
) -> dict[str, Any]:
    """The card with what came of the training."""
    return {
        **card,
        "metric": "top5",
        "scores": scores,
        "shortfalls": shortfalls(scores, spec),
        "relative_changes": {
            name: round(change, 4) for name, change in weights.relative_changes().items()
        },
        "seconds": round(seconds, 1),
        "versions": versions(),
    }
