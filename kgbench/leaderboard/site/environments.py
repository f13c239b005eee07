"""What runs were computed with: many share it, so that their pages name it and one page says it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from kgbench.records import Provenance

__all__ = ["environment_facts", "environment_name"]


def environment_facts(source: Provenance) -> Iterator[tuple[str, str]]:
    """Code, versions and machine, without the time."""
    commit = (
        ""
        if source.commit is None
        else f", commit {source.commit.hash}{' with changes' if source.commit.dirty else ''}"
    )
    yield "Code", f"kgbench {source.kgbench}{commit}"
    yield (
        "Versions",
        ", ".join(
            f"{name} {version}"
            for name, version in {"Python": source.python, **source.packages}.items()
        ),
    )
    yield "Machine", f"{source.device}; {source.platform}"


def environment_name(source: Provenance) -> str:
    """A name for it, the same wherever it is the same."""
    return sha256(repr(tuple(environment_facts(source))).encode()).hexdigest()[:6]
