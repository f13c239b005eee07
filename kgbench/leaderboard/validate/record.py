"""Laws of a record, by itself and against the data, models and methods that are shipped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pyarrow.compute as pc

from kgbench.data import dataset_names, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import BOARD_FACTS, Entry, metric_of
from kgbench.leaderboard.known import known
from kgbench.leaderboard.limits import RECORD
from kgbench.leaderboard.validate.files import Finding
from kgbench.models import catalog
from kgbench.records import Truth
from kgbench.records.identity import AFTER_BLANKS
from kgbench.sites.configurations import BEST, parse_top

_of_record = partial(Finding, RECORD)


def record_findings(entry: Entry, strict: bool) -> Iterator[Finding]:
    """Data, models, method, ranking and cost.

    Args:
        entry: The entry.
        strict: Whether results are refused that are of unknown data or models, or of no suite.
    """
    yield from _inputs(entry, strict)
    yield from _method(entry, strict)
    yield from _ranking(entry)
    yield from _cost(entry)
    if strict:
        yield from _suite(entry)


def _inputs(entry: Entry, strict: bool) -> Iterator[Finding]:
    """Facts, prompts, weights and tokenizer are the shipped ones, and versions the present ones."""
    record, dataset = entry.result, entry.shipped.dataset
    what, stated, metric = record.identity, record.identity.dataset, known().metric_version
    if dataset is None:
        expected = f"the shipped ones: {', '.join(dataset_names())}"
        clause = "{} with these facts is not known here"
        yield _of_record("identity.dataset.name", stated.name, expected, clause, strict)
    else:
        yield _of_record("identity.dataset.n", stated.n, len(dataset.facts))
        yield _of_record("dropped", record.dropped, dict(dataset.dropped))
        yield _of_record("identity.dataset.name", stated.name, dataset.name, refuses=strict)
        for name, hash in what.prompts.items():
            try:
                wording = prompt_hash(name, dataset)
            except KgbenchError:
                wording = "a built-in prompt: see kgbench ls prompts"
            yield _of_record(f"identity.prompts.{name}", hash, wording, refuses=strict)
        first = BOARD_FACTS.get(entry.suite)
        if strict and what.limit != first:
            facts = "all facts" if first is None else f"the first {first} facts (--limit {first})"
            expected = f"{facts}, to count in the means over cells of a board"
            yield _of_record("identity.limit", what.limit, expected, refuses=False)
    pair = known().pairs.get(record.model)
    if catalog.published(record.model) is None or (pair is None and entry.suite == "organisms"):
        expected = "a pair of the catalog: see kgbench ls models"
        yield _of_record("model", record.model, expected, refuses=strict)
    elif pair is None:
        expected = "a pair whose weights are shipped to compare with"
        yield _of_record("identity.weights", record.model, expected, refuses=False)
    else:
        weights = pair.weights.get(what.dtype, f"those of {', '.join(pair.weights)}")
        yield _of_record("identity.weights", what.weights.by_part, weights, refuses=strict)
        yield _of_record("identity.tokenizer", what.tokenizer, pair.tokenizer, refuses=strict)
    version, ranking = what.metric_version.removesuffix(AFTER_BLANKS), known().ranking_version
    if not what.ties_count_for_the_target:
        yield _of_record("identity.metric_version", version, metric)
    elif not strict:  # older entries stay, marked
        expected = f"{metric}, which counts ties against the method; run it again"
        yield _of_record("identity.metric_version", version, expected, refuses=False)
    yield _of_record("identity.ranking_version", what.ranking_version or ranking, ranking)
    readout = what.readout.name if what.readout else "first_token"
    own = next(iter(dataset.readout or ()), "first_token") if dataset else "first_token"
    if readout != own:
        expected = f"{own}, which its data are read by: run it without --readout"
        yield _of_record("identity.readout", readout, expected)


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def _method(entry: Entry, strict: bool) -> Iterator[Finding]:
    """A built-in method is as it is built in, and a truth is one that is known."""
    record, what, at = entry.result, entry.result.identity, "identity.localizer"
    method, truth = what.localizer, what.truth
    builtin = known().localizers.get(method.name)
    seed = method.parameters.get("seed", 0)
    if seed not in (*what.seeds, 0):
        yield _of_record(f"{at}.parameters.seed", seed, "the seed of the run, by --seed")
    if builtin is None:
        if not _FINGERPRINT.search(method.version):
            expected = "its version, class and the hash of its file, as kgbench eval writes it"
            yield _of_record(f"{at}.version", method.version, expected)
    else:
        scans = builtin.kind == "intervention" and any(map(parse_top, what.configurations))
        clause = f"it is {{}}, unlike in the built-in {method.name}"
        for field, value, own in (
            (f"{at}.version", method.version, builtin.version + " scan" * scans),
            (f"{at}.parameters", sorted(method.parameters), list(builtin.parameters)),
            ("kind", record.kind, builtin.kind),
            ("floor", record.floor, builtin.floor),
        ):
            yield _of_record(field, value, own, clause)
        if "truth" in builtin.needs and truth is None:
            yield _of_record(
                "identity.truth", None, f"one, for {method.name} needs --suite planted"
            )
    if (truth is not None) != (BEST in what.configurations):
        expected = f"one exactly where {BEST!r} is among the configurations"
        yield _of_record("identity.truth", truth, expected)
    if truth is not None:
        pair, plant = catalog.published(record.model), None
        if pair is not None and pair.plant is not None and entry.shipped.ground is not None:
            plant = Truth(plant=pair.plant, decoy=pair.decoy)
        clause = "{} is not that of a shipped plant on built-in prompts"
        yield _of_record("identity.truth", truth, plant, clause, strict)


def _ranking(entry: Entry) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and a shipped pair's map whole."""
    record, what = entry.result, entry.result.identity
    ranking, scores = record.ranking, record.scores
    tops = [graft for graft in what.configurations if parse_top(graft) is not None]
    ranked = any(graft not in record.not_applicable for graft in tops)
    for name, part in (
        ("scores", scores),
        ("ranking", ranking),
        ("identity.ranking_version", what.ranking_version),
    ):
        if part is None if ranked else part is not None and not tops:
            yield _of_record(name, part, "a ranking of sites exactly where they are ranked")
    if ranking is not None and scores is not None:
        halves = ((what.n_facts + 1) // 2, what.n_facts // 2)
        yield _of_record("ranking.facts", ranking.facts, halves)
    if scores is not None and entry.shipped.sites is not None:
        others = {*entry.shipped.sites}.symmetric_difference(record.by_site or ())
        if others:
            clause = f"{len(others)} sites are missing or none of the pair's, such as {{}}"
            expected = f"the {len(entry.shipped.sites)} of the pair"
            yield _of_record("scores", min(map(str, others)), expected, clause)


def _suite(entry: Entry) -> Iterator[Finding]:
    """All configurations of a suite were asked for, and ratios are of the board's metric."""
    record = entry.result
    kind = record.kind if record.kind == "scoring" else f"{record.kind} {record.floor}"
    asked, missing = record.identity.configurations, {}
    for name, by_kind in known().suites.items():
        if kind in by_kind and (name == "organisms") == (entry.suite == "organisms"):
            missing[name] = [graft for graft in by_kind[kind] if graft not in asked]
    if all(missing.values()):
        name = min(missing, key=lambda suite: len(missing[suite]))
        clause = f"{', '.join(missing[name])} of suite {name} were not run"
        expected = "all configurations of a suite, none left out"
        yield _of_record("identity.configurations", None, expected, clause)
    metric = metric_of(record)
    clause = f"it is {{}}: kgbench submit computes figures on {metric}"
    yield _of_record("metric", record.metric, metric, clause)


def _cost(entry: Entry) -> Iterator[Finding]:
    """The cost is possible; time, plain forwards and token rows go together."""
    cost, scoring, table = entry.result.cost, entry.result.cost.scoring, entry.rows()
    read = table.filter(pc.equal(table["graft"], "PRE"))["position"]
    # Token rows of a plain forward: an answer is read after all tokens before it.
    plain = max(1, (pc.sum(read).as_py() or 0) + len(read))
    computed = cost.token_rows + (scoring.token_rows if scoring else 0)
    rows, second = computed / plain, cost.seconds / plain
    ratio = cost.plain_forward_ratio.value or 0.0
    # PRE and SFT share no computation, so that each prompt is read at least twice.
    most = 2e4 * plain * len(entry.result.identity.configurations)
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
            yield _of_record(f"cost.{name}", value, f"{low:g} to {high:g}, for what was run")
