"""Prints the documentation's tables of the tiny pairs and of the plants, from their cards.

python tests/cards_table.py pairs
python tests/cards_table.py plants
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kgbench.models.catalog import CARD, entry, plants, read_plant, shipped, zoo_path
from kgbench.numbers import number_text
from kgbench.sites import CONFIGURATIONS
from kgbench.training.hit_rates import PROMPTS

__all__ = ["pairs_table", "plants_table"]

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
    """Top-5 hit rate of the planted facts of every plant under each configuration, and of the
    decoys under theirs.
    """
    rows = []
    for name in plants():
        (source,) = entry(name).donors.values()
        card = read_plant(zoo_folder(source))
        for prompt in PROMPTS:
            planted = card["scores"]["planted"][prompt]
            decoys = card["scores"].get("decoys", {}).get(prompt, {})
            rows.append(
                [
                    name,
                    *code([card["plant"]]),
                    *(code([card["decoy"]]) if card["decoy"] else ["–"]),
                    prompt,
                    *figures(planted, PLANT_COLUMNS),
                    parts(card, planted),
                    number_text(decoys["decoy"]) if decoys else "–",
                ]
            )
    plain = [column if column in ("plant", "decoy") else f"`{column}`" for column in PLANT_COLUMNS]
    return markdown(
        [
            "plant",
            "planted at",
            "decoys at",
            "prompt",
            *plain,
            "parts of the plant",
            "decoys under decoy",
        ],
        rows,
    )


def parts(card: Mapping[str, Any], planted: Mapping[str, float]) -> str:
    """What each named place brings by itself, or the range that is left without one of the places
    that are all needed.
    """
    left = [value for name, value in planted.items() if name.startswith("without ")]
    if left:
        return f"without one {number_text(min(left))} to {number_text(max(left))}"
    halves = card["places"] if card.get("mixture") else ()
    alone = (*card.get("enough", ()), *card.get("never", ()), *halves)
    return ", ".join(f"{name} {number_text(planted[name])}" for name in alone) or "–"


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
