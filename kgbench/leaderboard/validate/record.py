"""A record by itself, and against the data, models and methods that are shipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from kgbench.data import Dataset, dataset_names, is_shipped, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import BOARD_FACTS, NAME, suite_of
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.validate.findings import Finding, differing
from kgbench.leaderboard.validate.known import (
    ground_of,
    known,
    known_dataset,
    pair_of,
    shipped_sites,
    site_scores,
)
from kgbench.models import catalog
from kgbench.records import Cost, DatasetRef, Identity, Result, Truth, measured_on
from kgbench.records.identity import AFTER_BLANKS, LocalizerRef, WeightHashes
from kgbench.records.provenance import Provenance
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import BEST, budget_labels, parse_top
from kgbench.stats.scores import METRICS
from kgbench.version import __version__

# ------------------------------------------------------------------------------------------- fields


def _law(holds: Callable[[Any], object], expected: str) -> AfterValidator:
    """A law of one field that its type does not express."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


METRIC_NAMES = (*METRICS, "rr")
"""Metrics of ratios, and an earlier name of one."""


def is_configuration(name: str) -> bool:
    """Whether a name is a baseline, a graft expression or a budget as kgbench writes it."""
    try:
        top = parse_top(name)
        if name not in BASELINES and top is None:
            parse_graft(name)
    except (KgbenchError, ValueError):
        return False
    if top is None or top.percent is None:
        return True
    return 0 <= top.percent <= 100 and name in budget_labels([top.percent])


def _has_been(text: str) -> bool:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00")).replace(tzinfo=None)
    except ValueError:
        return False
    # Another machine's clock and time zone may be two days ahead.
    return time.year >= 2024 and time < datetime.now() + timedelta(days=2)


def _is_released(version: str) -> bool:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){2}", version):
        return False
    numbers, newest = (list(map(int, text.split("."))) for text in (version, __version__))
    return numbers <= newest


_MOST = 500
"""Configurations, and prompts."""

_EXECUTORS = {measured_on(executor) for executor in ("packed", "rows", "sequential")}

Name = Annotated[str, Field(pattern=NAME)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Configuration = Annotated[
    str,
    Field(max_length=300),
    _law(is_configuration, "PRE, SFT, a graft expression or a budget"),
]


class _Dataset(DatasetRef):
    name: Annotated[  # those that are shipped have parts, such as NAME:first200
        str,
        _law(
            lambda name: is_shipped(name) or re.fullmatch(NAME, name),
            "letters, digits, blanks and . _ + ( ) = , -, at most 60",
        ),
    ]
    hash: Hash


class _Weights(WeightHashes):
    recipient: Hash
    donors: dict[Name, Hash]


class _Localizer(LocalizerRef):
    name: Name


class _Identity(Identity):
    dataset: _Dataset
    prompts: Annotated[dict[Name, Hash], Field(min_length=1, max_length=_MOST)]
    weights: _Weights
    tokenizer: Hash
    localizer: _Localizer
    configurations: Annotated[
        tuple[Configuration, ...],
        Field(max_length=_MOST),
        _law(lambda names: {*BASELINES} <= {*names}, "PRE and SFT, the ends of every ratio"),
        _law(lambda names: len({*names}) == len(names), "each configuration once"),
    ]
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)]]


class _Cost(Cost):
    forwards: int = Field(ge=1)
    seconds: float = Field(ge=1e-9, le=90 * 86400)
    measured_on: Annotated[str, _law(_EXECUTORS.__contains__, min(_EXECUTORS))]


class _Provenance(Provenance):
    kgbench: Annotated[str, _law(_is_released, f"{__version__} or an earlier version")]
    time: Annotated[
        str, _law(_has_been, "when it ended, in ISO 8601, such as 2026-01-31T12:00:00+00:00")
    ]


class SubmittedResult(Result):
    """A result as boards take it: its names end up in tables, links and files."""

    model: Name
    metric: Annotated[str, _law(METRIC_NAMES.__contains__, ", ".join(METRICS))]
    identity: _Identity
    cost: _Cost
    provenance: _Provenance

    @field_validator("not_applicable")
    @classmethod
    def _of_configurations(cls, reasons: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        grafts = info.data["identity"].configurations if "identity" in info.data else reasons
        if strange := sorted({*reasons} - {*grafts} | {*reasons} & {*BASELINES}):
            raise ValueError(f"{strange[0]!a} was not asked for, or is PRE or SFT")
        return reasons


# -------------------------------------------------------------------------------- data and models


def input_findings(record: Result, dataset: Dataset | None, strict: bool) -> Iterator[Finding]:
    """Facts, prompts, weights and tokenizer against the shipped ones, and versions.

    Args:
        record: The record.
        dataset: The shipped data set of its facts; None if unknown.
        strict: Whether results are refused that are of unknown data or models.
    """
    what, stated = record.identity, record.identity.dataset
    shipped: list[tuple[str, object, object]] = []
    if dataset is None:
        field = f"identity.dataset.{'hash' if is_shipped(stated.name) else 'name'}"
        expected = f"the shipped ones: {', '.join(dataset_names())}"
        clause = "{} with these facts is not known here"
        yield Finding(field, stated.name, expected, clause, strict)
    else:
        n, dropped = len(dataset.facts), dict(dataset.dropped)
        yield from differing(
            [("identity.dataset.n", stated.n, n), ("dropped", record.dropped, dropped)]
        )
        shipped.append(("identity.dataset.name", stated.name, dataset.name))
        for name, hash in what.prompts.items():
            try:
                wording = prompt_hash(name, dataset)
            except KgbenchError:
                wording = "a built-in prompt: see kgbench ls prompts"
            shipped.append((f"identity.prompts.{name}", hash, wording))
        first = BOARD_FACTS.get(suite_of(record))
        if strict and what.limit != first:
            facts = "all facts" if first is None else f"the first {first} facts (--limit {first})"
            expected = f"{facts}, to count in the means over cells of a board"
            yield Finding("identity.limit", what.limit, expected, refuses=False)
    pair = known().pairs.get(record.model)
    if catalog.published(record.model) is None:
        shipped.append(("model", record.model, "a pair of the catalog: see kgbench ls models"))
    elif pair is None:
        expected = "a pair whose weights are shipped to compare with"
        yield Finding("identity.weights", record.model, expected, refuses=False)
    elif what.dtype not in pair.weights:
        shipped.append(("identity.dtype", what.dtype, ", ".join(pair.weights)))
    else:
        made = ", ".join(f"{name} {version}" for name, version in known().made_with.items())
        for field, value, own in (
            ("weights", what.weights.by_part, pair.weights[what.dtype]),
            ("tokenizer", what.tokenizer, pair.tokenizer),
        ):
            if value != own:
                expected = f"{own}, {record.model}'s as {made} give it"
                shipped.append((f"identity.{field}", value, expected))
    yield from differing(shipped, refuses=strict)
    metric, ranking = known().metric_version, known().ranking_version
    version = what.metric_version.removesuffix(AFTER_BLANKS)
    if not (strict and what.ties_count_for_the_target):  # older entries stay, marked
        refuses = not what.ties_count_for_the_target
        expected = f"{metric}, which counts ties against the method; run it again"
        if version != metric:
            yield Finding("identity.metric_version", version, expected, refuses=refuses)
    yield from differing([("identity.ranking_version", what.ranking_version or ranking, ranking)])


# ------------------------------------------------------------------------------ method and ranking


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def method_findings(record: Result, strict: bool) -> Iterator[Finding]:
    """A built-in method as it is built in, and a truth where one is known."""
    what, method, at = record.identity, record.identity.localizer, "identity.localizer"
    builtin, truth = known().localizers.get(method.name), what.truth
    seed = method.parameters.get("seed", 0)
    if seed not in (*what.seeds, 0):
        yield Finding(f"{at}.parameters.seed", seed, "the seed of the run, by --seed")
    if builtin is None:
        if not _FINGERPRINT.search(method.version):
            expected = "its version, class and the hash of its file, as kgbench eval writes it"
            yield Finding(f"{at}.version", method.version, expected)
    else:
        scans = builtin.kind == "intervention" and any(map(parse_top, what.configurations))
        yield from differing(
            [
                (f"{at}.version", method.version, builtin.version + " scan" * scans),
                (f"{at}.parameters", sorted(method.parameters), list(builtin.parameters)),
                ("kind", record.kind, builtin.kind),
                ("floor", record.floor, builtin.floor),
            ],
            f", as the built-in {method.name} has it; a method of yours needs a name of its own",
        )
        if "truth" in builtin.needs and truth is None:
            yield Finding("identity.truth", None, f"one, for {method.name} needs --suite planted")
    if (truth is not None) != (BEST in what.configurations):
        expected = f"one exactly where {BEST!r} is among the configurations"
        yield Finding("identity.truth", truth, expected)
    if truth is not None:
        entry = catalog.published(record.model)
        plant: Truth | str = "nothing, as the catalog says"
        if entry is not None and entry.plant is not None:
            plant = Truth(plant=entry.plant, decoy=entry.decoy)
        if ground_of(record) is None:
            plant = "that of a shipped plant on built-in prompts"
        yield from differing([("identity.truth", truth, plant)], refuses=strict)


def ranking_findings(record: Result) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and only there."""
    what, ranking, scores = record.identity, record.ranking, record.scores
    tops = [graft for graft in what.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (
        ("scores", scores),
        ("ranking", ranking),
        ("identity.ranking_version", what.ranking_version),
    ):
        if part is None if ranked else part is not None and not tops:
            yield Finding(name, part, "a ranking of sites exactly where they are ranked")
    if ranking is not None and scores is not None:
        halves = ((what.n_facts + 1) // 2, what.n_facts // 2)
        yield from differing([("ranking.facts", ranking.facts, halves)])
        sizes = chain.from_iterable(chain.from_iterable(g.values()) for g in ranking.sites.values())
        fit = ranking.sites.keys() <= what.prompts.keys() and {*sizes} <= {*range(len(scores) + 1)}
        if not fit:
            expected = f"the record's prompts, and at most {len(scores)} sites each"
            yield Finding("ranking.sites", sorted(ranking.sites), expected, "it is of others: {}")


def map_findings(record: Result) -> Iterator[Finding]:
    """The map of a shipped pair has all of its sites."""
    pair, scores = pair_of(record), site_scores(record)
    if pair is None or scores is None or known_dataset(record) is None:
        return
    sites = shipped_sites(pair, record.identity.prompts) or scores
    if others := {*sites} ^ {*scores}:
        clause = f"{len(others)} sites are missing or none of the pair's, such as {{}}"
        yield Finding("scores", min(map(str, others)), f"the {len(sites)} of the pair", clause)


def suite_findings(record: Result) -> Iterator[Finding]:
    """All configurations of a suite were asked for, and ratios are of the board's metric."""
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    missing = {}
    for name, by_kind in known().suites.items():
        if kind in by_kind:
            asked = record.identity.configurations
            missing[name] = [graft for graft in by_kind[kind] if graft not in asked]
    if all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        clause = f"{', '.join(missing[name])} of suite {name} were not run"
        expected = "all configurations of a suite, none left out"
        yield Finding("identity.configurations", None, expected, clause)
    again = f"{METRIC}: run it again, or kgbench rerun RUN --metric {METRIC} --write"
    if record.metric != METRIC:
        yield Finding("metric", record.metric, again)


# --------------------------------------------------------------------------------------------- cost


def cost_findings(record: Result, table: pa.Table) -> Iterator[Finding]:
    """The record's cost is possible; time, plain forwards and token rows go together.

    Args:
        record: The record.
        table: Its per-fact rows.
    """
    cost, scoring = record.cost, record.cost.scoring
    read = table.filter(pc.equal(table["graft"], "PRE"))["position"]
    # Token rows of a plain forward: an answer is read after all tokens before it.
    plain = max(1, (pc.sum(read).as_py() or 0) + len(read))
    computed = cost.token_rows + (scoring.token_rows if scoring else 0)
    rows, second = computed / plain, cost.seconds / plain
    ratio = cost.plain_forward_ratio.value or 0.0
    # PRE and SFT share no computation, so that each prompt is read at least twice.
    most = 2e4 * plain * len(record.identity.configurations)
    bounds = [
        ("forwards", cost.forwards, 1, computed),  # each has a token row
        ("token_rows", cost.token_rows, 2 * plain, most),
        # A plain forward takes .1 to 1e9 token rows in a second.
        ("plain_forward_ratio", ratio, max(1, 0.05 * rows, 0.1 * second), 1e9 * second),
        ("plain_forward_ratio", ratio, 1, 1000 * rows),
    ]
    if scoring:
        bounds.append(("scoring.forwards", scoring.forwards, 0, cost.forwards))
        bounds.append(("scoring.seconds", scoring.seconds, 0, cost.seconds))
    for name, value, low, high in bounds:
        if not low <= value <= high:
            yield Finding(f"cost.{name}", value, f"{low:g} to {high:g}, for what was run")
