"""YAML files that users write: studies, options of a run, and suites.

They hold what JSON can hold, each key once, since of two values of a key YAML takes the last one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kgbench.errors import InputError

_DEEPEST, _MOST_VALUES = 100, 10_000_000
"""Levels of nesting, and values with every alias written out."""
_LARGEST_BITS = 64
"""Of a whole number."""
_UNWRITABLE = re.compile("[\\0\\ud800-\\udfff]")


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set[tuple[str, str]]()
        for key, _ in node.value:
            if (named := (key.tag, str(key.value))) in keys:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} is given twice; give it once",
                    problem_mark=key.start_mark,
                )
            keys.add(named)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file, of values that JSON has.

    Raises:
        InputError: The file does not read, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = "" if isinstance(error, yaml.constructor.ConstructorError) else "is not YAML: "
        where = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{path}: {what}{where}{error.problem or error.context}") from None
    except RecursionError:
        raise InputError(f"{path}: it is nested more than {_DEEPEST} deep") from None
    except (yaml.YAMLError, ValueError) as error:  # the latter of numbers and dates
        raise InputError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    try:
        check_plain(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return content


def by_option(options: Mapping[Any, Any]) -> dict[str, Any]:
    """Values by option, in whose names a file may write `_` for `-`.

    Raises:
        InputError: An option is there in both ways.
    """
    named: dict[str, Any] = {}
    for key, value in options.items():
        name = str(key).replace("_", "-")
        if name in named:
            raise InputError(f"{name!r} is given twice; give it once")
        named[name] = value
    return named


def check_plain(content: Any) -> None:
    """Refuse values that JSON does not have, and what cannot be written out.

    Raises:
        InputError: There is such a value; the message names its place.
    """
    _n_values(content, (), {}, set())


def _n_values(value: Any, place: tuple[str, ...], counts: dict[int, int], around: set[int]) -> int:
    """Number of values in a value, itself among them.

    Args:
        value: Plain, or it is refused.
        place: Keys that lead to it.
        counts: Numbers of the lists and mappings before, by identity, since aliases share them.
        around: Identities of the lists and mappings that hold it.
    """
    where = f"{': '.join(place[:4])}: " if place else ""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}expected a number, not {value}")
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        raise InputError(f"{where}expected a number, not one of {value.bit_length()} bits")
    if isinstance(value, str) and _UNWRITABLE.search(value):
        raise InputError(f"{where}expected a text, not one with characters that no file has")
    if value is None or isinstance(value, str | bool | int | float):
        return 1
    if not isinstance(value, Mapping | list | tuple):
        raise InputError(
            f"{where}expected a text, a number, true, false, null, a list or a mapping, not "
            f"{type(value).__name__} ({str(value)[:40]}); put a text into quotes"
        )
    if id(value) in around or len(place) > _DEEPEST:
        raise InputError(f"{where}it is nested more than {_DEEPEST} deep")
    if id(value) not in counts:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        inside = around | {id(value)}
        counts[id(value)] = 1 + sum(
            _n_values(item, (*place, str(key)), counts, inside) for key, item in items
        )
    if counts[id(value)] > _MOST_VALUES:
        raise InputError(f"{where}it holds more than {_MOST_VALUES:,} values")
    return counts[id(value)]
