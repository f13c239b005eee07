"""Folders of task files: what lm-eval would leave out of one without a word."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from kgbench.errors import InputError, UnknownNameError
from kgbench.harness import tasks_path
from kgbench.harness.findings import Finding, Place
from kgbench.registry import told

__all__ = ["Folder", "functions", "known_name", "manager", "quiet", "scan"]


@dataclass(frozen=True)
class Folder:
    """The YAML files of a folder, read as lm-eval reads them, but with a word on each that it would skip."""

    tasks: dict[str, Path]
    """By name, the file of each task that lm-eval finds."""
    groups: dict[str, Path]
    files: dict[Path, str | None]
    """Those that read, with the names of their tasks or groups."""
    findings: tuple[Finding, ...]


@contextmanager
def quiet() -> Iterator[None]:
    """Without lm-eval's warnings, which come with every task that has data of its own."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def manager(include_path: Path | None) -> Any:
    """lm-eval's own loader of tasks, over ours and those of another folder."""
    from lm_eval.tasks import TaskManager

    return TaskManager(
        include_path=[tasks_path(), *([include_path] if include_path else [])],
        include_defaults=False,
    )


def scan(root: Path) -> Folder:
    """Read all task files of a folder, without the modules that they name.

    Raises:
        InputError: There are none.
    """
    from lm_eval.tasks._index import TaskIndex
    from lm_eval.tasks._yaml_loader import load_yaml

    tasks: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    files: dict[Path, str | None] = {}
    findings: list[Finding] = []
    for path in TaskIndex._iter_yaml_files(root):
        try:
            config = load_yaml(path, resolve_func=False)
        except Exception as error:  # whatever YAML, or a file that is not there, raises
            findings.append(Finding(Place(path, _said_name(path)), _unreadable(path, error)))
            continue
        files[path] = next(
            (name for key in ("task", "group") if isinstance(name := config.get(key), str)), None
        )
        findings += _named(path, config, tasks, groups)
    if not (tasks or groups or findings):
        raise InputError(
            f"{root}: no tasks; expected files that end with .yaml and have a key 'task'"
        )
    return Folder(tasks, groups, files, tuple(findings))


def known_name(name: str, known: Sequence[str]) -> str:
    """The name, if it is known.

    Raises:
        UnknownNameError: It is not.
    """
    if name not in known:
        raise UnknownNameError(
            "task",
            name,
            get_close_matches(name, known),
            "'kgbench tasks ls' lists those of kgbench.",
        )
    return name


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"includes {_from(path, error.filename)}, which is not there; lm-eval leaves the file out without a word"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        which = (
            ""
            if Path(mark.name) == path.resolve()
            else f"includes {_from(path, mark.name)}, which "
        )
        what = (
            f"{which}is not YAML: {error.problem} at line {mark.line + 1}, column {mark.column + 1}"
        )
        return f"{what}; lm-eval leaves the file out without a word"
    return f"does not read ({told(error)}); lm-eval leaves the file out without a word"


def _from(path: Path, other: str) -> str:
    return os.path.relpath(other, path.parent.resolve())


def _said_name(path: Path) -> str | None:
    """The name of the task in a file that does not read."""
    found = re.search(
        r"^task:\s*['\"]?([\w.-]+)",
        path.read_text(encoding="utf-8", errors="replace"),
        re.MULTILINE,
    )
    return found[1] if found else None


def _named(
    path: Path, config: dict[str, Any], tasks: dict[str, Path], groups: dict[str, Path]
) -> Iterator[Finding]:
    """Enter a file's task or group by its name; a finding where that cannot be done."""
    kind, table = (
        ("group", groups) if "group" in config and "class" not in config else ("task", tasks)
    )
    name = config.get(kind)
    if name is None:
        if not path.name.startswith("_") and _meant_as_task(config):
            why = "has no key 'task', so lm-eval leaves it out without a word; name the task, or begin the file's name with '_'"
            yield Finding(Place(path, field="task"), f"{why} if others include it")
    elif not isinstance(name, str) or not name.strip():
        yield Finding(
            Place(path, field=kind), f"the name of a {kind} must be a text, found {name!r}"
        )
    elif name in table:
        yield Finding(
            Place(path, name, field=kind),
            f"{table[name]} has a {kind} of this name already; lm-eval takes one of them only",
        )
    else:
        table[name] = path


def _meant_as_task(config: dict[str, Any]) -> bool:
    from lm_eval.config.task import TaskConfig

    return bool(config.keys() & {"class", *(field.name for field in fields(TaskConfig))})


def functions(path: Path, name: str | None) -> Iterator[Finding]:
    """Each `!function` of a file that cannot be found. This imports the modules that they are in, as loading the task does."""
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    for field, dotted in _tagged(
        yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader), ""
    ):
        try:
            _import_func_in_yml(dotted, path.parent)
        except (Exception, SystemExit) as error:  # whatever a user's module raises at import
            yield Finding(
                Place(path, name, field=field),
                f"!function {dotted} is not to be had: {told(error.__cause__ or error)}",
            )


def _tagged(node: yaml.Node | None, field: str) -> Iterator[tuple[str, str]]:
    """Key and dotted name of every `!function` under a node of YAML."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _tagged(value, f"{field}.{key.value}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _tagged(value, f"{field}[{index}]")
    elif isinstance(node, yaml.ScalarNode) and node.tag == "!function":
        yield field, str(node.value)
