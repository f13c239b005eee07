"""Prints the documentation's tables of the tiny pairs and of the plants, from their cards.

python tests/cards_table.py pairs
python tests/cards_table.py plants
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kgbench.models.catalog import CARD, plants, shipped, zoo_path
from kgbench.numbers import number_text
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.sites import CONFIGURATIONS
from kgbench.zoo.plants import levels

__all__ = ["levels_table", "pairs_table", "plants_table"]

PAIR_COLUMNS = (
    "PRE",
    "SFT",
    "ALL",
    *(name for name in CONFIGURATIONS if name not in ("PRE", "SFT", "ALL")),
)


def pairs_table() -> str:
    """Top-5 hit rate of every pair under each configuration."""
    rows = []
    for name in shipped():
        card = json.loads((zoo_folder(f"zoo:{name}") / CARD).read_text("utf-8"))
        for prompt in PROMPTS:
            rows.append([name, prompt, *figures(card["scores"][prompt], PAIR_COLUMNS)])
    return markdown(["pair", "prompt", *code(PAIR_COLUMNS)], rows)


def plants_table() -> str:
    """Top-5 hit rate of every plant on its facts and on the decoys."""
    rows = []
    for name in plants():
        card = card_of(name)
        row = [name, f"`{card['plant']}`"]
        for group in ("planted", "decoys"):
            for graft in ("PRE", "SFT"):
                rates = [number_text(card["scores"][group][prompt][graft]) for prompt in PROMPTS]
                row.append(", ".join(rates))
        rows.append(row)
    head = ["plant", "planted in", "facts: base", "finetuned", "decoys: base", "finetuned"]
    return markdown(head, rows)


def levels_table() -> str:
    """The levels, and how many plants of each are shipped by pair."""
    cards, rows = list(map(card_of, plants())), []
    for level, table in levels().items():
        counts = Counter(card["base"] for card in cards if card["level"] == level)
        rows.append([level, table["about"], ", ".join(f"{base} {n}" for base, n in counts.items())])
    return markdown(["level", "what is planted", "shipped"], rows)


def card_of(name: str) -> Any:
    """The card of a shipped plant."""
    return json.loads((zoo_folder(f"zoo:plants/{name}") / CARD).read_text("utf-8"))


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
    if "plants" in sys.argv[1:]:
        print(f"{levels_table()}\n\n{plants_table()}")
    else:
        print(pairs_table())
