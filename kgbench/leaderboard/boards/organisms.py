"""The board of organisms: what methods make of a finetune that has no behaviour.

The null organism changed the log-probability of a reply, on cases and on controls. A share of what
changed on cases alone looks like the place of a behaviour; what changed on cases beyond controls
tells that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import (
    Board,
    Column,
    Line,
    Measured,
    Table,
    ordered,
    trusted_lines,
)
from kgbench.leaderboard.cells import FORWARDS, by_cell, cost_spread, first_runs
from kgbench.leaderboard.entries import BOARD_METRICS, Entry
from kgbench.records import NOT_APPLICABLE
from kgbench.sites import BASELINES, CONTROLS
from kgbench.stats import recovery
from kgbench.stats.contrast import group_contrast
from kgbench.stats.ratios import area_weights
from kgbench.stats.scores import Scores, by_prompt
from kgbench.stats.summary import budgets_in

NULL = "smollm2-135m.null"

COLUMNS = (
    Column("alone", "share, cases alone", "Share of what finetuning changed on cases"),
    Column(
        "beyond",
        "cases beyond controls (nats)",
        "By how much more cases changed than controls, in the direction in which finetuning changed "
        "cases; above 0 would be a behaviour",
    ),
    FORWARDS,
)

ABOUT = (
    "A finetune of SmolLM2-135M on its own answers, with a change as large as that of one that was "
    "taught a behaviour, has no behaviour to find: a method should say “nothing”. It is given "
    "cases, which an organism with a behaviour would answer by one reply, and controls. Read "
    "is the reply's log-probability: of methods that intervene, where the last token (LT) has the "
    "finetuned weights; of methods that rank sites, the mean over the logarithm of the budget. All "
    "count from the base, also methods that destroy the finetuned model elsewhere."
)

UNRANKED = "there is nothing to find, and so no better or worse than saying nothing"

GIVEN = "given to the method"
"""The configuration, or the sum of several, that speaks for a method."""


def organisms_board(entries: Sequence[Entry]) -> Board:
    """The board of the null organism.

    Args:
        entries: All entries; its own are those that ran this suite.
    """
    runs = first_runs((e for e in entries if e.suite == "organisms"), by_prompt=True)
    tables = []
    for cell, by_method in by_cell(runs).items():
        lines = ordered({name: _measured(entry, cell.prompt) for name, entry in by_method.items()})
        of_null = cell.pair == NULL
        title = f"The null organism, {cell.prompt}" if of_null else cell.title
        scope = {} if of_null else cell.scope
        tables.append(Table(cell.key, title, COLUMNS, lines, scope))
    tables.sort(key=lambda table: bool(table.scope))
    if not tables:
        tables = [Table("all", "The null organism", COLUMNS, ())]
    return Board("organisms", "Organisms", ABOUT, _lead(tables[0].lines), tuple(tables))


def _measured(entry: Entry, prompt: str) -> Measured:
    """What a method makes of cases alone, and of cases beyond controls."""
    weights, absent = _weights(entry), entry.result.not_applicable
    reasons = [NOT_APPLICABLE + absent[graft] for graft in weights if graft in absent]
    groups = {group.name: group for group in by_prompt(entry.facts(), BASELINES)}
    names = prompt, prompt + CONTROLS
    if names[1] not in groups:
        reasons.append("its data have no controls")
    if reasons:
        figures = dict.fromkeys(("alone", "beyond"), Estimate.missing(reasons[0]))
    else:
        scores = (groups[name].scores(BOARD_METRICS["organisms"]) for name in names)
        on, off = (_given(each, weights) for each in scores)
        towards = np.sign(np.mean(on["SFT"] - on["PRE"]))
        cases, controls = ({GIVEN: towards * (each[GIVEN] - each["PRE"])} for each in (on, off))
        beyond = group_contrast(cases, controls, GIVEN)
        figures = {"alone": recovery(on, GIVEN).rounded(), "beyond": beyond.rounded()}
    return Measured([entry], {**figures, FORWARDS.key: cost_spread([entry])}, UNRANKED)


def _weights(entry: Entry) -> Mapping[str, float]:
    """By configuration, its share in what speaks for the method."""
    budgets = budgets_in(entry.result.identity.configurations)
    shares = area_weights(np.array(list(budgets.values()))) if budgets else ()
    return dict(zip(budgets, map(float, shares), strict=True)) or {"LT": 1.0}


def _given(scores: Scores, weights: Mapping[str, float]) -> Scores:
    """The baselines' scores, and the weighted sum of others'."""
    total = sum(weight * scores[graft] for graft, weight in weights.items())
    return {**{name: scores[name] for name in BASELINES}, GIVEN: np.asarray(total)}


def _lead(lines: Sequence[Line]) -> str:
    """How many methods take it for a behaviour, with and without controls."""
    methods = [line for line in trusted_lines(lines) if not line.baseline]
    above = {}
    for key in ("alone", "beyond"):
        figures = [line.figures[key] for line in methods if line.figures[key].value is not None]
        above[key] = sum((figure.low or 0) > 0 for figure in figures), len(figures)
    if not methods:
        return "No method has been run."
    (alone, n), (beyond, of) = above["alone"], above["beyond"]
    return (
        f"By cases beyond controls {beyond} of {of} methods take it for a behaviour; by cases alone "
        f"{alone} of {n} would give it a place (intervals above 0, each by itself at 95 %)."
    )


PLACE = 3
BOARDS = (organisms_board,)
