"""Prints the documentation's tables of a real language model, from its published rows.

python tests/real_tables.py smollm2-135m
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from kgbench.data import load_dataset
from kgbench.estimate import Estimate
from kgbench.numbers import figure_text
from kgbench.paper.measurements import ROWS, PairRows, columns_of, read_measured
from kgbench.paper.page import page
from kgbench.paper.parts import Ingredients
from kgbench.paper.training_seeds import difference_over, mean_over
from kgbench.stats.scores import naturally

PUBLISHED = Path(__file__).parents[1] / "leaderboard" / "reproductions"
KNOWN = "known_names.json"
PROMPTS = ("headline", "qa", "movie_title", "new_film")
PATHWAYS = ("PRE", "SFT", "FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
POSITIONS = ("actors", "names", *page().variants)
KINDS = ("", *(f"_{name}" for name in page().variants))
"""Of a relay evaluation: the adapter's, and those of other donors."""
ENOUGH = 0.95
"""Share of what finetuning added that a set of groups has to bring."""
METRIC = "top5"

Cells = Sequence[str]


def markdown(heads: Cells, rows: Sequence[Cells]) -> str:
    """A table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def by_training(
    measured: PairRows,
    evaluation: str,
    prompts: Mapping[str, str],
    configurations: Mapping[str, str],
) -> str:
    """Top-5 hit rate of each configuration on each prompt, for each training by itself.

    Args:
        measured: The rows.
        evaluation: The evaluation.
        prompts: Prompts by the name that is shown.
        configurations: Configurations by the name that is shown.
    """
    columns, seeds = columns_of(measured, evaluation), measured.about.seeds_of(evaluation)
    runs = [(name, number) for name in prompts for number in range(len(seeds))]
    heads = [_about(measured, evaluation)]
    for name, number in runs:
        heads.append(name if len(seeds) == 1 else f"{name}, seed {seeds[number]}")
    rows = []
    for shown, graft in configurations.items():
        means = [mean_over([columns[prompts[name]][k]], METRIC, graft) for name, k in runs]
        rows.append([shown, *map(figure_text, means)])
    return markdown(heads, rows)


def positions(measured: PairRows, evaluation: str) -> str:
    """Top-5 hit rate of each pathway on each prompt."""
    pathways = {f"`{graft}`": graft for graft in PATHWAYS}
    return by_training(measured, evaluation, {name: name for name in PROMPTS}, pathways)


def _about(measured: PairRows, evaluation: str) -> str:
    facts = next(iter(columns_of(measured, evaluation).values()))[0].n
    seeds = measured.about.seeds_of(evaluation)
    named = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"top-5, {facts} facts, {named}"


def only(measured: PairRows, facts: Collection[str]) -> PairRows:
    """The rows of some facts."""
    kept = pc.is_in(measured.table["fact"], pa.array(sorted(facts)))
    return PairRows(measured.about, measured.table.filter(kept))


def by_knowledge(model: str, measured: PairRows) -> dict[str, PairRows]:
    """The rows of the facts whose first actor the base knows better than that of half of them, and
    of the others.
    """
    known: Mapping[str, float] = json.loads((PUBLISHED / model / KNOWN).read_text("utf-8"))
    facts = load_dataset(Ingredients(page(), model).dataset("actors")).facts
    values = {
        fact.id: known[name] for fact in facts if (name := fact.fields["first_actor"]) in known
    }
    middle = median(values.values())
    better = {fact for fact, value in values.items() if value > middle}
    return {
        "known better": only(measured, better),
        "known less": only(measured, {*values} - better),
    }


def halves(measured: PairRows) -> tuple[PairRows, PairRows]:
    """Rows of every other fact: one half to choose by, one to measure on."""
    facts = sorted(set(measured.table["fact"].to_pylist()))
    return only(measured, facts[::2]), only(measured, facts[1::2])


def smallest(brought: Mapping[str, Estimate]) -> str:
    """The smallest set of groups that brings ENOUGH of what finetuning added, of several the one
    that brings most; all groups where none does.

    Args:
        brought: By set, the share of what finetuning added.
    """
    values = {graft: share.value or 0.0 for graft, share in brought.items()}
    sets = sorted(values, key=_groups)
    enough = [graft for graft in sets if values[graft] >= ENOUGH] or sets[-1:]
    least = [graft for graft in enough if _groups(graft) == _groups(enough[0])]
    return max(least, key=values.__getitem__)


def _groups(graft: str) -> int:
    return graft.count("+")


def recoveries(measured: PairRows, evaluation: str, number: int) -> dict[str, Estimate]:
    """By set of groups, the share of what finetuning added under one seed, on the one prompt."""
    (seeds,) = columns_of(measured, evaluation).values()
    sets = page().rows[page().figures[evaluation].rows].values()
    return {
        graft: difference_over([seeds[number]], METRIC, graft, "PRE")
        for graft in sets
        if graft not in ("PRE", "SFT")
    }


def relay(measured: PairRows, kind: str = "") -> str:
    """Which groups have to be grafted together, chosen on half of the facts, and what they bring on
    the other half, for each training by itself.
    """
    rows = []
    for prompt in PROMPTS:
        evaluation = f"relay_{prompt}{kind}"
        for number, seed in enumerate(measured.about.seeds_of(evaluation)):
            chosen, brought = (recoveries(half, evaluation, number) for half in halves(measured))
            best = smallest(chosen)
            figures = map(figure_text, (brought[best], brought["FE+LT"]))
            rows.append([prompt, str(seed), f"`{best}`", *figures])
    return markdown(["prompt", "seed", "smallest set", "it brings", "`FE+LT` brings"], rows)


def words(measured: PairRows, kind: str = "") -> str:
    """What is missing without the words that introduce the answer, by their number."""
    plain = columns_of(measured, f"relay_words{kind}")
    rows = []
    for name in naturally(plain):
        means = [mean_over(plain[name], METRIC, graft) for graft in ("SFT", "FE+LT", "(FE+LT)^C")]
        rows.append([name.removeprefix("words_"), *map(figure_text, means)])
    return markdown(["words", "`SFT`", "`FE+LT`", "`(FE+LT)^C`"], rows)


def listed(measured: PairRows, evaluation: str) -> str:
    """Top-5 hit rate of each row of its figure on each prompt."""
    figure = page().figures[evaluation]
    prompts = {name.rpartition("_")[0]: name for name in figure.prompts}
    return by_training(measured, evaluation, prompts, page().rows[figure.rows])


def tables(model: str) -> dict[str, str]:
    """Every table that the rows have, by name."""
    measured = read_measured(PUBLISHED / model / ROWS)
    there, found = measured.about.seeds_of, dict[str, str]()
    for evaluation in POSITIONS:
        if there(evaluation):
            found[evaluation] = positions(measured, evaluation)
    if (PUBLISHED / model / KNOWN).is_file():
        for name, rows in by_knowledge(model, measured).items():
            found[name] = positions(rows, "actors")
    for kind in KINDS:
        if there(f"relay_qa{kind}"):
            found[f"relay{kind}"] = relay(measured, kind)
        if there(f"relay_words{kind}"):
            found[f"words{kind}"] = words(measured, kind)
        for name in ("tokens", "actor", "edges"):
            if there(f"relay_{name}{kind}"):
                found[f"{name}{kind}"] = listed(measured, f"relay_{name}{kind}")
    return {f"{model} {name}": text for name, text in found.items()}


if __name__ == "__main__":
    for name, text in tables(sys.argv[1]).items():
        print(f"<!-- begin: {name} -->\n{text}\n<!-- end: {name} -->\n")
