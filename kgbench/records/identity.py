"""What a result is of: everything that could change a figure, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

__all__ = [
    "DatasetRef",
    "Identity",
    "LocalizerRef",
    "Strict",
    "Truth",
    "WeightHashes",
    "canonical_json",
    "private_text",
]

_ABSOLUTE = re.compile(r"^(?:file://)?(?:/|~/|[A-Za-z]:[\\/])")
_CREDENTIAL = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|://[^/\s:@]+:[^/\s@]+@"
)

_PERHAPS = re.compile(
    f'"{_ABSOLUTE.pattern.removeprefix("^")}|{_CREDENTIAL.pattern.replace(chr(92) + "b", "")}'
)
"""What no JSON is without that holds either."""


class Strict(BaseModel):
    """Frozen, no unknown fields, no NaN and no infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Hash = Annotated[str, Field(min_length=1)]


class DatasetRef(Strict):
    """Which facts."""

    name: str
    hash: Hash
    """Content hash of all its facts."""
    n: int = Field(ge=0)
    """How many facts it holds, before any limit."""


class WeightHashes(Strict):
    """Which weights."""

    recipient: Hash
    donors: dict[str, Hash]


class LocalizerRef(Strict):
    """Which method, with all its parameters, the defaults included."""

    name: str
    version: str
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class Truth(Strict):
    """Where the facts were planted, as a ranking is judged by it."""

    plant: str
    """Graft expression."""
    decoy: str | None = None


class Identity(Strict):
    """What a result is of. Batch size, executor, device and attention backend are no part of it, nor is the metric of the ratios."""

    dataset: DatasetRef
    prompts: dict[str, Hash]
    """Hash of the template of each prompt."""
    weights: WeightHashes
    tokenizer: Hash
    localizer: LocalizerRef
    configurations: tuple[str, ...]
    """`PRE`, `SFT` and graft expressions."""
    metric_version: str
    dtype: str
    seeds: tuple[int, ...]
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many facts."""
    truth: Truth | None = None
    """Where a ranking is compared with it."""
    ranking_version: str | None = None
    """Where sites are ranked: by which rule the best of them are taken."""

    @model_validator(mode="after")
    def _check(self) -> Identity:
        canonical_json(self.model_dump(mode="json"))
        if found := private_text(self.model_dump(mode="json")):
            raise ValueError(f"an identity holds no absolute path and no credential, but {found}")
        return self

    @property
    def ties_count_for_the_target(self) -> bool:
        """Whether equal logits share the best rank, as in version 1 of the metrics, and not the worst, as since."""
        return self.metric_version == "1"

    def digest(self) -> str:
        """The id: SHA-256, in hexadecimal, of the canonical JSON."""
        return sha256(canonical_json(self.model_dump(mode="json")).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and without white space.

    Raises:
        ValueError: If it holds NaN or an infinity.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def private_text(value: Any) -> str | None:
    """Where a JSON value holds an absolute path or something that looks like a credential; the text itself is not repeated."""
    if not _PERHAPS.search(json.dumps(value, ensure_ascii=False)):
        return None
    for where, text in _texts(value, ""):
        if _ABSOLUTE.match(text):
            return f"{where} is an absolute path"
        if _CREDENTIAL.search(text):
            return f"{where} looks like a credential"
    return None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key, f"a key of {where or 'it'}")
            yield from _texts(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(inner, f"{where}[{index}]")
