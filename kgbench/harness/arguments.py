"""Model arguments of `--model kgbench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kgbench.errors import InputError, UnknownNameError
from kgbench.sites import BASELINES, parse_graft

__all__ = ["CONTINUATIONS", "Arguments", "read_arguments"]

CONTINUATIONS: Mapping[str, str] = {
    "lt": "as the last token of the prompt",
    "none": "as where nothing is grafted",
    "all": "as where everything is grafted",
}
"""Treatment of tokens of the continuation that predict further ones."""

_OTHERS = ("max_batch_size", "model")
"""Ignored: batches are cut by a budget of tokens, and `model` names lm-eval's folder."""

_WORDS = ("localizer", "graft", "continuation")
"""Arguments that can be the word none, which lm-eval turns into None where it splits a text."""


@dataclass(frozen=True)
class Arguments:
    """The model arguments, checked; the defaults are those of `kgbench eval`."""

    pair: str | None = None
    """A pair of the catalog; otherwise `pretrained` and `donor` are given."""
    pretrained: str | None = None
    """Directory or Hub id of the recipient."""
    donor: Mapping[str, str] = field(default_factory=dict)
    """Directory or Hub id of each donor; a single text is the donor `sft`."""
    localizer: str = "dynamic_graft"
    localizer_args: Mapping[str, str] = field(default_factory=dict)
    graft: str | None = None
    """A graft expression, `PRE` or `SFT`; tasks of effects have their own."""
    continuation: str = "lt"
    """A key of `CONTINUATIONS`."""
    dtype: str | None = None
    device: str = "auto"
    revision: str | None = None
    attention: str = "auto"
    executor: str = "auto"
    batch_size: int | None = None
    """Maximum number of prompts in a forward; by default a budget of tokens."""
    max_length: int | None = None
    """Maximum number of tokens; by default the limit in the model's configuration."""
    seed: int = 0


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Check model arguments.

    Args:
        given: As lm-eval parsed them: texts, numbers and flags; objects where given as JSON.

    Raises:
        UnknownNameError: There is no such argument.
        InputError: A value is not valid.
        GraftSyntaxError: The graft does not parse.
    """
    for name in _WORDS:
        if name in given and given[name] is None:
            raise InputError(
                f"{name} has no value: in model arguments given as one text, as in a --config "
                "file, lm-eval turns the word none into no value; give them as a mapping"
            )
    values = {
        name: value for name, value in given.items() if name not in _OTHERS and value is not None
    }
    if values.pop("trust_remote_code", False):
        raise InputError(
            "trust_remote_code stays off: kgbench runs no code that comes with a checkpoint"
        )
    known = [each.name for each in fields(Arguments)]
    for name in values:
        if name not in known:
            raise UnknownNameError("model argument", name, known)
    readers = {
        "donor": _donors,
        "localizer_args": _pairs,
        "batch_size": _batch_size,
        "max_length": _count,
        "seed": _seed,
    }
    for name, value in values.items():
        if name not in readers and isinstance(value, bool | float):
            raise InputError(
                f"{name}={value}: lm-eval parsed this as a number or a flag; give the model "
                "arguments as JSON, with quotes"
            )
    read: dict[str, Any] = {
        name: readers[name](name, value) if name in readers else str(value)
        for name, value in values.items()
    }
    arguments = Arguments(**read)
    _check(arguments)
    return arguments


def _check(arguments: Arguments) -> None:
    if (arguments.pair is None) == (arguments.pretrained is None):
        raise InputError(
            "which model? Give either pair=NAME, or pretrained=PATH,donor=PATH, in --model_args"
        )
    if arguments.pretrained is not None and not arguments.donor:
        raise InputError(
            "the finetuned checkpoint is missing: give donor=PATH with pretrained in --model_args"
        )
    if arguments.continuation not in CONTINUATIONS:
        raise UnknownNameError("continuation", arguments.continuation, CONTINUATIONS)
    if arguments.graft is not None and arguments.graft not in BASELINES:
        parse_graft(arguments.graft)


def _donors(name: str, value: Any) -> dict[str, str]:
    return (
        {str(key): str(place) for key, place in value.items()}
        if isinstance(value, Mapping)
        else {"sft": str(value)}
    )


def _pairs(name: str, value: Any) -> dict[str, str]:
    """An object, or a text such as `draws=16;window=3`."""
    if isinstance(value, Mapping):
        return {str(key): str(given) for key, given in value.items()}
    parts = [part.partition("=") for part in str(value).split(";") if part.strip()]
    if not all(key.strip() and given.strip() for key, _, given in parts):
        raise InputError(
            f"{name}={value}: expected NAME=VALUE, several with semicolons, such as "
            f"{name}=draws=16;window=3"
        )
    return {key.strip(): given.strip() for key, _, given in parts}


def _batch_size(name: str, value: Any) -> int | None:
    return None if str(value).partition(":")[0] == "auto" else _count(name, value)


def _count(name: str, value: Any) -> int:
    if not str(value).isascii() or not str(value).isdigit() or int(value) < 1:
        raise InputError(f"{name}={value}: expected a whole number, 1 or more")
    return int(value)


def _seed(name: str, value: Any) -> int:
    if not str(value).isascii() or not str(value).isdigit():
        raise InputError(f"{name}={value}: expected a whole number, 0 or more")
    return int(value)
