"""What a result says it cost, against the least that its rows need."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from kgbench.leaderboard.validate.findings import Finding
from kgbench.records import Record
from kgbench.sites.configurations import parse_top

__all__ = ["check_cost", "check_ranking"]

_FASTEST = 1e-9
"""Seconds per token row below which nothing computes."""


def check_cost(record: Record, table: pa.Table, at: str) -> Iterator[Finding]:
    """The record's cost; PRE and SFT share no computation, so that each prompt is read twice at least.

    Args:
        record: The record.
        table: Its per-fact rows.
        at: How findings name the file.
    """
    cost = record.cost
    prompts = table.filter(pc.equal(table["graft"], "PRE")).group_by(["prompt", "fact"]).aggregate([("position", "max")])
    least = 2 * int(pc.sum(pc.add(pc.cast(prompts["position_max"], pa.int64()), 1)).as_py() or 0)
    if cost.forwards < 1:
        yield Finding(at, "cost.forwards", f"it is {cost.forwards}", "1 or more")
    if cost.token_rows < least:
        yield Finding(at, "cost.token_rows", f"it is {cost.token_rows}", f"{least} or more, for each prompt is read by recipient and donor")
    if cost.seconds < _FASTEST * least or cost.seconds <= 0:
        yield Finding(at, "cost.seconds", f"it is {cost.seconds}", "the time that was taken, above 0")
    ratio = cost.plain_forward_ratio.value
    if ratio is None or ratio < 1:
        yield Finding(at, "cost.plain_forward_ratio", f"it is {ratio}", "1 or more: recipient and donor alone are two plain forwards")
    if (scoring := cost.scoring) is not None:
        for name in ("forwards", "seconds"):
            if getattr(scoring, name) > getattr(cost, name):
                yield Finding(
                    at, f"cost.scoring.{name}", f"it is {getattr(scoring, name)}", f"no more than the whole, {getattr(cost, name)}"
                )


def check_ranking(record: Record, at: str) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and only there."""
    tops = [graft for graft in record.identity.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (("scores", record.scores), ("ranking", record.ranking)):
        if ranked and part is None:
            yield Finding(at, name, f"it is missing, though {tops[0]!r} was run", "the ranking behind the best-ranked sites")
        if not tops and part is not None:
            yield Finding(at, name, "it is there, though no configuration is filled by a ranking", "nothing")
    if bool(tops) != (record.identity.ranking_version is not None):
        yield Finding(at, "identity.ranking_version", "it does not go with the configurations", "a version exactly where sites are ranked")
    if record.ranking is None or record.scores is None:
        return
    n = min(record.identity.limit or record.identity.dataset.n, record.identity.dataset.n)
    if record.ranking.facts != ((n + 1) // 2, n // 2):
        yield Finding(at, "ranking.facts", f"the halves have {record.ranking.facts} facts", f"{((n + 1) // 2, n // 2)}")
    sites = [(score.layer, score.component, score.region) for score in record.scores]
    if len(set(sites)) != len(sites):
        yield Finding(at, "scores", "a site stands twice", "each once")
    for prompt, by_graft in record.ranking.sites.items():
        if prompt not in record.identity.prompts or any(not 0 <= k <= len(sites) for pair in by_graft.values() for k in pair):
            yield Finding(
                at, "ranking.sites", "it names a prompt or a number of sites that there is not", f"at most {len(sites)} sites each"
            )
            return
