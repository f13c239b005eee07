"""Laws of a record, by itself and against the data, models and methods that are shipped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import pyarrow.compute as pc

from kgbench.data import dataset_names, prompt_hash
from kgbench.errors import KgbenchError
from kgbench.leaderboard.entries import BOARD_FACTS
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.known import known
from kgbench.leaderboard.validate.files import Sent
from kgbench.leaderboard.validate.findings import Finding
from kgbench.models import catalog
from kgbench.records import Truth
from kgbench.records.identity import AFTER_BLANKS
from kgbench.sites.configurations import BEST, parse_top


def record_findings(sent: Sent, strict: bool) -> Iterator[Finding]:
    """Data, models, method, ranking and cost.

    Args:
        sent: The entry.
        strict: Whether results are refused that are of unknown data or models, or of no suite.
    """
    yield from _inputs(sent, strict)
    yield from _method(sent, strict)
    yield from _ranking(sent)
    yield from _cost(sent)
    if strict:
        yield from _suite(sent)


def _inputs(sent: Sent, strict: bool) -> Iterator[Finding]:
    """Facts, prompts, weights and tokenizer are the shipped ones, and versions the present ones."""
    record, dataset = sent.entry.result, sent.shipped.dataset
    what, stated, metric = record.identity, record.identity.dataset, known().metric_version
    if dataset is None:
        expected = f"the shipped ones: {', '.join(dataset_names())}"
        clause = "{} with these facts is not known here"
        yield Finding("identity.dataset.name", stated.name, expected, clause, strict)
    else:
        yield Finding("identity.dataset.n", stated.n, len(dataset.facts))
        yield Finding("dropped", record.dropped, dict(dataset.dropped))
        yield Finding("identity.dataset.name", stated.name, dataset.name, refuses=strict)
        for name, hash in what.prompts.items():
            try:
                wording = prompt_hash(name, dataset)
            except KgbenchError:
                wording = "a built-in prompt: see kgbench ls prompts"
            yield Finding(f"identity.prompts.{name}", hash, wording, refuses=strict)
        first = BOARD_FACTS.get(sent.entry.suite)
        if strict and what.limit != first:
            facts = "all facts" if first is None else f"the first {first} facts (--limit {first})"
            expected = f"{facts}, to count in the means over cells of a board"
            yield Finding("identity.limit", what.limit, expected, refuses=False)
    pair = known().pairs.get(record.model)
    if catalog.published(record.model) is None:
        expected = "a pair of the catalog: see kgbench ls models"
        yield Finding("model", record.model, expected, refuses=strict)
    elif pair is None:
        expected = "a pair whose weights are shipped to compare with"
        yield Finding("identity.weights", record.model, expected, refuses=False)
    else:
        weights = pair.weights.get(what.dtype, f"those of {', '.join(pair.weights)}")
        yield Finding("identity.weights", what.weights.by_part, weights, refuses=strict)
        yield Finding("identity.tokenizer", what.tokenizer, pair.tokenizer, refuses=strict)
    version, ranking = what.metric_version.removesuffix(AFTER_BLANKS), known().ranking_version
    if not what.ties_count_for_the_target:
        yield Finding("identity.metric_version", version, metric)
    elif not strict:  # older entries stay, marked
        expected = f"{metric}, which counts ties against the method; run it again"
        yield Finding("identity.metric_version", version, expected, refuses=False)
    yield Finding("identity.ranking_version", what.ranking_version or ranking, ranking)
    if what.readout is not None:
        expected = "the first token of the answer: run it without --readout"
        yield Finding("identity.readout", what.readout.name, expected)


_FINGERPRINT = re.compile(r" \S+ [0-9a-f]{16}$")
"""End of the version of a method that is not built in: its class, and the hash of its file."""


def _method(sent: Sent, strict: bool) -> Iterator[Finding]:
    """A built-in method is as it is built in, and a truth is one that is known."""
    record, what, at = sent.entry.result, sent.entry.result.identity, "identity.localizer"
    method, truth = what.localizer, what.truth
    builtin = known().localizers.get(method.name)
    seed = method.parameters.get("seed", 0)
    if seed not in (*what.seeds, 0):
        yield Finding(f"{at}.parameters.seed", seed, "the seed of the run, by --seed")
    if builtin is None:
        if not _FINGERPRINT.search(method.version):
            expected = "its version, class and the hash of its file, as kgbench eval writes it"
            yield Finding(f"{at}.version", method.version, expected)
    else:
        scans = builtin.kind == "intervention" and any(map(parse_top, what.configurations))
        clause = f"it is {{}}, unlike in the built-in {method.name}"
        for field, value, own in (
            (f"{at}.version", method.version, builtin.version + " scan" * scans),
            (f"{at}.parameters", sorted(method.parameters), list(builtin.parameters)),
            ("kind", record.kind, builtin.kind),
            ("floor", record.floor, builtin.floor),
        ):
            yield Finding(field, value, own, clause)
        if "truth" in builtin.needs and truth is None:
            yield Finding("identity.truth", None, f"one, for {method.name} needs --suite planted")
    if (truth is not None) != (BEST in what.configurations):
        expected = f"one exactly where {BEST!r} is among the configurations"
        yield Finding("identity.truth", truth, expected)
    if truth is not None:
        entry, plant = catalog.published(record.model), None
        if entry is not None and entry.plant is not None and sent.shipped.ground is not None:
            plant = Truth(plant=entry.plant, decoy=entry.decoy)
        clause = "{} is not that of a shipped plant on built-in prompts"
        yield Finding("identity.truth", truth, plant, clause, strict)


def _ranking(sent: Sent) -> Iterator[Finding]:
    """A ranking is there where configurations are filled by one, and a shipped pair's map whole."""
    record, what = sent.entry.result, sent.entry.result.identity
    ranking, scores = record.ranking, record.scores
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
        yield Finding("ranking.facts", ranking.facts, halves)
        sizes = chain.from_iterable(chain.from_iterable(g.values()) for g in ranking.sites.values())
        fit = ranking.sites.keys() <= what.prompts.keys() and {*sizes} <= {*range(len(scores) + 1)}
        if not fit:
            expected = f"the record's prompts, and at most {len(scores)} sites each"
            yield Finding("ranking.sites", sorted(ranking.sites), expected, "it is of others: {}")
    if scores is not None and sent.shipped.sites is not None:
        others = {*sent.shipped.sites}.symmetric_difference(record.by_site or ())
        if others:
            clause = f"{len(others)} sites are missing or none of the pair's, such as {{}}"
            expected = f"the {len(sent.shipped.sites)} of the pair"
            yield Finding("scores", min(map(str, others)), expected, clause)


def _suite(sent: Sent) -> Iterator[Finding]:
    """All configurations of a suite were asked for, and ratios are of the board's metric."""
    record = sent.entry.result
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
    clause = f"it is {{}}: kgbench submit computes figures on {METRIC}"
    yield Finding("metric", record.metric, METRIC, clause)


def _cost(sent: Sent) -> Iterator[Finding]:
    """The cost is possible; time, plain forwards and token rows go together."""
    cost, scoring = sent.entry.result.cost, sent.entry.result.cost.scoring
    read = sent.rows.filter(pc.equal(sent.rows["graft"], "PRE"))["position"]
    # Token rows of a plain forward: an answer is read after all tokens before it.
    plain = max(1, (pc.sum(read).as_py() or 0) + len(read))
    computed = cost.token_rows + (scoring.token_rows if scoring else 0)
    rows, second = computed / plain, cost.seconds / plain
    ratio = cost.plain_forward_ratio.value or 0.0
    # PRE and SFT share no computation, so that each prompt is read at least twice.
    most = 2e4 * plain * len(sent.entry.result.identity.configurations)
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
