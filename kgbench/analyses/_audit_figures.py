"""Figures of an audit: spreads, components of variance, the smallest detectable difference.

Records of one method become a table of facts × wordings × seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, product
from typing import Any

import numpy as np
import pyarrow as pa

from kgbench.errors import InputError
from kgbench.estimate import Estimate, plain
from kgbench.records import Identity, Record, canonical_json, facts_table
from kgbench.records.identity import identity_differences
from kgbench.report.export import differing_parameters
from kgbench.sites import BASELINES
from kgbench.stats import (
    FEW,
    Parts,
    Resampled,
    apart,
    linearised,
    mean_of,
    resample,
    resampled_ratios,
)
from kgbench.stats.intervals import Array
from kgbench.stats.ratios import area_parts, no_gain, recovery_parts
from kgbench.stats.scores import PromptColumns, by_prompt, check_metric
from kgbench.stats.summary import ORDER, budgets_in
from kgbench.stats.variance import (
    ONE_SEED,
    SCOPES,
    SOURCES,
    Components,
    Detectable,
    components,
    detectable_between,
    detectable_by_assumption,
    spread,
)

AREA = "area"
"""The figure under the curve of recovery over budgets."""

SAME = ("dataset.hash", "weights", "tokenizer", "dtype", "metric_version")
"""Parts of the identity that are equal in all runs of an audit."""

Cell = tuple[str, str]
"""Wording and seed."""


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
    cells: Mapping[Cell, PromptColumns]
    notes: tuple[str, ...]
    facts: np.ndarray
    """Those that every cell has."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return len(self.facts)

    @property
    def labels(self) -> tuple[str, ...]:
        """Configurations with a recovery in some wording under every seed; the area comes first."""
        complete: set[str] = set()
        for wording in self.wordings:
            grafts = [set(self.cells[wording, seed].columns) for seed in self.seeds]
            complete |= set.intersection(*grafts)
        labels = [graft for graft in self.grafts if graft in complete - {*BASELINES}]
        return (*([AREA] if self.budgets else []), *labels)

    @property
    def grafts(self) -> list[str]:
        """All configurations, in the order of the runs."""
        grafts: dict[str, None] = {}
        for cell in self.cells.values():
            grafts |= dict.fromkeys(cell.columns)
        return list(grafts)

    @property
    def budgets(self) -> dict[str, float]:
        """Configurations of the curve and their budgets in per cent, ascending."""
        return budgets_in(self.grafts)


def methods_of(parts: Sequence[AuditedRun]) -> tuple[MethodScores, ...]:
    """Sort records into methods, all over the facts that every cell has.

    Args:
        parts: Records of one pair on one set of facts.

    Raises:
        InputError: They are not of the same pair and facts, name different wordings alike, give a
            cell twice, or leave a method no wording that all of its seeds have.
    """
    _check(parts)
    groups: dict[str, list[AuditedRun]] = {}
    for part in parts:
        what = part.record.identity
        groups.setdefault(canonical_json([what.localizer.name, _parameters(what)]), []).append(part)
    names = _names([runs[0].record.identity for runs in groups.values()])
    methods = [_method(name, runs) for name, runs in zip(names, groups.values(), strict=True)]
    shared = reduce(np.intersect1d, [method.facts for method in methods])
    if len(shared) < 2:
        raise InputError(
            f"these runs have {len(shared)} facts in common, and an audit needs two at least; give "
            "runs over the same facts"
        )
    return tuple(_over(method, shared) for method in methods)


def _check(parts: Sequence[AuditedRun]) -> None:
    first = parts[0].record.identity
    hashes: dict[str, str] = {}
    for part in parts:
        what = part.record.identity
        differing = identity_differences(first, what)
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


def _names(identities: Sequence[Identity]) -> list[str]:
    """Names of the methods, with the parameters that differ where names are equal."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for what in identities:
        alike.setdefault(what.localizer.name, []).append(_parameters(what))
    names = []
    for what in identities:
        name = what.localizer.name
        differing = ", ".join(differing_parameters(_parameters(what), alike[name]))
        names.append(f"{name} ({differing})" if differing else name)
    return names


def _method(name: str, parts: Sequence[AuditedRun]) -> MethodScores:
    cells: dict[Cell, PromptColumns] = {}
    for part in parts:
        seed = _seed(part.record.identity)
        for prompt in by_prompt(facts_table(part.facts), ORDER):
            if (prompt.name, seed) in cells:
                raise InputError(
                    f"two runs of {name} have the prompt {prompt.name!r} under seed {seed}; give "
                    "one of them"
                )
            cells[prompt.name, seed] = prompt
    seeds = tuple(dict.fromkeys(seed for _, seed in cells))
    wordings = []
    for wording in dict.fromkeys(wording for wording, _ in cells):
        if all((wording, seed) in cells for seed in seeds):
            wordings.append(wording)
    if not wordings:
        raise InputError(
            f"{name}: no prompt was run under all of its seeds, {', '.join(seeds)}; give runs of "
            "one at least under each"
        )
    kept = {cell: columns for cell, columns in cells.items() if cell[0] in wordings}
    notes = tuple(_notes(name, parts, cells, wordings))
    facts = reduce(np.intersect1d, [columns.facts for columns in kept.values()])
    drawn = any(map(_is_drawn, parts))
    return MethodScores(name, drawn, tuple(wordings), seeds, kept, notes, facts)


def _seed(what: Identity) -> str:
    """The seed of a run, and of its method where that has another."""
    own = what.localizer.parameters.get("seed", what.seeds[0])
    return str(what.seeds[0]) if own == what.seeds[0] else f"{what.seeds[0]}, method's {own}"


def _is_drawn(part: AuditedRun) -> bool:
    return "seed" in part.record.identity.localizer.parameters or part.record.ranking is not None


def _notes(
    name: str, parts: Sequence[AuditedRun], cells: Iterable[Cell], wordings: Sequence[str]
) -> list[str]:
    notes = []
    left_out = dict.fromkeys(wording for wording, _ in cells if wording not in wordings)
    if left_out:
        notes.append(f"{name}: {', '.join(left_out)} left out, for not every seed was run on it")
    for part in parts:
        if part.record.ranking is not None and len(part.record.identity.prompts) > 1:
            notes.append(
                f"{name} ranked sites by several prompts together, so that its wordings differ "
                "less than if it saw one alone"
            )
            break
    return notes


def _over(method: MethodScores, facts: np.ndarray) -> MethodScores:
    """A method over these of its facts, and a note where it has others."""
    every: set[str] = set()
    for cell in method.cells.values():
        every |= set(cell.facts)
    notes = list(method.notes)
    if others := every - set(facts):
        notes.append(
            f"{method.name}: {len(others)} of {len(every)} facts left out, for "
            "not every run and wording has them"
        )
    return replace(method, facts=facts, notes=tuple(notes))


CORRELATION = 0.5
"""Default correlation of two methods' values of the same facts, where one is at hand."""

DIFFERENCE = 0.05
"""Default difference to count facts for."""


@dataclass(frozen=True)
class AuditSettings:
    """Metric and assumptions of an audit."""

    metric: str = "top5"
    correlation: float = CORRELATION
    """Assumed of two methods where one is at hand."""
    difference: float = DIFFERENCE
    """To be detected, in shares of what finetuning added."""
    draws: int = 2000
    """Of the bootstrap over facts."""


@dataclass(frozen=True)
class Quantity:
    """The recovery of a configuration, or the area, and how far it varies."""

    label: str
    value: Estimate
    """Mean over wordings and seeds; its interval is over facts."""
    by_wording: Mapping[str, Estimate]
    """Means over seeds."""
    by_seed: Mapping[str, Estimate]
    """Means over wordings."""
    wordings_sd: Estimate
    seeds_sd: Estimate
    components: Components | None
    """None where no wording has a value, or too few facts came out otherwise than the rest."""
    detectable: Mapping[str, Detectable]
    left_out: Mapping[str, str]
    """Wordings without a value, and why."""
    undefined: str = ""
    """Why there are no components."""
    drawn: bool = True
    """Whether a seed has a part in it; if not, no variance is due to seeds."""

    @property
    def parts(self) -> dict[str, Estimate]:
        """Variance of a figure of one wording and seed, by source; empty without components."""
        if self.components is None:
            return {}
        parts = self.components.parts()
        if not self.drawn and self.components.seeds == 1:
            parts["seeds"] = nil(self.value.n)
        return parts

    def to_json(self, difference: float) -> dict[str, Any]:
        """The object that `--json` prints."""
        sources: dict[str, Estimate] = {}
        if self.components is not None:
            sources = {source: self.components.figure(source) for source in SOURCES}
        estimates = {
            "value": self.value,
            "wordings": self.by_wording,
            "wordings_sd": self.wordings_sd,
            "seeds": self.by_seed,
            "seeds_sd": self.seeds_sd,
            "components": sources,
            "variance": self.parts,
        }
        return {
            "graft": self.label,
            **plain(estimates, True),
            **({"undefined": self.undefined} if self.undefined else {}),
            "detectable": _detectable_json(self.detectable, difference),
            "left_out": dict(self.left_out),
        }


def _detectable_json(scopes: Mapping[str, Detectable], difference: float) -> dict[str, Any]:
    return {scope: smallest.to_json(difference) for scope, smallest in scopes.items()}


@dataclass(frozen=True)
class MethodDifference:
    """Two methods' recovery of one configuration over the same facts and wordings."""

    label: str
    value: Estimate
    """The second's less the first's."""
    detectable: Mapping[str, Detectable]

    def to_json(self, difference: float) -> dict[str, Any]:
        """The object that `--json` prints."""
        scopes = _detectable_json(self.detectable, difference)
        return {"graft": self.label, "difference": self.value.to_json(), "detectable": scopes}


@dataclass(frozen=True)
class AuditFigures:
    """All figures of an audit."""

    settings: AuditSettings
    methods: Sequence[MethodScores]
    quantities: Mapping[str, Sequence[Quantity]]
    """By method."""
    differences: Mapping[tuple[str, str], Sequence[MethodDifference]]
    """By pair of methods."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return self.methods[0].n

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints, without the names that only a record knows."""
        by = self.settings.difference
        methods = []
        for method in self.methods:
            methods.append(
                {
                    "localizer": method.name,
                    "wordings": list(method.wordings),
                    "seeds": list(method.seeds),
                    "drawn": method.drawn,
                    "notes": list(method.notes),
                    "rows": [quantity.to_json(by) for quantity in self.quantities[method.name]],
                }
            )
        pairs = []
        for (first, second), differences in self.differences.items():
            rows = [difference.to_json(by) for difference in differences]
            pairs.append({"first": first, "second": second, "rows": rows})
        return {
            "metric": self.settings.metric,
            "n": self.n,
            "correlation": self.settings.correlation,
            "difference": by,
            "methods": methods,
            "pairs": pairs,
        }


def audited(methods: Sequence[MethodScores], settings: AuditSettings | None = None) -> AuditFigures:
    """Make the figures.

    Args:
        methods: Over the same facts, see `methods_of`.
        settings: Metric and assumptions.

    Raises:
        UnknownNameError: There is no such metric.
    """
    settings = settings or AuditSettings()
    metric = check_metric(settings.metric)
    counts = resample(methods[0].n, settings.draws)
    views: dict[str, _View] = {}
    quantities, differences = {}, {}
    for method in methods:
        view = views[method.name] = _View(method, metric, counts)
        some = [view.quantity(label, settings.correlation) for label in method.labels]
        quantities[method.name] = some
    for first, second in combinations(views, 2):
        differences[first, second] = _differences(views[first], views[second])
    return AuditFigures(settings, methods, quantities, differences)


class _View:
    """A method's ratios on one metric under one resample."""

    def __init__(self, method: MethodScores, metric: str, counts: Array) -> None:
        self.method, self.counts = method, counts
        self.scores: dict[Cell, dict[str, Array]] = {}
        self.no_gain: dict[Cell, Estimate | None] = {}
        self.resampled: dict[str, dict[Cell, Resampled]] = {}
        """Ratios by configuration and cell, as far as `quantity` was asked for them."""
        for cell, columns in method.cells.items():
            scores = self.scores[cell] = columns.scores(metric, method.facts)
            self.no_gain[cell] = no_gain(scores)

    def missing(self, label: str) -> dict[str, str]:
        """Wordings in which a configuration has no recovery, and why."""
        reasons: dict[str, str] = {}
        needed = list(self.method.budgets) if label == AREA else [label]
        for wording, seed in product(self.method.wordings, self.method.seeds):
            absent = [graft for graft in needed if graft not in self.scores[wording, seed]]
            if absent:
                reasons.setdefault(wording, f"{absent[0]} was not run")
            elif (reason := self.no_gain[wording, seed]) is not None:
                reasons.setdefault(wording, str(reason.undefined))
        return reasons

    def ratio(self, label: str, wording: str, seed: str) -> Parts:
        scores = self.scores[wording, seed]
        if label == AREA:
            return area_parts(scores, self.method.budgets)
        return recovery_parts(scores, label)

    def cube(self, label: str, wordings: Sequence[str]) -> Array:
        """Per-fact values [facts, wordings, seeds] whose means are recoveries."""
        rows = []
        for wording in wordings:
            ratios = [self.ratio(label, wording, seed) for seed in self.method.seeds]
            rows.append([linearised(*ratio) for ratio in ratios])
        return np.moveaxis(np.array(rows), 2, 0)

    def quantity(self, label: str, correlation: float) -> Quantity:
        left_out, method = self.missing(label), self.method
        n, seeds = method.n, method.seeds
        wordings = [wording for wording in method.wordings if wording not in left_out]
        if not wordings:
            why = next(iter(left_out.values()))
            no = Estimate.missing(why, n)
            return Quantity(label, no, {}, {}, no, no, None, {}, left_out, why, method.drawn)
        cells = list(product(wordings, seeds))
        ratios = [self.ratio(label, *cell) for cell in cells]
        resampled = dict(zip(cells, resampled_ratios(ratios, self.counts), strict=True))
        self.resampled[label] = resampled
        by_wording, by_seed = {}, {}
        for wording in wordings:
            by_wording[wording] = mean_of([resampled[wording, seed] for seed in seeds], n)
        for seed in seeds:
            by_seed[seed] = mean_of([resampled[wording, seed] for wording in wordings], n)
        few = _few(ratios)
        found = None if few else components(self.cube(label, wordings), self.counts)
        detectable = {scope: Detectable(n=n, undefined=few) for scope in SCOPES}
        if found is not None:
            assumed = detectable_by_assumption(self.cube(label, wordings), found, correlation)
            detectable = _seedless(assumed, method)
        varies = method.drawn or len(seeds) > 1
        return Quantity(
            label=label,
            value=mean_of(list(resampled.values()), n).figure(),
            by_wording={name: value.figure() for name, value in by_wording.items()},
            by_seed={name: value.figure() for name, value in by_seed.items()},
            wordings_sd=_spread(list(by_wording.values()), n),
            seeds_sd=_spread(list(by_seed.values()), n) if varies else nil(n),
            components=found,
            detectable=detectable,
            left_out=left_out,
            undefined=few,
            drawn=method.drawn,
        )


def nil(n: int) -> Estimate:
    """The estimate that is 0 by definition."""
    return Estimate(0.0, 0.0, 0.0, n)


def _seedless(found: dict[str, Detectable], *methods: MethodScores) -> dict[str, Detectable]:
    """Whether seeds cannot change figures; unknown where a method draws and has one seed only."""
    if any(method.drawn and len(method.seeds) == 1 for method in methods):
        return {**found, "seeds": Detectable(n=methods[0].n, undefined=ONE_SEED)}
    if any(method.drawn or len(method.seeds) > 1 for method in methods):
        return found
    return {**found, "seeds": found["facts"]}


def _few(ratios: Sequence[Parts], anchors: Sequence[int] = (0, 1)) -> str:
    """Reason for unknown variance: nearly all facts are like the recipient, or like the donor."""
    counts = []
    for anchor in anchors:
        apart = [top - anchor * bottom != 0 for top, bottom in ratios]
        counts.append(int(np.count_nonzero(np.any(apart, axis=0))))
    if min(counts) >= FEW:
        return ""
    rest = "tell them apart" if anchors == (0,) else "came out otherwise than the rest"
    return f"{min(counts)} of {len(ratios[0][0])} facts {rest}, too few to know a variance by"


def _spread(means: Sequence[Resampled], n: int) -> Estimate:
    draws = np.array([mean.draws for mean in means])
    return spread(draws, np.array([mean.value for mean in means]), n)


def _differences(first: _View, second: _View) -> list[MethodDifference]:
    differences = []
    for label in first.method.labels:
        if label not in second.method.labels:
            continue
        undefined = first.missing(label) | second.missing(label)
        wordings = []
        for wording in first.method.wordings:
            if wording in second.method.wordings and wording not in undefined:
                wordings.append(wording)
        if wordings:
            differences.append(_difference(first, second, label, wordings))
    return differences


def _difference(
    first: _View, second: _View, label: str, wordings: Sequence[str]
) -> MethodDifference:
    methods, n = (first.method, second.method), first.method.n
    ratios, contrasts = [], []
    for wording, seed, other_seed in product(wordings, *(method.seeds for method in methods)):
        one = first.ratio(label, wording, seed)
        other = second.ratio(label, wording, other_seed)
        here = first.resampled[label][wording, seed]
        there = second.resampled[label][wording, other_seed]
        ratios.append(apart((one, here), (other, there)))
        contrasts.append((other[0] - one[0], one[1]))
    value = mean_of(ratios, n).figure()
    if few := _few(contrasts, anchors=(0,)):
        unknown = {scope: Detectable(n=n, undefined=few) for scope in SCOPES}
        return MethodDifference(label, value, unknown)
    cubes = first.cube(label, wordings), second.cube(label, wordings)
    of = components(cubes[0], first.counts[:1]), components(cubes[1], first.counts[:1])
    return MethodDifference(label, value, _seedless(detectable_between(*cubes, of), *methods))
