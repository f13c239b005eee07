"""lm-eval's command line with kgbench's model and tasks, and the model arguments that it takes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from kgbench.errors import InputError, check_choice
from kgbench.harness import MODEL, REQUEST, register, tasks_path
from kgbench.sites import BASELINES, parse_graft

OPTION = "--continuation"
"""The one option of kgbench; all others are lm-eval's."""

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


def launch(arguments: Sequence[str]) -> int:
    """Run lm-eval's command line.

    Args:
        arguments: As lm-eval takes them, and `--continuation`, which becomes a model argument.

    Returns:
        The exit status.

    Raises:
        InputError: lm-eval is not installed, or the value of `--continuation` is not valid.
    """
    register()
    from lm_eval._cli.harness import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    rest, continuation = _own_option(list(arguments))
    before, sys.argv = sys.argv, ["kgbench lm-eval", *rest]  # which lm-eval parses
    try:
        parser = HarnessCLI()
        try:
            parsed = parser.parse_args()
        except SystemExit as done:  # its help, or its refusal of an option
            return int(done.code or 0)
        if hasattr(parsed, "include_path"):
            _settle(parsed, {} if continuation is None else {"continuation": continuation})
        with _user_errors():
            parser.execute(parsed)
    finally:
        sys.argv = before
    return 0


def _settle(parsed: Any, own: Mapping[str, str]) -> None:
    """Put the shipped tasks on the path; place arguments of the model where lm-eval expects them.

    Args:
        parsed: lm-eval's options.
        own: Model arguments from kgbench's option.
    """
    config = _config(parsed)
    named = parsed.include_path or config.get("include_path")
    folders = [str(path) for path in (named if isinstance(named, list) else [named]) if path]
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError(f"--include_path {folder}: there is no such folder")
    # lm-eval's parser takes one folder; the task manager behind it takes a list.
    parsed.include_path = [str(tasks_path()), *folders]
    if (getattr(parsed, "model", None) or config.get("model")) != MODEL:
        if own:
            raise InputError(f"{OPTION} is for --model kgbench; other models have no graft")
        return
    from lm_eval.utils import simple_parse_args_string  # as lm-eval parses one text

    args = getattr(parsed, "model_args", None) or config.get("model_args") or ""
    args = args if isinstance(args, Mapping) else simple_parse_args_string(args)
    given = {**args, **own}
    for name in ("device", "batch_size"):  # lm-eval passes these to the model separately
        value = given.pop(name, None)
        if getattr(parsed, name, None) is None and (value is not None or name not in config):
            setattr(parsed, name, "auto" if value is None else str(value))
    if "pair" in given:
        given.setdefault("model", given["pair"])  # lm-eval names the folder of results by it
    parsed.model_args = given


def _own_option(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments without `--continuation X`, and X."""
    names = [text.partition("=")[0] for text in arguments]
    if OPTION not in names:
        return arguments, None
    place = names.index(OPTION)
    _, given, value = arguments[place].partition("=")
    rest = arguments[place + 1 :]
    if not given:
        if not rest:
            raise InputError(f"{OPTION} needs a value: {', '.join(CONTINUATIONS)}")
        value, *rest = rest
    check_choice("continuation", value, CONTINUATIONS)
    return [*arguments[:place], *rest], value


def _config(parsed: Any) -> Mapping[str, Any]:
    """Content of lm-eval's `--config`, which its options override.

    Raises:
        InputError: It does not read.
    """
    path = getattr(parsed, "config", None)
    if not path:
        return {}
    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"--config {path} does not read: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(options, Mapping):
        raise InputError(f"--config {path}: expected a mapping of lm-eval's options")
    return options


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn lm-eval's errors on a user's mistake into errors of one line.

    Raises:
        InputError: lm-eval refuses an option, or another model was given a task of effects.
    """
    try:
        yield
    except ValueError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if "config" not in Path(last.filename).parts:
            raise
        raise InputError(f"lm-eval: {error}") from error
    except AttributeError as error:
        if error.name != REQUEST:
            raise
        raise InputError(
            "tasks of effects need --model kgbench: other models have no grafts"
        ) from error


# ---------------------------------------------------------------------------------- model arguments


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
    values = {}
    for name, value in given.items():
        if name not in _OTHERS and value is not None:
            values[name] = value
    if values.pop("trust_remote_code", False):
        raise InputError(
            "trust_remote_code stays off: kgbench runs no code that comes with a checkpoint"
        )
    known = [each.name for each in fields(Arguments)]
    for name in values:
        check_choice("model argument", name, known)
    for name, value in values.items():
        if name not in _READERS and isinstance(value, bool | float):
            raise InputError(
                f"{name}={value}: lm-eval parsed this as a number or a flag; give the model "
                "arguments as JSON, with quotes"
            )
    read: dict[str, Any] = {}
    for name, value in values.items():
        read[name] = _READERS[name](name, value) if name in _READERS else str(value)
    arguments = Arguments(**read)
    if (arguments.pair is None) == (arguments.pretrained is None):
        raise InputError(
            "which model? Give either pair=NAME, or pretrained=PATH,donor=PATH, in --model_args"
        )
    if arguments.pretrained is not None and not arguments.donor:
        raise InputError(
            "the finetuned checkpoint is missing: give donor=PATH with pretrained in --model_args"
        )
    check_choice("continuation", arguments.continuation, CONTINUATIONS)
    if arguments.graft is not None and arguments.graft not in BASELINES:
        parse_graft(arguments.graft)
    return arguments


def _texts(name: str, value: Any) -> dict[str, str]:
    """An object; of donors also one path, of other arguments a text such as `draws=16;window=3`."""
    if isinstance(value, Mapping):
        return {str(key): str(inner) for key, inner in value.items()}
    if name == "donor":
        return {"sft": str(value)}
    pairs = {}
    for part in filter(str.strip, str(value).split(";")):
        key, _, given = part.partition("=")
        if not key.strip() or not given.strip():
            raise InputError(
                f"{name}={value}: expected NAME=VALUE, several with semicolons, such as "
                f"{name}=draws=16;window=3"
            )
        pairs[key.strip()] = given.strip()
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
