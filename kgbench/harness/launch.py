"""lm-eval's own command line, with kgbench's model registered and its tasks on the path."""

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
"""The one option of ours; all others are lm-eval's."""


def launch(arguments: Sequence[str]) -> int:
    """Run lm-eval's command line.

    Args:
        arguments: As lm-eval takes them, and `--continuation`, which becomes a model argument.

    Returns:
        The exit status.

    Raises:
        InputError: lm-eval is not installed, or `--continuation` has no value that it can have.
    """
    register()
    from lm_eval._cli.harness import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    with _called("kgbench lm-eval", _rewritten(list(arguments))):
        parser = HarnessCLI()
        try:
            parsed = parser.parse_args()
        except SystemExit as done:  # its help, or its refusal of an option
            return int(done.code or 0)
        _settle(parsed)
        with _told():
            parser.execute(parsed)
    return 0


def _settle(parsed: Any) -> None:
    """Put our tasks on the path, and in the place of lm-eval's defaults those that suit our model."""
    if not hasattr(parsed, "include_path"):
        return
    config = _config(parsed)
    named = parsed.include_path or config.get("include_path")
    # lm-eval takes one folder from the command line, but a list from Python.
    parsed.include_path = [str(tasks_path()), *(str(path) for path in (named if isinstance(named, list) else [named]) if path)]
    if (getattr(parsed, "model", None) or config.get("model")) == MODEL:
        for name in ("device", "batch_size"):
            if getattr(parsed, name, None) is None and name not in config:
                setattr(parsed, name, "auto")


def _config(parsed: Any) -> Mapping[str, Any]:
    """What lm-eval's own `--config` says, which its options overrule."""
    path = getattr(parsed, "config", None)
    found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) if path and Path(path).is_file() else None
    return found if isinstance(found, Mapping) else {}


def _rewritten(arguments: list[str]) -> list[str]:
    """`--continuation X` as a model argument."""
    found = next((i for i, text in enumerate(arguments) if text.partition("=")[0] == OPTION), None)
    if found is None:
        return arguments
    _, given, value = arguments[found].partition("=")
    rest = arguments[found + 1 :]
    if not given:
        if not rest:
            raise InputError(f"{OPTION} needs a value: {', '.join(CONTINUATIONS)}")
        value, *rest = rest
    if value not in CONTINUATIONS:
        raise UnknownNameError("continuation", value, CONTINUATIONS)
    return [*arguments[:found], *rest, "--model_args", f"continuation={value}"]


@contextmanager
def _told() -> Iterator[None]:
    """Tell a user's mistake in a line where lm-eval shows its own code.

    Raises:
        InputError: lm-eval's reading of its options refuses something, or another model was given a task of effects.
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
        raise InputError("tasks of effects need --model kgbench: other models answer as themselves alone") from error


@contextmanager
def _called(name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Have lm-eval, which reads the process's own arguments, see others."""
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        yield
    finally:
        sys.argv = before
