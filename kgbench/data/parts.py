"""Parts of a data set: halves that share no entity (of hybrid models, arXiv 2506.20746, one to learn a task from), and its first facts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from kgbench.errors import InputError

__all__ = ["PARTS", "first", "halves"]

PARTS = ("task", "relation")
"""Names of the halves, written after the name of a data set and a colon."""


def first(name: str) -> int | None:
    """How many facts the name of a part takes, such as `first150`; None where it is no such name."""
    found = re.fullmatch(r"first([1-9]\d{0,6})", name)
    return int(found[1]) if found else None


def halves(facts: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """Divide facts so that no entity stands in both halves, and that the halves are as large as that allows.

    Facts that share an entity stay together. The order in which groups are dealt out is that of a hash of their first fact's id, so that
    it depends on nothing else.

    Args:
        facts: Id and entities (subject and object) of each fact.

    Returns:
        Ids of the facts of each half.

    Raises:
        InputError: All facts hang together, so that there are no two halves.
    """
    groups = sorted(
        _groups(facts), key=lambda group: (-len(group), hashlib.sha256(group[0].encode()).digest())
    )
    first: list[str] = []
    second: list[str] = []
    for group in groups:
        (first if len(first) <= len(second) else second).extend(group)
    if not second:
        raise InputError(
            "the facts cannot be divided: all of them hang together by shared subjects and objects"
        )
    return first, second


def _groups(facts: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Facts that hang together by entities."""
    leader: dict[str, str] = {}

    def find(entity: str) -> str:
        while leader.setdefault(entity, entity) != entity:
            entity = leader[entity]
        return entity

    for _, entities in facts:
        for entity in entities[1:]:
            leader[find(entity)] = find(entities[0])
    groups: dict[str, list[str]] = {}
    for identifier, entities in facts:
        groups.setdefault(find(entities[0]), []).append(identifier)
    return list(groups.values())
