"""lm-eval's command line, with kgbench's model registered and its tasks on the path."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kgbench.errors import InputError, UnknownNameError
from kgbench.harness import MODEL, REQUEST, register, tasks_path
from kgbench.harness.arguments import CONTINUATIONS

__all__ = ["launch"]

OPTION = "--continuation"
"""The one option of kgbench; all others are lm-eval's."""


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
    with _process_arguments("kgbench lm-eval", rest):
        parser = HarnessCLI()
        try:
            parsed = parser.parse_args()
        except SystemExit as done:  # its help, or its refusal of an option
            return int(done.code or 0)
        if hasattr(parsed, "include_path"):
            _settle(parsed, {} if continuation is None else {"continuation": continuation})
        with _user_errors():
            parser.execute(parsed)
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
    given = {**_arguments(getattr(parsed, "model_args", None) or config.get("model_args")), **own}
    for name in ("device", "batch_size"):  # lm-eval passes these to the model separately
        value = given.pop(name, None)
        if getattr(parsed, name, None) is None and (value is not None or name not in config):
            setattr(parsed, name, "auto" if value is None else str(value))
    if "pair" in given:
        given.setdefault("model", given["pair"])  # lm-eval names the folder of results by it
    parsed.model_args = given


def _arguments(given: Any) -> dict[str, Any]:
    """Model arguments as a mapping, parsed as lm-eval parses one text."""
    from lm_eval.utils import simple_parse_args_string

    return (
        dict(given) if isinstance(given, Mapping) else dict(simple_parse_args_string(given or ""))
    )


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
    if value not in CONTINUATIONS:
        raise UnknownNameError("continuation", value, CONTINUATIONS)
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


@contextmanager
def _process_arguments(name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Replace the arguments of the process, which lm-eval parses."""
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        yield
    finally:
        sys.argv = before
