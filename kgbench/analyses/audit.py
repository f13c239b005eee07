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
from functools import reduce
from itertools import product
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from kgbench.analyses import GRAFTS, Analysis, Answer, Inputs
from kgbench.data import Dataset, builtin_prompts, fitting_prompts
from kgbench.errors import InputError
from kgbench.estimate import Estimate, plain
from kgbench.numbers import count_text, number_text
from kgbench.progress import Progress, numbered
from kgbench.records import Identity, Record, canonical_json, facts_table, read_record
from kgbench.records.identity import identity_differences
from kgbench.report import Cell, Lines, Report, Table
from kgbench.report.export import differing_parameters
from kgbench.runner.spec import INSTALLED, Settings, Spec
from kgbench.runner.third_party import method_of
from kgbench.runner.workload import check, job_dataset
from kgbench.sites import BASELINES
from kgbench.stats import FEW, Parts, linearised, mean_of, resample, resampled_ratios
from kgbench.stats.intervals import RECOVERIES, Array
from kgbench.stats.ratios import area_parts, no_gain, recovery_parts
from kgbench.stats.scores import PromptColumns, Scores, by_prompt, check_metric
from kgbench.stats.summary import ORDER, budgets_in

SEEDS = 3
"""Default number of seeds of a method that draws at random."""


@dataclass(frozen=True)
class AuditPlan:
    """What is run of one method."""

    spec: Spec
    """Without prompts and seed."""
    wordings: tuple[str, ...]
    seeds: int
    why: str
    """Why so many seeds."""

    @property
    def specs(self) -> list[Spec]:
        """A specification per wording and seed; a method is fitted on that wording alone."""
        specs = []
        for seed in range(self.seeds):
            specs += [replace(spec, seed=seed) for spec in self.wording_specs]
        return specs

    @property
    def wording_specs(self) -> list[Spec]:
        """A specification per wording, under the first seed."""
        return [replace(self.spec, prompts=(wording,)) for wording in self.wordings]

    def __str__(self) -> str:
        wordings = f"{count_text(len(self.wordings), 'wording')} ({', '.join(self.wordings)})"
        return f"{self.spec.localizer}: {wordings} × {count_text(self.seeds, 'seed')}"


def planned(spec: Spec, seeds: int | None = None) -> AuditPlan:
    """Choose the wordings and seeds of a method, and check what needs no model.

    Args:
        spec: Pair, facts and method; its prompts are the wordings, by default all that ask the data
            set's question.
        seeds: How many; by default 3 where a seed has a part in the method's answers, else 1.

    Raises:
        InputError: Something in the specification is wrong.
    """
    check(replace(spec, prompts=()))
    wordings = spec.prompts or wordings_of(job_dataset(spec))
    method = method_of(spec)
    seeded, ranks = "seed" in method.parameters, method.kind == "scoring"
    fixed = seeded and "seed" in spec.localizer_args
    if ranks:
        why = (
            "a seed splits the facts in two, to rank sites by and to try them "
            f"on{', and the method draws' * (seeded and not fixed)}"
        )
    elif fixed:
        why = f"the method's seed is fixed by --localizer-arg seed={spec.localizer_args['seed']}"
    elif seeded:
        why = "the method draws at random"
    else:
        why = "the method draws nothing at random, so that another seed gives the same"
    if not spec.grafts and not ranks:
        spec = replace(spec, grafts=GRAFTS)
    draws = ranks or (seeded and not fixed)
    plan = AuditPlan(spec, tuple(wordings), seeds or (SEEDS if draws else 1), why)
    for wording_spec in plan.wording_specs:
        check(wording_spec)
    return plan


def run_plans(
    plans: Sequence[AuditPlan], settings: Settings, progress: Progress | None = None
) -> list[AuditedRun]:
    """Find or compute the records; an interrupted audit resumes.

    Raises:
        InputError: Something in a specification is wrong.
    """
    from kgbench.runner import Pairs, run_job

    specs: list[Spec] = []
    for plan in plans:
        specs += plan.specs
    pairs, runs = Pairs(), []
    for number, spec in enumerate(specs, 1):
        run = run_job(spec, settings, numbered(progress, number, len(specs)), pairs)
        runs.append(AuditedRun(run.record, read_record(run.path).facts()))
    return runs


_SUPERSEDED = re.compile(r"(.+)_v\d+")
"""Names of earlier states of another prompt, the same wording but for a slip."""


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


AREA = "area"
"""The figure under the curve of recovery over budgets."""

SAME = ("dataset.hash", "weights", "tokenizer", "dtype", "metric_version")
"""Parts of the identity that are equal in all runs of an audit."""

DETECTED = 2.8
"""Standard errors: z(.975) + z(.8)."""

MAIN = ("FE+LT", AREA, "LT", "FE")
"""What the sentence is about: the first that has a smallest difference, else any graft."""

Figure = float | Estimate
"""A number, or the undefined estimate with the reason why there is none."""


@dataclass(frozen=True)
class AuditedRun:
    """A record and its per-fact rows."""

    record: Record
    facts: pa.Table


@dataclass(frozen=True)
class MethodScores:
    """A method's scores of the same facts in every wording under every seed."""

    name: str
    drawn: bool
    """Whether a seed has a part in its answers."""
    wordings: tuple[str, ...]
    seeds: tuple[str, ...]
    cells: Mapping[tuple[str, str], PromptColumns]
    """By wording and seed."""
    facts: Array
    """Ids of those that every cell has."""
    notes: tuple[str, ...] = ()
    """What was left out, and what the wordings share."""

    @property
    def grafts(self) -> list[str]:
        """Configurations that some wording has under every seed, in the order of the runs."""
        every: dict[str, None] = {}
        complete: set[str] = set()
        for wording in self.wordings:
            columns = [self.cells[wording, seed].columns for seed in self.seeds]
            for cell in columns:
                every |= dict.fromkeys(cell)
            complete |= set.intersection(*map(set, columns))
        return [graft for graft in every if graft in complete - {*BASELINES}]


def methods_of(runs: Sequence[AuditedRun]) -> list[MethodScores]:
    """Sort records into methods, each over the facts that all of its cells have.

    Args:
        runs: Records of one pair on one set of facts.

    Raises:
        InputError: They are not of the same pair and facts, name different wordings alike, give a
            cell twice, or leave a method fewer than two facts or no wording that all of its seeds
            have.
    """
    _check_alike([run.record.identity for run in runs])
    groups: dict[str, list[AuditedRun]] = {}
    for run in runs:
        what = run.record.identity
        groups.setdefault(canonical_json([what.localizer.name, _parameters(what)]), []).append(run)
    firsts = [group[0].record.identity for group in groups.values()]
    methods = []
    for first, group in zip(firsts, groups.values(), strict=True):
        name = first.localizer.name
        alike = [_parameters(what) for what in firsts if what.localizer.name == name]
        differing = ", ".join(differing_parameters(_parameters(first), alike))
        methods.append(_method(f"{name} ({differing})" if differing else name, group))
    return methods


def _check_alike(identities: Sequence[Identity]) -> None:
    hashes: dict[str, str] = {}
    for what in identities:
        differing = identity_differences(identities[0], what)
        texts = [part.text() for part in differing if part.field.startswith(SAME)]
        if texts:
            raise InputError(
                "an audit is of one pair on one set of facts, and these runs differ in "
                f"{'; '.join(texts)}"
            )
        for name, text in what.prompts.items():
            if hashes.setdefault(name, text) != text:
                raise InputError(
                    f"the prompt {name!r} has one wording in one of these runs and another in "
                    "another; leave out one of them"
                )


def _parameters(what: Identity) -> dict[str, Any]:
    """Parameters and version of the method, without its seed."""
    values = {**what.localizer.parameters, "version": what.localizer.version}
    values.pop("seed", None)
    return values


def _method(name: str, runs: Sequence[AuditedRun]) -> MethodScores:
    cells: dict[tuple[str, str], PromptColumns] = {}
    drawn, shared, notes = False, False, []
    for run in runs:
        what, ranked = run.record.identity, run.record.ranking is not None
        drawn = drawn or ranked or "seed" in what.localizer.parameters
        shared = shared or (ranked and len(what.prompts) > 1)
        seed = _seed(what)
        for prompt in by_prompt(facts_table(run.facts), ORDER):
            if (prompt.name, seed) in cells:
                raise InputError(
                    f"two runs of {name} have the prompt {prompt.name!r} under seed {seed}; give "
                    "one of them"
                )
            cells[prompt.name, seed] = prompt
    seeds = tuple(dict.fromkeys(seed for _, seed in cells))
    every = dict.fromkeys(wording for wording, _ in cells)
    wordings = [name for name in every if {*product([name], seeds)} <= {*cells}]
    if not wordings:
        raise InputError(
            f"{name}: no prompt was run under all of its seeds, {', '.join(seeds)}; give runs of "
            "one at least under each"
        )
    if left_out := [wording for wording in every if wording not in wordings]:
        notes.append(f"{name}: {', '.join(left_out)} left out: not every seed was run on it")
    if shared:
        notes.append(
            f"{name} ranked sites by several prompts together, so that its wordings differ less "
            "than if it saw one alone"
        )
    complete = {cell: cells[cell] for cell in product(wordings, seeds)}
    ids = [columns.facts for columns in complete.values()]
    facts, union = reduce(np.intersect1d, ids), reduce(np.union1d, ids)
    if len(facts) < 2:
        raise InputError(
            f"the runs of {name} have {count_text(len(facts), 'fact')} in common, and an audit "
            "needs two at least; give runs over the same facts"
        )
    if others := len(union) - len(facts):
        notes.append(
            f"{name}: {others} of {len(union)} facts left out: not every run and wording has them"
        )
    return MethodScores(name, drawn, tuple(wordings), seeds, complete, facts, tuple(notes))


def _seed(what: Identity) -> str:
    """The seed of a run, and of its method where that has another."""
    seed = what.localizer.parameters.get("seed", what.seeds[0])
    return str(what.seeds[0]) if seed == what.seeds[0] else f"{what.seeds[0]}, method's {seed}"


@dataclass(frozen=True)
class Spread:
    """How far the recovery of a configuration, or the area, moves."""

    graft: str
    value: Estimate
    """Mean over wordings and seeds; its interval is over facts."""
    wordings_sd: Figure
    """Standard deviation over wordings, of means over seeds."""
    seeds_sd: Figure
    """Standard deviation over seeds, of means over wordings."""
    smallest: Figure
    """Smallest difference that is detected, see `smallest_difference`."""
    left_out: Mapping[str, str]
    """Wordings without a value, and why."""


def spreads(method: MethodScores, metric: str = "top5") -> list[Spread]:
    """Of each configuration; the area comes first where there is a curve.

    Raises:
        UnknownNameError: There is no such metric.
    """
    check_metric(metric)
    scores = {cell: columns.scores(metric, method.facts) for cell, columns in method.cells.items()}
    counts, grafts = resample(len(method.facts)), method.grafts
    budgets = budgets_in(grafts)
    labels = [AREA, *grafts] if budgets else grafts
    return [_spread(label, method, scores, budgets, counts) for label in labels]


def _spread(
    label: str,
    method: MethodScores,
    scores: Mapping[tuple[str, str], Scores],
    budgets: Mapping[str, float],
    counts: Array,
) -> Spread:
    needed, n = budgets if label == AREA else [label], len(method.facts)
    ratios: dict[tuple[str, str], Parts] = {}
    left_out: dict[str, str] = {}
    for cell, column in scores.items():
        absent = [graft for graft in needed if graft not in column]
        if absent:
            left_out.setdefault(cell[0], f"{absent[0]} was not run")
        elif (missing := no_gain(column)) is not None:
            left_out.setdefault(cell[0], str(missing.undefined))
        else:
            ratios[cell] = (
                area_parts(column, budgets) if label == AREA else recovery_parts(column, label)
            )
    parts = [ratio for cell, ratio in ratios.items() if cell[0] not in left_out]
    if not parts:
        no = Estimate.missing(next(iter(left_out.values())), n)
        return Spread(label, no, no, no, no, left_out)
    resampled = resampled_ratios(parts, counts)
    values = np.reshape([ratio.value for ratio in resampled], (-1, len(method.seeds)))
    varies = method.drawn or len(method.seeds) > 1  # else another seed gives the same
    return Spread(
        graft=label,
        value=mean_of(resampled, n).figure(),
        wordings_sd=_sd(values.mean(axis=1), "wording", n),
        seeds_sd=_sd(values.mean(axis=0), "seed", n) if varies else 0.0,
        smallest=smallest_difference(parts),
        left_out=left_out,
    )


def _sd(values: Array, noun: str, n: int) -> Figure:
    if len(values) < 2:
        return Estimate.missing(f"one {noun} only, and a standard deviation needs two", n)
    return float(np.std(values, ddof=1))


def smallest_difference(ratios: Sequence[Parts]) -> Figure:
    """2.8 * sqrt(2) standard errors of a recovery over its facts, see the head of this module.

    Args:
        ratios: Contrasts [n] of numerator and denominator of each wording and seed; their standard
            errors are averaged as variances.
    """
    n, exceptions = len(ratios[0][0]), []
    for anchor in RECOVERIES:
        unlike = np.any([top != anchor * bottom for top, bottom in ratios], axis=0)
        exceptions.append(int(np.count_nonzero(unlike)))
    if min(exceptions) < FEW:
        few = f"{min(exceptions)} of {n} facts came out otherwise than the rest"
        return Estimate.missing(f"{few}, too few for a standard error", n)
    variances = [np.var(linearised(*ratio), ddof=1) / n for ratio in ratios]
    return DETECTED * sqrt(2 * np.mean(variances))


Spreads = Sequence[tuple[MethodScores, Sequence[Spread]]]
"""By method."""


def audit_report(audited: Spreads, title: str) -> Report:
    """A table of each method, and what was left out."""
    parts: list[Table | Lines] = []
    for method, rows in audited:
        cells: list[list[Cell]] = []
        notes = list(method.notes)
        left_out: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            figures = map(_cell, (row.wordings_sd, row.seeds_sd, row.smallest))
            cells.append([row.graft, row.value.rounded(), *figures])
            if len(row.left_out) < len(method.wordings):  # else it is undefined for that reason
                for missing in row.left_out.items():
                    left_out.setdefault(missing, []).append(row.graft)
        for (wording, why), grafts in left_out.items():
            notes.append(f"{method.name}, {wording}: {', '.join(grafts)} left out: {why}")
        heads = ["graft", "mean", "SD over wordings", "SD over seeds", "smallest difference"]
        parts.append(Table(_sizes(method), heads, cells, 16))
        parts += [Lines([note], "  ") for note in notes]
    explained = (
        "smallest difference: of two methods on one wording and one seed, each on so many facts; a "
        "two-sided test of 5 % detects it in 80 % of repetitions. Four times the facts halve it."
    )
    return Report(title, parts, notes=[explained], verdict=audit_verdict(audited))


def _sizes(method: MethodScores) -> str:
    sizes = {"wording": method.wordings, "seed": method.seeds, "fact": method.facts}
    counts = [count_text(len(items), noun) for noun, items in sizes.items()]
    return f"{method.name}: {', '.join(counts)}"


def _cell(figure: Figure) -> Cell:
    return figure if isinstance(figure, Estimate) else number_text(figure)


def audit_verdict(audited: Spreads) -> str:
    """One plain sentence for each method."""
    sentences = []
    for method, rows in audited:
        main = {row.graft: row for row in rows if not isinstance(row.smallest, Estimate)}
        if not main:
            why = "no graft was run under every seed"
            if rows and isinstance(rows[0].smallest, Estimate):
                why = str(rows[0].smallest.undefined)
            sentences.append(f"{method.name}: no smallest difference is defined: {why}.")
            continue
        grafts = sorted(main, key=("ALL", "NONE").count)  # these come last
        label = next(label for label in (*MAIN, *grafts) if label in main)
        row, n = main[label], count_text(len(method.facts), "fact")
        name = "the area under the curve" if label == AREA else label
        defined, unknown = [], []
        for noun, sd in (("wordings", row.wordings_sd), ("seeds", row.seeds_sd)):
            if isinstance(sd, Estimate):
                unknown.append(f"over {noun} it is undefined ({sd.undefined}); ")
            else:
                defined.append(f"{number_text(sd)} over {noun}")
        of = f"has a standard deviation of {' and '.join(defined)}" if defined else ""
        lead = f"{name} {of or 'has no defined standard deviation'}; {''.join(unknown)}"
        sentences.append(
            f"{method.name}: {lead}{n} detect differences of {_cell(row.smallest)} or more."
        )
    return " ".join(sentences)


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
    takes = ("localizer", "prompts", "limit", "batch_size", "device")
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
        if inputs.runs:
            stored = {run.folder: run for run in inputs.runs}.values()
            runs = [AuditedRun(run.record, run.facts()) for run in stored]
        else:
            plans = self._plans(inputs)
            for plan in plans:
                inputs.announce(f"{plan}: {plan.why}")
            runs = run_plans(plans, inputs.settings, inputs.progress)
        first, methods = runs[0].record, methods_of(runs)
        metric = self.metric or first.metric
        audited = [(method, spreads(method, metric)) for method in methods]
        what = {
            "model": first.model,
            "dataset": first.identity.dataset.name,
            "dtype": first.identity.dtype,
        }
        origins = first.notes.get("origins")
        named = origins.items() if isinstance(origins, dict) else ()
        report = audit_report(
            audited,
            f"audit of {', '.join(what.values())}: recovery on {metric}, with 95 % intervals "
            "over facts",
        )
        json = {
            **what,
            "metric": metric,
            "methods": [_method_json(method, rows) for method, rows in audited],
            "runs": [run.record.id for run in runs],
            "verdict": report.verdict,
        }
        return Answer(report, json, origins={name: str(source) for name, source in named})

    def _plans(self, inputs: Inputs) -> list[AuditPlan]:
        plans = []
        for spec in inputs.specs:
            if spec.prompts and spec.imports is not None:  # own templates are wordings too
                wordings = dict.fromkeys((*spec.prompts, *spec.imports.templates))
                spec = replace(spec, prompts=tuple(wordings))
            plans.append(planned(spec, self.seeds))
        return plans


def _method_json(method: MethodScores, rows: Sequence[Spread]) -> dict[str, Any]:
    return {
        "localizer": method.name,
        "drawn": method.drawn,
        "wordings": method.wordings,
        "seeds": method.seeds,
        "n": len(method.facts),
        "notes": method.notes,
        "rows": plain(rows, counted=True),
    }
