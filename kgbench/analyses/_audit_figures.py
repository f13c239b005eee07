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
from numpy.typing import NDArray

from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.records import Identity, Record, canonical_json, facts_table
from kgbench.records.identity import identity_differences
from kgbench.sites import BASELINES
from kgbench.sites.configurations import budget_labels, parse_top
from kgbench.stats import (
    FEW,
    Resampled,
    curve,
    linearised,
    mean_of,
    resample,
    resampled_difference,
    resampled_ratio,
)
from kgbench.stats.ratios import no_gain
from kgbench.stats.scores import PromptColumns, by_prompt, check_metric
from kgbench.stats.summary import ORDER
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

__all__ = [
    "AREA",
    "CORRELATION",
    "DIFFERENCE",
    "AuditFigures",
    "AuditSettings",
    "AuditedRun",
    "MethodDifference",
    "MethodScores",
    "Quantity",
    "audited",
    "methods_of",
]

AREA = "area"
"""The figure under the curve of recovery over budgets."""

SAME = ("dataset.hash", "weights", "tokenizer", "dtype", "metric_version")
"""Parts of what records are of that an audit holds fixed."""

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

    @property
    def n(self) -> int:
        """Number of facts."""
        return len(next(iter(self.cells.values())).facts)

    @property
    def labels(self) -> tuple[str, ...]:
        """Configurations with a recovery in some wording under every seed; the area comes first."""
        having = [
            set.intersection(*(set(self.cells[w, s].columns) for s in self.seeds))
            for w in self.wordings
        ]
        order = dict.fromkeys(graft for cell in self.cells.values() for graft in cell.columns)
        found = [
            graft
            for graft in order
            if graft not in BASELINES and any(graft in some for some in having)
        ]
        return (*([AREA] if self.budgets else []), *found)

    @property
    def budgets(self) -> dict[str, float]:
        """Configurations of the curve and their budgets in per cent, ascending."""
        tops = {parse_top(graft) for cell in self.cells.values() for graft in cell.columns}
        return budget_labels(
            sorted(top.percent for top in tops if top is not None and top.percent is not None)
        )


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
        groups.setdefault(_key(part.record.identity), []).append(part)
    names = _names([some[0].record.identity for some in groups.values()])
    methods = [_method(name, some) for name, some in zip(names, groups.values(), strict=True)]
    shared = reduce(
        np.intersect1d, [cell.facts for method in methods for cell in method.cells.values()]
    )
    if len(shared) < 2:
        raise InputError(
            f"these runs have {len(shared)} facts in common, and an audit needs two at least; give "
            "runs over the same facts"
        )
    return tuple(_shared(method, shared) for method in methods)


def _check(parts: Sequence[AuditedRun]) -> None:
    first = parts[0].record.identity
    hashes: dict[str, str] = {}
    for part in parts:
        what = part.record.identity
        if apart := [
            one.text() for one in identity_differences(first, what) if one.field.startswith(SAME)
        ]:
            raise InputError(
                "an audit is of one pair on one set of facts, and these runs differ in "
                f"{'; '.join(apart)}"
            )
        for name, text in what.prompts.items():
            if hashes.setdefault(name, text) != text:
                raise InputError(
                    f"the prompt {name!r} has one wording in one of these runs and another in "
                    "another; leave out one of them"
                )


def _key(what: Identity) -> str:
    kept = {name: value for name, value in what.localizer.parameters.items() if name != "seed"}
    return canonical_json([what.localizer.name, what.localizer.version, kept])


def _names(of: Sequence[Identity]) -> list[str]:
    """Names of the methods, with the parameters that differ where names are equal."""
    found = []
    for what in of:
        alike = [other.localizer for other in of if other.localizer.name == what.localizer.name]
        own = {**what.localizer.parameters, "version": what.localizer.version}
        apart = [
            k
            for k in own
            if k != "seed"
            and any({**o.parameters, "version": o.version}.get(k) != own[k] for o in alike)
        ]
        found.append(
            what.localizer.name
            + (f" ({', '.join(f'{k}={own[k]}' for k in apart)})" if apart else "")
        )
    return found


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
    seeds, every = (
        tuple(dict.fromkeys(seed for _, seed in cells)),
        dict.fromkeys(wording for wording, _ in cells),
    )
    wordings = tuple(
        wording for wording in every if all((wording, seed) in cells for seed in seeds)
    )
    if not wordings:
        raise InputError(
            f"{name}: no prompt was run under all of its seeds, {', '.join(seeds)}; give runs of "
            "one at least under each"
        )
    kept = {cell: columns for cell, columns in cells.items() if cell[0] in wordings}
    return MethodScores(
        name,
        any(map(_is_drawn, parts)),
        wordings,
        seeds,
        kept,
        tuple(_notes(name, parts, cells, wordings)),
    )


def _seed(what: Identity) -> str:
    """The seed of a run, and of its method where that has another."""
    own = what.localizer.parameters.get("seed", what.seeds[0])
    return str(what.seeds[0]) if own == what.seeds[0] else f"{what.seeds[0]}, method's {own}"


def _is_drawn(part: AuditedRun) -> bool:
    return "seed" in part.record.identity.localizer.parameters or part.record.ranking is not None


def _notes(
    name: str, parts: Sequence[AuditedRun], cells: Iterable[Cell], wordings: Sequence[str]
) -> list[str]:
    left_out = dict.fromkeys(wording for wording, _ in cells if wording not in wordings)
    found = (
        [f"{name}: {', '.join(left_out)} left out, for not every seed was run on it"]
        if left_out
        else []
    )
    if any(
        part.record.ranking is not None and len(part.record.identity.prompts) > 1 for part in parts
    ):
        found.append(
            f"{name} ranked sites by several prompts together, so that its wordings differ less "
            "than if it saw one alone"
        )
    return found


def _shared(method: MethodScores, facts: np.ndarray) -> MethodScores:
    """A method over these of its facts, and a note where it has others."""
    others = {fact for cell in method.cells.values() for fact in cell.facts} - set(facts)
    told = (
        f"{method.name}: {len(others)} of {len(others) + len(facts)} facts left out, for "
        "not every run and wording has them"
    )
    cells = {key: _over(cell, facts) for key, cell in method.cells.items()}
    return replace(method, cells=cells, notes=(*method.notes, *([told] if others else [])))


def _over(cell: PromptColumns, facts: np.ndarray) -> PromptColumns:
    where = np.isin(cell.facts, facts)
    columns = {
        graft: {name: column[where] for name, column in own.items()}
        for graft, own in cell.columns.items()
    }
    return PromptColumns(cell.name, columns)


Array = NDArray[Any]
Ratio = tuple[Array, Array]
"""Per-fact contrasts [n] of numerator and denominator."""

CORRELATION = 0.5
"""Of two methods' values of the same facts, where only one method is at hand."""

DIFFERENCE = 0.05
"""What is asked how many facts it takes for."""


@dataclass(frozen=True)
class AuditSettings:
    """What an audit is asked."""

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
        found = self.components.parts()
        return (
            found
            if self.drawn or self.components.seeds > 1
            else {**found, "seeds": nil(self.value.n)}
        )

    def to_json(self, difference: float) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = self.components
        return {
            "graft": self.label,
            "value": self.value.to_json(),
            "wordings": {name: figure.to_json() for name, figure in self.by_wording.items()},
            "wordings_sd": self.wordings_sd.to_json(),
            "seeds": {name: figure.to_json() for name, figure in self.by_seed.items()},
            "seeds_sd": self.seeds_sd.to_json(),
            "components": {} if found is None else {s: found.figure(s).to_json() for s in SOURCES},
            "variance": {part: figure.to_json() for part, figure in self.parts.items()},
            **({"undefined": self.undefined} if self.undefined else {}),
            "detectable": {
                scope: one.to_json(difference) for scope, one in self.detectable.items()
            },
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True)
class MethodDifference:
    """Two methods' recovery of one configuration over the same facts and wordings."""

    label: str
    value: Estimate
    """The second's less the first's."""
    detectable: Mapping[str, Detectable]

    def to_json(self, difference: float) -> dict[str, Any]:
        """The object that `--json` prints."""
        scopes = {scope: one.to_json(difference) for scope, one in self.detectable.items()}
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
        return {
            "metric": self.settings.metric,
            "n": self.n,
            "correlation": self.settings.correlation,
            "difference": by,
            "methods": [
                {
                    "localizer": method.name,
                    "wordings": list(method.wordings),
                    "seeds": list(method.seeds),
                    "drawn": method.drawn,
                    "notes": list(method.notes),
                    "rows": [quantity.to_json(by) for quantity in self.quantities[method.name]],
                }
                for method in self.methods
            ],
            "pairs": [
                {"first": a, "second": b, "rows": [one.to_json(by) for one in some]}
                for (a, b), some in self.differences.items()
            ],
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
    counts = resample(methods[0].n, settings.draws).astype(float)
    views = {method.name: _View(method, metric, counts) for method in methods}
    quantities = {
        name: [view.quantity(label, settings.correlation) for label in view.method.labels]
        for name, view in views.items()
    }
    differences = {(a, b): _differences(views[a], views[b]) for a, b in combinations(views, 2)}
    return AuditFigures(settings, methods, quantities, differences)


class _View:
    """A method's ratios on one metric under one resample."""

    def __init__(self, method: MethodScores, metric: str, counts: Array) -> None:
        self.method, self.counts = method, counts
        self.scores = {cell: columns.scores(metric) for cell, columns in method.cells.items()}
        self.no_gain = {cell: no_gain(scores) for cell, scores in self.scores.items()}

    def missing(self, label: str) -> dict[str, str]:
        """Wordings in which a configuration has no recovery, and why."""
        found: dict[str, str] = {}
        needed = list(self.method.budgets) if label == AREA else [label]
        for wording, seed in product(self.method.wordings, self.method.seeds):
            absent = [graft for graft in needed if graft not in self.scores[wording, seed]]
            if absent:
                found.setdefault(wording, f"{absent[0]} was not run")
            elif (reason := self.no_gain[wording, seed]) is not None:
                found.setdefault(wording, str(reason.undefined))
        return found

    def ratio(self, label: str, wording: str, seed: str) -> Ratio:
        scores = self.scores[wording, seed]
        if label == AREA:
            return curve.contrasts(scores, self.method.budgets)
        pre, sft, own = (
            scores[name].astype(np.int64 if scores[name].dtype == bool else np.float64)
            for name in ("PRE", "SFT", label)
        )
        return own - pre, sft - pre

    def cube(self, label: str, wordings: Sequence[str]) -> Array:
        """Per-fact values [facts, wordings, seeds] whose means are recoveries."""
        rows = [[linearised(*self.ratio(label, w, s)) for s in self.method.seeds] for w in wordings]
        return np.moveaxis(np.array(rows), 2, 0)

    def quantity(self, label: str, correlation: float) -> Quantity:
        left_out, method = self.missing(label), self.method
        n, seeds = method.n, method.seeds
        wordings = [wording for wording in method.wordings if wording not in left_out]
        if not wordings:
            nothing = Estimate.missing(next(iter(left_out.values())), n)
            return Quantity(
                label,
                nothing,
                {},
                {},
                nothing,
                nothing,
                None,
                {},
                left_out,
                str(nothing.undefined),
                method.drawn,
            )
        cells = {
            cell: resampled_ratio(*self.ratio(label, *cell), self.counts)
            for cell in product(wordings, seeds)
        }
        by_wording = {w: mean_of([cells[w, s] for s in seeds], n) for w in wordings}
        by_seed = {s: mean_of([cells[w, s] for w in wordings], n) for s in seeds}
        few = _few([self.ratio(label, *cell) for cell in cells])
        found = None if few else components(self.cube(label, wordings), self.counts)
        return Quantity(
            label=label,
            value=mean_of(list(cells.values()), n).figure(),
            by_wording={name: one.figure() for name, one in by_wording.items()},
            by_seed={name: one.figure() for name, one in by_seed.items()},
            wordings_sd=_spread(list(by_wording.values()), n),
            seeds_sd=_spread(list(by_seed.values()), n)
            if method.drawn or len(seeds) > 1
            else nil(n),
            components=found,
            detectable=self._detectable(label, wordings, found, few, correlation),
            left_out=left_out,
            undefined=few,
            drawn=method.drawn,
        )

    def _detectable(
        self,
        label: str,
        wordings: Sequence[str],
        found: Components | None,
        few: str,
        correlation: float,
    ) -> dict[str, Detectable]:
        if found is None:
            return {scope: Detectable(n=self.method.n, undefined=few) for scope in SCOPES}
        return _seedless(
            detectable_by_assumption(self.cube(label, wordings), found, correlation), self.method
        )


def nil(n: int) -> Estimate:
    """What is 0 by definition."""
    return Estimate(0.0, 0.0, 0.0, n)


def _seedless(found: dict[str, Detectable], *methods: MethodScores) -> dict[str, Detectable]:
    """Whether seeds cannot change figures; unknown where a method draws and has one seed only."""
    if any(method.drawn and len(method.seeds) == 1 for method in methods):
        return {**found, "seeds": Detectable(n=methods[0].n, undefined=ONE_SEED)}
    one = not any(method.drawn or len(method.seeds) > 1 for method in methods)
    return {**found, "seeds": found["facts"]} if one else found


def _few(ratios: Sequence[Ratio], anchors: Sequence[int] = (0, 1)) -> str:
    """Reason for unknown variance: nearly all facts are like the recipient, or like the donor."""
    apart = [
        np.any([top - anchor * bottom != 0 for top, bottom in ratios], axis=0) for anchor in anchors
    ]
    fewest = int(min(map(np.count_nonzero, apart)))
    rest = "tell them apart" if anchors == (0,) else "came out otherwise than the rest"
    return (
        f"{fewest} of {len(apart[0])} facts {rest}, too few to know a variance by"
        if fewest < FEW
        else ""
    )


def _spread(of: Sequence[Resampled], n: int) -> Estimate:
    return spread(np.array([one.draws for one in of]), np.array([one.value for one in of]), n)


def _differences(first: _View, second: _View) -> list[MethodDifference]:
    found = []
    for label in (label for label in first.method.labels if label in second.method.labels):
        undefined = first.missing(label) | second.missing(label)
        wordings = [
            w for w in first.method.wordings if w in second.method.wordings and w not in undefined
        ]
        if wordings:
            found.append(_difference(first, second, label, wordings))
    return found


def _difference(
    first: _View, second: _View, label: str, wordings: Sequence[str]
) -> MethodDifference:
    methods = first.method, second.method
    cells = list(product(wordings, *(method.seeds for method in methods)))
    ratios = [
        (first.ratio(label, wording, one), second.ratio(label, wording, other))
        for wording, one, other in cells
    ]
    value = mean_of(
        [resampled_difference(*both, first.counts) for both in ratios], methods[0].n
    ).figure()
    few = _few([(other[0] - one[0], one[1]) for one, other in ratios], anchors=(0,))
    if few:
        return MethodDifference(
            label, value, {scope: Detectable(n=methods[0].n, undefined=few) for scope in SCOPES}
        )
    cubes = first.cube(label, wordings), second.cube(label, wordings)
    of = components(cubes[0], first.counts[:1]), components(cubes[1], first.counts[:1])
    return MethodDifference(label, value, _seedless(detectable_between(*cubes, of), *methods))
