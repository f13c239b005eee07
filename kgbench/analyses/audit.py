"""How far a method's recoveries move with wording and seed, and what difference facts can show.

The smallest difference between two methods that n facts detect, with a power of 80 % in a two-sided
test of 5 %, is 2.8 standard errors of that difference (z(.975) + z(.8): H. S. Bloom, Minimum
Detectable Effects, Evaluation Review 19, 1995). The other method's recovery is taken to have the
same standard error and to be independent:

    smallest difference = 2.8 * sqrt(2) * se(recovery of one wording and one seed over n facts)

It falls with the square root of n. Two methods on the same facts mostly agree on many of them, and
then a smaller difference is found: `kgbench compare` measures it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kgbench.analyses import GRAFTS, Analysis, Answer, Inputs
from kgbench.data import Dataset, builtin_prompts, fitting_prompts
from kgbench.errors import InputError
from kgbench.estimate import Estimate, plain
from kgbench.numbers import count_text, number_text
from kgbench.progress import numbered
from kgbench.records import Identity, Record, StoredRecord, canonical_json, read_record
from kgbench.records.identity import identity_differences
from kgbench.report import Cell, Lines, Report, Table
from kgbench.report.export import differing_parameters
from kgbench.runner.lookup import check
from kgbench.runner.spec import INSTALLED, Spec
from kgbench.runner.third_party_process import method_of
from kgbench.sites import BASELINES
from kgbench.stats.intervals import Array
from kgbench.stats.scores import check_metric
from kgbench.stats.summary import rescored

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry

SEEDS = 3
"""Default number of seeds of a method that draws at random."""

_SUPERSEDED = re.compile(r"(.+)_v\d+")
"""Names of earlier states of another prompt, the same wording but for a slip."""

AREA = "area"
"""The figure under the curve of recovery over budgets."""

SAME = ("dataset.hash", "limit", "weights", "tokenizer", "dtype", "metric_version")
"""Parts of the identity that are equal in all runs of an audit."""

DETECTED = 2.8
"""Standard errors: z(.975) + z(.8)."""

MAIN = ("FE+LT", AREA, "LT", "FE")
"""What the sentence is about: the first that has a smallest difference, else any graft."""

Figure = float | Estimate
"""A number, or the undefined estimate with the reason why there is none."""


def audit_specs(spec: Spec, seeds: int | None = None) -> list[Spec]:
    """A specification per wording and seed; a method is fitted on that wording alone.

    Args:
        spec: Pair, facts and method; its prompts are the wordings, by default all that ask the data
            set's question.
        seeds: How many; by default 3 where a seed has a part in the method's answers, else 1.

    Raises:
        InputError: Something in the specification is wrong.
    """
    work = check(replace(spec, prompts=()))
    method = method_of(work)
    ranks = method.kind == "scoring"  # a seed splits the facts in two, to rank by and to try on
    drawn = ranks or ("seed" in method.parameters and "seed" not in spec.localizer_args)
    if not spec.grafts and not ranks:
        spec = replace(spec, grafts=GRAFTS)
    wordings = spec.prompts or wordings_of(work.dataset)
    specs = []
    for seed, wording in product(range(seeds or (SEEDS if drawn else 1)), wordings):
        specs.append(replace(spec, prompts=(wording,), seed=seed))
        check(specs[-1])
    return specs


def wordings_of(dataset: Dataset) -> tuple[str, ...]:
    """Names of all evaluation prompts that ask for a data set's object, given its subject.

    Those are its own templates and the built-in prompts that its fields fill; earlier versions of
    one of these are left out.

    Raises:
        InputError: There is none.
    """
    names = tuple(dict.fromkeys((*dataset.templates, *builtin_prompts())))
    fitting = []
    for name in names:
        version = _SUPERSEDED.fullmatch(name)
        superseded = version is not None and version[1] in names
        in_dataset = name in dataset.templates  # a mistake in one of these is an error
        if not superseded and (in_dataset or fitting_prompts(dataset, [name])):
            fitting.append(name)
    if not fitting:
        raise InputError(
            f"no prompt asks for {dataset.object!r} of data set {dataset.name!r}: give wordings "
            "with --template NAME=TEXT"
        )
    return tuple(fitting)


@dataclass(frozen=True)
class AuditedMethod:
    """Recoveries of a method, in wordings under seeds."""

    name: str
    drawn: bool
    """Whether a seed has a part in its answers."""
    wordings: tuple[str, ...]
    seeds: tuple[str, ...]
    figures: Mapping[str, Mapping[tuple[str, str], Estimate]]
    """By configuration or `AREA`, then by wording and seed."""

    @property
    def n(self) -> int:
        """Number of facts."""
        every = chain.from_iterable(cells.values() for cells in self.figures.values())
        return max((estimate.n for estimate in every), default=0)


def methods_of(records: Sequence[Record]) -> list[AuditedMethod]:
    """Sort records into methods.

    Args:
        records: Of one pair on one set of facts, with ratios on one metric.

    Raises:
        InputError: They are not of the same pair and facts, name different wordings alike, or give
            a method's wording twice under one seed.
    """
    _check_alike([record.identity for record in records])
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = canonical_json([record.identity.localizer.name, _parameters(record.identity)])
        groups.setdefault(key, []).append(record)
    firsts = [group[0].identity for group in groups.values()]
    methods = []
    for first, group in zip(firsts, groups.values(), strict=True):
        name = first.localizer.name
        alike = [_parameters(other) for other in firsts if other.localizer.name == name]
        differing = ", ".join(differing_parameters(_parameters(first), alike))
        methods.append(_method(f"{name} ({differing})" if differing else name, group))
    return methods


def _check_alike(identities: Sequence[Identity]) -> None:
    hashes: dict[str, str] = {}
    for identity in identities:
        differing = identity_differences(identities[0], identity)
        texts = [part.text() for part in differing if part.field.startswith(SAME)]
        if texts:
            raise InputError(
                "an audit is of one pair on one set of facts, and these runs differ in "
                f"{'; '.join(texts)}"
            )
        for name, text in identity.prompts.items():
            if hashes.setdefault(name, text) != text:
                raise InputError(
                    f"the prompt {name!r} has one wording in one of these runs and another in "
                    "another; leave out one of them"
                )


def _parameters(identity: Identity) -> dict[str, Any]:
    """Parameters and version of the method, without its seed."""
    values = {**identity.localizer.parameters, "version": identity.localizer.version}
    values.pop("seed", None)
    return values


def _method(name: str, records: Sequence[Record]) -> AuditedMethod:
    figures: dict[str, dict[tuple[str, str], Estimate]] = {}
    cells: dict[tuple[str, str], None] = {}
    drawn = False
    for record in records:
        parameters, run_seed = record.identity.localizer.parameters, record.identity.seeds[0]
        drawn = drawn or record.ranking is not None or "seed" in parameters
        seed, method_seed = str(run_seed), parameters.get("seed", run_seed)
        if method_seed != run_seed:
            seed += f", method's {method_seed}"
        for wording in record.by_prompt:
            if (wording, seed) in cells:
                raise InputError(
                    f"two runs of {name} have the prompt {wording!r} under seed {seed}; give one "
                    "of them"
                )
            cells[wording, seed] = None
        for wording, curve in (record.curve or {}).items():
            figures.setdefault(AREA, {})[wording, seed] = curve.area
        for row in record.rows:
            if row.graft not in BASELINES:
                figures.setdefault(row.graft, {})[row.prompt, seed] = row.sufficiency
    wordings, seeds = (tuple(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    return AuditedMethod(name, drawn, wordings, seeds, figures)


@dataclass(frozen=True)
class Spread:
    """How far the recovery of a configuration, or the area, moves."""

    graft: str
    value: Estimate
    """Mean over wordings and seeds, and of their intervals over facts."""
    wordings_sd: Figure
    """Standard deviation over wordings, of means over seeds."""
    seeds_sd: Figure
    """Standard deviation over seeds, of means over wordings."""
    smallest: Figure
    """Smallest difference that is detected, see `smallest_difference`."""
    left_out: Mapping[str, str]
    """Wordings without a value under every seed, and why."""


def spreads(method: AuditedMethod) -> list[Spread]:
    """Of each configuration; the area comes first where there is a curve."""
    return [_spread(label, method) for label in method.figures]


def _spread(label: str, method: AuditedMethod) -> Spread:
    n = method.n
    estimates: list[list[Estimate]] = []
    left_out: dict[str, str] = {}
    for wording in method.wordings:
        row = []
        for seed in method.seeds:
            lacking = Estimate.missing(f"{label} was not run under seed {seed}")
            row.append(method.figures[label].get((wording, seed), lacking))
        undefined = [str(estimate.undefined) for estimate in row if estimate.numbers is None]
        if undefined:
            left_out[wording] = undefined[0]
        else:
            estimates.append(row)
    if not estimates:
        no = Estimate.missing(next(iter(left_out.values())), n)
        return Spread(label, no, no, no, no, left_out)
    every = list(chain.from_iterable(estimates))
    numbers = [estimate.numbers for estimate in every if estimate.numbers is not None]
    value, low, high = map(float, np.mean(numbers, axis=0))
    values = np.reshape([value for value, _, _ in numbers], (len(estimates), -1))
    varies = method.drawn or len(method.seeds) > 1  # else another seed gives the same
    return Spread(
        graft=label,
        value=Estimate(value, low, high, n),
        wordings_sd=_sd(values.mean(axis=1), "wording", n),
        seeds_sd=_sd(values.mean(axis=0), "seed", n) if varies else 0.0,
        smallest=smallest_difference(every),
        left_out=left_out,
    )


def _sd(values: Array, noun: str, n: int) -> Figure:
    if len(values) < 2:
        return Estimate.missing(f"one {noun} only, and a standard deviation needs two", n)
    return float(np.std(values, ddof=1))


def smallest_difference(recoveries: Sequence[Estimate]) -> float:
    """2.8 * sqrt(2) standard errors of a recovery over its facts, see the head of this module.

    Args:
        recoveries: Of each wording and seed, with intervals of 2 * 1.96 standard errors, which are
            averaged as variances.
    """
    _, low, high = np.transpose([recovery.numbers for recovery in recoveries])
    return DETECTED * float(np.sqrt(2 * np.mean(((high - low) / (2 * 1.96)) ** 2)))


def notes_of(method: AuditedMethod, rows: Sequence[Spread]) -> list[str]:
    """Wordings that were left out, and why."""
    grafts: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if len(row.left_out) < len(method.wordings):  # else it is undefined for that reason
            for missing in row.left_out.items():
                grafts.setdefault(missing, []).append(row.graft)
    return [
        f"{method.name}, {wording}: {', '.join(names)} left out: {why}"
        for (wording, why), names in grafts.items()
    ]


def audit_report(audited: Sequence[tuple[AuditedMethod, Sequence[Spread]]], title: str) -> Report:
    """A table and a sentence of each method, and what was left out.

    Args:
        audited: Methods and the spreads of their configurations.
        title: Of the report.
    """
    parts: list[Table | Lines] = []
    sentences = []
    for method, rows in audited:
        cells: list[list[Cell]] = []
        for row in rows:
            cells.append([row.graft, row.value.rounded()])
            for figure in (row.wordings_sd, row.seeds_sd, row.smallest):
                cells[-1].append(figure if isinstance(figure, Estimate) else number_text(figure))
        heads = ["graft", "mean", "SD over wordings", "SD over seeds", "smallest difference"]
        sizes = {"wording": len(method.wordings), "seed": len(method.seeds), "fact": method.n}
        counts = [count_text(n, noun) for noun, n in sizes.items()]
        parts.append(Table(f"{method.name}: {', '.join(counts)}", heads, cells, 16))
        parts += [Lines([note], "  ") for note in notes_of(method, rows)]
        sentences.append(_sentence(method, rows))
    explained = (
        "smallest difference: of two methods on one wording and one seed, each on so many facts; a "
        "two-sided test of 5 % detects it in 80 % of repetitions. Four times the facts halve it."
    )
    return Report(title, parts, notes=[explained], verdict=" ".join(sentences))


def _text(figure: Figure) -> str:
    if isinstance(figure, Estimate):
        return f"undefined ({figure.undefined})"
    return number_text(figure)


def _sentence(method: AuditedMethod, rows: Sequence[Spread]) -> str:
    labels = [row.graft for row in rows if not isinstance(row.smallest, Estimate)]
    if not labels:
        why = next((str(row.value.undefined) for row in rows), "no graft was run")
        return f"{method.name}: no smallest difference is defined: {why}."
    label = next(label for label in (*MAIN, *labels) if label in labels)
    row = next(row for row in rows if row.graft == label)
    name = "the area under the curve" if row.graft == AREA else row.graft
    return (
        f"{method.name}: the standard deviation of {name} is {_text(row.wordings_sd)} over "
        f"wordings and {_text(row.seeds_sd)} over seeds; {count_text(method.n, 'fact')} detect "
        f"differences of {_text(row.smallest)} or more."
    )


@dataclass(frozen=True)
class Audit(Analysis):
    """Standard deviation over wordings and seeds; smallest difference that is detected.

    Runs the method of a RUN in every wording of its data set's question under
    several seeds, or reads several runs that exist, and reports how far the
    recovery of each graft moves with them, and how small a difference between two
    methods so many facts detect: with a power of 80 % in a test of 5 %.

    \b
    kgbench audit kgbench-results/RUN
    kgbench audit RUN --seeds 5
    kgbench audit RUN OTHER                            # of several seeds, prompts or methods
    """  # noqa: D301 (click reads the character, not its escape)

    name = "audit"
    about = "Vary wordings and seeds: how far figures move."
    arguments = "RUN..."
    of = "method"
    takes = ("localizer", "prompts", "limit", "device")
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "localizer": INSTALLED,
        "prompts": {
            "help": (
                "Wordings; several with commas.  [default: those that the run was given, else every "
                "prompt that asks for the same]"
            )
        },
        "limit": {"least": 2, "help": "Only the first N facts.  [default: the run's]"},
    }

    metric: str | None = field(default=None, metadata={"metavar": "NAME"})
    """Metric of the recoveries.  [default: the first run's]"""
    seeds: int | None = field(default=None, metadata={"metavar": "N", "computes": True})
    """How many.  [default: 3 where a method draws or ranks, else 1]"""

    def answer(self, inputs: Inputs) -> Answer:
        """Run what is missing, and compute the spreads."""
        runs: Sequence[Entry | StoredRecord] = inputs.runs or self._run(inputs)
        first = runs[0].record
        metric = check_metric(self.metric or first.metric)
        by_id = {run.record.id: run for run in runs}
        records = []
        for run in by_id.values():
            is_on = run.record.metric == metric
            records.append(run.record if is_on else rescored(run.record, run.facts(), metric))
        methods = methods_of(records)
        audited = [(method, spreads(method)) for method in methods]
        subject = {
            "model": first.model,
            "dataset": first.identity.dataset.name,
            "dtype": first.identity.dtype,
        }
        origins = first.notes.get("origins")
        named = origins.items() if isinstance(origins, dict) else ()
        report = audit_report(
            audited,
            f"audit of {', '.join(subject.values())}: recovery on {metric}, with 95 % intervals "
            "over facts",
        )
        json = {
            **subject,
            "metric": metric,
            "methods": [_method_json(method, rows) for method, rows in audited],
            "runs": list(by_id),
            "verdict": report.verdict,
        }
        return Answer(report, json, origins={name: str(source) for name, source in named})

    def _run(self, inputs: Inputs) -> list[StoredRecord]:
        """Find or compute the records; an interrupted audit resumes."""
        from kgbench.runner import Pairs, run_job

        (spec,) = inputs.specs
        if spec.prompts and spec.imports is not None:  # own templates are wordings too
            wordings = dict.fromkeys((*spec.prompts, *spec.imports.templates))
            spec = replace(spec, prompts=tuple(wordings))
        specs = audit_specs(spec, self.seeds)
        names = dict.fromkeys(specified.prompts[0] for specified in specs)
        inputs.announce(
            f"{spec.localizer}: {count_text(len(names), 'wording')} ({', '.join(names)}) × "
            f"{count_text(len({specified.seed for specified in specs}), 'seed')}"
        )
        pairs = Pairs()
        runs = []
        for number, spec in enumerate(specs, 1):
            progress = numbered(inputs.progress, number, len(specs))
            runs.append(read_record(run_job(spec, inputs.settings, progress, pairs).path))
        return runs


def _method_json(method: AuditedMethod, rows: Sequence[Spread]) -> dict[str, Any]:
    return {
        "localizer": method.name,
        "drawn": method.drawn,
        "wordings": method.wordings,
        "seeds": method.seeds,
        "n": method.n,
        "notes": notes_of(method, rows),
        "rows": plain(rows, counted=True),
    }
