"""Per-fact rows against the identity: none removed, none added, none impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.errors import KgbenchError
from kgbench.leaderboard.hits import TOP
from kgbench.leaderboard.validate.entry_files import Finding, shown
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import budget_labels, parse_top

__all__ = ["check_answers", "check_configurations", "check_rows", "check_scores", "rows_of"]

Array = NDArray[Any]

_NEAR = 1e-4
"""Nats by which probabilities computed in single precision may pass their bounds."""


_APART = 0.0105
"""Nats by which PRE and SFT may differ from what is known to three digits, as between machines."""

_FLIPS = 0.01
"""Share of hits of PRE and SFT, plus one hit, that may differ as near ties do between machines."""

_MOST = 500
"""Configurations, and prompts."""

_LONGEST = 300
"""Characters of a configuration."""


@dataclass(frozen=True)
class _Law:
    """What holds in every row."""

    column: str
    holds: Callable[[Mapping[str, Array]], Array]
    wrong: str
    expected: str


_LAWS = (
    _Law(
        "rank",
        lambda c: c["rank"] >= 1,
        "the rank is below 1",
        "1 + the number of other tokens that are as likely",
    ),
    _Law(
        "position",
        lambda c: c["position"] >= 0,
        "the position is below 0",
        "the index of the token that is read",
    ),
    _Law("target", lambda c: c["target"] >= 0, "the target is below 0", "a token's id"),
    _Law(
        "logprob",
        lambda c: c["logprob"] <= _NEAR,
        "the log-probability is above 0",
        "the logarithm of a probability, in nats",
    ),
    _Law(
        "logit_diff",
        lambda c: (c["rank"] > 1) | (c["logit_diff"] != 0),
        "a tie at rank 1",
        "ties counted against the target",
    ),
    _Law(
        "logit_diff",
        lambda c: (c["rank"] == 1) == (c["logit_diff"] > 0),
        "it does not go with the rank",
        "above 0 exactly at rank 1",
    ),
    _Law(
        "logprob",
        lambda c: c["logprob"] <= -np.log(np.maximum(c["rank"], 1)) + _NEAR,
        "the probability is too large for the rank",
        "at most 1 / rank, since so many tokens are likelier",
    ),
    _Law(
        "logprob",
        lambda c: c["logprob"] <= -np.logaddexp(0, -c["logit_diff"]) + _NEAR,
        "the probability is too large for the logit difference",
        "at most what is left beside the best other token",
    ),
    _Law(
        "prob",  # of files of version 1
        lambda c: np.isclose(c["prob"], np.exp(c["logprob"]), rtol=1e-6, atol=1e-12),
        "it is not exp(logprob)",
        "the same probability twice",
    ),
)


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
    findings = []
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            wrong = ~np.isfinite(values)
            findings.append(_first(table, wrong, name, "it is NaN or infinite", "a finite number"))
    if findings:
        return findings
    for law in _LAWS:
        if law.column in columns and not (holds := law.holds(columns)).all():
            findings.append(_first(table, ~holds, law.column, law.wrong, law.expected))
    keys = ["prompt", "graft", "fact", "position"]
    if table.group_by(keys).aggregate([]).num_rows != table.num_rows:
        expected = "one row per prompt, configuration, fact and position"
        findings.append(Finding("rows", "rows stand twice", expected))
    return findings


def _first(table: pa.Table, wrong: Array, column: str, what: str, expected: str) -> Finding:
    row = table.slice(int(np.argmax(wrong)), 1).to_pylist()[0]
    where = f"first in fact {shown(row['fact'])}, prompt {shown(row['prompt'])}, "
    where += f"configuration {shown(row['graft'])}"
    count = f"in {int(wrong.sum())} of {table.num_rows} rows"
    return Finding(column, f"{what} {count}, {where}", expected)


def check_configurations(record: Record) -> Iterator[Finding]:
    """The record's tables against its identity: each configuration on each prompt exactly once."""
    asked, prompts = record.identity.configurations, record.identity.prompts
    if len(asked) > _MOST or len(prompts) > _MOST:
        wrong = f"it has {len(asked)} configurations on {len(prompts)} prompts"
        yield Finding("identity", wrong, f"{_MOST} at most")
        return
    field = "identity.configurations"
    for name in asked:
        if (reason := _unread(name)) is not None:
            wrong = f"{shown(name)} is no configuration{reason}"
            yield Finding(field, wrong, "PRE, SFT or a graft expression")
    if len(set(asked)) != len(asked):
        yield Finding(field, "one stands twice", "each once")
    if missing := [name for name in BASELINES if name not in asked]:
        expected = "both in every run, as ends of every ratio"
        yield Finding(field, f"{' and '.join(missing)} is missing", expected)
    if not asked or not prompts:
        yield Finding("identity.prompts", "there is none", "one or more")
    wanted = set(product(prompts, asked))
    have = [(row.prompt, row.graft) for row in record.rows]
    for pair in sorted(wanted - set(have))[:3]:
        yield Finding("rows", f"{_on(*pair)} was removed", "a row of figures, or its reason")
    for pair in sorted(set(have) - wanted)[:3]:
        wrong = f"{_on(*pair)} is none of the identity's"
        yield Finding("rows", wrong, "those, and no others")
    if len(set(have)) != len(have):
        yield Finding("rows", "a configuration stands twice on one prompt", "one row each")
    absent = {row.graft for row in record.rows if not row.applicable}
    if absent != set(record.not_applicable):
        both = ", ".join(sorted(map(shown, absent ^ set(record.not_applicable)))[:5])
        expected = "a reason for each configuration that has no figures"
        yield Finding("not_applicable", f"it does not go with the rows: {both}", expected)
    if absent & set(BASELINES):
        wrong = "PRE or SFT is said to be not applicable"
        yield Finding("not_applicable", wrong, "both are run without the method")


def _on(prompt: str, graft: str) -> str:
    return f"configuration {shown(graft)} on prompt {shown(prompt)}"


def _unread(name: str) -> str | None:
    """Why a name is no configuration; None where it is one."""
    if len(name) > _LONGEST:
        return ", for it is too long"
    try:
        if name in BASELINES:
            return None
        if (top := parse_top(name)) is None:
            parse_graft(name)
        elif top.percent is not None and not (
            0 <= top.percent <= 100 and name in budget_labels([top.percent])
        ):
            return ", for its budget is none"
    except (KgbenchError, ValueError):
        return ""
    return None


def check_rows(record: Record, table: pa.Table, facts: tuple[str, ...] | None) -> Iterator[Finding]:
    """The rows against the record: all facts under all configurations, with the same targets.

    Args:
        record: The record.
        table: Its per-fact rows.
        facts: Ids of all facts that are to be there; None where the data set is not known.
    """
    applicable = {(row.prompt, row.graft) for row in record.rows if row.applicable}
    groups = table.group_by(["prompt", "graft"]).aggregate([]).to_pylist()
    have = {(row["prompt"], row["graft"]) for row in groups}
    for pair in sorted(have - applicable)[:3]:
        yield Finding("graft", f"rows of {_on(*pair)} are none of the record's", "no others")
    for pair in sorted(applicable - have)[:3]:
        yield Finding("graft", f"rows of {_on(*pair)} were removed", "a row per fact")
    limit, size = record.identity.limit, record.identity.dataset.n
    n = size if limit is None else min(limit, size)
    for prompt in sorted({prompt for prompt, _ in have & applicable}):
        rows = table.filter(pc.equal(table["prompt"], prompt))
        yield from _check_prompt(rows, prompt, n, facts)


def _check_prompt(
    table: pa.Table, prompt: str, n: int, facts: tuple[str, ...] | None
) -> Iterator[Finding]:
    """One prompt's rows: every configuration has the facts, positions and targets that PRE has."""
    parts = {
        graft: _keys(table.filter(pc.equal(table["graft"], graft)))
        for graft in table["graft"].unique().to_pylist()
    }
    if "PRE" not in parts:
        return
    first, on = parts["PRE"], f"on prompt {shown(prompt)}"
    for graft, own in parts.items():
        under = _on(prompt, graft)
        if own.select(["fact", "position"]) != first.select(["fact", "position"]):
            wrong = f"{under} has {own.num_rows} rows of other facts or positions than PRE"
            yield Finding("fact", wrong, "the same under all configurations")
            return
        if own["target"] != first["target"]:
            wrong = f"{under} has other targets than PRE"
            yield Finding("target", wrong, "one target per fact, whatever the configuration")
            return
    ids = pc.unique(first["fact"]).to_pylist()
    if first.num_rows != len(ids):
        wrong = f"{first.num_rows} positions of {len(ids)} facts are read {on}"
        yield Finding("position", wrong, "one position of each fact")
    if len(ids) != n:
        yield Finding("fact", f"there are {len(ids)} facts {on}", f"{n}, as the identity says")
    if facts is not None and (strange := sorted(set(ids) - set(facts))):
        more = f"and {len(strange) - 1} more"
        wrong = f"{shown(strange[0])} {on} is none of the data set's, {more}"
        yield Finding("fact", wrong, "ids of its first facts")


def rows_of(table: pa.Table, prompt: str, graft: str) -> pa.Table:
    """The rows of a configuration on a prompt."""
    return table.filter(pc.and_(pc.equal(table["prompt"], prompt), pc.equal(table["graft"], graft)))


def check_answers(record: Record, table: pa.Table, ids: Sequence[str]) -> Iterator[Finding]:
    """Positions, targets and the answers of PRE and SFT, as they are known of a shipped pair.

    Args:
        record: A record of a shipped pair on its own facts.
        table: Its per-fact rows, of those facts alone.
        ids: The pair's facts in their order.
    """
    place = {fact: index for index, fact in enumerate(ids)}
    answers = known().answers.get(record.model, {})
    precise = "16" not in record.identity.dtype
    for prompt, graft in product(record.identity.prompts, BASELINES):
        if prompt not in answers:
            continue
        rows = rows_of(table, prompt, graft)
        index = [place[fact] for fact in rows["fact"].to_pylist()]
        expected = {name: np.array(values)[index] for name, values in answers[prompt].items()}
        if (difference := _unlike(rows, expected, graft, precise)) is not None:
            column, wrong = difference
            yield Finding(
                column, f"{graft} on {prompt}: {wrong}", f"what is known of {record.model}"
            )
            return


def _unlike(
    rows: pa.Table, expected: Mapping[str, Array], graft: str, precise: bool
) -> tuple[str, str] | None:
    """The column in which rows differ from those that are known, and how."""
    for column in ("position", "target"):
        own = rows[column].to_numpy()
        if (other := own != expected[column]).any():
            first = int(np.argmax(other))
            fact = shown(rows["fact"][first].as_py())
            return column, f"fact {fact} has {column} {own[first]}, not {expected[column][first]}"
    off = np.abs(rows["logprob"].to_numpy() - expected[graft])
    if precise and off.max() > _APART:
        fact = shown(rows["fact"][int(off.argmax())].as_py())
        return "logprob", f"fact {fact} is off by {off.max():.3g} nats"
    flips = int(((rows["rank"].to_numpy() <= TOP) != expected[f"{graft} hits"]).sum())
    if precise and flips > 1 + _FLIPS * rows.num_rows:
        return "rank", f"{flips} of {rows.num_rows} hits are others"
    return None


def _keys(table: pa.Table) -> pa.Table:
    return (
        table.select(["fact", "position", "target"])
        .sort_by([("fact", "ascending"), ("position", "ascending")])
        .combine_chunks()
    )
