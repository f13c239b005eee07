"""Prints the documentation's tables of a real language model, from its published rows.

python tests/real_tables.py smollm2-135m
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from kgbench.data import load_dataset
from kgbench.estimate import Estimate
from kgbench.numbers import figure_text
from kgbench.paper.figure_specs import page
from kgbench.paper.ingredients import Ingredients
from kgbench.paper.pair_rows import ROWS, PairRows, columns_of, read_measured
from kgbench.paper.training_seeds import difference_over, mean_over
from kgbench.stats.scores import PromptColumns, naturally

PUBLISHED = Path(__file__).parents[1] / "leaderboard" / "reproductions"
KNOWN = "known_names.json"
PROMPTS = ("headline", "qa", "movie_title", "new_film")
PATHWAYS = ("PRE", "SFT", "FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
POSITIONS = ("actors", "names", "shuffled", *page().variants)
OTHERS = (
    "components",
    "reversal",
    "hybrid",
    "layers",
    "movie_title",
    "relation",
    "head",
    "articles",
    "forgetting",
)
"""Further evaluations, of which the rows of their figures are shown."""
KINDS = ("", *(f"_{name}" for name in page().variants))
"""Of a relay evaluation: the adapter's, and those of other donors."""
SEVERAL = 3
"""Trainings over which an interval says something; over two, t has one degree of freedom."""
ENOUGH = 0.95
"""Share of what finetuning added that a set of groups has to bring."""
METRIC = "top5"

Cells = Sequence[str]


def markdown(heads: Cells, rows: Sequence[Cells]) -> str:
    """A table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def rates(
    measured: PairRows,
    evaluation: str,
    prompts: Mapping[str, str],
    configurations: Mapping[str, str],
) -> str:
    """Top-5 hit rate of each configuration on each prompt.

    Args:
        measured: The rows.
        evaluation: The evaluation.
        prompts: Prompts by the name that is shown.
        configurations: Configurations by the name that is shown.
    """
    columns, runs = columns_of(measured, evaluation), trainings(measured, evaluation)
    heads = [shown + run for shown in prompts for run in runs]
    rows = []
    for shown, graft in configurations.items():
        cells = [shown]
        for name, own in product(prompts.values(), runs.values()):
            cells.append(figure_text(mean_over(own(columns[name]), METRIC, graft)))
        rows.append(cells)
    return markdown([_about(measured, evaluation), *heads], rows)


Run = Callable[[Sequence[PromptColumns]], Sequence[PromptColumns]]


def trainings(measured: PairRows, evaluation: str) -> dict[str, Run]:
    """Choices among columns by training: all together, or each by itself where they are fewer than
    SEVERAL.
    """
    seeds = measured.about.seeds_of(evaluation)
    if len(seeds) == 1 or len(seeds) >= SEVERAL:
        return {"": lambda columns: columns}
    return {f", seed {seed}": itemgetter(slice(n, n + 1)) for n, seed in enumerate(seeds)}


def positions(measured: PairRows, evaluation: str) -> str:
    """Top-5 hit rate of each pathway on each prompt."""
    pathways = {f"`{graft}`": graft for graft in PATHWAYS}
    there = columns_of(measured, evaluation)
    return rates(measured, evaluation, {name: name for name in PROMPTS if name in there}, pathways)


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


def halves(measured: PairRows, evaluation: str) -> tuple[PairRows, PairRows]:
    """Rows of every other fact of an evaluation: one half to choose by, one to measure on."""
    columns = next(iter(columns_of(measured, evaluation).values()))
    facts = sorted(columns[0].facts.tolist())
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


def recoveries(
    measured: PairRows, evaluation: str, number: int, less: str = "PRE"
) -> dict[str, Estimate]:
    """By set of groups, the share of what finetuning added under one seed, on the one prompt.

    Args:
        measured: The rows.
        evaluation: The evaluation.
        number: Which of its seeds.
        less: The configuration that shares are differences from.
    """
    (seeds,) = columns_of(measured, evaluation).values()
    sets = page().rows[page().figures[evaluation].rows].values()
    return {
        graft: difference_over([seeds[number]], METRIC, graft, less)
        for graft in sets
        if graft not in ("PRE", "SFT", less)
    }


def relay(measured: PairRows, kind: str = "") -> str:
    """Which groups have to be grafted together, chosen on half of the facts, and what they bring on
    the other half, for each training by itself: the smallest set that brings ENOUGH, and the set
    that brings most, of several the smallest.
    """
    rows = []
    for prompt in PROMPTS:
        evaluation = f"relay_{prompt}{kind}"
        seeds = measured.about.seeds_of(evaluation)
        sides = halves(measured, evaluation) if seeds else ()
        for number, seed in enumerate(seeds):
            chosen, brought = (recoveries(half, evaluation, number) for half in sides)
            best = smallest(chosen)
            figures = map(figure_text, (brought[best], brought["FE+LT"]))
            most = max(chosen, key=lambda graft: (chosen[graft].value or 0.0, -_groups(graft)))
            more = recoveries(sides[1], evaluation, number, "FE+LT").get(most)
            further = [f"`{most}`", "–" if more is None else figure_text(more)]
            rows.append([prompt, str(seed), f"`{best}`", *figures, *further])
    heads = ["prompt", "seed", "smallest set", "it brings", "`FE+LT` brings"]
    return markdown([*heads, "set that brings most", "more than `FE+LT` by"], rows)


def introducing(measured: PairRows) -> str:
    """What FE+LT brings of what finetuning added, alone and with all words that introduce the
    answer, for each training by itself.
    """
    rows = []
    for kind in KINDS:
        evaluation = f"relay_tokens{kind}"
        seeds = measured.about.seeds_of(evaluation)
        columns = columns_of(measured, evaluation) if seeds else {}
        for number, seed in enumerate(seeds):
            cells = [trained(kind), str(seed)]
            for prompt in ("qa_tokens", "new_film_tokens"):
                one = [columns[prompt][number]]
                cells.append(figure_text(mean_over(one, METRIC, "SFT")))
                for graft in ("FE+LT", "FE+LT+M+R+RP+P"):
                    cells.append(figure_text(difference_over(one, METRIC, graft, "PRE")))
            rows.append(cells)
    heads = ["finetuned", "seed"]
    for prompt in ("qa", "new_film"):
        heads += [f"{prompt}: `SFT`", "`FE+LT` brings", "with the words"]
    return markdown(heads, rows)


def one_more(measured: PairRows) -> str:
    """What FE+LT brings on qa of what finetuning added, alone and with one group of tokens more, for
    each training by itself.
    """
    rows = []
    for kind in KINDS:
        evaluation = f"relay_qa{kind}"
        for number, seed in enumerate(measured.about.seeds_of(evaluation)):
            brought = recoveries(measured, evaluation, number)
            sets = ("FE+LT", "FE+LT+R", "FE+LT+RP", "FE+LT+P")
            rows.append([trained(kind), str(seed), *(figure_text(brought[one]) for one in sets)])
    return markdown(["finetuned", "seed", "`FE+LT`", "with R", "with RP", "with P"], rows)


def trained(kind: str) -> str:
    """How a donor was finetuned."""
    return page().variants[kind[1:]].title if kind else "an adapter"


def words(measured: PairRows, kind: str = "") -> str:
    """What is missing without the words that introduce the answer, by their number."""
    evaluation = f"relay_words{kind}"
    columns, runs = columns_of(measured, evaluation), trainings(measured, evaluation)
    shown = [*product(("SFT", "FE+LT", "(FE+LT)^C"), runs)]
    rows = []
    for name in naturally(columns):
        means = [mean_over(runs[run](columns[name]), METRIC, graft) for graft, run in shown]
        rows.append([f"{name.removeprefix('words_')} words", *map(figure_text, means)])
    heads = [f"`{graft}`{run}" for graft, run in shown]
    return markdown([_about(measured, evaluation), *heads], rows)


def listed(measured: PairRows, evaluation: str) -> str:
    """Top-5 hit rate of each row of its figure on each prompt.

    Embeddings are left out where the donor's are the base's: these rows repeat others.
    """
    figure = next(one for one in page().figures.values() if one.evaluation == evaluation)
    prompts = {re.sub("_(groups|tokens|actor)$", "", name): name for name in figure.prompts}
    rows = page().rows[figure.rows]
    if evaluation in OTHERS:
        rows = {shown: graft for shown, graft in rows.items() if ":emb" not in graft}
    return rates(measured, evaluation, prompts, rows)


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
    for evaluation in OTHERS:
        if there(evaluation):
            found[evaluation] = listed(measured, evaluation)
    for kind in KINDS:
        if there(f"relay_qa{kind}"):
            found[f"relay{kind}"] = relay(measured, kind)
        if there(f"relay_words{kind}"):
            found[f"words{kind}"] = words(measured, kind)
        for name in ("tokens", "actor", "depth", "edges"):
            if there(f"relay_{name}{kind}"):
                found[f"{name}{kind}"] = listed(measured, f"relay_{name}{kind}")
    found["introducing"] = introducing(measured)
    found["one more"] = one_more(measured)
    return {f"{model} {name}": text for name, text in found.items()}


if __name__ == "__main__":
    for name, text in tables(sys.argv[1]).items():
        print(f"<!-- begin: {name} -->\n{text}\n<!-- end: {name} -->\n")
