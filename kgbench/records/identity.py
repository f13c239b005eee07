"""Identity of a result: everything that could change a figure, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

_ABSOLUTE = re.compile(r"^(?:file://)?(?:/|~/|[A-Za-z]:[\\/])")
_CREDENTIAL = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|://[^/\s:@]+:[^/\s@]+@"
)


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

    @model_validator(mode="after")
    def _recipient_is_no_donor(self) -> WeightHashes:
        # `by_part` has one name for each: a donor of this name would hide the recipient's hash.
        if "recipient" in self.donors:
            raise ValueError("a donor is named 'recipient': name donors otherwise, such as sft")
        return self

    @property
    def by_part(self) -> dict[str, str]:
        """The hash of the recipient and of each donor."""
        return {"recipient": self.recipient, **self.donors}


class LocalizerRef(Strict):
    """Which method, with all its parameters, the defaults included."""

    name: str
    version: str
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class ReadoutRef(Strict):
    """What is read of the models' output, with all parameters."""

    name: str
    version: str
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class Truth(Strict):
    """Ground-truth location of planted facts."""

    plant: str
    """Graft expression."""
    decoy: str | None = None


AFTER_BLANKS = " after blanks"
"""Ends the version of the metrics where the blank before an answer is a part of the prompt."""


class Identity(Strict):
    """Identity of a result.

    Batch size, executor, device and attention backend are no part of it, nor is the metric of the
    ratios.
    """

    dataset: DatasetRef
    prompts: dict[str, Hash]
    """Hash of the template of each prompt."""
    weights: WeightHashes
    tokenizer: Hash
    localizer: LocalizerRef
    configurations: tuple[str, ...]
    """`PRE`, `SFT` and graft expressions."""
    metric_version: str
    """Followed by `AFTER_BLANKS` where the model is given the blank before an answer."""
    dtype: str
    seeds: tuple[int, ...]
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many facts."""
    truth: Truth | None = None
    """Where a ranking is compared with a ground truth."""
    ranking_version: str | None = None
    """Where sites are ranked: version of the rule by which the best of them are taken."""
    readout: ReadoutRef | None = None
    """None for the first token of the answer."""

    @model_serializer(mode="wrap")
    def _without_readout(self, serializer: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A record of the first token names no readout, as none did before there were others."""
        data: dict[str, Any] = serializer(self)
        if data.get("readout", ...) is None:
            del data["readout"]
        return data

    @model_validator(mode="after")
    def _check(self) -> Identity:
        data = self.model_dump(mode="json")
        canonical_json(data)
        if private := private_text(data):
            raise ValueError(f"an identity holds no absolute path and no credential, but {private}")
        return self

    @property
    def ties_count_for_the_target(self) -> bool:
        """Whether equal logits share the best rank, as in version 1 of the metrics only."""
        return self.metric_version == "1"

    @property
    def after_blanks(self) -> bool:
        """Whether answers are read after a blank that the tokenizer keeps apart."""
        return self.metric_version.endswith(AFTER_BLANKS)

    @property
    def limited(self) -> bool:
        """Whether only some facts of the data set are asked for."""
        return self.n_facts < self.dataset.n

    @property
    def n_facts(self) -> int:
        """How many facts are asked for."""
        return min(self.limit or self.dataset.n, self.dataset.n)

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
    """Where a JSON value holds an absolute path or a likely credential, without the text."""
    if not any(map(private_kind, texts_in(value))):
        return None
    for where, text in texts_of(value):
        if (kind := private_kind(text)) is not None:
            return f"{where} {kind}"
    return None


@lru_cache(maxsize=4096)
def private_kind(text: str) -> str | None:
    """What a single text is that no record may hold, such as `is an absolute path`."""
    if _ABSOLUTE.match(text):
        return "is an absolute path"
    return "looks like a credential" if _CREDENTIAL.search(text) else None


def texts_in(value: Any) -> set[str]:
    """The texts that `texts_of` finds: naming their places takes several times as long."""
    texts: set[str] = set()
    left = [value]
    while left:
        each = left.pop()
        if type(each) is float:  # as most are
            continue
        if isinstance(each, str):
            texts.add(each)
        elif isinstance(each, dict):
            texts.update(each)
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return texts


def texts_of(
    value: Any, where: str = "", named: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """The place of each text of a JSON value, and the text; keys are texts, too.

    Args:
        value: The value.
        where: Its place.
        named: A key as places show it.
    """
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"a key of {where or 'it'}", key
            yield from texts_of(inner, f"{where}.{named(key)}".lstrip("."), named)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_of(inner, f"{where}[{index}]", named)


# ------------------------------------------------------------------------------------ differences

_NAMES = {
    "dataset.name": "data set",
    "dataset.n": "facts in the data set",
    "localizer.name": "method",
    "localizer.version": "version of the method",
    "metric_version": "version of the metrics",
    "ranking_version": "version of the ranking",
    "seeds": "seed",
}
"""Parts of an identity in words."""

_HASH_DIGITS = 12
"""Digits of a hash that are shown."""

_HASHES = {
    "dataset.hash": "the facts are others",
    "tokenizer": "the tokenizers are others",
    "weights.recipient": "the recipients' weights are others",
}
"""Sentences on hashes, whose values mean nothing to a reader."""


@dataclass(frozen=True)
class Difference:
    """A part in which two identities differ."""

    field: str
    """Its place, such as `weights.donors.sft`."""
    first: Any
    """JSON value; None where it is not there."""
    second: Any

    def text(self) -> str:
        """The part by its place, and both values, in a line."""
        if isinstance(self.first, list) and isinstance(self.second, list):
            return f"{self.field}: {_list_difference(self.first, self.second)}"
        return f"{self.field}: {_value_text(self.first)} | {_value_text(self.second)}"

    def sentence(self) -> str:
        """The difference between the first (A) and the second (B), in a line."""
        part, _, rest = self.field.partition(".")
        if part == "prompts":
            return self._one_sided(f"asks {rest}") or f"{rest} is worded in two ways"
        if self.field.startswith("weights.donors."):
            donor = self.field.rpartition(".")[2]
            alone = self._one_sided(f"has a donor {donor}")
            return alone or f"the weights of donor {donor} are others"
        if self.field in _HASHES:
            return _HASHES[self.field]
        if self.field == "limit":
            first, second = (
                f"the first {n} facts" if n is not None else "all facts"
                for n in (self.first, self.second)
            )
            return f"A takes {first}, B {second}"
        if isinstance(self.first, list) and isinstance(self.second, list) and part != "seeds":
            return f"{self.field}: {_list_difference(self.first, self.second)}"
        fallback = rest.removeprefix("parameters.") if part == "localizer" else self.field
        name = _NAMES.get(self.field, fallback)
        return f"{name}: {_value_text(self.first)} in A, {_value_text(self.second)} in B"

    def _one_sided(self, what: str) -> str | None:
        """`A asks headline, B does not`, where one of them has the part alone."""
        if self.first is not None and self.second is not None:
            return None
        having, other = ("A", "B") if self.second is None else ("B", "A")
        return f"{having} {what}, {other} does not"


def identity_differences(first: Identity, second: Identity) -> tuple[Difference, ...]:
    """The parts in which two identities differ, in the order of the model.

    There are none exactly where the ids are equal.
    """
    parts = json_differences(first.model_dump(mode="json"), second.model_dump(mode="json"))
    return tuple(parts)


def json_differences(first: Any, second: Any, where: str = "") -> Iterator[Difference]:
    """The places at which two identities, or parts of them, differ as JSON."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys((*first, *second)):
            yield from json_differences(
                first.get(key), second.get(key), f"{where}.{key}".lstrip(".")
            )
    elif first != second:
        yield Difference(where, first, second)


def _list_difference(first: list[Any], second: list[Any]) -> str:
    """The items that one list alone has; or that the order differs."""
    alone = []
    for letter, items, others in (("A", first, second), ("B", second, first)):
        texts = [str(item) for item in items if item not in others]
        if texts:
            alone.append(f"{letter} alone has {', '.join(texts)}")
    return "; ".join(alone) or "the same in another order"


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = "none" if value is None else str(value)
    return f"{text[:_HASH_DIGITS]}…" if re.fullmatch("[0-9a-f]{64}", text) else text
