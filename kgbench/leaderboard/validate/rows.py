"""Per-fact rows against the record: none removed, none added, none impossible."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.errors import KgbenchError
from kgbench.leaderboard.hits import TOP
from kgbench.leaderboard.validate.files import Finding, Law, shown, unmet
from kgbench.leaderboard.validate.known import known_answers
from kgbench.records import Record
from kgbench.records.fact_rows import KEYS, is_ordered, spans
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import budget_labels, parse_top

__all__ = [
    "check_answers",
    "check_configurations",
    "check_rows",
    "check_scores",
    "unlike",
]

Array = NDArray[Any]

_NEAR = 1e-4
"""Nats by which probabilities computed in single precision may pass their bounds."""

_KNOWN = 0.0105
"""Nats by which PRE and SFT may differ from what is known to three digits, as between machines."""

_FLIPS = 0.01
"""Share of hits of PRE and SFT, plus one hit, that may differ as near ties do between machines."""

_MOST = 500
"""Configurations, and prompts."""

_LONGEST = 300
"""Characters of a configuration."""


def check_scores(table: pa.Table) -> list[Finding]:
    """Laws of single rows, and repeated rows; one finding per law, which names the first row.

    Args:
        table: Per-fact rows, as stored.
    """
    columns = {
        name: table[name].to_numpy()
        for name in table.column_names
        if table[name].type != pa.string()
    }
    laws = []
    for name, values in columns.items():
        laws.append((name, np.isfinite(values), "it is NaN or infinite", "a finite number"))
    if all(holds.all() for _, holds, _, _ in laws):
        laws = list(_laws(columns))
    findings = []
    for name, holds, wrong, expected in laws:
        if not holds.all():
            row = table.slice(int(np.argmin(holds)), 1).to_pylist()[0]
            where = f"first in fact {shown(row['fact'])}, prompt {shown(row['prompt'])}, "
            where += f"configuration {shown(row['graft'])}"
            count = f"in {int((~holds).sum())} of {table.num_rows} rows"
            findings.append(Finding(name, f"{wrong} {count}, {where}", expected))
    if not is_ordered(table) and table.group_by(KEYS).aggregate([]).num_rows != table.num_rows:
        expected = "one row per prompt, configuration, fact and position"
        findings.append(Finding("rows", "rows stand twice", expected))
    return findings


def _laws(columns: dict[str, Array]) -> Iterator[tuple[str, Array, str, str]]:
    """Column, whether each row is as it must be, what is wrong otherwise, and what was expected."""
    rank, logprob, gap = columns["rank"], columns["logprob"], columns["logit_diff"]
    for name, least in (("rank", 1), ("position", 0), ("target", 0)):
        yield name, columns[name] >= least, f"it is below {least}", f"{least} or more"
    likeliest = -np.log(np.maximum(rank, 1))
    left = -np.logaddexp(0, -gap)
    yield "logit_diff", (rank > 1) | (gap != 0), "a tie at rank 1", "ties against the target"
    wrong = "it does not go with the rank"
    yield "logit_diff", (rank == 1) == (gap > 0), wrong, "above 0 exactly at rank 1"
    for most, why in (
        (np.zeros_like(logprob), "above 1"),
        (likeliest, "too large for the rank: at most 1 / rank, since so many tokens are likelier"),
        (left, "too large for the logit difference: at most what the best other token leaves"),
    ):
        wrong = f"the probability is {why}"
        yield "logprob", logprob <= most + _NEAR, wrong, "the logarithm of a probability, in nats"
    if "prob" in columns:  # of files of version 1
        same = np.isclose(columns["prob"], np.exp(logprob), rtol=1e-6, atol=1e-12)
        yield "prob", same, "it is not exp(logprob)", "the same probability twice"


def check_configurations(record: Record) -> Iterator[Finding]:
    """The record's tables against its identity: each configuration on each prompt."""
    asked, prompts = record.identity.configurations, record.identity.prompts
    field, few = "identity.configurations", min(len(asked), len(prompts)) > 0
    few = few and max(len(asked), len(prompts)) <= _MOST
    sizes = f"{len(asked)} configurations on {len(prompts)} prompts"
    absent = {row.graft for row in record.rows if not row.applicable}
    both = absent ^ set(record.not_applicable)
    unread = [name for name in asked[:_MOST] if not _is_configuration(name)]
    once = len(set(asked)) == len(asked)
    reasons = "a reason for each configuration without figures, PRE and SFT not among them"
    laws: list[Law] = [
        ("identity.prompts", sizes, few, f"1 to {_MOST} of each"),
        (field, unread, not unread, "PRE, SFT, graft expressions or budgets"),
        (field, "a list with one twice", once, "each once"),
        (field, asked, set(BASELINES) <= set(asked), "PRE and SFT, the ends of every ratio"),
        ("not_applicable", sorted(both or absent), not both | absent & set(BASELINES), reasons),
    ]
    yield from unmet(laws)
    if not few:
        return
    have = {(row.prompt, row.graft) for row in record.rows}
    yield from _exchanged("rows", have, set(product(prompts, asked)))


def _exchanged(
    field: str, have: Collection[tuple[str, str]], wanted: Collection[tuple[str, str]]
) -> Iterator[Finding]:
    """Findings on configurations that are missing or too many.

    Args:
        field: Where they are.
        have: Prompt and configuration of each.
        wanted: The same as it must be.
    """
    for pair in sorted({*wanted} - {*have})[:3]:
        yield Finding(field, f"{_on(*pair)} was removed", "figures of it, or the reason")
    for pair in sorted({*have} - {*wanted})[:3]:
        yield Finding(field, f"{_on(*pair)} was not asked for", "no others")


def _on(prompt: str, graft: str) -> str:
    return f"configuration {shown(graft)} on prompt {shown(prompt)}"


def _is_configuration(name: str) -> bool:
    if len(name) > _LONGEST:
        return False
    try:
        top = parse_top(name)
        if name not in BASELINES and top is None:
            parse_graft(name)
    except (KgbenchError, ValueError):
        return False
    if top is None or top.percent is None:
        return True
    return 0 <= top.percent <= 100 and name in budget_labels([top.percent])


def check_rows(record: Record, table: pa.Table, facts: tuple[str, ...] | None) -> Iterator[Finding]:
    """The rows against the record: all facts under all configurations, with the same targets.

    Args:
        record: The record.
        table: Its per-fact rows, sorted.
        facts: Ids of all facts that are to be there; None where the data set is not known.
    """
    applicable = {(row.prompt, row.graft) for row in record.rows if row.applicable}
    places = spans(table)
    yield from _exchanged("graft", places, applicable)
    n = record.identity.n_facts
    for name in sorted({prompt for prompt, _ in places.keys() & applicable}):
        parts = {
            graft: table.slice(*at) for (prompt, graft), at in places.items() if prompt == name
        }
        yield from _check_prompt(parts, name, n, facts)


def _check_prompt(
    parts: Mapping[str, pa.Table], prompt: str, n: int, facts: tuple[str, ...] | None
) -> Iterator[Finding]:
    """Every configuration of a prompt has the facts, positions and targets that PRE has."""
    if "PRE" not in parts:
        return
    first, on = parts["PRE"], f"on prompt {shown(prompt)}"
    for graft, own in parts.items():
        for columns, name in ((["fact", "position"], "fact"), (["target"], "target")):
            if own.select(columns) != first.select(columns):
                wrong = f"{_on(prompt, graft)} has {own.num_rows} rows of another {name} than PRE"
                yield Finding(name, wrong, "the same facts, positions and targets under all")
                return
    ids = pc.unique(first["fact"]).to_pylist()
    if first.num_rows != len(ids):
        wrong = f"{first.num_rows} positions of {len(ids)} facts are read {on}"
        yield Finding("position", wrong, "one position of each fact")
    if len(ids) != n:
        yield Finding("fact", f"there are {len(ids)} facts {on}", f"{n}, as the identity says")
    if facts is not None and (strange := sorted(set(ids) - set(facts))):
        wrong = f"{len(strange)} {on} are none of the data set's, such as {shown(strange[0])}"
        yield Finding("fact", wrong, "ids of its first facts")


# ----------------------------------------------------------------------------------------- answers


def check_answers(record: Record, table: pa.Table) -> Iterator[Finding]:
    """Positions, targets and the answers of PRE and SFT, as they are known of a shipped pair.

    Args:
        record: A record of a shipped pair on its own facts.
        table: Its per-fact rows, of those facts alone, sorted.
    """
    tolerance = np.inf if "16" in record.identity.dtype else _KNOWN
    places = spans(table)
    for prompt, graft in product(record.identity.prompts, BASELINES):
        wanted = known_answers(record.model, prompt, graft)
        if wanted is None:
            continue
        rows = table.slice(*places.get((prompt, graft), (0, 0)))
        if (difference := unlike(rows, wanted, tolerance, hits=True)) is not None:
            column, wrong = difference
            expected = f"what is known of {record.model}"
            yield Finding(column, f"{graft} on {prompt}: {wrong}", expected)
            return


def unlike(
    own: pa.Table, other: pa.Table, tolerance: float, hits: bool = False
) -> tuple[str, str] | None:
    """The column in which answers of one model differ, and how, on the facts that both have.

    Args:
        own: Rows of one configuration.
        other: Rows of the same models on the same texts.
        tolerance: Nats by which log-probabilities may differ.
        hits: Whether to compare hits too, where there is a tolerance.
    """
    places = pc.index_in(own["fact"], other["fact"].combine_chunks())  # each fact is there once
    own, other = own.filter(pc.is_valid(places)), other.take(places.drop_null())
    for name, words in (
        ("position", "is read at another position"),
        ("target", "has another target"),
    ):
        moved = own.filter(pc.not_equal(own[name], other[name]))
        if moved.num_rows:
            return name, f"fact {shown(moved['fact'][0].as_py())} {words}"
    if not own.num_rows or tolerance == np.inf:
        return None
    off = np.abs(own["logprob"].to_numpy() - other["logprob"].to_numpy())
    worst = int(off.argmax())
    if off[worst] > tolerance:
        return (
            "logprob",
            f"fact {shown(own['fact'][worst].as_py())} is off by {off[worst]:.3g} nats",
        )
    ranks = (own["rank"].to_numpy(), other["rank"].to_numpy())
    flips = int(((ranks[0] <= TOP) != (ranks[1] <= TOP)).sum())
    if hits and flips > 1 + _FLIPS * own.num_rows:
        return "rank", f"{flips} of {own.num_rows} hits are others"
    return None
