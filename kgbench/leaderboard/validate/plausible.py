"""What a result says it cost, against the least that its rows need."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from kgbench import __version__
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.records import Record, measured_on
from kgbench.sites.configurations import parse_top

__all__ = ["check_cost", "check_provenance", "check_ranking"]

_SECONDS = (1e-9, 10.0)
"""Seconds of a plain forward pass per token row, at least and at most."""

_LONGEST = 90 * 86400.0
"""Seconds of a run."""

_ROWS = 10_000
"""Token rows per plain token row and configuration."""

_RATIOS = (0.05, 1000.0)
"""Plain forwards of a run by its time, over those by its token rows, at least and at most."""

_EXECUTORS = ("packed", "rows", "sequential")

_AHEAD = timedelta(days=1)
"""How far another machine's clock may be ahead."""


def check_cost(record: Record, table: pa.Table, at: str) -> Iterator[Finding]:
    """The record's cost; PRE and SFT share no computation, so that each prompt is read twice at least.

    Args:
        record: The record.
        table: Its per-fact rows.
        at: How findings name the file.
    """
    cost = record.cost
    prompts = (
        table.filter(pc.equal(table["graft"], "PRE"))
        .group_by(["prompt", "fact"])
        .aggregate([("position", "max")])
    )
    least = 2 * int(pc.sum(pc.add(pc.cast(prompts["position_max"], pa.int64()), 1)).as_py() or 0)
    if cost.forwards < 1:
        yield Finding(at, "cost.forwards", f"it is {cost.forwards}", "1 or more")
    if cost.token_rows < least:
        yield Finding(
            at,
            "cost.token_rows",
            f"it is {cost.token_rows}",
            f"{least} or more, for each prompt is read by recipient and donor",
        )
    most = least * len(record.identity.configurations) * _ROWS
    if cost.token_rows > most:
        yield Finding(at, "cost.token_rows", f"it is {cost.token_rows}", f"{most} or fewer")
    if cost.forwards > cost.token_rows:
        expected = f"no more than the token rows, {cost.token_rows}"
        yield Finding(at, "cost.forwards", f"it is {cost.forwards}", expected)
    if not 0 < cost.seconds <= _LONGEST:
        yield Finding(
            at, "cost.seconds", f"it is {cost.seconds}", "the time that was taken, above 0"
        )
    ratio = cost.plain_forward_ratio.value
    if ratio is None or ratio < 1:
        yield Finding(
            at,
            "cost.plain_forward_ratio",
            f"it is {ratio}",
            "1 or more: recipient and donor alone are two plain forwards",
        )
    elif least:
        yield from _check_times(record, ratio, least / 2, at)
    told = {measured_on(executor) for executor in _EXECUTORS}
    if cost.measured_on not in told:
        yield Finding(at, "cost.measured_on", f"it is {shown(cost.measured_on)}", min(told))
    if (scoring := cost.scoring) is not None:
        for name in ("forwards", "seconds"):
            if getattr(scoring, name) > getattr(cost, name):
                yield Finding(
                    at,
                    f"cost.scoring.{name}",
                    f"it is {getattr(scoring, name)}",
                    f"no more than the whole, {getattr(cost, name)}",
                )


def _check_times(record: Record, ratio: float, plain: float, at: str) -> Iterator[Finding]:
    """Ratio, seconds and token rows of a run go together.

    Args:
        record: The record.
        ratio: Its seconds over those of one plain forward pass.
        plain: Token rows of one plain forward pass.
        at: How findings name the file.
    """
    cost = record.cost
    per_row = cost.seconds / ratio / plain
    if not _SECONDS[0] <= per_row <= _SECONDS[1]:
        wrong = f"at {cost.seconds} s a plain forward takes {per_row:.3g} s per token row"
        expected = f"{_SECONDS[0]:g} to {_SECONDS[1]:g} s"
        yield Finding(at, "cost.plain_forward_ratio", wrong, expected)
    by_rows = (cost.token_rows + (cost.scoring.token_rows if cost.scoring else 0)) / plain
    if not _RATIOS[0] * by_rows <= ratio <= _RATIOS[1] * by_rows:
        expected = f"{_RATIOS[0] * by_rows:.3g} to {_RATIOS[1] * by_rows:.3g} for its token rows"
        yield Finding(at, "cost.plain_forward_ratio", f"it is {ratio}", expected)


def check_provenance(record: Record, at: str) -> Iterator[Finding]:
    """The record is of a time that has been and of a kgbench that there is.

    Args:
        record: The record.
        at: How findings name the file.
    """
    made = record.provenance
    time = _time(made.time)
    if time is not None and time > datetime.now(timezone.utc) + _AHEAD:
        yield Finding(
            at, "provenance.time", f"{shown(made.time)} is still to come", "when it ended"
        )
    version = _version(made.kgbench)
    if version is None or version > (_version(__version__) or ()):
        wrong = f"{shown(made.kgbench)} is no version that is known here"
        yield Finding(at, "provenance.kgbench", wrong, f"{__version__} or an earlier one")


def _time(text: str) -> datetime | None:
    """A time, of UTC where it names no zone; None where it is none, which the schema's check tells."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _version(text: str) -> tuple[int, ...] | None:
    """Numbers of a version; None where it is none."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    return tuple(map(int, parts))


def check_ranking(record: Record, at: str) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and only there."""
    tops = [graft for graft in record.identity.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (("scores", record.scores), ("ranking", record.ranking)):
        if ranked and part is None:
            yield Finding(
                at,
                name,
                f"it is missing, though {tops[0]!r} was run",
                "the ranking behind the best-ranked sites",
            )
        if not tops and part is not None:
            yield Finding(
                at, name, "it is there, though no configuration is filled by a ranking", "nothing"
            )
    if bool(tops) != (record.identity.ranking_version is not None):
        yield Finding(
            at,
            "identity.ranking_version",
            "it does not go with the configurations",
            "a version exactly where sites are ranked",
        )
    if record.ranking is None or record.scores is None:
        return
    n = min(record.identity.limit or record.identity.dataset.n, record.identity.dataset.n)
    if record.ranking.facts != ((n + 1) // 2, n // 2):
        yield Finding(
            at,
            "ranking.facts",
            f"the halves have {record.ranking.facts} facts",
            f"{((n + 1) // 2, n // 2)}",
        )
    sites = [(score.layer, score.component, score.region) for score in record.scores]
    if len(set(sites)) != len(sites):
        yield Finding(at, "scores", "a site stands twice", "each once")
    for prompt, by_graft in record.ranking.sites.items():
        if prompt not in record.identity.prompts or any(
            not 0 <= k <= len(sites) for pair in by_graft.values() for k in pair
        ):
            yield Finding(
                at,
                "ranking.sites",
                "it names a prompt or a number of sites that there is not",
                f"at most {len(sites)} sites each",
            )
            return
