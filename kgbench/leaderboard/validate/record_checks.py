"""A record against what is shipped, and against the least that its run needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from kgbench import __version__
from kgbench.data import Dataset, dataset_names, is_shipped, load_dataset, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.validate.documents import time_of
from kgbench.leaderboard.validate.entry_files import Finding, shown
from kgbench.leaderboard.validate.known import KnownLocalizer, KnownPair, known, own_facts
from kgbench.models import catalog
from kgbench.records import Record, measured_on
from kgbench.sites.configurations import BEST, parse_top

__all__ = [
    "check_cost",
    "check_data",
    "check_method",
    "check_pair",
    "check_provenance",
    "check_ranking",
    "check_suite",
    "check_truth",
    "dataset_of",
    "pair_of",
]

# ---------------------------------------------------------------------------------------- identity


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def dataset_of(record: Record) -> Dataset | None:
    """The shipped data set of a record's facts, the pair's own or another; None if unknown."""
    wanted = record.identity.dataset
    if (own := own_facts(record.model)) is not None and own.content_hash == wanted.hash:
        return own
    if not is_shipped(wanted.name):  # anything else could be a path
        return None
    found = load_dataset(wanted.name)
    return found if found.content_hash == wanted.hash else None


def pair_of(record: Record) -> KnownPair | None:
    """The shipped pair of a record; None where its weights are others."""
    pair, weights = known().pairs.get(record.model), record.identity.weights
    hashes = {"recipient": weights.recipient, **weights.donors}
    if pair is None or pair.weights.get(record.identity.dtype) != hashes:
        return None
    return pair


def check_data(record: Record, strict: bool) -> Iterator[Finding]:
    """Data set and prompts."""
    wanted, dataset = record.identity.dataset, dataset_of(record)
    if dataset is None and is_shipped(wanted.name):
        own = own_facts(record.model)
        expected = {load_dataset(wanted.name).content_hash}
        if own is not None:
            expected.add(own.content_hash)
        wrong = "these are not the facts of this name"
        yield Finding("identity.dataset.hash", wrong, " or ".join(sorted(expected)), strict)
    elif dataset is None:
        wrong = f"{shown(wanted.name)} is a data set that is not known here"
        shipped = f"the shipped ones: {', '.join(dataset_names())}"
        yield Finding("identity.dataset.name", wrong, shipped, strict)
    if dataset is None:
        return
    if dataset.name != wanted.name:
        wrong = f"{shown(wanted.name)} is not the name of these facts"
        yield Finding("identity.dataset.name", wrong, dataset.name, strict)
    if len(dataset.facts) != wanted.n:
        yield Finding("identity.dataset.n", f"it is {wanted.n}", str(len(dataset.facts)))
    if strict and record.identity.limit is not None:
        wrong = f"only the first {record.identity.limit} of {wanted.n} facts were run"
        expected_all = "all of them, to count in the means over cells"
        yield Finding("identity.limit", wrong, expected_all, refuses=False)
    if dict(dataset.dropped) != record.dropped:
        yield Finding("dropped", f"it is {shown(record.dropped)}", shown(dict(dataset.dropped)))
    for name, stated in record.identity.prompts.items():
        field = f"identity.prompts.{name}"
        try:
            hash = prompt_hash(name, dataset)
        except KgbenchError:
            yield Finding(field, "it is no built-in prompt", "see kgbench ls prompts", strict)
            continue
        if stated != hash:
            yield Finding(field, "this is not the wording of this name", hash, strict)


def check_pair(record: Record, strict: bool) -> Iterator[Finding]:
    """Weights, tokenizer, and the versions that figures depend on."""
    identity, shipped = record.identity, known().pairs.get(record.model)
    if catalog.published(record.model) is None:
        wrong = f"{shown(record.model)} is a pair that is not known here"
        yield Finding("model", wrong, "see kgbench ls models", strict)
    elif shipped is None:
        wrong = f"no weights of {record.model} are shipped to compare with"
        yield Finding("identity.weights", wrong, refuses=False)
    elif identity.dtype not in shipped.weights:
        wrong = f"{shown(identity.dtype)} is none that is known here"
        yield Finding("identity.dtype", wrong, ", ".join(shipped.weights), strict)
    else:
        yield from _check_weights(record, shipped, strict)
    version = known().metric_version
    if identity.ties_count_for_the_target:
        wrong = "it is 1, in which ties count for the method: a board takes no new result of it"
        if not strict:
            expected = f"{version}; run it again"
            yield Finding("identity.metric_version", wrong, expected, refuses=False)
    elif identity.metric_version != version:
        wrong = f"{shown(identity.metric_version)} is not known here"
        yield Finding("identity.metric_version", wrong, version)
    if identity.ranking_version not in (None, known().ranking_version):
        wrong = f"{shown(identity.ranking_version)} is not known here"
        yield Finding("identity.ranking_version", wrong, known().ranking_version)
    if len(identity.seeds) != 1 or not 0 <= identity.seeds[0] < 2**32:
        wrong = f"they are {shown(list(identity.seeds))}"
        yield Finding("identity.seeds", wrong, "one seed, 0 or more")


def _check_weights(record: Record, shipped: KnownPair, strict: bool) -> Iterator[Finding]:
    identity = record.identity
    made = ", ".join(f"{name} {version}" for name, version in known().made_with.items())
    stated = {"recipient": identity.weights.recipient}
    stated |= {f"donors.{name}": hash for name, hash in identity.weights.donors.items()}
    expected = {
        name if name == "recipient" else f"donors.{name}": hash
        for name, hash in shipped.weights[identity.dtype].items()
    }
    for name in dict.fromkeys([*stated, *expected]):
        if stated.get(name) != expected.get(name):
            wrong = f"these are not the weights of {record.model}"
            wanted = f"{expected.get(name, 'no such donor')} (as {made} have it)"
            yield Finding(f"identity.weights.{name}", wrong, wanted, strict)
    if identity.tokenizer != shipped.tokenizer:
        wrong = f"this is not the tokenizer of {record.model}"
        yield Finding(
            "identity.tokenizer", wrong, f"{shipped.tokenizer} (as {made} have it)", strict
        )


def check_truth(record: Record, strict: bool) -> Iterator[Finding]:
    """The truth is the catalog's, and there are figures on it exactly where it is asked for."""
    truth = record.identity.truth
    if (BEST in record.identity.configurations) != (truth is not None):
        wrong = f"it does not go with the configurations, {shown(BEST)} among them or not"
        yield Finding("identity.truth", wrong, "a truth exactly then")
    if (truth is None) != (record.planted is None):
        expected = "figures on the truth exactly where there is one"
        yield Finding("planted", "it does not go with identity.truth", expected)
    if truth is None:
        return
    entry = catalog.published(record.model)
    if entry is None or entry.plant is None:
        wrong = f"nothing is known to be planted in {shown(record.model)}"
        yield Finding("identity.truth", wrong, "a plant of the catalog", strict)
    elif (truth.plant, truth.decoy) != (entry.plant, entry.decoy):
        wrong = f"it is {shown(truth.plant)} and {shown(truth.decoy)}"
        expected = f"{entry.plant!r} and {entry.decoy!r}, the catalog's"
        yield Finding("identity.truth", wrong, expected, strict)


def check_method(record: Record) -> Iterator[Finding]:
    """A built-in method is the one of its name; another states a fingerprint of its code."""
    method = record.identity.localizer
    builtin = known().localizers.get(method.name)
    if (seed := method.parameters.get("seed", 0)) not in (*record.identity.seeds, 0):
        wrong = f"it is {shown(seed)}, and identity.seeds has another"
        expected = "the seed of the run, by --seed"
        yield Finding("identity.localizer.parameters.seed", wrong, expected)
    if builtin is not None:
        yield from _as_built_in(record, builtin)
    elif not _FINGERPRINT.search(method.version):
        wrong = f"{shown(method.version)} does not say which code this is"
        expected = "its version, class and the hash of its file, as kgbench eval writes it"
        yield Finding("identity.localizer.version", wrong, expected)


def _as_built_in(record: Record, builtin: KnownLocalizer) -> Iterator[Finding]:
    method = record.identity.localizer
    tops = [graft for graft in record.identity.configurations if parse_top(graft) is not None]
    scan = " scan" if tops and builtin.kind == "intervention" else ""
    if method.version != builtin.version + scan:
        wrong = f"{shown(method.version)} is not that of the built-in {method.name}"
        expected = f"{builtin.version}{scan}; a method of your own needs a name of its own"
        yield Finding("identity.localizer.version", wrong, expected)
    if sorted(method.parameters) != list(builtin.parameters):
        given = ", ".join(sorted(map(shown, method.parameters))) or "none"
        expected = ", ".join(builtin.parameters) or "none"
        yield Finding("identity.localizer.parameters", f"they are {given}", expected)
    for field in ("kind", "floor"):
        stated, expected = getattr(record, field), getattr(builtin, field)
        if stated != expected:
            yield Finding(field, f"it is {shown(stated)}", f"{expected}, as {method.name} is")
    if "truth" in builtin.needs and record.identity.truth is None:
        wrong = f"{method.name} is told the truth, and there is none"
        yield Finding("identity.truth", wrong, "a run of the suite planted")


def check_suite(record: Record) -> Iterator[Finding]:
    """All configurations of a suite were asked for; more may be."""
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    missing = {}
    for name, by_kind in known().suites.items():
        if kind in by_kind:
            wanted = by_kind[kind]
            missing[name] = [g for g in wanted if g not in record.identity.configurations]
    if not missing:
        method = f"kind {shown(record.kind)} with floor {shown(record.floor)}"
        yield Finding("kind", f"a method of {method} is not known", "see DESIGN")
    elif all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        wrong = f"{', '.join(missing[name])} of suite {name} were not run"
        expected = "all configurations of a suite, none left out"
        yield Finding("identity.configurations", wrong, expected)


# -------------------------------------------------------------------- cost, provenance and ranking


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


def check_cost(record: Record, table: pa.Table) -> Iterator[Finding]:
    """The record's cost; PRE and SFT share no computation, so each prompt is read at least twice.

    Args:
        record: The record.
        table: Its per-fact rows.
    """
    cost = record.cost
    rows = table.filter(pc.equal(table["graft"], "PRE")).group_by(["prompt", "fact"])
    last = rows.aggregate([("position", "max")])["position_max"]
    least = 2 * int(pc.sum(pc.add(pc.cast(last, pa.int64()), 1)).as_py() or 0)
    most = least * len(record.identity.configurations) * _ROWS
    ratio = cost.plain_forward_ratio.value
    laws = [
        ("forwards", cost.forwards, cost.forwards >= 1, "1 or more"),
        (
            "token_rows",
            cost.token_rows,
            cost.token_rows >= least,
            f"{least} or more, for each prompt is read by recipient and donor",
        ),
        ("token_rows", cost.token_rows, cost.token_rows <= most, f"{most} or fewer"),
        (
            "forwards",
            cost.forwards,
            cost.forwards <= cost.token_rows,
            f"no more than the token rows, {cost.token_rows}",
        ),
        (
            "seconds",
            cost.seconds,
            0 < cost.seconds <= _LONGEST,
            "the time that was taken, above 0",
        ),
        (
            "plain_forward_ratio",
            ratio,
            ratio is not None and ratio >= 1,
            "1 or more: recipient and donor alone are two plain forwards",
        ),
    ]
    if (scoring := cost.scoring) is not None:
        for name in ("forwards", "seconds"):
            part, whole = getattr(scoring, name), getattr(cost, name)
            laws.append(
                (f"scoring.{name}", part, part <= whole, f"no more than the whole, {whole}")
            )
    for name, value, holds, expected in laws:
        if not holds:
            yield Finding(f"cost.{name}", f"it is {value}", expected)
    if ratio is not None and ratio >= 1 and least:
        yield from _check_times(record, ratio, least / 2)
    known_texts = {measured_on(executor) for executor in _EXECUTORS}
    if cost.measured_on not in known_texts:
        yield Finding("cost.measured_on", f"it is {shown(cost.measured_on)}", min(known_texts))


def _check_times(record: Record, ratio: float, plain: float) -> Iterator[Finding]:
    """Ratio, seconds and token rows of a run go together.

    Args:
        record: The record.
        ratio: Its seconds over those of one plain forward pass.
        plain: Token rows of one plain forward pass.
    """
    cost = record.cost
    per_row = cost.seconds / ratio / plain
    if not _SECONDS[0] <= per_row <= _SECONDS[1]:
        wrong = f"at {cost.seconds} s a plain forward takes {per_row:.3g} s per token row"
        expected = f"{_SECONDS[0]:g} to {_SECONDS[1]:g} s"
        yield Finding("cost.plain_forward_ratio", wrong, expected)
    by_rows = (cost.token_rows + (cost.scoring.token_rows if cost.scoring else 0)) / plain
    low, high = (bound * by_rows for bound in _RATIOS)
    if not low <= ratio <= high:
        expected = f"{low:.3g} to {high:.3g} for its token rows"
        yield Finding("cost.plain_forward_ratio", f"it is {ratio}", expected)


def check_provenance(record: Record) -> Iterator[Finding]:
    """The record is of a time that has been and of a kgbench that there is."""
    made = record.provenance
    time = time_of(made.time)
    if time is not None and time > datetime.now(timezone.utc) + _AHEAD:
        yield Finding("provenance.time", f"{shown(made.time)} is still to come", "when it ended")
    version = _version(made.kgbench)
    if version is None or version > (_version(__version__) or ()):
        wrong = f"{shown(made.kgbench)} is no version that is known here"
        yield Finding("provenance.kgbench", wrong, f"{__version__} or an earlier one")


def _version(text: str) -> tuple[int, ...] | None:
    """Numbers of a version; None where it is none."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    return tuple(map(int, parts))


def check_ranking(record: Record) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and only there."""
    identity = record.identity
    tops = [graft for graft in identity.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (("scores", record.scores), ("ranking", record.ranking)):
        if ranked and part is None:
            wrong = f"it is missing, though {tops[0]!r} was run"
            yield Finding(name, wrong, "the ranking behind the best-ranked sites")
        if not tops and part is not None:
            wrong = "it is there, though no configuration is filled by a ranking"
            yield Finding(name, wrong, "nothing")
    if bool(tops) != (identity.ranking_version is not None):
        wrong = "it does not go with the configurations"
        expected = "a version exactly where sites are ranked"
        yield Finding("identity.ranking_version", wrong, expected)
    if record.ranking is None or record.scores is None:
        return
    n = min(identity.limit or identity.dataset.n, identity.dataset.n)
    halves = ((n + 1) // 2, n // 2)
    if record.ranking.facts != halves:
        wrong = f"the halves have {record.ranking.facts} facts"
        yield Finding("ranking.facts", wrong, f"{halves}")
    sites = [(score.layer, score.component, score.region) for score in record.scores]
    if len(set(sites)) != len(sites):
        yield Finding("scores", "a site stands twice", "each once")
    for prompt, by_graft in record.ranking.sites.items():
        sizes = list(chain.from_iterable(by_graft.values()))
        if prompt not in identity.prompts or any(not 0 <= k <= len(sites) for k in sizes):
            wrong = "it names a prompt or a number of sites that there is not"
            yield Finding("ranking.sites", wrong, f"at most {len(sites)} sites each")
            return
