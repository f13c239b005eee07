"""A record against what is shipped and against its per-fact rows, of which its figures are made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.data import dataset_names, is_shipped, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import BOARD_FACTS, NAME, suite_of
from kgbench.leaderboard.hits import METRIC, TOP
from kgbench.leaderboard.limits import FACTS, RECORD
from kgbench.leaderboard.validate.files import (
    CheckedEntry,
    Finding,
    Law,
    refusals,
    shown,
    unmet,
)
from kgbench.leaderboard.validate.known import (
    ground_of,
    judged_anew,
    known,
    known_answers,
    known_dataset,
    own_facts,
    pair_of,
    planted_of,
    shipped_sites,
    site_scores,
)
from kgbench.models import catalog
from kgbench.records import Result, Truth, measured_on
from kgbench.records.fact_rows import KEYS, Spans, is_ordered, spans, with_derived
from kgbench.records.identity import AFTER_BLANKS
from kgbench.sites import BASELINES, parse_graft
from kgbench.sites.configurations import BEST, budget_labels, parse_top
from kgbench.stats import with_figures
from kgbench.stats.scores import METRICS
from kgbench.version import __version__


def check_result(record: Result, strict: bool) -> Iterator[Finding]:
    """A record by itself; the rest of it only where its configurations are in order.

    Args:
        record: The record.
        strict: Whether results are refused that are of unknown data or models, or of less than a
            whole suite.
    """
    findings = list(check_configurations(record))
    yield from findings
    if refusals(findings):
        return
    yield from _check_names(record)
    yield from _check_data(record, strict)
    yield from _check_models(record, strict)
    yield from _check_truth(record, strict)
    yield from _check_method(record)
    yield from _check_ranking(record)
    yield from _check_provenance(record)
    if strict:
        yield from _check_suite(record)


# ---------------------------------------------------------------------------------------- identity


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def _check_names(record: Result) -> Iterator[Finding]:
    """Names end up in tables, links and files; hashes are compared."""
    what = record.identity
    prompts, weights = what.prompts, what.weights
    names = (record.model, what.localizer.name, *prompts, *weights.donors)
    if not is_shipped(what.dataset.name):  # those have parts, such as NAME:first200
        names = (what.dataset.name, *names)
    hashes = (what.dataset.hash, what.tokenizer, *weights.by_part.values(), *prompts.values())
    for texts, pattern, noun, expected in (
        (names, NAME, "name", "letters, digits, blanks and . _ + ( ) = , -, at most 60"),
        (hashes, r"[0-9a-f]{64}", "hash", "64 hexadecimal digits of a SHA-256"),
    ):
        for text in texts:
            if not re.fullmatch(pattern, text):
                yield Finding("identity", f"{shown(text)} cannot be a {noun}", expected)


def _check_data(record: Result, strict: bool) -> Iterator[Finding]:
    """Data set and prompts."""
    what, dataset = record.identity, known_dataset(record)
    wanted = what.dataset
    if dataset is None:
        if is_shipped(wanted.name):
            wrong = "these are not the facts of this name"
            yield Finding("identity.dataset.hash", wrong, "the shipped ones", strict)
        else:
            wrong = f"{shown(wanted.name)} is a data set that is not known here"
            shipped = f"the shipped ones: {', '.join(dataset_names())}"
            yield Finding("identity.dataset.name", wrong, shipped, strict)
        return
    n, dropped = len(dataset.facts), dict(dataset.dropped)
    named = wanted.name == dataset.name
    yield from unmet([("identity.dataset.name", wanted.name, named, dataset.name)], strict)
    yield from unmet(
        [
            ("identity.dataset.n", wanted.n, wanted.n == n, str(n)),
            ("dropped", record.dropped, record.dropped == dropped, shown(dropped)),
        ]
    )
    if strict and what.limit != (first := BOARD_FACTS.get(board := suite_of(record))):
        some = "all" if what.limit is None else f"only the first {what.limit} of"
        wrong = f"{some} {wanted.n} facts were run"
        facts = "all of them" if first is None else f"the first {first} (--limit {first})"
        expected = f"{facts}, to count in the means over cells of the {board} board"
        yield Finding("identity.limit", wrong, expected, refuses=False)
    for name, stated in what.prompts.items():
        try:
            wording = prompt_hash(name, dataset)
        except KgbenchError:
            wording = "a built-in prompt: see kgbench ls prompts"
        yield from unmet([(f"identity.prompts.{name}", stated, stated == wording, wording)], strict)


def _check_models(record: Result, strict: bool) -> Iterator[Finding]:
    """Weights, tokenizer, and the versions that figures depend on."""
    what, shipped = record.identity, known().pairs.get(record.model)
    if catalog.published(record.model) is None:
        wrong = f"{shown(record.model)} is a pair that is not known here"
        yield Finding("model", wrong, "see kgbench ls models", strict)
    elif shipped is None:
        wrong = f"no weights of {record.model} are shipped to compare with"
        yield Finding("identity.weights", wrong, refuses=False)
    else:
        weights = what.weights.by_part
        made = ", ".join(f"{name} {version}" for name, version in known().made_with.items())
        hashes, dtypes = f"{record.model}'s as {made} give it", shipped.weights
        laws: list[Law] = [
            ("identity.dtype", what.dtype, what.dtype in dtypes, ", ".join(dtypes)),
            ("identity.weights", weights, weights == dtypes.get(what.dtype, weights), hashes),
            ("identity.tokenizer", what.tokenizer, what.tokenizer == shipped.tokenizer, hashes),
        ]
        yield from unmet(laws, strict)
    metric, ranking = known().metric_version, known().ranking_version
    if what.ties_count_for_the_target and not strict:
        wrong = "it is 1, in which ties count for the method: a board takes no new result of it"
        yield Finding("identity.metric_version", wrong, f"{metric}; run it again", refuses=False)
    version = what.metric_version.removesuffix(AFTER_BLANKS)
    is_read = what.ties_count_for_the_target or version == metric
    ranked = what.ranking_version in (None, ranking)
    one_seed = len(what.seeds) == 1 and 0 <= what.seeds[0] < 2**32
    yield from unmet(
        [
            ("identity.metric_version", what.metric_version, is_read, metric),
            ("identity.ranking_version", what.ranking_version, ranked, ranking),
            ("identity.seeds", list(what.seeds), one_seed, "one seed, 0 or more"),
        ]
    )


def _check_truth(record: Result, strict: bool) -> Iterator[Finding]:
    """The truth is the catalog's, and is there exactly where it is asked for."""
    truth, asked = record.identity.truth, BEST in record.identity.configurations
    if (truth is not None) != asked:
        wrong = f"it does not go with the configurations, {shown(BEST)} among them or not"
        yield Finding("identity.truth", wrong, "a truth exactly then")
    if truth is not None:
        entry = catalog.published(record.model)
        plant = None
        if entry is not None and entry.plant is not None:
            plant = Truth(plant=entry.plant, decoy=entry.decoy)
        expected = f"the catalog's: {plant or 'nothing is known to be planted there'}"
        yield from unmet([("identity.truth", str(truth), truth == plant, expected)], strict)
        if ground_of(record) is None:
            wrong = "the blocks that learned the facts are not known of these models and prompts"
            yield Finding("identity.truth", wrong, "a shipped plant on built-in prompts", strict)


def _check_method(record: Result) -> Iterator[Finding]:
    """A built-in method is the one of its name; another states a fingerprint of its code."""
    what, method = record.identity, record.identity.localizer
    at, builtin = "identity.localizer", known().localizers.get(method.name)
    seed = method.parameters.get("seed", 0)
    of_run = "the seed of the run, by --seed"
    yield from unmet([(f"{at}.parameters.seed", seed, seed in (*what.seeds, 0), of_run)])
    if builtin is None:
        printed = _FINGERPRINT.search(method.version) is not None
        code = "its version, class and the hash of its file, as kgbench eval writes it"
        yield from unmet([(f"{at}.version", method.version, printed, code)])
        return
    scans = builtin.kind == "intervention" and any(map(parse_top, what.configurations))
    version = f"{builtin.version}{' scan' if scans else ''}"
    given, parameters = sorted(method.parameters), list(builtin.parameters)
    told = "truth" not in builtin.needs or what.truth is not None
    as_built_in = f"as the built-in {method.name} has it; a method of yours needs a name of its own"
    yield from unmet(
        [
            (
                f"{at}.version",
                method.version,
                method.version == version,
                f"{version}, {as_built_in}",
            ),
            (f"{at}.parameters", given, given == parameters, f"{parameters}, {as_built_in}"),
            ("kind", record.kind, record.kind == builtin.kind, f"{builtin.kind}, {as_built_in}"),
            (
                "floor",
                record.floor,
                record.floor == builtin.floor,
                f"{builtin.floor}, {as_built_in}",
            ),
            ("identity.truth", None, told, f"one, for {method.name} needs it: the suite planted"),
        ]
    )


def _check_suite(record: Result) -> Iterator[Finding]:
    """All configurations of a suite were asked for, and ratios are of the board's metric."""
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    missing = {}
    for name, by_kind in known().suites.items():
        if kind in by_kind:
            wanted = by_kind[kind]
            missing[name] = [g for g in wanted if g not in record.identity.configurations]
    if all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        wrong = f"{', '.join(missing[name])} of suite {name} were not run"
        expected = "all configurations of a suite, none left out"
        yield Finding("identity.configurations", wrong, expected)
    if record.metric != METRIC:
        expected = f"{METRIC}: run it again, or kgbench rerun RUN --metric {METRIC} --write"
        yield Finding("metric", f"ratios are of {shown(record.metric)}", expected)


# -------------------------------------------------------------------- cost, provenance and ranking


_PLAIN = (0.1, 1e9)
"""Token rows that a plain forward pass takes in a second, at least and at most."""

_SECONDS = (1e-9, 90 * 86400.0)
"""Seconds of a run, at least and at most."""

_ROWS = 10_000
"""Token rows per plain token row and configuration."""

_RATIOS = (0.05, 1000.0)
"""Plain forwards of a run by its time, over those by its token rows, at least and at most."""

_EXECUTORS = ("packed", "rows", "sequential")

_AHEAD = timedelta(days=1)
"""How far another machine's clock may be ahead."""


def _check_cost(record: Result, table: pa.Table, places: Spans) -> Iterator[Finding]:
    """The record's cost; PRE and SFT share no computation, so each prompt is read at least twice.

    Args:
        record: The record.
        table: Its per-fact rows, sorted.
        places: Their places.
    """
    cost, scoring = record.cost, record.cost.scoring
    least = 0
    for (_, graft), (start, n) in places.items():
        if graft == "PRE":
            fact, position = (table[name].slice(start, n) for name in ("fact", "position"))
            last = np.append(pc.not_equal(fact.slice(1), fact.slice(0, n - 1)), True)
            least += 2 * int((position.to_numpy()[last].astype(np.int64) + 1).sum())
    most = least * len(record.identity.configurations) * _ROWS
    computed = cost.token_rows + (scoring.token_rows if scoring else 0)
    ratio = cost.plain_forward_ratio.value or 0.0
    bounds: list[tuple[str, float, float, float]] = [
        ("forwards", cost.forwards, 1, computed),  # each has a token row
        ("token_rows", cost.token_rows, least, most),
        ("seconds", cost.seconds, *_SECONDS),
        ("plain_forward_ratio", ratio, 1, np.inf),  # recipient and donor are two plain forwards
    ]
    if scoring is not None:
        bounds.append(("scoring.forwards", scoring.forwards, 0, cost.forwards))
        bounds.append(("scoring.seconds", scoring.seconds, 0, cost.seconds))
    if ratio >= 1 and least:
        # Ratio, seconds and token rows of a run go together.
        for size, (low, high) in ((computed, _RATIOS), (cost.seconds, _PLAIN)):
            per_plain = size / (least / 2)
            bounds.append(("plain_forward_ratio", ratio, low * per_plain, high * per_plain))
    laws: list[Law] = []
    for name, value, low, high in bounds:
        expected = f"{low:g} to {high:g}, for what was run"
        laws.append((f"cost.{name}", value, low <= value <= high, expected))
    measured = set(map(measured_on, _EXECUTORS))
    whole = cost.measured_on in measured
    yield from unmet([*laws, ("cost.measured_on", cost.measured_on, whole, min(measured))])


def _check_provenance(record: Result) -> Iterator[Finding]:
    """The record is of a time that has been and of a kgbench that there is."""
    made = record.provenance
    try:
        time = datetime.fromisoformat(made.time.replace("Z", "+00:00"))
    except ValueError:
        time = datetime.max
    time = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    been = time.year >= 2024 and time < datetime.now(timezone.utc) + _AHEAD
    numbers, newest = _version(made.kgbench), _version(__version__)
    released = numbers is not None and newest is not None and numbers <= newest
    when = "when it ended, in ISO 8601, such as 2026-01-31T12:00:00+00:00"
    yield from unmet(
        [
            ("provenance.time", made.time, been, when),
            ("provenance.kgbench", made.kgbench, released, f"{__version__} or an earlier version"),
        ]
    )


def _version(text: str) -> list[int] | None:
    """Numbers of a version; None where it is none."""
    return [*map(int, text.split("."))] if re.fullmatch(r"[0-9]+(\.[0-9]+){2}", text) else None


def _check_ranking(record: Result) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and only there."""
    what, ranking, scores = record.identity, record.ranking, record.scores
    tops = [graft for graft in what.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (("scores", scores), ("ranking", ranking)):
        if ranked and part is None:
            wrong = f"it is missing, though {tops[0]!r} was run"
            yield Finding(name, wrong, "the ranking behind the best-ranked sites")
        if not tops and part is not None:
            wrong = "it is there, though no configuration is filled by a ranking"
            yield Finding(name, wrong, "nothing")
    if bool(tops) != (what.ranking_version is not None):
        wrong = "it does not go with the configurations"
        expected = "a version exactly where sites are ranked"
        yield Finding("identity.ranking_version", wrong, expected)
    if ranking is None or scores is None:
        return
    halves = ((what.n_facts + 1) // 2, what.n_facts // 2)
    sizes = chain.from_iterable(chain.from_iterable(g.values()) for g in ranking.sites.values())
    fit = ranking.sites.keys() <= what.prompts.keys() and all(0 <= k <= len(scores) for k in sizes)
    at_most = f"the record's prompts, and at most {len(scores)} sites each"
    yield from unmet(
        [
            ("ranking.facts", ranking.facts, ranking.facts == halves, f"{halves}"),
            ("ranking.sites", "of others", fit, at_most),
        ]
    )


# --------------------------------------------------------------------------------------------- rows


def check_with_rows(entry: CheckedEntry, record: Result, table: pa.Table) -> None:
    """A record against its per-fact rows; its figures are made of them where all else is sound.

    Args:
        entry: Its files, to which findings are added.
        record: The record.
        table: Its per-fact rows, sorted.
    """
    dataset, pair, facts = known_dataset(record), pair_of(record), None
    if dataset is not None:
        facts = tuple(fact.id for fact in dataset.facts[: record.identity.limit])
    places = spans(table)
    entry.add(_check_rows(record, table, places, facts), FACTS)
    entry.add(_check_cost(record, table, places), RECORD)
    if not entry.accepted:
        return
    if pair is not None and dataset is not None and dataset is own_facts(record.model):
        entry.add(_check_answers(record, table, places), FACTS)
    sites = shipped_sites(pair, record.identity.prompts) if pair and dataset else None
    if sites and (scores := site_scores(record)) is not None:
        lost, strange = set(sites) - scores.keys(), scores.keys() - set(sites)
        for what, some in (("were removed", lost), ("are none of the pair's", strange)):
            if some:
                wrong = f"{len(some)} sites {what}, such as {min(map(str, some))}"
                entry.add([Finding("scores", wrong, f"the {len(sites)} of the pair")], RECORD)
    _make_figures(entry, record, table)


def _make_figures(entry: CheckedEntry, record: Result, table: pa.Table) -> None:
    """Make the record of an entry that is in order so far."""
    if not entry.accepted:
        return
    try:
        facts = with_derived(table)
        made = with_figures(record, facts, record.metric)
        entry.record = judged_anew(made, planted_of(record, facts))
    except Exception as error:  # untrusted rows can raise any error
        reason = f"{type(error).__name__}: {shown(str(error))}"
        wrong = f"no figures can be made of its per-fact rows ({reason})"
        entry.add([Finding("rows", wrong)], FACTS)


Array = NDArray[Any]

_NEAR = 1e-4
"""Nats by which probabilities computed in single precision may pass their bounds."""

_KNOWN = 0.0105
"""Nats by which PRE and SFT may differ from what is known to three digits, as between machines."""

_COARSE = 0.5
"""The same where models compute in 16 bits, of which no answers are known but those of 32."""

_FLIPS = 0.01
"""Share of hits of PRE and SFT, plus one hit, that may differ as near ties do between machines."""

_MOST_NAMES = 500
"""Configurations, and prompts."""

_LONGEST_NAME = 300
"""Characters of a configuration."""


def check_scores(table: pa.Table) -> list[Finding]:
    """Laws of single rows, and repeated rows; one finding per law, which names the first row.

    Args:
        table: Per-fact rows, as stored.
    """
    columns = {}
    for name in table.column_names:
        if table[name].type != pa.string():
            columns[name] = table[name].to_numpy()
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


def check_configurations(record: Result) -> Iterator[Finding]:
    """Metric, prompts and configurations, and those that the method cannot express."""
    asked, prompts = record.identity.configurations, record.identity.prompts
    field, few = "identity.configurations", min(len(asked), len(prompts)) > 0
    few = few and max(len(asked), len(prompts)) <= _MOST_NAMES
    sizes = f"{len(asked)} configurations on {len(prompts)} prompts"
    absent = set(record.not_applicable)
    strange = sorted(absent & set(BASELINES) | absent - set(asked))
    unread = [name for name in asked[:_MOST_NAMES] if not _is_configuration(name)]
    once = len(set(asked)) == len(asked)
    reasons = "a reason for configurations that were asked for, PRE and SFT not among them"
    metrics = (*METRICS, "rr")
    laws: list[Law] = [
        ("metric", record.metric, record.metric in metrics, ", ".join(metrics)),
        ("identity.prompts", sizes, few, f"1 to {_MOST_NAMES} of each"),
        (field, unread, not unread, "PRE, SFT, graft expressions or budgets"),
        (field, "a list with one twice", once, "each once"),
        (field, asked, set(BASELINES) <= set(asked), "PRE and SFT, the ends of every ratio"),
        ("not_applicable", strange, not strange, reasons),
    ]
    yield from unmet(laws)


def _on(prompt: str, graft: str) -> str:
    return f"configuration {shown(graft)} on prompt {shown(prompt)}"


def _is_configuration(name: str) -> bool:
    if len(name) > _LONGEST_NAME:
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


def _check_rows(
    record: Result, table: pa.Table, places: Spans, facts: tuple[str, ...] | None
) -> Iterator[Finding]:
    """The rows against the record: all facts under all configurations, with the same targets.

    Args:
        record: The record.
        table: Its per-fact rows, sorted.
        places: Their places.
        facts: Ids of all facts that are to be there; None where the data set is not known.
    """
    what = record.identity
    if max(len(what.prompts), len(what.configurations)) > _MOST_NAMES:
        return
    asked = set(product(what.prompts, what.configurations))
    excused = set(product(what.prompts, record.not_applicable))
    for pair in sorted(asked - excused - places.keys())[:3]:
        yield Finding("graft", f"{_on(*pair)} was removed", "rows of it, or the reason")
    for pair in sorted(places.keys() - asked)[:3]:
        yield Finding("graft", f"{_on(*pair)} was not asked for", "no others")
    for graft in sorted(record.not_applicable)[:3]:
        if all((prompt, graft) in places for prompt in what.prompts):
            wrong = f"configuration {shown(graft)} has rows on all prompts"
            yield Finding("graft", wrong, "none on some, where the method cannot express it")
    n = what.n_facts
    for name in sorted({prompt for prompt, _ in places.keys() & asked}):
        parts = {}
        for (prompt, graft), at in places.items():
            if prompt == name:
                parts[graft] = table.slice(*at)
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


def _check_answers(record: Result, table: pa.Table, places: Spans) -> Iterator[Finding]:
    """Positions, targets and the answers of PRE and SFT, as they are known of a shipped pair.

    Args:
        record: A record of a shipped pair on its own facts.
        table: Its per-fact rows, of those facts alone, sorted.
        places: Their places.
    """
    tolerance = _COARSE if "16" in record.identity.dtype else _KNOWN
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
    if not own["fact"].equals(other["fact"]):
        places = pc.index_in(own["fact"], other["fact"].combine_chunks())  # each fact is there once
        own, other = own.filter(pc.is_valid(places)), other.take(places.drop_null())
    for name, words in (
        ("position", "is read at another position"),
        ("target", "has another target"),
    ):
        moved = np.flatnonzero(own[name].to_numpy() != other[name].to_numpy())
        if len(moved):
            return name, f"fact {shown(own['fact'][int(moved[0])].as_py())} {words}"
    if not own.num_rows:
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
