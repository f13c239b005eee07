"""Everything that kgbench raises on purpose.

KgbenchError
├── InputError                 the user can mend it: exit status 2
│   ├── UnknownNameError       a name that is not in a registry, with the nearest ones
│   ├── GraftSyntaxError       a graft expression that does not parse, with a caret
│   ├── DataError              a data file that does not read, with line and field
│   ├── RegionError            a region that a prompt does not have, or that cannot be located
│   ├── ModelError             a checkpoint, pair or family that does not fit
│   └── OutputError            a place that cannot be written
└── LawError                   a law of the engine does not hold on this model: exit status 1
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from errno import EDQUOT, EFBIG, ENOSPC
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import ValidationError

_F = TypeVar("_F", bound=Callable[..., Any])
_USER = re.compile(r"(?<=://)[^/\s@]+@")


class KgbenchError(Exception):
    """Base of all errors that kgbench raises on purpose."""

    exit_status = 1

    def __str__(self) -> str:
        return without_password(super().__str__())


class InputError(KgbenchError):
    """Invalid input; the message names the remedy."""

    exit_status = 2


class UnknownNameError(InputError):
    """A name that nothing is registered under."""

    def __init__(
        self,
        kind: str,
        name: str,
        choices: Iterable[str],
        hint: str = "",
        most: int | None = None,
        candidates: Sequence[str] = (),
    ) -> None:
        """Compose the message.

        Args:
            kind: What the name should name, such as "model".
            name: The name that was given.
            choices: All names that would do.
            hint: A sentence on what else could be given.
            most: How many names are listed at most, where there can be hundreds; the start of a
                name counts as near then.
            candidates: Names that it may mean, though it is not spelt like them.
        """
        names = sorted(set(choices))
        near = list(candidates[:2]) or get_close_matches(name, names, n=2, cutoff=0.6)
        near = near or [k for k in names if k.lower() == name.lower()]
        if most is not None and not near:
            starts = {choice[: len(name)]: choice for choice in reversed(names)}
            near = [starts[start] for start in get_close_matches(name, starts, n=2, cutoff=0.8)]
        guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        shown = names if most is None else [*near, *(n for n in names if n not in near)][:most]
        more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
        listed = f" Known: {', '.join(shown)}{more}." if names else ""
        super().__init__(f"unknown {kind} {name!r}.{guess}{listed}{' ' + hint if hint else ''}")
        self.name, self.near = name, tuple(near)


class GraftSyntaxError(InputError):
    """A graft expression that does not parse."""

    def __init__(self, text: str, offset: int, expected: str) -> None:
        """Compose the message, with a caret under the offending character.

        Args:
            text: The expression.
            offset: Index of the first character that does not fit.
            expected: What the grammar allows there.
        """
        character = repr(text[offset]) if offset < len(text) else "its end"
        where = f"cannot read the graft {text!r} at character {offset + 1}, {character}"
        super().__init__(f"{where}: expected {expected}\n    {text}\n    {' ' * offset}^")
        self.text, self.offset, self.expected = text, offset, expected


class DataError(InputError):
    """A data file that does not read; the message names line and field."""


class RegionError(InputError):
    """A region that a prompt does not have, or that cannot be located in its tokens."""


class ModelError(InputError):
    """A checkpoint, a pair or a family map that does not fit."""


class OutputError(InputError):
    """A place that cannot be written."""

    @classmethod
    def of(cls, what: str, place: Path, error: OSError) -> OutputError:
        """The error of a write that can be taken up again, as on a full disk.

        Args:
            what: What could not be written, such as "the record".
            place: Where it should go.
            error: The error of the system.
        """
        why, remedy = error.strerror or str(error), "give another --output-dir"
        if error.errno in (ENOSPC, EDQUOT, EFBIG):
            why, remedy = f"{why}{_free(place)}", f"make room there, or {remedy}"
        return cls(
            f"cannot write {what} to {str(place)!r}: {why}; {remedy}. What was finished before is "
            "kept: the same command goes on"
        )


def _free(place: Path) -> str:
    """Free space on the disk of a place, as part of a sentence; empty where unknown."""
    there = next((path for path in (place, *place.parents) if path.exists()), None)
    try:
        return "" if there is None else f" ({shutil.disk_usage(there).free / 1e6:,.1f} MB free)"
    except OSError:
        return ""


class NotApplicableError(KgbenchError):
    """A configuration that a method cannot express; the record shows the message as reason."""


class LawError(KgbenchError):
    """A law of the engine does not hold on this model."""


def without_password(text: str) -> str:
    """A text without the users and passwords of its URLs."""
    return _USER.sub("***@", text)


def check_choice(kind: str, name: str, choices: Collection[str], hint: str = "") -> None:
    """Refuse a name that is none of the known ones.

    Raises:
        UnknownNameError: It is not among them; the arguments are those of the error.
    """
    if name not in choices:
        raise UnknownNameError(kind, name, choices, hint)


def first_fault(error: ValidationError, place: str) -> str:
    """The first fault that pydantic found: where it is, and what.

    Args:
        error: What it raised.
        place: What to call the content itself.
    """
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or place}: {first['msg']}"


def first_line(error: object) -> str:
    """First line of an error's message; the name of its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ------------------------------------------------------------------ options as arguments of Python

_is_command_line: ContextVar[bool] = ContextVar("is_command_line", default=False)
_ARGUMENTS = {
    "column": "columns",
    "donor": "donors",
    "graft": "grafts",
    "localizer_arg": "localizer_args",
    "readout_arg": "readout_args",
    "prompt": "prompts",
    "template": "prompts",
}
"""Arguments of `kgbench.evaluate`, by option, where their names differ."""
_OPTION = re.compile(
    r"kgbench [a-z][^`';\n]*"  # a command stays as it is
    r"|--(?P<option>[a-z]+(?:-[a-z]+)*)"
    r"(?:[ =](?:(?P<key>\w+)=)?(?P<value>[A-Z]{2,}(?:[\w.:]*\w)?|id\b|bfloat16|float32|"
    r"(?:auto|a2b|both)\b))?"
)


@contextmanager
def command_line() -> Iterator[None]:
    """Errors name options of the command line, also where `python_names` is in force."""
    token = _is_command_line.set(True)
    try:
        yield
    finally:
        _is_command_line.reset(token)


class python_names:
    """Errors name arguments of Python in the place of options: `subject=` for `--subject`.

    A function that it decorates refuses an unknown argument with the nearest names.
    """

    def __init__(self, **names: str) -> None:
        """Take names.

        Args:
            **names: Arguments by option, where they are not those of `kgbench.evaluate`.
        """
        self.names = {**_ARGUMENTS, **names}

    def __call__(self, function: _F) -> _F:
        """The function with errors in these words."""
        known = signature(function).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self:
                for name in options if not takes_any else ():
                    check_choice(f"argument of {function.__name__}:", name, known)
                return function(*arguments, **options)

        return cast("_F", call)

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, _: object, error: BaseException | None, *place: object) -> None:
        """Rename."""
        if isinstance(error, KgbenchError) and not _is_command_line.get():
            text = _OPTION.sub(lambda match: _argument(match, self.names), str(error))
            error.args = (text, *error.args[1:])


def _argument(match: re.Match[str], arguments: Mapping[str, str]) -> str:
    if match["option"] is None:
        return match[0]
    name = match["option"].replace("-", "_")
    value, key = match["value"], match["key"]
    argument = arguments.get(name, name)
    if value is None:
        return argument
    if value.islower():
        value = f'"{value}"'
    if name == "donor" or key:
        label = key if key and key.isupper() else f'"{key or "sft"}"'
        value = f"{{{label}: {value}}}"
    return f"{argument}={value}"
