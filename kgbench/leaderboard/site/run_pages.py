"""Content of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from markupsafe import Markup

from kgbench.estimate import Estimate
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.site.html_tables import Cells
from kgbench.leaderboard.site.picture_data import map_data
from kgbench.numbers import count_text, duration_text, metric_name, number_text
from kgbench.records import Provenance, Record, Row
from kgbench.sites import BASELINES
from kgbench.sites.configurations import BEST, REST
from kgbench.stats import verdict_of

__all__ = ["environment_facts", "environment_name", "run_page"]

_REFERENCES = (*BASELINES, "ALL", "NONE")
_TITLES = {"mrr": "MRR", "sufficiency": "Sufficiency", "necessity": "Necessity"}


def environment_facts(source: Provenance) -> Iterator[tuple[str, str]]:
    """Code, versions and machine of a run, without the time."""
    commit = ""
    if source.commit is not None:
        changes = " with changes" if source.commit.dirty else ""
        commit = f", commit {source.commit.hash}{changes}"
    yield "Code", f"kgbench {source.kgbench}{commit}"
    versions = {"Python": source.python, **source.packages}
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Machine", f"{source.device}; {source.platform}"


def environment_name(source: Provenance) -> str:
    """Stable identifier of an environment: many runs share one, which has one page."""
    return sha256(repr(tuple(environment_facts(source))).encode()).hexdigest()[:6]


def run_page(entry: Entry) -> Mapping[str, object]:
    """Variables of an entry's page."""
    record, cells = entry.record, Cells()
    lost = {row.necessity.undefined or "" for row in record.rows if row.graft not in _REFERENCES}
    keys = [record.metric, "sufficiency"]
    if len(lost) != 1 or "" in lost:
        keys.append("necessity")
        lost = set()
    prompts = []
    for prompt in dict.fromkeys(row.prompt for row in record.rows):
        rows = [row for row in record.rows if row.prompt == prompt]
        dropped = f", {rows[0].dropped} dropped" if rows[0].dropped else ""
        size = f"{max(row.n for row in rows)} facts{dropped}"
        prompts.append((prompt, size, [(row.graft, _cells(row, keys, cells)) for row in rows]))
    others = [(name, cells.precise(estimate)) for name, estimate in _others(record)]
    planted = record.planted
    data = {
        "map": map_data(record),
        "curves": list(record.curve or {}),
        "planted": planted and planted.plant,
    }
    return {
        "title": f"{entry.method} on {entry.pair}",
        "verdict": verdict_of(record),
        "lost": "".join(lost),
        "heads": [(key, _TITLES.get(key) or metric_name(key).capitalize()) for key in keys],
        "prompts": prompts,
        "reasons": cells.footnotes.reasons,
        "others": others,
        "facts": list(_facts(record)),
        "data": {key: value for key, value in data.items() if value},
        "command": f"kgbench rerun {entry.folder.name}",
        "environment": (environment_name(record.provenance), _environment(record.provenance)),
        "best": {} if planted is None else dict.fromkeys((BEST, REST), planted.k),
    }


def _cells(row: Row, keys: list[str], cells: Cells) -> list[Markup]:
    if not row.applicable:
        return [cells.cell(row.sufficiency, len(keys))]
    shown = []
    for key in keys:
        blank = row.graft in BASELINES and key == "necessity"
        shown.append(cells.precise(None if blank else row.estimate(key)))
    return shown


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
    chance = "" if planted.chance is None else f" (chance {number_text(planted.chance)})"
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


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """The run's inputs, and how it was computed."""
    what, source = record.identity, record.provenance
    method = what.localizer
    parameters = ", ".join(f"{name} = {value}" for name, value in method.parameters.items())
    given = f" ({parameters})" if parameters else ""
    yield "Method", f"{method.name} {method.version}{given}, {record.kind}"
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
    hashes = [
        ("facts", what.dataset.hash),
        *what.prompts.items(),
        ("recipient", what.weights.recipient),
        *what.weights.donors.items(),
        ("tokenizer", what.tokenizer),
    ]
    yield "Hashes", ", ".join(f"{name} {value[:12]}" for name, value in hashes)


def _environment(source: Provenance) -> str:
    commit = ""
    if source.commit is not None:
        changes = ", with changes" if source.commit.dirty else ""
        commit = f" ({source.commit.hash[:12]}{changes})"
    torch = f", torch {source.packages['torch']}" if "torch" in source.packages else ""
    return f"kgbench {source.kgbench}{commit}{torch} on {source.device}"
