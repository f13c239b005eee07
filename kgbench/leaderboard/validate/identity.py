"""What a result is of, against what is shipped: data, prompts, weights, truth, method."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kgbench.data import Dataset, dataset_names, is_shipped, load_dataset, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.known import KnownLocalizer, KnownPair, known, own_facts
from kgbench.models import catalog
from kgbench.records import Record
from kgbench.sites.configurations import BEST, parse_top

__all__ = [
    "check_data",
    "check_method",
    "check_pair",
    "check_suite",
    "check_truth",
    "dataset_of",
    "pair_of",
    "scanned",
]

_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""What the version of a method ends with that is not built in: its class, and the hash of its file."""


def dataset_of(record: Record) -> Dataset | None:
    """The shipped data set that a record says it is of: the pair's own facts, or another; None where it is not known."""
    wanted = record.identity.dataset
    if (own := own_facts(record.model)) is not None and own.content_hash == wanted.hash:
        return own
    if not is_shipped(wanted.name):  # anything else could be a path
        return None
    found = load_dataset(wanted.name)
    return found if found.content_hash == wanted.hash else None


def pair_of(record: Record) -> KnownPair | None:
    """What is known of the record's pair; None where its weights are not those that are shipped under its name."""
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
    """Whether a version says that an intervening method was made to rank; None where it is another version than the method's own."""
    return {own: False, f"{own} scan": True}.get(version)


def check_method(record: Record, at: str) -> Iterator[Finding]:
    """A method that is built in is the one of its name; another says which state of its code it is."""
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
