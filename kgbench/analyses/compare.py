"""Two records compared: paired differences over the facts that both have, and flipped facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kgbench.analyses import Analysis, Answer, Inputs
from kgbench.errors import InputError
from kgbench.estimate import Estimate, plain
from kgbench.numbers import figure_text, number_text
from kgbench.records import Record
from kgbench.records.identity import Difference, identity_differences
from kgbench.report import Cell, Column, Dash, Lines, Report, Table
from kgbench.sites.configurations import budget_labels
from kgbench.stats import DEFAULT_METRIC
from kgbench.stats.answer_frequency import priors_of
from kgbench.stats.ratios import (
    PairedPrompt,
    area_difference,
    mean_differences,
    paired_prompts,
    recovery_difference,
)
from kgbench.stats.scores import check_metric, has_metric, naturally, score

GRAFT_WIDTH = 18

HALF = 0.5
"""Share of texts from which on they are a hit; a top-k hit is 0 or 1."""

FEW = 5
"""Facts of a configuration that are listed unless all are asked for."""

LEGEND = "* the interval leaves out 0"

Stored = tuple[Record, pa.Table]
"""A record and its per-fact rows."""


@dataclass(frozen=True)
class Compared:
    """One configuration of one prompt in both records; differences are second - first."""

    prompt: str
    graft: str
    n: int
    first: float
    """Mean over the shared facts."""
    second: float
    difference: Estimate
    sufficiency: Estimate
    necessity: Estimate
    gained: tuple[str, ...]
    """Facts that the second hits and the first does not."""
    lost: tuple[str, ...]


@dataclass(frozen=True)
class SharedFacts:
    """How many facts of a prompt the records share, and how many one alone has."""

    shared: int
    first_only: int
    second_only: int


@dataclass(frozen=True)
class Comparison:
    """Two records compared."""

    first: Record
    second: Record
    metric: str
    hits: str
    """The top-k hit that facts flip by: the metric, or the default one; of texts `prob`, the share
    of them, from one half on."""
    differing: tuple[Difference, ...]
    """What differs in the identities."""
    facts: Mapping[str, SharedFacts]
    """By prompt."""
    rows: tuple[Compared, ...]
    areas: Mapping[str, Estimate]
    """By prompt, where sites were ranked: difference of the areas under the recovery curves."""
    first_only: tuple[tuple[str, str], ...]
    """(prompt, configuration) that the second record does not have."""
    second_only: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()

    def answer(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        names = ("metric", "hits", "differing", "facts", "rows", "areas")
        return {
            "first": _named(self.first),
            "second": _named(self.second),
            **{name: plain(getattr(self, name)) for name in names},
            "first_only": _keys(self.first_only),
            "second_only": _keys(self.second_only),
            "notes": list(self.notes),
            "verdict": self.verdict(),
        }

    def significant(self) -> list[Compared]:
        """The rows whose difference on the metric has an interval without 0."""
        return [row for row in self.rows if row.difference.excludes_zero]

    def verdict(self) -> str:
        """The result in a sentence."""
        defined = flipped = 0
        for row in self.rows:
            defined += row.difference.value is not None
            flipped += len(row.gained) + len(row.lost)
        apart = self.significant()
        if not defined:
            return f"No difference on {self.metric} is defined."
        chance, flips = "", f"no fact flipped ({self.hits})"
        if apart:
            expected = round(0.05 * defined)
            chance = f" ({f'about {expected}' if expected else 'fewer than 1'} expected by chance)"
        if flipped:
            flips = f"{flipped} {self.hits} hits of single facts flipped"
        what = f"{len(apart) or 'None'} of {defined} differences on {self.metric}"
        verb = "is" if len(apart) == 1 else "are"
        return f"{what} {verb} significant at the 5 % level{chance}; {flips}."


def _keys(keys: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"prompt": prompt, "graft": graft} for prompt, graft in keys]


def compare_records(first: Stored, second: Stored, metric: str | None = None) -> Comparison:
    """Compare what two records have in common.

    Args:
        first: A record and its rows.
        second: Another; differences are of the second from the first.
        metric: What is compared; by default the first record's.

    Raises:
        InputError: The records have no prompt, fact or configuration in common.
        UnknownNameError: There is no such metric.
    """
    left, right = first[0], second[0]
    if left.identity.readout != right.identity.readout:
        raise InputError(
            f"{_run_text(left)} and {_run_text(right)} have other readouts or other parameters of "
            "one, so that differences would be of two quantities; compare runs of one readout"
        )
    chosen = check_metric(metric or left.metric)
    tables, notes = _same_facts(first, second)
    order = tuple(dict.fromkeys((*left.identity.configurations, *right.identity.configurations)))
    prompts = list(paired_prompts(tables[0], tables[1], order))
    if not prompts:
        raise InputError(
            f"{_run_text(left)} and {_run_text(right)} have no fact of one prompt in common: "
            "nothing can be compared"
        )
    hits = next((m for m in (chosen, left.metric) if m.startswith("top")), DEFAULT_METRIC)
    if not has_metric(first[1].column_names, hits):
        hits = "prob"
    complements = {row.graft: row.complement for row in left.rows if row.complement is not None}
    rows: list[Compared] = []
    for prompt in prompts:
        rows += _rows(prompt, chosen, hits, complements)
    mine, theirs = _measured(left), _measured(right)
    return Comparison(
        first=left,
        second=right,
        metric=chosen,
        hits=hits,
        differing=identity_differences(left.identity, right.identity),
        facts={p.name: SharedFacts(p.first.n, *p.only) for p in prompts},
        rows=tuple(rows),
        areas=_areas(prompts, left, right, chosen),
        first_only=tuple(key for key in mine if key not in theirs),
        second_only=tuple(key for key in theirs if key not in mine),
        notes=(*notes, *_older_metric(left, right)),
    )


def _measured(record: Record) -> dict[tuple[str, str], None]:
    """Prompt and configuration of each row with a value."""
    return {(row.prompt, row.graft): None for row in record.rows if row.applicable}


def _older_metric(first: Record, second: Record) -> tuple[str, ...]:
    """That the records count ties in two ways, if they do."""
    older = [record.identity.ties_count_for_the_target for record in (first, second)]
    if older[0] == older[1]:
        return ()
    for_it, against = ("A", "B") if older[0] else ("B", "A")
    return (
        f"{for_it} counts ties for the method (metric version 1), {against} against it: "
        "differences of ranks and hits may be ties",
    )


def _rows(
    prompt: PairedPrompt, metric: str, hits: str, complements: Mapping[str, str]
) -> list[Compared]:
    differences = mean_differences(prompt, metric)
    first, second = prompt.scores(metric)
    recoveries = {graft: recovery_difference(first, second, graft) for graft in prompt.shared}
    n, rows = prompt.first.n, []
    for graft, difference in differences.items():
        means = float(first[graft].mean()), float(second[graft].mean())
        necessity = _necessity(graft, recoveries, complements, n).rounded()
        estimates = difference.rounded(), recoveries[graft].rounded(), necessity
        flipped = _flipped(prompt, graft, hits)
        rows.append(Compared(prompt.name, graft, n, *means, *estimates, *flipped))
    return rows


def _areas(
    prompts: Sequence[PairedPrompt], first: Record, second: Record, metric: str
) -> dict[str, Estimate]:
    areas = {}
    for prompt in prompts:
        budgets = _budgets(first, prompt.name)
        if budgets and budgets == _budgets(second, prompt.name):
            areas[prompt.name] = area_difference(*prompt.scores(metric), budgets).rounded()
    return areas


def _budgets(record: Record, prompt: str) -> dict[str, float]:
    """Configurations of a prompt's recovery curve and their budgets in per cent, ascending."""
    curve = (record.curve or {}).get(prompt)
    return budget_labels([point.budget for point in curve.points] if curve else ())


def _necessity(
    graft: str, recoveries: Mapping[str, Estimate], complements: Mapping[str, str], n: int
) -> Estimate:
    """1 - recovery(S^C): its difference is minus that of the complement's recovery."""
    other = complements.get(graft, "")
    if graft in ("PRE", "SFT"):
        return Estimate.missing(f"{graft} is no graft, and necessity is asked of grafts", n)
    if other not in recoveries:
        return Estimate.missing("its complement was not run in both", n)
    rest = recoveries[other]
    if rest.numbers is None:
        return rest
    value, low, high = rest.numbers
    return Estimate(0.0 - value, 0.0 - high, 0.0 - low, rest.n)


def _flipped(
    prompt: PairedPrompt, graft: str, hits: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first = score(prompt.first.columns[graft], hits) >= HALF
    second = score(prompt.second.columns[graft], hits) >= HALF
    gained, lost = prompt.first.facts[second & ~first], prompt.first.facts[first & ~second]
    return tuple(naturally(gained.tolist())), tuple(naturally(lost.tolist()))


def _same_facts(first: Stored, second: Stored) -> tuple[list[pa.Table], tuple[str, ...]]:
    """Both tables without ids whose targets show that they are other facts in the other table."""
    tables, (ours, theirs) = [first[1], second[1]], (first[0].identity, second[0].identity)
    if ours.dataset.hash == theirs.dataset.hash:
        return tables, ()
    notes = ["the facts are paired by their ids, since the data sets differ"]
    if ours.tokenizer != theirs.tokenizer:
        return tables, (
            *notes,
            "the tokenizers differ too, so that nothing can tell whether an id stands for the same "
            "fact in both",
        )
    mine, others = map(_targets, tables)
    differing = set()
    for key, target in mine.items():
        if others.get(key, target) != target:
            differing.add(key[1])
    if other := sorted(differing):
        notes.append(
            f"{len(other)} ids stand for facts with other objects and are left out, such as "
            f"{other[0]}"
        )
        out = pa.array(other, pa.string())
        tables = [table.filter(pc.invert(pc.is_in(table["fact"], out))) for table in tables]
    return tables, tuple(notes)


def _targets(table: pa.Table) -> dict[tuple[str, str], int]:
    """By prompt and fact: the first token of what is asked for; of texts there is none."""
    keys = zip(table["prompt"].to_pylist(), table["fact"].to_pylist(), strict=True)
    targets = table["target"].to_pylist() if "target" in table.column_names else ()
    return dict(zip(keys, targets, strict=bool(targets)))


def _named(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "model": record.model,
        "dataset": record.identity.dataset.name,
        "localizer": record.identity.localizer.name,
    }


def _run_text(record: Record) -> str:
    return f"{record.identity.localizer.name} on {record.model} ({record.identity.dataset.name})"


def comparison_report(comparison: Comparison) -> Report:
    """What differs in what two records are of, the differences, and the facts that flipped."""
    first, second = _described(comparison.first), _described(comparison.second)
    title = (
        f"A: {first}\nB: {second}\nB − A on {comparison.metric}, "
        "paired over the facts that both have, with 95 % intervals"
    )
    prompts = dict.fromkeys(row.prompt for row in comparison.rows)
    parts = [_identities(comparison), *(_table(comparison, prompt) for prompt in prompts)]
    if comparison.areas:
        line: list[str | Estimate] = ["area under the recovery curve, B − A: "]
        for number, (prompt, area) in enumerate(comparison.areas.items()):
            star = " *" * area.excludes_zero
            line += [", " * (number > 0), area, f"{star} on {prompt}"]
        parts.append(Lines([line], "  "))
    parts += [*_flips(comparison), *_left_out(comparison)]
    remarks = priors_of(comparison.first).remarks(comparison.metric)
    return Report(title, parts, remarks, [LEGEND], comparison.verdict())


def _described(record: Record) -> str:
    what = record.identity
    limit = f", the first {what.limit} facts" if what.limit is not None else ""
    method = f"{what.localizer.name} on {record.model}, {what.dataset.name}{limit}, {what.dtype}"
    return f"{method} ({record.id[:12]}, {record.provenance.time})"


def _identities(comparison: Comparison) -> Table | Lines:
    if not comparison.differing:
        return Lines(["both are of the same: facts, prompts, weights, method and settings"])
    lines = [f"  {part.sentence()}" for part in comparison.differing]
    return Lines(["what differs:", *lines, *(f"note: {note}" for note in comparison.notes)], "    ")


def _table(comparison: Comparison, prompt: str) -> Table:
    facts = comparison.facts[prompt]
    title = f"{prompt}: {facts.shared} facts in both"
    for letter, n in (("A", facts.first_only), ("B", facts.second_only)):
        title += f", {n} only in {letter}" if n else ""
    rows: list[list[Cell]] = []
    for row in comparison.rows:
        if row.prompt != prompt:
            continue
        graft = row.graft not in ("PRE", "SFT")
        rows.append(
            [
                row.graft,
                number_text(row.first),
                number_text(row.second),
                row.difference,
                row.sufficiency if graft else Dash(),
                row.necessity if graft and not row.graft.startswith("top ") else Dash(),
                f"{len(row.gained)} / {len(row.lost)}",
            ]
        )
    heads = ["graft", "A", "B", "B − A", "sufficiency", "necessity", "gained / lost"]
    return Table(title, [Column(head, _starred) for head in heads], rows, GRAFT_WIDTH)


def _starred(estimate: Estimate) -> str:
    return figure_text(estimate) + " *" * estimate.excludes_zero


def _flips(comparison: Comparison) -> list[Lines]:
    lines = []
    for row in comparison.rows:
        for what, facts in (("gained", row.gained), ("lost", row.lost)):
            if facts:
                more = f" and {len(facts) - FEW} more" if len(facts) > FEW else ""
                names = f"{', '.join(facts[:FEW])}{more}"
                lines.append(f"  {row.prompt}, {row.graft}, {len(facts)} {what}: {names}")
    head = (
        f"facts that flipped ({comparison.hits}; gained: hit in B alone, lost: hit in A alone; "
        "--json lists all):"
    )
    return [Lines([head, *lines], "    ")] if lines else []


def _left_out(comparison: Comparison) -> list[Lines]:
    """Configurations that only one record has."""
    lines: dict[str, str] = {}
    for letter, keys in (("A", comparison.first_only), ("B", comparison.second_only)):
        for prompt, graft in keys:
            head = f"only in {letter}: {prompt}: "
            lines[head] = f"{lines[head]}, {graft}" if head in lines else graft
    return [Lines([head + grafts for head, grafts in lines.items()], "  ")] if lines else []


@dataclass(frozen=True)
class Compare(Analysis):
    """Compare two runs: B − A for every configuration of every prompt.

    Differences are paired over the facts that both runs have, with 95 %
    intervals. Differences between what the two runs evaluate come first. A and B
    are folders, starts of ids, or entries of the leaderboard.

    \b
    kgbench compare kgbench-results/before kgbench-results/after
    kgbench compare 3f9c 81d2 --metric logprob
    """  # noqa: D301 (click reads the character, not its escape)

    name = "compare"
    about = "Print paired differences of two runs."
    arguments = "A B"

    metric: str | None = field(default=None, metadata={"metavar": "NAME"})
    """What is compared.  [default: A's]"""

    def answer(self, inputs: Inputs) -> Answer:
        """Compare the two runs."""
        first, second = inputs.runs
        comparison = compare_records(
            (first.record, first.facts()), (second.record, second.facts()), self.metric
        )
        json = comparison.answer()
        json["first"]["path"] = str(first.folder)
        json["second"]["path"] = str(second.folder)
        return Answer(comparison_report(comparison), json)
