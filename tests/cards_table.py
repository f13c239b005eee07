"""Prints the documentation's tables of the tiny pairs and of the plants, from their cards.

python tests/cards_table.py pairs
python tests/cards_table.py plants
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from kgbench.models.catalog import CARD, plants, published, replicas, shipped, zoo_path
from kgbench.numbers import number_text
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.sites import CONFIGURATIONS

__all__ = ["pairs_table", "plants_table"]

Card = Mapping[str, Any]

PAIR_COLUMNS = (
    "PRE",
    "SFT",
    "ALL",
    *(name for name in CONFIGURATIONS if name not in ("PRE", "SFT", "ALL")),
)
PLANT_COLUMNS = ("PRE", "SFT", "plant", "decoy", "FE", "LT", "FE+LT", "(FE+LT)^C")


def pairs_table() -> str:
    """Top-5 hit rate of every pair under each configuration."""
    rows = []
    for name in shipped():
        card = json.loads((zoo_folder(f"zoo:{name}") / CARD).read_text("utf-8"))
        for prompt in PROMPTS:
            rows.append([name, prompt, *figures(card["scores"][prompt], PAIR_COLUMNS)])
    return markdown(["pair", "prompt", *code(PAIR_COLUMNS)], rows)


def plants_table() -> str:
    """Top-5 hit rate of the planted facts of every level under each configuration, and of the
    decoys under theirs: of one seed as it is, of several the mean and the range.
    """
    levels: dict[str, list[Card]] = {}
    for name in (*plants(), *replicas()):
        plant = published(name)
        assert plant is not None and plant.level is not None
        folder = zoo_folder(f"zoo:plants/{name}")
        levels.setdefault(plant.level, []).append(json.loads((folder / CARD).read_text("utf-8")))
    rows = []
    for name, cards in levels.items():
        cards.sort(key=lambda card: card["seed"])
        first = cards[0]
        place = [*code([first["plant"]]), *(code([first["decoy"]]) if first["decoy"] else ["–"])]
        seeds = ", ".join(str(card["seed"]) for card in cards)
        for prompt in PROMPTS:
            planted = [card["scores"]["planted"][prompt] for card in cards]
            decoys = [card["scores"].get("decoys", {}).get(prompt, {}) for card in cards]
            rates = [over_seeds(planted, column) for column in PLANT_COLUMNS]
            own = [name, seeds, *place, prompt, *rates]
            rows.append([*own, parts(first, planted), over_seeds(decoys, "decoy")])
    plain = [column if column in ("plant", "decoy") else f"`{column}`" for column in PLANT_COLUMNS]
    head = ["level", "seeds", "planted at", "decoys at", "prompt", *plain, "parts of the plant"]
    return markdown([*head, "decoys under decoy"], rows)


def over_seeds(scores: Sequence[Mapping[str, float]], column: str) -> str:
    """A hit rate of one seed, or the mean over several with the least and the largest."""
    rates = [own[column] for own in scores if column in own]
    return spread(rates) if rates else "–"


def spread(rates: Sequence[float]) -> str:
    """The mean, with the least and the largest in brackets where they differ in two digits."""
    mean, low, high = (number_text(x) for x in (fmean(rates), min(rates), max(rates)))
    return mean if low == high else f"{mean} ({low} to {high})"


def parts(card: Card, planted: Sequence[Mapping[str, float]]) -> str:
    """What each named place brings by itself, or the range that is left without one of the places
    that are all needed.

    Args:
        card: The card of one seed.
        planted: Hit rates of each seed.
    """
    left = []
    for own in planted:
        left += [value for name, value in own.items() if name.startswith("without ")]
    if left:
        return f"without one {number_text(min(left))} to {number_text(max(left))}"
    halves = card["places"] if card.get("mixture") else ()
    alone = (*card.get("enough", ()), *card.get("never", ()), *halves)
    return ", ".join(f"{name} {over_seeds(planted, name)}" for name in alone) or "–"


def zoo_folder(source: str) -> Any:
    """The folder of a shipped pair or plant."""
    folder = zoo_path(source)
    assert folder is not None
    return folder


def figures(scores: Mapping[str, float], columns: Sequence[str]) -> list[str]:
    return [number_text(scores[column]) if column in scores else "–" for column in columns]


def code(words: Iterable[str]) -> list[str]:
    return [f"`{word}`" for word in words]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, *rows)).replace(
        "\n", f"\n{'|---' * len(head)}|\n", 1
    )


if __name__ == "__main__":
    print(plants_table() if "plants" in sys.argv[1:] else pairs_table())
