"""Arguments of `--model kgbench` in lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from kgbench.engine.treatment import parse_configuration
from kgbench.errors import InputError, check_choice

CONTINUATIONS: Mapping[str, str] = {
    "lt": "as the last token of the prompt",
    "none": "as where nothing is grafted",
    "all": "as where everything is grafted",
}
"""Treatment of tokens of the continuation that predict further ones."""

_DEFAULT_DEVICE = "cuda:0"
"""What lm-eval's command line gives where `--device` is left out, on any machine."""

_IGNORED = ("max_batch_size", "model", "trust_remote_code")
"""Batches are cut by a budget of tokens, and `model` names lm-eval's folder."""

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
    """A graft expression, `PRE` or `SFT`."""
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


def read_arguments(arguments: Mapping[str, Any]) -> Arguments:
    """Check model arguments.

    Args:
        arguments: As lm-eval parsed them: texts, numbers and flags; objects where given as JSON.

    Raises:
        UnknownNameError: There is no such argument.
        InputError: A value is not valid.
        GraftSyntaxError: The graft does not parse.
    """
    for name in _WORDS:
        if name in arguments and arguments[name] is None:
            raise InputError(
                f"{name} has no value: in model arguments given as one text, as in a --config "
                "file, lm-eval turns the word none into no value; give them as a mapping"
            )
    if arguments.get("trust_remote_code"):
        raise InputError(
            "trust_remote_code stays off: kgbench runs no code that comes with a checkpoint"
        )
    names = [each.name for each in fields(Arguments)]
    read: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in _IGNORED and value is not None:
            check_choice("model argument", name, names)
            reader: Callable[[str, Any], Any] = _READERS.get(name, _text)
            read[name] = reader(name, value)
    if read.get("device") == _DEFAULT_DEVICE and not torch.cuda.is_available():
        del read["device"]
    checked = Arguments(**read)
    if (checked.pair is None) == (checked.pretrained is None):
        raise InputError(
            "which model? Give either pair=NAME, or pretrained=PATH,donor=PATH, in --model_args"
        )
    if checked.pretrained is not None and not checked.donor:
        raise InputError(
            "the finetuned checkpoint is missing: give donor=PATH with pretrained in --model_args"
        )
    check_choice("continuation", checked.continuation, CONTINUATIONS)
    if checked.graft is not None:
        parse_configuration(checked.graft)
    return checked


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool | float):
        raise InputError(
            f"{name}={value}: lm-eval parsed this as a number or a flag; give the model "
            "arguments as JSON, with quotes"
        )
    return str(value)


def _texts(name: str, value: Any) -> dict[str, str]:
    """An object; of donors also one path, of other arguments a text such as `draws=16;window=3`."""
    if isinstance(value, Mapping):
        return {str(key): str(inner) for key, inner in value.items()}
    if name == "donor":
        return {"sft": str(value)}
    pairs = {}
    for part in filter(str.strip, str(value).split(";")):
        key, _, text = part.partition("=")
        if not key.strip() or not text.strip():
            raise InputError(
                f"{name}={value}: expected NAME=VALUE, several with semicolons, such as "
                f"{name}=draws=16;window=3"
            )
        pairs[key.strip()] = text.strip()
    return pairs


def _count(name: str, value: Any) -> int | None:
    """A whole number; `auto` is a size of batches by a budget of tokens."""
    if name == "batch_size" and str(value).partition(":")[0] == "auto":
        return None
    least = 0 if name == "seed" else 1
    if not str(value).isascii() or not str(value).isdigit() or int(value) < least:
        raise InputError(f"{name}={value}: expected a whole number, {least} or more")
    return int(value)


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "donor": _texts,
    "localizer_args": _texts,
    "batch_size": _count,
    "max_length": _count,
    "seed": _count,
}
"""How arguments other than texts are read."""
