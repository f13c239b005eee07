"""Laws of per-fact rows: each by itself, against the record, and answers of the same models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.data.cases import GROUP
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import TOP
from kgbench.leaderboard.limits import FACTS
from kgbench.leaderboard.validate.files import Finding, shown
from kgbench.records.fact_rows import is_ordered
from kgbench.sites import CONTROLS

_NEAR = 1e-4
"""Nats by which probabilities computed in single precision may pass their bounds."""

_FLIPS = 0.01
"""Share of hits of PRE and SFT, plus one hit, that may differ as near ties do between machines."""

_of_rows = partial(Finding, FACTS)


def row_findings(entry: Entry) -> Iterator[Finding]:
    """Each row by itself, all of them, and those that are known."""
    findings = [*_possible(entry.rows()), *_complete(entry)]
    yield from findings or _answers(entry)


def _possible(table: pa.Table) -> Iterator[Finding]:
    """Laws of single rows, and repeated rows; one finding per law, which names the first row."""
    columns, laws = {}, []
    for name in table.column_names:
        if table[name].type != pa.string():
            columns[name] = table[name].to_numpy()
            laws.append((name, np.isfinite(columns[name]), "a finite number"))
    if all(holds.all() for _, holds, _ in laws):
        rank, logprob, gap = columns["rank"], columns["logprob"], columns["logit_diff"]
        laws = [("logit_diff", (rank == 1) == (gap > 0), "above 0 exactly at rank 1")]
        for name, least in (("rank", 1), ("position", 0), ("target", 0)):
            laws.append((name, columns[name] >= least, f"{least} or more"))
        for most, expected in (
            (0, "a probability of 1 or less"),
            (-np.log(np.maximum(rank, 1)), "at most 1 / rank, since so many tokens are likelier"),
            (-np.logaddexp(0, -gap), "what the best other token's logit leaves, or less"),
        ):
            laws.append(("logprob", logprob <= most + _NEAR, expected))
    for name, holds, expected in laws:
        if not holds.all():
            row = table.slice(int(np.argmin(holds)), 1).to_pylist()[0]
            clause = f"in {int((~holds).sum())} of {table.num_rows} rows, first in {{}}"
            yield _of_rows(name, list(row.values()), expected, clause)
    if not is_ordered(table):  # rows are sorted, and do not ascend only where some are equal
        expected = "one row per prompt, configuration, fact and position"
        yield _of_rows("rows", table.num_rows, expected, "of {} some stand twice")


def _complete(entry: Entry) -> Iterator[Finding]:
    """The rows are all facts under all configurations, with the same targets."""
    record, dataset = entry.result, entry.shipped.dataset
    table, places = entry.rows(), entry.places
    what = record.identity
    cases, controls = set[str](), set[str]()
    for fact in dataset.facts[: what.limit] if dataset else ():
        (controls if fact.fields.get(GROUP) == "off" else cases).add(fact.id)
    prompts = [*what.prompts, *(f"{name}{CONTROLS}" for name in what.prompts if controls)]
    asked = set(product(prompts, what.configurations))
    excused = set(product(prompts, record.not_applicable))
    for cells, clause, expected in (
        (asked - excused - places.keys(), "{} was removed", "rows of it, or the reason"),
        (places.keys() - asked, "{} was not asked for", "no others"),
    ):
        for cell in sorted(cells)[:3]:
            yield _of_rows("graft", cell, expected, clause)
    for graft in sorted(record.not_applicable):
        if all((prompt, graft) in places for prompt in prompts):
            expected = "none on some, where the method cannot express it"
            yield _of_rows("graft", graft, expected, "{} has rows on all prompts")
    for prompt, graft in sorted(places.keys() & asked):
        first = table.slice(*places.get((prompt, "PRE"), (0, 0)))
        rows = table.slice(*places[prompt, graft])
        for name, columns in (("fact", ["fact", "position"]), ("target", ["target"])):
            if rows.select(columns) != first.select(columns):
                expected = "the same facts, positions and targets under all configurations"
                clause = f"{{}} has {rows.num_rows} rows of another {name} than PRE"
                yield _of_rows(name, (prompt, graft), expected, clause)
                return
        if graft != "PRE":
            continue
        ids = set(rows["fact"].to_pylist())
        shipped = controls if prompt.endswith(CONTROLS) else cases if dataset else ids
        n = len(shipped) if controls else what.n_facts
        if not rows.num_rows == len(ids) == n:
            expected = f"one position of each of {n} facts, as the identity says"
            yield _of_rows("fact", rows.num_rows, expected, f"{{}} rows of {len(ids)} facts")
        if strange := sorted(ids - shipped):
            clause = f"{len(strange)} are none of the data set's, such as {{}}"
            yield _of_rows("fact", strange[0], "ids of its first facts", clause)


def _answers(entry: Entry) -> Iterator[Finding]:
    """The first answer of PRE or SFT that is not what is known of a shipped pair on its own facts."""
    model, table = entry.pair, entry.rows()
    # Three digits of them are known; models that compute in 16 bits differ by more.
    tolerance = 0.5 if "16" in entry.result.identity.dtype else 0.0105
    for (prompt, graft), answers in entry.shipped.answers.items():
        rows = table.slice(*entry.places.get((prompt, graft), (0, 0)))
        if fault := unlike(rows, answers, tolerance, hits=True):
            clause = f"{graft} on {prompt}: {fault[1]}"
            yield _of_rows(fault[0], None, f"what is known of {model}", clause)
            return


def unlike(
    rows: pa.Table, others: pa.Table, tolerance: float, hits: bool = False
) -> tuple[str, str] | None:
    """The column in which answers of one model differ, and how, on the facts that both have.

    Args:
        rows: Rows of one configuration.
        others: Rows of the same models on the same texts.
        tolerance: Nats by which log-probabilities may differ.
        hits: Whether to compare hits too, where there is a tolerance.
    """
    if not rows["fact"].equals(others["fact"]):
        places = pc.index_in(rows["fact"], others["fact"].combine_chunks())  # each fact once
        rows, others = rows.filter(pc.is_valid(places)), others.take(places.drop_null())
    if not rows.num_rows:
        return None
    values = {}
    for name in ("position", "target", "logprob", "rank"):
        values[name] = rows[name].to_numpy(), others[name].to_numpy()
    for name, most in (("position", 0), ("target", 0), ("logprob", tolerance)):
        first, second = values[name]
        off = np.abs(first - second)
        if off.max() > most:
            fact = rows["fact"][int(off.argmax())].as_py()
            return name, f"fact {shown(fact)} is off by {off.max():.3g}"
    first, second = values["rank"]
    flips = int(((first <= TOP) != (second <= TOP)).sum())
    if hits and flips > 1 + _FLIPS * rows.num_rows:
        return "rank", f"{flips} of {rows.num_rows} hits are others"
    return None
