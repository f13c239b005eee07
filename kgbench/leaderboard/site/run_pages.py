"""What the page of a run says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kgbench.estimate import Estimate
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.site.cells import Cells, number
from kgbench.leaderboard.site.environments import environment_name
from kgbench.leaderboard.site.maps import map_data
from kgbench.numbers import count_text, duration_text, metric_name
from kgbench.records import Record, Row
from kgbench.sites.configurations import BEST, REST
from kgbench.stats import verdict_of

__all__ = ["RunPage", "run_page"]

_BASELINES = ("PRE", "SFT")
_REFERENCES = (*_BASELINES, "ALL", "NONE")


@dataclass(frozen=True)
class RunPage:
    """The content of a run's page."""

    title: str
    heads: tuple[tuple[str, str], ...]
    """Of its table: key and title."""
    prompts: tuple[tuple[str, str, tuple[tuple[str, tuple[Markup, ...]], ...]], ...]
    """Of each: its name, what it is of, and for each configuration its cells."""
    verdict: str
    lost: str
    """Reason why necessity is undefined for all configurations, which then has no column."""
    reasons: tuple[str, ...]
    others: tuple[tuple[str, Markup], ...]
    """Further figures, each with a name: synergy, name prior, area, ranking against the truth."""
    facts: tuple[tuple[str, str], ...]
    """What the run is of, and where it comes from."""
    data: dict[str, Any]
    """What its pictures need."""
    command: str
    environment: tuple[str, str]
    """Name of the environment, and the most important of it."""
    best: Mapping[str, int]
    """Of each configuration of the highest-ranked sites, how many these are."""


def run_page(entry: Entry) -> RunPage:
    """The content of an entry's page."""
    record = entry.record
    lost = _undefined_throughout(record)
    keys = (
        "mrr" if record.metric == "rr" else record.metric,
        "sufficiency",
        *(() if lost else ("necessity",)),
    )
    cells = Cells()
    prompts = tuple(
        _prompt(record, prompt, keys, cells)
        for prompt in dict.fromkeys(row.prompt for row in record.rows)
    )
    others = tuple((name, cells.precise(estimate)) for name, estimate in _others(record))
    return RunPage(
        title=f"{entry.method} on {entry.pair}",
        verdict=verdict_of(record),
        lost=lost,
        heads=tuple((key, _title(key)) for key in keys),
        prompts=prompts,
        reasons=tuple(cells.reasons),
        others=others,
        facts=tuple(_facts(entry)),
        data=_data(record),
        command=_command(entry),
        environment=(environment_name(record.provenance), _environment(record)),
        best={} if record.planted is None else dict.fromkeys((BEST, REST), record.planted.k),
    )


def _undefined_throughout(record: Record) -> str:
    reasons = {row.necessity.undefined or "" for row in record.rows if row.graft not in _REFERENCES}
    return reasons.pop() if len(reasons) == 1 else ""


def _prompt(
    record: Record, prompt: str, keys: tuple[str, ...], cells: Cells
) -> tuple[str, str, Any]:
    rows = [row for row in record.rows if row.prompt == prompt]
    size = max(row.n for row in rows)
    dropped = f", {rows[0].dropped} dropped" if rows[0].dropped else ""
    return (
        prompt,
        f"{size} facts{dropped}",
        tuple((row.graft, _row_cells(row, keys, cells)) for row in rows),
    )


def _row_cells(row: Row, keys: tuple[str, ...], cells: Cells) -> tuple[Markup, ...]:
    if not row.applicable:
        return (cells.across(row.sufficiency, len(keys)),)
    return tuple(cells.precise(_figure(row, key)) for key in keys)


def _figure(row: Row, key: str) -> Estimate | None:
    if row.graft in _BASELINES and key == "necessity":
        return None
    return row.estimate(key)


def _title(key: str) -> str:
    return {"mrr": "MRR", "sufficiency": "Sufficiency", "necessity": "Necessity"}.get(
        key
    ) or metric_name(key).capitalize()


def _others(record: Record) -> Iterator[tuple[str, Estimate]]:
    for prompt, estimate in record.synergy.items():
        if estimate.undefined is None:
            yield f"Synergy of FE and LT, {prompt}", estimate
    for name, prompts in record.baselines.items():
        for prompt, estimate in prompts.items():
            yield f"{name.replace('_', ' ').capitalize()}, {prompt}", estimate
    for prompt, curve in (record.curve or {}).items():
        yield f"Area under the budget curve, {prompt}", curve.area
    if record.ranking is not None:
        yield "Agreement of the two halves’ scores", record.ranking.agreement
    yield from _planted(record)
    yield "Cost, in plain forwards", record.cost.plain_forward_ratio


def _planted(record: Record) -> Iterator[tuple[str, Estimate]]:
    planted = record.planted
    if planted is None:
        return
    chance = "" if planted.chance is None else f" (chance {number(planted.chance)})"
    yield f"Graded average precision{chance}", planted.graded_precision
    if planted.auroc_decoy is not None:
        yield "AUROC against the decoy’s sites", planted.auroc_decoy
    yield f"Sufficiency of the best {planted.k} sites", planted.effect.sufficiency
    yield f"Necessity of the best {planted.k} sites", planted.effect.necessity
    for prompt, pathway in (planted.pathways or {}).items():
        if pathway.told != "not applicable":
            yield (
                f"Recovery of {pathway.planted}, {prompt}: {pathway.told}",
                pathway.recovery_planted,
            )
            yield f"Recovery of {pathway.other}, {prompt}", pathway.recovery_other


def _data(record: Record) -> dict[str, Any]:
    parts = {
        "map": map_data(record),
        "curves": list(record.curve or {}),
        "planted": record.planted and record.planted.plant,
    }
    return {key: value for key, value in parts.items() if value}


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    record, what, source = entry.record, entry.record.identity, entry.record.provenance
    yield (
        "Method",
        f"{what.localizer.name} {what.localizer.version}{_parameters(record)}, {record.kind}",
    )
    if record.planted is not None:
        decoy = f", decoys at {record.planted.decoy}" if record.planted.decoy else ""
        yield (
            "Planted at",
            f"{record.planted.plant}{decoy}: {record.planted.n_true} of {record.planted.n_units} "
            f"changed ({record.planted.units})",
        )
    limit = "" if what.limit is None else f", the first {what.limit}"
    yield "Facts", f"{what.dataset.name}, {what.dataset.n}{limit}"
    if record.dropped:
        yield "Dropped", "; ".join(f"{n}: {reason}" for reason, n in record.dropped.items())
    yield "Seed", f"{', '.join(map(str, what.seeds))}; {what.dtype}"
    cost = record.cost
    yield (
        "Cost",
        f"{count_text(cost.forwards, 'forward')}, {count_text(cost.token_rows, 'token row')}, "
        f"{duration_text(cost.seconds)}",
    )
    place = record.environment
    yield (
        "Computed",
        f"{source.time.replace('T', ' ').replace('+00:00', ' UTC')}, {place.executor} executor, "
        f"{place.attention} attention",
    )
    yield "Hashes", ", ".join(f"{name} {value[:12]}" for name, value in _hashes(record))


def _environment(record: Record) -> str:
    source = record.provenance
    commit = (
        ""
        if source.commit is None
        else f" ({source.commit.hash[:12]}{', with changes' if source.commit.dirty else ''})"
    )
    torch = f", torch {source.packages['torch']}" if "torch" in source.packages else ""
    return f"kgbench {source.kgbench}{commit}{torch} on {source.device}"


def _parameters(record: Record) -> str:
    parts = record.identity.localizer.parameters
    return f" ({', '.join(f'{name} = {value}' for name, value in parts.items())})" if parts else ""


def _hashes(record: Record) -> Iterator[tuple[str, str]]:
    what = record.identity
    yield "facts", what.dataset.hash
    yield from what.prompts.items()
    yield "recipient", what.weights.recipient
    yield from what.weights.donors.items()
    yield "tokenizer", what.tokenizer


def _command(entry: Entry) -> str:
    return f"kgbench rerun {entry.folder.name}"
