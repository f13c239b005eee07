"""YAML files that users write: studies, options of a run, and suites.

They hold what JSON can hold, each key once, since of two values of a key YAML takes the last one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from kgbench.errors import InputError


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice, and aliases, which make much of little."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # of the stubs
            raise yaml.constructor.ConstructorError(
                problem="an alias; write out what it stands for", problem_mark=mark
            )
        return super().compose_node(parent, index)

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
        raise InputError(f"{path}: it is nested too deep") from None
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
        InputError: There is such a value.
    """
    try:
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            "expected texts, numbers, true, false, null, lists and mappings, and a date in quotes "
            f"({error})"
        ) from None
