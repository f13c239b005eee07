"""Short names of records, in the captions of tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.numbers import count_text
from kgbench.records import Record

__all__ = ["common_name", "distinct_names", "record_name", "run_names"]


def run_names(records: Sequence[Record]) -> list[str]:
    """A name per record; the start of the id tells apart those of one method and model."""
    plain = [record_name(record) for record in records]
    return [
        f"{name} ({record.id[:8]})" if plain.count(name) > 1 else name
        for name, record in zip(plain, records, strict=True)
    ]


def common_name(records: Sequence[Record]) -> str:
    """Model and data of records of one dataset; the data alone where models differ."""
    models, data = {record.model for record in records}, records[0].identity.dataset.name
    return f"{records[0].model} ({data})" if len(models) == 1 else data


def distinct_names(records: Sequence[Record]) -> list[str]:
    """A short name per record in addition to `common_name`: its method.

    Model, parameters and number of facts follow where they differ.

    The start of the id tells apart what differs in something else.
    """
    plain = [_distinct_name(record, records) for record in records]
    return [
        f"{name} ({record.id[:8]})"
        if plain.count(name) > 1 or _is_ambiguous(record, records)
        else name
        for name, record in zip(plain, records, strict=True)
    ]


def _distinct_name(record: Record, records: Sequence[Record]) -> str:
    what = record.identity
    alike = [
        other.identity.localizer
        for other in records
        if other.identity.localizer.name == what.localizer.name
    ]
    parts = [what.localizer.name]
    for key, value in what.localizer.parameters.items():
        if any(key not in other.parameters or other.parameters[key] != value for other in alike):
            parts.append(f"{key}={value}")
    if any(other.model != record.model for other in records):
        parts.append(record.model)
    if any(other.identity.limit != what.limit for other in records):
        parts.append(
            "all facts" if what.limit is None else f"first {count_text(what.limit, 'fact')}"
        )
    return ", ".join(parts)


def _is_ambiguous(record: Record, records: Sequence[Record]) -> bool:
    """Whether another record has the same name for other weights."""
    return any(
        other.model == record.model and other.identity.weights != record.identity.weights
        for other in records
    )


def record_name(record: Record) -> str:
    """Method and model."""
    return f"{record.identity.localizer.name} on {record.model}"
