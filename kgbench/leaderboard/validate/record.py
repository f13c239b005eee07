"""A record by itself, and against the data, models and methods that are shipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from kgbench.data import Dataset, dataset_names, is_shipped, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import BOARD_FACTS, NAME, suite_of
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.validate.documents import LAW
from kgbench.leaderboard.validate.findings import Finding, differing, shown
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
            raise PydanticCustomError(LAW, expected)
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
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    time = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    # Another machine's clock may be a day ahead.
    return time.year >= 2024 and time - timedelta(days=1) < datetime.now(timezone.utc)


def _is_released(version: str) -> bool:
    numbers, newest = (
        [*map(int, text.split("."))] if re.fullmatch(r"[0-9]+(\.[0-9]+){2}", text) else []
        for text in (version, __version__)
    )
    return bool(numbers) and numbers <= newest


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
    if dataset is None:
        field = f"identity.dataset.{'hash' if is_shipped(stated.name) else 'name'}"
        wrong = f"{shown(stated.name)} with these facts is not known here"
        yield Finding(field, wrong, f"the shipped ones: {', '.join(dataset_names())}", strict)
    else:
        n, dropped = len(dataset.facts), dict(dataset.dropped)
        yield from differing(
            [("identity.dataset.n", stated.n, n), ("dropped", record.dropped, dropped)]
        )
        names = [("identity.dataset.name", stated.name, dataset.name)]
        for name, hash in what.prompts.items():
            try:
                wording = prompt_hash(name, dataset)
            except KgbenchError:
                wording = "a built-in prompt: see kgbench ls prompts"
            names.append((f"identity.prompts.{name}", hash, wording))
        yield from differing(names, refuses=strict)
        if strict and what.limit != (first := BOARD_FACTS.get(board := suite_of(record))):
            part = "all" if what.limit is None else f"only the first {what.limit} of"
            facts = "all of them" if first is None else f"the first {first} (--limit {first})"
            expected = f"{facts}, to count in the means over cells of the {board} board"
            wrong = f"{part} {stated.n} facts were run"
            yield Finding("identity.limit", wrong, expected, refuses=False)
    pair = known().pairs.get(record.model)
    if catalog.published(record.model) is None:
        wrong = f"{shown(record.model)} is a pair that is not known here"
        yield Finding("model", wrong, "see kgbench ls models", strict)
    elif pair is None:
        wrong = f"no weights of {record.model} are shipped to compare with"
        yield Finding("identity.weights", wrong, refuses=False)
    elif what.dtype not in pair.weights:
        yield from differing([("identity.dtype", what.dtype, ", ".join(pair.weights))], "", strict)
    else:
        made = ", ".join(f"{name} {version}" for name, version in known().made_with.items())
        weights = what.weights.by_part
        hashes = [
            ("identity.weights", weights, pair.weights[what.dtype]),
            ("identity.tokenizer", what.tokenizer, pair.tokenizer),
        ]
        yield from differing(hashes, f", {record.model}'s as {made} give it", strict)
    metric, ranking = known().metric_version, known().ranking_version
    if not what.ties_count_for_the_target:
        version = what.metric_version.removesuffix(AFTER_BLANKS)
        yield from differing([("identity.metric_version", version, metric)])
    elif not strict:
        wrong = "it is 1, in which ties count for the method: a board takes no new result of it"
        yield Finding("identity.metric_version", wrong, f"{metric}; run it again", refuses=False)
    yield from differing([("identity.ranking_version", what.ranking_version or ranking, ranking)])


# ------------------------------------------------------------------------------ method and ranking


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def method_findings(record: Result, strict: bool) -> Iterator[Finding]:
    """The method is the built-in one of its name or has a fingerprint, and the truth the catalog's.

    Args:
        record: The record.
        strict: Whether results are refused of which the truth is not known here.
    """
    what, method, at = record.identity, record.identity.localizer, "identity.localizer"
    builtin, truth = known().localizers.get(method.name), what.truth
    seed = method.parameters.get("seed", 0)
    if seed not in (*what.seeds, 0):
        wrong = f"it is {shown(seed)}"
        yield Finding(f"{at}.parameters.seed", wrong, "the seed of the run, by --seed")
    if builtin is None:
        if not _FINGERPRINT.search(method.version):
            expected = "its version, class and the hash of its file, as kgbench eval writes it"
            yield Finding(f"{at}.version", f"it is {shown(method.version)}", expected)
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
            expected = f"one, for {method.name} needs it: the suite planted"
            yield Finding("identity.truth", "it is missing", expected)
    if (truth is not None) != (BEST in what.configurations):
        wrong = f"it does not go with the configurations, {BEST!r} among them or not"
        yield Finding("identity.truth", wrong, "a truth exactly then")
    if truth is not None:
        entry = catalog.published(record.model)
        plant: Truth | str = "nothing"
        if entry is not None and entry.plant is not None:
            plant = Truth(plant=entry.plant, decoy=entry.decoy)
        reason = ", as the catalog says"
        yield from differing([("identity.truth", truth, plant)], reason, strict)
        if ground_of(record) is None:
            wrong = "the blocks that learned the facts are not known of these models and prompts"
            yield Finding("identity.truth", wrong, "a shipped plant on built-in prompts", strict)


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
            wrong = "it does not go with the configurations"
            yield Finding(name, wrong, "a ranking of sites exactly where they are ranked")
    if ranking is not None and scores is not None:
        halves = ((what.n_facts + 1) // 2, what.n_facts // 2)
        yield from differing([("ranking.facts", ranking.facts, halves)])
        sizes = chain.from_iterable(chain.from_iterable(g.values()) for g in ranking.sites.values())
        fit = ranking.sites.keys() <= what.prompts.keys() and {*sizes} <= {*range(len(scores) + 1)}
        if not fit:
            expected = f"the record's prompts, and at most {len(scores)} sites each"
            yield Finding("ranking.sites", "it is of others", expected)


def map_findings(record: Result) -> Iterator[Finding]:
    """The map of a shipped pair has all of its sites.

    Args:
        record: A record that is in order by itself.
    """
    pair, scores = pair_of(record), site_scores(record)
    if pair is None or scores is None or known_dataset(record) is None:
        return
    sites = shipped_sites(pair, record.identity.prompts) or scores
    for wrong, others in (
        ("were removed", {*sites} - {*scores}),
        ("are none of the pair's", {*scores} - {*sites}),
    ):
        if others:
            which = f"{len(others)} sites {wrong}, such as {min(map(str, others))}"
            yield Finding("scores", which, f"the {len(sites)} of the pair")


def suite_findings(record: Result) -> Iterator[Finding]:
    """All configurations of a suite were asked for, and ratios are of the board's metric."""
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    missing = {}
    for name, by_kind in known().suites.items():
        if kind in by_kind:
            grafts = record.identity.configurations
            missing[name] = [graft for graft in by_kind[kind] if graft not in grafts]
    if all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        wrong = f"{', '.join(missing[name])} of suite {name} were not run"
        expected = "all configurations of a suite, none left out"
        yield Finding("identity.configurations", wrong, expected)
    if record.metric != METRIC:
        expected = f"{METRIC}: run it again, or kgbench rerun RUN --metric {METRIC} --write"
        yield Finding("metric", f"ratios are of {shown(record.metric)}", expected)


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
            expected = f"{low:g} to {high:g}, for what was run"
            yield Finding(f"cost.{name}", f"it is {shown(value)}", expected)
