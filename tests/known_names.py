"""Writes how well a base model knows the names of its facts, before it is finetuned.

python tests/known_names.py smollm2-135m

A name is known as far as its first words make its last word likelier than other first words do:
log p(last word | own first words) less the mean of log p(last word | first words of OTHERS other
people), in nats, after the words of CONTEXT. A name of one word is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kgbench.data import load_dataset
from kgbench.models.catalog import entry
from kgbench.models.checkpoints import locate
from kgbench.paper.figure_specs import page
from kgbench.paper.ingredients import Ingredients

PUBLISHED = Path(__file__).parents[1] / "leaderboard" / "reproductions"
FILE = "known_names.json"
CONTEXT = "The film stars"
OTHERS = 20
_ROWS = 64


def surname_log_probs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    starts: Sequence[str],
    last: Sequence[str],
) -> list[float]:
    """Log-probability of each last word after its start, summed over its tokens, in nats."""
    heads = tokenizer(list(starts))["input_ids"]
    words = tokenizer([f" {word}" for word in last], add_special_tokens=False)["input_ids"]
    rows = [[*head, *word] for head, word in zip(heads, words, strict=True)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found = [0.0] * len(rows)
    for first in range(0, len(rows), _ROWS):
        batch = order[first : first + _ROWS]
        width = max(len(rows[i]) for i in batch)
        ids = torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in batch])
        with torch.no_grad():  # padding on the right is read by no earlier token
            logs = model(ids).logits.log_softmax(-1)
        for row, i in enumerate(batch):
            places = range(len(heads[i]), len(rows[i]))
            found[i] = sum(float(logs[row, at - 1, rows[i][at]]) for at in places)
    return found


def known_names(model: str, most: int | None = None) -> dict[str, float]:
    """Knowledge of each name in the facts of the real actors, or of the first ones, in nats."""
    facts = load_dataset(Ingredients(page(), model).dataset("actors")).facts
    names = sorted(
        {fact.fields[role] for fact in facts for role in ("first_actor", "second_actor")}
    )
    parts = {name: name.rsplit(" ", 1) for name in names if " " in name}
    folder = locate(entry(model).recipient).directory
    base = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng, starts, words = Random(0), list[str](), list[str]()
    asked = dict(islice(parts.items(), most))
    for name, (first, word) in asked.items():
        others = rng.sample([other for other in parts if other != name], OTHERS)
        starts += [f"{CONTEXT} {start}" for start in (first, *(parts[o][0] for o in others))]
        words += [word] * (1 + OTHERS)
    logs = torch.tensor(surname_log_probs(base, tokenizer, starts, words)).view(len(asked), -1)
    knowledge = logs[:, 0] - logs[:, 1:].mean(1)
    return {name: round(float(value), 2) for name, value in zip(asked, knowledge, strict=True)}


if __name__ == "__main__":
    (model,) = sys.argv[1:]
    place = PUBLISHED / model / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(known_names(model), ensure_ascii=False, indent=0) + "\n", "utf-8")
    print(place)
