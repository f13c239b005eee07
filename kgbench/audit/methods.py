"""From records to tables of facts × wordings × seeds, one for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa

from kgbench.effects.columns import PromptColumns, by_prompt
from kgbench.effects.summary import ORDER
from kgbench.errors import InputError
from kgbench.records import Identity, Record, canonical_json, facts_table
from kgbench.records.identity import identity_differences
from kgbench.sites import BASELINES
from kgbench.sites.configurations import budget_labels, parse_top

__all__ = ["AREA", "Method", "Part", "methods_of"]

AREA = "area"
"""The figure under the curve of recovery over budgets."""

SAME = ("dataset.hash", "weights", "tokenizer", "dtype", "metric_version")
"""Parts of what records are of that an audit holds fixed."""

Cell = tuple[str, str]
"""Wording and seed."""


@dataclass(frozen=True)
class Part:
    """A record and its per-fact rows."""

    record: Record
    facts: pa.Table


@dataclass(frozen=True)
class Method:
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
        """What has a recovery: configurations that some wording has under every seed, the area first where there is one."""
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


def methods_of(parts: Sequence[Part]) -> tuple[Method, ...]:
    """Sort records into methods, all over the facts that every cell has.

    Args:
        parts: Records of one pair on one set of facts.

    Raises:
        InputError: They are not of the same pair and facts, name different wordings alike, give a cell twice, or leave a method no wording
            that all of its seeds have.
    """
    _check(parts)
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(_key(part.record.identity), []).append(part)
    names = _names([some[0].record.identity for some in groups.values()])
    methods = [_method(name, some) for name, some in zip(names, groups.values(), strict=True)]
    shared = reduce(
        np.intersect1d, [cell.facts for method in methods for cell in method.cells.values()]
    )
    if len(shared) < 2:
        raise InputError(
            f"these runs have {len(shared)} facts in common, and an audit needs two at least; give runs over the same facts"
        )
    return tuple(_shared(method, shared) for method in methods)


def _check(parts: Sequence[Part]) -> None:
    first = parts[0].record.identity
    hashes: dict[str, str] = {}
    for part in parts:
        what = part.record.identity
        if apart := [
            one.text() for one in identity_differences(first, what) if one.field.startswith(SAME)
        ]:
            raise InputError(
                f"an audit is of one pair on one set of facts, and these runs differ in {'; '.join(apart)}"
            )
        for name, text in what.prompts.items():
            if hashes.setdefault(name, text) != text:
                raise InputError(
                    f"the prompt {name!r} has one wording in one of these runs and another in another; leave out one of them"
                )


def _key(what: Identity) -> str:
    kept = {name: value for name, value in what.localizer.parameters.items() if name != "seed"}
    return canonical_json([what.localizer.name, what.localizer.version, kept])


def _names(of: Sequence[Identity]) -> list[str]:
    """Names of the methods; of several of one name with what tells them apart."""
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


def _method(name: str, parts: Sequence[Part]) -> Method:
    cells: dict[Cell, PromptColumns] = {}
    for part in parts:
        seed = _seed(part.record.identity)
        for prompt in by_prompt(facts_table(part.facts), ORDER):
            if (prompt.name, seed) in cells:
                raise InputError(
                    f"two runs of {name} have the prompt {prompt.name!r} under seed {seed}; give one of them"
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
            f"{name}: no prompt was run under all of its seeds, {', '.join(seeds)}; give runs of one at least under each"
        )
    kept = {cell: columns for cell, columns in cells.items() if cell[0] in wordings}
    return Method(
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


def _is_drawn(part: Part) -> bool:
    return "seed" in part.record.identity.localizer.parameters or part.record.ranking is not None


def _notes(
    name: str, parts: Sequence[Part], cells: Iterable[Cell], wordings: Sequence[str]
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
            f"{name} ranked sites by several prompts together, so that its wordings differ less than if it saw one alone"
        )
    return found


def _shared(method: Method, facts: np.ndarray) -> Method:
    """A method over these of its facts, and a note where it has others."""
    others = {fact for cell in method.cells.values() for fact in cell.facts} - set(facts)
    told = f"{method.name}: {len(others)} of {len(others) + len(facts)} facts left out, for not every run and wording has them"
    cells = {key: _over(cell, facts) for key, cell in method.cells.items()}
    return replace(method, cells=cells, notes=(*method.notes, *([told] if others else [])))


def _over(cell: PromptColumns, facts: np.ndarray) -> PromptColumns:
    where = np.isin(cell.facts, facts)
    columns = {
        graft: {name: column[where] for name, column in own.items()}
        for graft, own in cell.columns.items()
    }
    return PromptColumns(cell.name, columns)
