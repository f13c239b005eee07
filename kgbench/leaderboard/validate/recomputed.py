"""Every figure of a record, made anew from its per-fact rows and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from math import isclose
from typing import Any

import numpy as np
import pyarrow as pa

from kgbench.effects import rescored
from kgbench.estimate import Estimate
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.numbers import same_sentence
from kgbench.records import Record, facts_table

__all__ = ["check_figures", "differences"]

_FIGURES = ("metric", "rows", "synergy", "baselines", "curve", "planted", "verdict")
"""Fields of a record that follow from its rows."""

_RELATIVE, _ABSOLUTE = 2e-5, 1e-6
"""Figures are stored to six digits; a bootstrap on another machine may differ in the last."""

_MOST = 5
"""Fields that are named of one record."""


def check_figures(record: Record, table: pa.Table, at: str) -> list[Finding]:
    """All figures against those that the rows give; what only models can say is not among them.

    Args:
        record: A record whose rows are complete.
        table: Its per-fact rows.
        at: How findings name the record's file.
    """
    try:
        anew = rescored(record, facts_table(_whole(table)))
    except Exception as error:  # whatever figures cannot be made of rows that nobody vouches for
        return [
            Finding(
                at,
                "rows",
                f"no figures can be made of its per-fact rows ({type(error).__name__}: {shown(str(error))})",
            )
        ]
    pairs = ((name, getattr(record, name), getattr(anew, name)) for name in _FIGURES)
    apart = (
        found
        for name, own, made in pairs
        if name != "verdict" or not same_sentence(own, made)
        for found in differences(_plain(own), _plain(made), name)
    )
    return [
        Finding(at, field, f"it is {shown(own)}", f"{shown(made)}, as the per-fact rows give")
        for field, own, made in islice(apart, _MOST)
    ]


def _whole(table: pa.Table) -> pa.Table:
    """The rows with the probability, which files need not hold."""
    if "prob" in table.column_names:
        return table
    return table.append_column("prob", pa.array(np.exp(table["logprob"].to_numpy())))


def _plain(value: Any) -> Any:
    """Models as mappings."""
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Estimate):
        return asdict(value)
    return value.model_dump() if hasattr(value, "model_dump") else value


def differences(own: Any, made: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ by more than rounding does, and what stands there in each.

    Args:
        own: One value.
        made: The other.
        where: Their field.
    """
    if isinstance(own, Mapping) and isinstance(made, Mapping):
        for key in dict.fromkeys([*own, *made]):
            yield from differences(
                own.get(key),
                made.get(key),
                f"{where}.{key if str(key).isidentifier() else shown(key)}",
            )
    elif (
        isinstance(own, Sequence)
        and isinstance(made, Sequence)
        and not isinstance(own, str)
        and not isinstance(made, str)
    ):
        if len(own) != len(made):
            yield where, f"{len(own)} of them", f"{len(made)} of them"
        for index, (one, other) in enumerate(zip(own, made, strict=False)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not _same(own, made):
        yield where, own, made


def _same(own: Any, made: Any) -> bool:
    if isinstance(own, str) and isinstance(made, str):
        return _listed(own) == _listed(made)
    if (
        isinstance(own, bool)
        or isinstance(made, bool)
        or not (isinstance(own, int | float) and isinstance(made, int | float))
    ):
        return type(own) is type(made) and own == made
    return (
        own == made
        if isinstance(made, int)
        else isclose(own, made, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    )


def _listed(text: str) -> list[str]:
    """A sentence without what joins its lists, which was `and` throughout at first and is a comma now: `A, B and C`."""
    return re.split(r" and |, ", text)
