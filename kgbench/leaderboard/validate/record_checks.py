"""A record against what is shipped, and against the least that its run needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc

from kgbench import __version__
from kgbench.data import Dataset, dataset_names, is_shipped, load_dataset, prompt_hash
from kgbench.errors import KgbenchError
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
    "scanned",
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
    if pair is None:
        return None
    return (
        pair
        if pair.weights.get(record.identity.dtype)
        == {"recipient": weights.recipient, **weights.donors}
        else None
    )


def check_data(record: Record, at: str, strict: bool) -> Iterator[Finding]:
    """Data set and prompts."""
    wanted, dataset = record.identity.dataset, dataset_of(record)
    if dataset is None:
        shipped = f"the shipped ones: {', '.join(dataset_names())}"
        if is_shipped(wanted.name):
            own = own_facts(record.model)
            expected = {
                load_dataset(wanted.name).content_hash,
                *([own.content_hash] if own is not None else []),
            }
            yield Finding(
                at,
                "identity.dataset.hash",
                "these are not the facts of this name",
                " or ".join(sorted(expected)),
                strict,
            )
        else:
            yield Finding(
                at,
                "identity.dataset.name",
                f"{shown(wanted.name)} is a data set that is not known here",
                shipped,
                strict,
            )
        return
    if dataset.name != wanted.name:
        yield Finding(
            at,
            "identity.dataset.name",
            f"{shown(wanted.name)} is not the name of these facts",
            dataset.name,
            strict,
        )
    if len(dataset.facts) != wanted.n:
        yield Finding(at, "identity.dataset.n", f"it is {wanted.n}", str(len(dataset.facts)))
    if strict and record.identity.limit is not None:
        wrong = f"only the first {record.identity.limit} of {wanted.n} facts were run"
        yield Finding(
            at,
            "identity.limit",
            wrong,
            "all of them, to count in the means over cells",
            refuses=False,
        )
    if dict(dataset.dropped) != record.dropped:
        yield Finding(at, "dropped", f"it is {shown(record.dropped)}", shown(dict(dataset.dropped)))
    for name, found in record.identity.prompts.items():
        try:
            hash = prompt_hash(name, dataset)
        except KgbenchError:
            yield Finding(
                at,
                f"identity.prompts.{name}",
                "it is no built-in prompt",
                "see kgbench ls prompts",
                strict,
            )
        else:
            if found != hash:
                yield Finding(
                    at,
                    f"identity.prompts.{name}",
                    "this is not the wording of this name",
                    hash,
                    strict,
                )


def check_pair(record: Record, at: str, strict: bool) -> Iterator[Finding]:
    """Weights, tokenizer, and the versions that figures depend on."""
    identity, shipped = record.identity, known().pairs.get(record.model)
    if record.model not in catalog.names():
        yield Finding(
            at,
            "model",
            f"{shown(record.model)} is a pair that is not known here",
            "see kgbench ls models",
            strict,
        )
    elif shipped is None:
        yield Finding(
            at,
            "identity.weights",
            f"no weights of {record.model} are shipped to compare with",
            refuses=False,
        )
    elif identity.dtype not in shipped.weights:
        yield Finding(
            at,
            "identity.dtype",
            f"{shown(identity.dtype)} is none that is known here",
            ", ".join(shipped.weights),
            strict,
        )
    else:
        made = ", ".join(f"{name} {version}" for name, version in known().made_with.items())
        have = {
            "recipient": identity.weights.recipient,
            **{f"donors.{name}": own for name, own in identity.weights.donors.items()},
        }
        want = {
            key if key == "recipient" else f"donors.{key}": own
            for key, own in shipped.weights[identity.dtype].items()
        }
        for key in dict.fromkeys([*have, *want]):
            if have.get(key) != want.get(key):
                expected = f"{want.get(key, 'no such donor')} (as {made} have it)"
                yield Finding(
                    at,
                    f"identity.weights.{key}",
                    f"these are not the weights of {record.model}",
                    expected,
                    strict,
                )
        if identity.tokenizer != shipped.tokenizer:
            expected = f"{shipped.tokenizer} (as {made} have it)"
            yield Finding(
                at,
                "identity.tokenizer",
                f"this is not the tokenizer of {record.model}",
                expected,
                strict,
            )
    if identity.ties_count_for_the_target:
        if not strict:
            wrong = "it is 1, in which ties count for the method: a board takes no new result of it"
            yield Finding(
                at,
                "identity.metric_version",
                wrong,
                f"{known().metric_version}; run it again",
                refuses=False,
            )
    elif identity.metric_version != known().metric_version:
        yield Finding(
            at,
            "identity.metric_version",
            f"{shown(identity.metric_version)} is not known here",
            known().metric_version,
        )
    if identity.ranking_version not in (None, known().ranking_version):
        yield Finding(
            at,
            "identity.ranking_version",
            f"{shown(identity.ranking_version)} is not known here",
            known().ranking_version,
        )
    if len(identity.seeds) != 1 or not 0 <= identity.seeds[0] < 2**32:
        yield Finding(
            at, "identity.seeds", f"they are {shown(list(identity.seeds))}", "one seed, 0 or more"
        )


def check_truth(record: Record, at: str, strict: bool) -> Iterator[Finding]:
    """The truth is the catalog's, and there are figures on it exactly where it is asked for."""
    identity = record.identity
    asked = BEST in identity.configurations
    if asked != (identity.truth is not None):
        yield Finding(
            at,
            "identity.truth",
            f"it does not go with the configurations, {shown(BEST)} among them or not",
            "a truth exactly then",
        )
    if (identity.truth is None) != (record.planted is None):
        yield Finding(
            at,
            "planted",
            "it does not go with identity.truth",
            "figures on the truth exactly where there is one",
        )
    if identity.truth is None:
        return
    entry = catalog.entry(record.model) if record.model in catalog.names() else None
    if entry is None or entry.plant is None:
        yield Finding(
            at,
            "identity.truth",
            f"nothing is known to be planted in {shown(record.model)}",
            "a plant of the catalog",
            strict,
        )
    elif (identity.truth.plant, identity.truth.decoy) != (entry.plant, entry.decoy):
        given = f"{shown(identity.truth.plant)} and {shown(identity.truth.decoy)}"
        yield Finding(
            at,
            "identity.truth",
            f"it is {given}",
            f"{entry.plant!r} and {entry.decoy!r}, the catalog's",
            strict,
        )


def scanned(version: str, own: str) -> bool | None:
    """Whether a version is that of a scan by an intervening method; None for other versions."""
    return {own: False, f"{own} scan": True}.get(version)


def check_method(record: Record, at: str) -> Iterator[Finding]:
    """A built-in method is the one of its name; another states a fingerprint of its code."""
    method = record.identity.localizer
    builtin = known().localizers.get(method.name)
    if (seed := method.parameters.get("seed", 0)) not in (*record.identity.seeds, 0):
        wrong = f"it is {shown(seed)}, and identity.seeds has another"
        yield Finding(
            at, "identity.localizer.parameters.seed", wrong, "the seed of the run, by --seed"
        )
    if builtin is None:
        if not _FINGERPRINT.search(method.version):
            expected = "its version, class and the hash of its file, as kgbench eval writes it"
            yield Finding(
                at,
                "identity.localizer.version",
                f"{shown(method.version)} does not say which code this is",
                expected,
            )
        return
    yield from _as_built_in(record, builtin, at)


def _as_built_in(record: Record, builtin: KnownLocalizer, at: str) -> Iterator[Finding]:
    method = record.identity.localizer
    ranks = any(parse_top(graft) is not None for graft in record.identity.configurations)
    scan = ranks and builtin.kind == "intervention"
    if scanned(method.version, builtin.version) is not scan:
        expected = (
            f"{builtin.version}{' scan' * scan}; a method of your own needs a name of its own"
        )
        yield Finding(
            at,
            "identity.localizer.version",
            f"{shown(method.version)} is not that of the built-in {method.name}",
            expected,
        )
    if sorted(method.parameters) != list(builtin.parameters):
        given = ", ".join(sorted(map(shown, method.parameters))) or "none"
        yield Finding(
            at,
            "identity.localizer.parameters",
            f"they are {given}",
            ", ".join(builtin.parameters) or "none",
        )
    for field in ("kind", "floor"):
        if getattr(record, field) != getattr(builtin, field):
            yield Finding(
                at,
                field,
                f"it is {shown(getattr(record, field))}",
                f"{getattr(builtin, field)}, as {method.name} is",
            )
    if "truth" in builtin.needs and record.identity.truth is None:
        yield Finding(
            at,
            "identity.truth",
            f"{method.name} is told the truth, and there is none",
            "a run of the suite planted",
        )


def check_suite(record: Record, at: str) -> Iterator[Finding]:
    """All configurations of a suite were asked for; more may be."""
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    suites = {name: by_kind[kind] for name, by_kind in known().suites.items() if kind in by_kind}
    if not suites:
        yield Finding(
            at,
            "kind",
            f"a method of kind {shown(record.kind)} with floor {shown(record.floor)} is not known",
            "see DESIGN",
        )
        return
    missing = {
        name: [graft for graft in wanted if graft not in record.identity.configurations]
        for name, wanted in suites.items()
    }
    if all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        lacks = ", ".join(missing[name])
        yield Finding(
            at,
            "identity.configurations",
            f"{lacks} of suite {name} were not run",
            "all configurations of a suite, none left out",
        )


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


def check_cost(record: Record, table: pa.Table, at: str) -> Iterator[Finding]:
    """The record's cost; PRE and SFT share no computation, so each prompt is read at least twice.

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
    known_texts = {measured_on(executor) for executor in _EXECUTORS}
    if cost.measured_on not in known_texts:
        yield Finding(at, "cost.measured_on", f"it is {shown(cost.measured_on)}", min(known_texts))
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
    """A time, UTC where it names no zone; None where it does not parse."""
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
