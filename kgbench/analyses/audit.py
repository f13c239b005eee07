"""How far a figure would move under other wordings, seeds and samples of facts.

A method is run in every wording of a question under several seeds, or recorded runs are read; the
variance of each recovery is split into what facts, wordings and seeds contribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar, TypeVar

from kgbench.analyses import GRAFTS, Analysis, Answer, Inputs, Need
from kgbench.analyses._audit_figures import (
    AREA,
    CORRELATION,
    DIFFERENCE,
    AuditedRun,
    AuditFigures,
    AuditSettings,
    MethodDifference,
    MethodScores,
    Quantity,
    audited,
    methods_of,
)
from kgbench.data import Dataset, builtin_prompts, fitting_prompts
from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.numbers import (
    count_text,
    duration_text,
    number_text,
    percent_text,
    plain_text,
    size_text,
)
from kgbench.progress import Progress, numbered
from kgbench.records import read_record
from kgbench.report import Cell, Dash, Lines, Report, Table, number_cell
from kgbench.runner.spec import COMPUTING, FACTS, PAIR, Settings, Spec
from kgbench.runner.third_party import method_of
from kgbench.runner.workload import check, job_dataset
from kgbench.stats.variance import SCOPES, Detectable

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
        own = name in dataset.templates  # a mistake in one of these is an error
        if not superseded and (own or fitting_prompts(dataset, [name])):
            fitting.append(name)
    if not fitting:
        raise InputError(
            f"no prompt asks for {dataset.object!r} of data set {dataset.name!r}: give wordings "
            "with --template NAME=TEXT"
        )
    return tuple(fitting)


COLUMNS = 6
"""Wordings in a row of a table."""

GRAFT_WIDTH = 16

POINTS = 1e4
"""Variances are shown in squared percentage points."""

PARTS = ("facts", "wordings", "seeds", "interaction")

HEADS: Mapping[str, str] = {
    "facts": "same facts",
    "sample": "other facts",
    "wordings": "all\nwordings",
    "seeds": "any seed",
}
"""Scopes of a difference."""

MORE = (
    "--variance adds values by wording, the components of the variance, "
    "and notes on what figures rest on"
)

SMALLEST = (
    "the smallest difference of two methods that a test of 5 % finds in 80 % of repetitions, "
    "by what it is to hold for"
)


def audit_report(audit: AuditFigures, what: str, whole: bool = False) -> Report:
    """The spreads of each method and the smallest detectable differences.

    Args:
        audit: The figures.
        what: Pair, facts and dtype.
        whole: Add values by wording, the components of the variance, and notes.
    """
    title = (
        f"audit of {what}: {audit.n} facts; recovery on {audit.settings.metric}, "
        "with 95 % intervals over facts"
    )
    parts: list[Table | Lines] = []
    difference = audit.settings.difference
    for method in audit.methods:
        some = audit.quantities[method.name]
        parts.append(_spreads(method, some))
        if whole:
            parts += [*_by_wording(method, some), _variances(audit, some)]
        parts.append(_smallest(some, difference))
    for (first, second), pairs in audit.differences.items():
        if not pairs:
            parts.append(
                Lines([f"{second} − {first}: no configuration that both have in one wording"])
            )
            continue
        parts.append(_differences(f"{second} − {first}, on the same facts and wordings", pairs))
        parts.append(_smallest(pairs, difference))
    parts += [Lines([note], "  ") for note in notes_of(audit)] if whole else [Lines([MORE])]
    return Report(title, parts, verdict=audit_verdict(audit))


def _spreads(method: MethodScores, some: Sequence[Quantity]) -> Table:
    rows: list[list[Cell]] = []
    for one in some:
        values = [figure.value for figure in one.by_wording.values() if figure.value is not None]
        reach: Cell = Dash()
        if values:
            reach = f"{number_text(min(values))} to {number_text(max(values))}"
        spreads = [one.wordings_sd.rounded(), reach, one.seeds_sd.rounded()]
        rows.append([one.label, one.value.rounded(), *spreads])
    wordings, seeds = len(method.wordings), len(method.seeds)
    title = (
        f"{method.name}: {wordings} wording{'s' * (wordings != 1)}, {seeds} "
        f"seed{'s' * (seeds != 1)}"
    )
    heads = ["graft", "mean", "SD over wordings", "their range", "SD over seeds"]
    return Table(title, heads, rows, GRAFT_WIDTH)


def _differences(title: str, some: Sequence[MethodDifference]) -> Table:
    rows: list[list[Cell]] = [[one.label, one.value.rounded()] for one in some]
    return Table(title, ["graft", "difference"], rows, GRAFT_WIDTH)


def _by_wording(method: MethodScores, some: Sequence[Quantity]) -> list[Table]:
    """Values of the wordings, a few to a table."""
    if len(method.wordings) < 2:
        return []
    tables = []
    for start in range(0, len(method.wordings), COLUMNS):
        shown = method.wordings[start : start + COLUMNS]
        rows: list[list[Cell]] = []
        for one in some:
            values = {name: estimate.value for name, estimate in one.by_wording.items()}
            rows.append([one.label, *(number_cell(values.get(name)) for name in shown)])
        tables.append(Table("", ["by wording", *shown], rows, GRAFT_WIDTH))
    return tables


def _variances(audit: AuditFigures, some: Sequence[Quantity]) -> Table:
    rows: list[list[Cell]] = []
    for one in some:
        if not (parts := one.parts):
            missing = Estimate.missing(one.undefined)
            rows.append([one.label, *[missing] * len(PARTS), Dash()])
            continue
        total = sum(figure.value or 0.0 for figure in parts.values())
        sd = number_cell(sqrt(total) if total >= 0 else None)
        rows.append([one.label, *(_scaled(parts[part], POINTS) for part in PARTS), sd])
    title = (
        f"what the variance of one figure (one wording, one seed, {audit.n} facts) is from, "
        "in squared percentage points"
    )
    return Table(title, ["graft", *PARTS, "its SD"], rows, GRAFT_WIDTH)


def _scaled(estimate: Estimate, by: float) -> Estimate:
    if estimate.numbers is None:
        return estimate.rounded()
    value, low, high = estimate.numbers
    return Estimate(value * by, low * by, high * by, estimate.n).rounded()


def _smallest(some: Sequence[Quantity] | Sequence[MethodDifference], difference: float) -> Table:
    """The smallest differences, and how many facts a given one takes."""
    rows: list[list[Cell]] = []
    for one in some:
        cells = [_detectable(one.detectable.get(scope)) for scope in SCOPES]
        needed = [_facts(one.detectable.get(scope), difference) for scope in ("facts", "wordings")]
        rows.append([one.label, *cells, *needed])
    needed_heads = [f"facts\nfor {number_text(difference)}", "over all\nwordings"]
    heads = ["graft", *HEADS.values(), *needed_heads]
    return Table(SMALLEST, heads, rows, GRAFT_WIDTH)


def _detectable(one: Detectable | None) -> Cell:
    if one is not None and one.undefined:
        return Estimate.missing(one.undefined, one.n)
    return number_cell(None if one is None else one.smallest)


def _facts(one: Detectable | None, difference: float) -> Cell:
    """The number of facts, or that none would do."""
    if one is None or one.undefined:
        return Dash()
    facts = one.facts_for(difference)
    return f"{facts:,}" if isinstance(facts, int) else "no number"


FEW_WORDINGS = 5
"""Of fewer wordings a spread over them is known badly."""

TINY = 1e-12
"""Of variances, what rounding leaves."""

Labelled = TypeVar("Labelled", Quantity, MethodDifference)

MAIN = ("FE+LT", AREA, "LT", "FE")
"""What the sentence is about: the first that there is, else any graft."""


def notes_of(audit: AuditFigures) -> list[str]:
    """What the figures rest on."""
    found = [
        (
            "mean: over wordings and seeds. All intervals are over facts, for the wordings and"
            " seeds that were run, and say nothing of others. SDs hold the noise of finitely many"
            " facts too; variances do not: they are estimated without bias, so that small ones may"
            " come out below 0."
        ),
        (
            "same facts: one wording and one seed, both methods on these facts. other facts: each"
            " on a sample of its own. all wordings: the mean over these wordings, to hold for"
            " others too. any seed: as same facts, to hold for other seeds too. necessity(S) = 1 −"
            " recovery(S^C) varies as recovery(S^C) does."
        ),
        (
            "Where one method is audited, another is assumed that varies as much, and whose value"
            f" of a fact correlates with its own by {plain_text(audit.settings.correlation)}"
            " (--correlation); two methods audited together need no such assumption."
        ),
    ]
    for method in audit.methods:
        found += [*method.notes, *_of_method(audit, method)]
    return found


def _of_method(audit: AuditFigures, method: MethodScores) -> list[str]:
    some, found = audit.quantities[method.name], []
    if not method.drawn:
        same = (
            "came out the same under all seeds"
            if _unmoved(some)
            else "came out otherwise under another seed"
        )
        again = f", and {same}" if len(method.seeds) > 1 else ""
        found.append(
            f"{method.name} draws nothing at "
            f"random{again}{': no variance is due to seeds' * _unmoved(some)}."
        )
    elif len(method.seeds) == 1:
        found.append(
            f"{method.name} was run under one seed, which says nothing of others (--seeds N)."
        )
    if 1 < len(method.wordings) < FEW_WORDINGS:
        n, freedom = len(method.wordings), len(method.wordings) - 1
        degrees = f"{freedom} degree{'s' * (freedom != 1)} of freedom"
        found.append(
            f"{method.name}: {n} wordings are few ({degrees}); what varies between wordings is "
            "known badly (--template adds some)."
        )
    for part in ("wordings", "seeds"):
        below = []
        for one in some:
            if part in one.parts and (one.parts[part].value or 0.0) < -TINY:
                below.append(one.label)
        if below:
            what = f"variance between {part} came out below 0 for {', '.join(below)}"
            found.append(
                f"{method.name}: {what}: too small to be told from none, and what is said of other "
                f"{part} there may be too little."
            )
    without: dict[tuple[str, str], list[str]] = {}
    for one in some:
        for missing in one.left_out.items():
            without.setdefault(missing, []).append(one.label)
    for (wording, why), labels in without.items():
        of = f" of {', '.join(labels)}" if len(labels) < len(some) else ""
        found.append(f"{method.name}: {wording} left out{of}: {why}")
    return found


def _unmoved(some: Sequence[Quantity]) -> bool:
    return all(one.seeds_sd.value in (None, 0.0) for one in some)


def audit_verdict(audit: AuditFigures) -> str:
    """One plain sentence for each method, and one for each pair of methods."""
    sentences = [_of_alone(audit, method) for method in audit.methods]
    for (first, second), some in audit.differences.items():
        if some:
            main = _main(some)
            clause = _smallest_clause(audit, main.label, main.detectable)
            sentences.append(f"{second} and {first}: {clause}")
    return " ".join(sentences)


def _main(some: Sequence[Labelled]) -> Labelled:
    """The one that a sentence is about."""
    by_label = {one.label: one for one in some}
    for label in MAIN:
        if label in by_label:
            return by_label[label]
    return some[0]


def _of_alone(audit: AuditFigures, method: MethodScores) -> str:
    some = [one for one in audit.quantities[method.name] if one.components is not None]
    if not some:
        return (
            f"{method.name}: no recovery has a variance that can be estimated, so that "
            "nothing can be said of it."
        )
    others = [one for one in some if one.label not in ("ALL", "NONE")]
    one = _main(others or some)
    return f"{method.name}: {_shares(one)}; {_smallest_clause(audit, one.label, one.detectable)}"


def _shares(one: Quantity) -> str:
    """What a figure of one wording and one seed owes to each source."""
    total = sum(figure.value or 0.0 for figure in one.parts.values())
    if total <= 0:
        return f"a figure of {_label(one.label)} has no variance that can be told from 0"
    texts, unknown = [], []
    for part, figure in one.parts.items():
        if figure.value is not None:
            texts.append(f"{percent_text(figure.value / total)} % to {part}")
        elif part in ("wordings", "seeds"):
            unknown.append(part)
    unknown_text = f" (nothing is known of {' and '.join(unknown)})" if unknown else ""
    sd = number_text(sqrt(total))
    return (
        f"a figure of {_label(one.label)} has a standard deviation of {sd} and owes "
        f"{', '.join(texts)} of its variance{unknown_text}"
    )


def _smallest_clause(audit: AuditFigures, label: str, scopes: Mapping[str, Detectable]) -> str:
    same, over, drawn = scopes["facts"], scopes["wordings"], scopes["seeds"]
    if same.smallest is None:
        return (
            f"what difference of {_label(label)} can be told apart is undefined: {same.undefined}."
        )
    text = f"differences of {_label(label)} below {number_text(same.smallest)} cannot be told apart"
    text += f" with {audit.n} facts, one wording and one seed"
    if drawn.smallest is not None and drawn != same:
        text += f", below {number_text(drawn.smallest)} if they are to hold for other seeds"
    if over.smallest is not None:
        text += (
            f", below {number_text(over.smallest)} as means over all wordings if they are to hold"
            " for others"
        )
    facts = same.facts_for(audit.settings.difference)
    needed = f"{facts:,} facts" if isinstance(facts, int) else facts
    return f"{text}; {number_text(audit.settings.difference)} takes {needed} on one wording."


def _label(label: str) -> str:
    return "the area under the curve" if label == AREA else label


@dataclass(frozen=True)
class Audit(Analysis):
    """Variance components over prompts, seeds and facts; smallest detectable difference.

    Runs a method in every wording of a data set's question under several
    seeds, or takes RUNs that exist, and splits the variance of each recovery
    into what facts, wordings and seeds contribute. Then reports how small a
    difference between two methods can be detected, and how many facts it takes.

    \b
    kgbench audit --model tiny-gemma
    kgbench audit --model tiny-gemma --localizer dynamic_graft,activation_patch --limit 50
    kgbench audit --model tiny-gemma --localizer random --seeds 5
    kgbench audit RUN OTHER                            # of several seeds, prompts or methods
    """  # noqa: D301 (click reads the character, not its escape)

    name = "audit"
    about = "Vary wordings and seeds: how far figures move."
    arguments = "[RUN]..."
    takes = (
        *("localizer", "localizer_args", *PAIR, *FACTS, "grafts", "limit", "metric"),
        *(*COMPUTING, "output_dir"),
    )
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "localizer": {
            "multiple": True,
            "default": ["dynamic_graft"],
            "help": (
                "Localizer; with several, separated by commas, their differences are audited too."
            ),
        },
        "localizer_args": {
            "metavar": "[NAME.]KEY=VALUE",
            "help": "Argument of all localizers, or of the one named.",
        },
        "prompts": {
            "help": "Wordings; several with commas.  [default: every prompt that asks for the same]"
        },
        "grafts": {"help": "With its complement; several with commas.  [default: FE, LT, FE+LT]"},
        "limit": {"least": 2},
        "metric": {"help": "Metric of the recoveries."},
        "output_dir": {"help": "Where records are."},
    }

    metric: str = "top5"
    """Metric of the recoveries."""
    seeds: int | None = field(default=None, metadata={"metavar": "N", "computes": True})
    """How many.  [default: 3 where a method draws or ranks, else 1]"""
    correlation: float = field(
        default=CORRELATION,
        metadata={"metavar": "R", "range": {"min": -1, "max": 1, "max_open": True}},
    )
    """Of two methods' values of one fact, assumed where one method is audited."""
    difference: float = field(
        default=DIFFERENCE, metadata={"metavar": "D", "range": {"min": 0, "min_open": True}}
    )
    """To count facts for."""
    variance: bool = field(default=False, metadata={"flag": "--variance"})
    """Print values by wording, variance components and notes too."""

    def answer(self, inputs: Inputs) -> Answer:
        """Run what is missing, and estimate the spreads."""
        if inputs.runs:
            stored = {run.folder: run for run in inputs.runs}.values()
            runs = [AuditedRun(run.record, run.facts()) for run in stored]
        else:
            plans = self._plans(inputs)
            for plan in plans:
                inputs.announce(f"{plan}: {plan.why}")
            runs = run_plans(plans, inputs.settings, inputs.progress)
        settings = AuditSettings(self.metric, self.correlation, self.difference)
        figures, first = audited(methods_of(runs), settings), runs[0].record
        dataset, dtype = first.identity.dataset.name, first.identity.dtype
        origins = first.notes.get("origins")
        named = origins.items() if isinstance(origins, dict) else ()
        json = {
            "model": first.model,
            "dataset": dataset,
            "dtype": dtype,
            **figures.to_json(),
            "runs": [run.record.id for run in runs],
            "verdict": audit_verdict(figures),
        }
        report = audit_report(figures, f"{first.model}, {dataset}, {dtype}", self.variance)
        return Answer(report, json, origins={name: str(source) for name, source in named})

    def forecast(self, inputs: Inputs) -> list[Need]:
        """What the runs of each method would take, where none exists."""
        return [_need(plan, inputs.settings) for plan in self._plans(inputs)]

    def _plans(self, inputs: Inputs) -> list[AuditPlan]:
        plans = []
        for spec in inputs.specs:
            if spec.prompts and spec.imports is not None:  # own templates are wordings too
                wordings = dict.fromkeys((*spec.prompts, *spec.imports.templates))
                spec = replace(spec, prompts=tuple(wordings))
            plans.append(planned(spec, self.seeds))
        return plans


def _need(plan: AuditPlan, settings: Settings) -> Need:
    """The sum over the wordings and seeds of one method."""
    from kgbench.runner.forecast import dry_run
    from kgbench.runner.job import Pairs

    pairs, n = Pairs(), plan.seeds
    parts = [dry_run(spec, settings, pairs) for spec in plan.wording_specs]
    memory = [part.weights_bytes + part.logits_bytes + part.activations_bytes for part in parts]
    most = parts[memory.index(max(memory))]
    download = max(part.download_bytes for part in parts)

    def total(of: str) -> Any:
        return n * sum(getattr(part, of) for part in parts)

    json = {
        "localizer": plan.spec.localizer,
        "wordings": list(plan.wordings),
        "seeds": n,
        "why": plan.why,
        "forwards": total("forwards"),
        "token_rows": total("token_rows"),
        "seconds": total("seconds"),
        "memory_bytes": max(memory),
        "free_bytes": most.free_bytes,
        "fits": most.fits,
        "disk_bytes": total("disk_bytes"),
        "download_bytes": download,
        "basis": parts[0].basis,
    }
    fits = "fits" if most.fits else "does not fit"
    downloaded = f", and {size_text(download)} to download" if download else ""
    rows = [
        ("wordings", ", ".join(plan.wordings)),
        ("seeds", f"{n}: {plan.why}"),
        ("forwards", str(json["forwards"])),
        ("token rows", str(json["token_rows"])),
        ("memory", f"{fits}: needs {size_text(max(memory))}, {size_text(most.free_bytes)} free"),
        ("disk", f"about {size_text(total('disk_bytes'))} for the records{downloaded}"),
        ("time", f"about {duration_text(total('seconds'))}, less what exists already"),
        ("from", parts[0].basis),
    ]
    return Need(plan.spec.localizer, rows, json)
