"""Per-fact rows against the identity: none removed, none added, none impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

__all__ = ["check_answers", "check_configurations", "check_rows", "check_scores"]

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
)


def check_scores(table: pa.Table, at: str) -> list[Finding]:
    """Laws of single rows, and repeated rows; one finding per law, which names the first row.

    Args:
        table: Per-fact rows, as stored.
        at: How findings name the file.
    """
    columns = {
        name: table[name].to_numpy()
        for name in table.column_names
        if table[name].type != pa.string()
    }
    reals = [name for name in columns if columns[name].dtype.kind == "f"]
    if infinite := [name for name in reals if not np.isfinite(columns[name]).all()]:
        return [
            _first(
                table,
                ~np.isfinite(columns[name]),
                at,
                name,
                "it is NaN or infinite",
                "a finite number",
            )
            for name in infinite
        ]
    found = [
        _first(table, ~law.holds(columns), at, law.column, law.wrong, law.expected)
        for law in _LAWS
        if not law.holds(columns).all()
    ]
    if (
        "prob" in columns
        and (
            apart := ~np.isclose(columns["prob"], np.exp(columns["logprob"]), rtol=1e-6, atol=1e-12)
        ).any()
    ):
        found.append(
            _first(table, apart, at, "prob", "it is not exp(logprob)", "the same probability twice")
        )
    keys = ["prompt", "graft", "fact", "position"]
    if table.group_by(keys).aggregate([]).num_rows != table.num_rows:
        found.append(
            Finding(
                at,
                "rows",
                "rows stand twice",
                "one row per prompt, configuration, fact and position",
            )
        )
    return found


def _first(
    table: pa.Table, wrong: Array, at: str, column: str, what: str, expected: str
) -> Finding:
    row = table.slice(int(np.argmax(wrong)), 1).to_pylist()[0]
    where = (
        f"first in fact {shown(row['fact'])}, prompt {shown(row['prompt'])}, "
        f"configuration {shown(row['graft'])}"
    )
    return Finding(
        at, column, f"{what} in {int(wrong.sum())} of {table.num_rows} rows, {where}", expected
    )


def check_configurations(record: Record, at: str) -> Iterator[Finding]:
    """The record's tables against its identity: each configuration on each prompt exactly once."""
    asked = record.identity.configurations
    if len(asked) > _MOST or len(record.identity.prompts) > _MOST:
        yield Finding(
            at,
            "identity",
            f"it has {len(asked)} configurations on {len(record.identity.prompts)} prompts",
            f"{_MOST} at most",
        )
        return
    for name in asked:
        if (reason := _unread(name)) is not None:
            yield Finding(
                at,
                "identity.configurations",
                f"{shown(name)} is no configuration{reason}",
                "PRE, SFT or a graft expression",
            )
    if len(set(asked)) != len(asked):
        yield Finding(at, "identity.configurations", "one stands twice", "each once")
    if missing := [name for name in BASELINES if name not in asked]:
        yield Finding(
            at,
            "identity.configurations",
            f"{' and '.join(missing)} is missing",
            "both in every run, as ends of every ratio",
        )
    wanted = {(prompt, graft) for prompt in record.identity.prompts for graft in asked}
    have = [(row.prompt, row.graft) for row in record.rows]
    if not wanted:
        yield Finding(at, "identity.prompts", "there is none", "one or more")
    for prompt, graft in sorted(wanted - set(have))[:3]:
        yield Finding(
            at,
            "rows",
            f"configuration {shown(graft)} on prompt {shown(prompt)} was removed",
            "a row of figures, or its reason",
        )
    for prompt, graft in sorted(set(have) - wanted)[:3]:
        yield Finding(
            at,
            "rows",
            f"configuration {shown(graft)} on prompt {shown(prompt)} is none of the identity's",
            "those, and no others",
        )
    if len(set(have)) != len(have):
        yield Finding(at, "rows", "a configuration stands twice on one prompt", "one row each")
    absent = {row.graft for row in record.rows if not row.applicable}
    if absent != set(record.not_applicable):
        both = ", ".join(sorted(map(shown, absent ^ set(record.not_applicable)))[:5])
        yield Finding(
            at,
            "not_applicable",
            f"it does not go with the rows: {both}",
            "a reason for each configuration that has no figures",
        )
    if absent & set(BASELINES):
        yield Finding(
            at,
            "not_applicable",
            "PRE or SFT is said to be not applicable",
            "both are run without the method",
        )


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


def check_rows(
    record: Record, table: pa.Table, facts: tuple[str, ...] | None, at: str
) -> Iterator[Finding]:
    """The rows against the record: all facts under all configurations, with the same targets.

    Args:
        record: The record.
        table: Its per-fact rows.
        facts: Ids of all facts that are to be there; None where the data set is not known.
        at: How findings name the file.
    """
    applicable = {(row.prompt, row.graft) for row in record.rows if row.applicable}
    have = {
        (row["prompt"], row["graft"])
        for row in table.group_by(["prompt", "graft"]).aggregate([]).to_pylist()
    }
    for prompt, graft in sorted(have - applicable)[:3]:
        yield Finding(
            at,
            "graft",
            f"rows of configuration {shown(graft)} on prompt {shown(prompt)} are none of the "
            "record's",
            "no others",
        )
    for prompt, graft in sorted(applicable - have)[:3]:
        yield Finding(
            at,
            "graft",
            f"rows of configuration {shown(graft)} on prompt {shown(prompt)} were removed",
            "a row per fact",
        )
    limit, known = record.identity.limit, record.identity.dataset.n
    n = known if limit is None else min(limit, known)
    for prompt in sorted({prompt for prompt, _ in have & applicable}):
        yield from _check_prompt(
            table.filter(pc.equal(table["prompt"], prompt)), prompt, n, facts, at
        )


def _check_prompt(
    table: pa.Table, prompt: str, n: int, facts: tuple[str, ...] | None, at: str
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
        under = f"configuration {shown(graft)} {on}"
        if own.select(["fact", "position"]) != first.select(["fact", "position"]):
            yield Finding(
                at,
                "fact",
                f"{under} has {own.num_rows} rows of other facts or positions than PRE",
                "the same under all configurations",
            )
            return
        if own["target"] != first["target"]:
            yield Finding(
                at,
                "target",
                f"{under} has other targets than PRE",
                "one target per fact, whatever the configuration",
            )
            return
    ids = pc.unique(first["fact"]).to_pylist()
    if first.num_rows != len(ids):
        wrong = f"{first.num_rows} positions of {len(ids)} facts are read {on}"
        yield Finding(at, "position", wrong, "one position of each fact")
    if len(ids) != n:
        yield Finding(at, "fact", f"there are {len(ids)} facts {on}", f"{n}, as the identity says")
    if facts is not None and (strange := sorted(set(ids) - set(facts))):
        yield Finding(
            at,
            "fact",
            f"{shown(strange[0])} {on} is none of the data set's, and {len(strange) - 1} more",
            "ids of its first facts",
        )


def check_answers(
    record: Record, table: pa.Table, ids: Sequence[str], at: str
) -> Iterator[Finding]:
    """Positions, targets and the answers of PRE and SFT, as they are known of a shipped pair.

    Args:
        record: A record of a shipped pair on its own facts.
        table: Its per-fact rows, of those facts alone.
        ids: The pair's facts in their order.
        at: How findings name the file.
    """
    place = {fact: index for index, fact in enumerate(ids)}
    for prompt in record.identity.prompts:
        expected = known().answers.get(record.model, {}).get(prompt)
        if expected is None:
            continue
        for graft in BASELINES:
            chosen = pc.and_(pc.equal(table["prompt"], prompt), pc.equal(table["graft"], graft))
            rows = table.filter(chosen)
            index = [place[fact] for fact in rows["fact"].to_pylist()]
            known_rows = {name: np.array(values)[index] for name, values in expected.items()}
            if found := _unlike(rows, known_rows, graft, "16" not in record.identity.dtype):
                column, wrong = found
                what = f"{graft} on {prompt}: {wrong}"
                yield Finding(at, column, what, f"what is known of {record.model}")
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
