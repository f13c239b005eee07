"""Options of the plug-in and their equivalents in the ini file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kgbench.runner import Spec

__all__ = ["Given", "pytest_addoption"]

ONE: Mapping[str, tuple[str, str]] = {
    "model": ("NAME", "Model pair by name, see `kgbench ls models`."),
    "recipient": ("PATH|ID", "Checkpoint before finetuning, without or in place of the model's."),
    "localizer": ("NAME|FILE.py:CLASS", "Method. Default: dynamic_graft."),
    "dataset": (
        "NAME|FILE",
        "Facts: a shipped data set, or your own .jsonl or .csv. Default: the pair's own.",
    ),
    "limit": ("N", "Only the first N facts."),
    "suite": ("NAME", "Named set of configurations. Default: pathways."),
    "save": (
        "DIR",
        "Keep records of the fixture `evaluation` here; one that is here already is not computed again. Default: a temporary folder.",
    ),
    "compare-fail": (
        "PATH",
        "Fail if a figure has moved since a record was saved, told at 95 % for all figures together: its folder, or a folder of records.",
    ),
}
"""Options with one value."""

MANY: Mapping[str, tuple[str, str]] = {
    "donor": ("NAME=PATH", "Finetuned checkpoint, sft=PATH or only PATH; may be repeated."),
    "prompt": (
        "NAMES",
        "Evaluation prompts; several with commas, may be repeated. Default: the suite's.",
    ),
}
"""Options that may be repeated."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the group of options, and an ini key for each."""
    group = parser.getgroup("kgbench", "where finetuned facts are retrieved from (kgbench)")
    for name, (value, about) in ONE.items():
        group.addoption(f"--kgbench-{name}", metavar=value, help=_help(about))
        parser.addini(_key(name), f"As --kgbench-{name}.", type="string", default="")
    for name, (value, about) in MANY.items():
        group.addoption(f"--kgbench-{name}", action="append", metavar=value, help=_help(about))
        parser.addini(_key(name), f"As --kgbench-{name}.", type="args", default=[])
    group.addoption(
        "--kgbench-strict",
        action="store_true",
        default=False,
        help="Claims that the facts do not decide fail.",
    )
    parser.addini("kgbench_strict", "As --kgbench-strict.", type="bool", default=False)


class Given:
    """What was given on the command line, or else in the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        """Read nothing yet."""
        self._config = config

    @property
    def strict(self) -> bool:
        """Whether claims that the facts do not decide fail."""
        return bool(self._config.getoption("kgbench_strict")) or str(
            self._ini("strict")
        ).lower() in ("true", "1", "yes", "on")

    def one(self, name: str) -> str | None:
        """The value of an option in `ONE`."""
        return self._config.getoption(_key(name)) or str(self._ini(name)) or None

    def many(self, name: str) -> Sequence[str]:
        """The values of an option in `MANY`."""
        given = self._config.getoption(_key(name)) or self._ini(name) or ()
        return shlex.split(given) if isinstance(given, str) else [str(value) for value in given]

    def _ini(self, name: str) -> Any:
        """A value of the ini file; one of another type than the option's is taken as it stands, such as a number in pytest.toml."""
        try:
            return self._config.getini(_key(name))
        except (pytest.UsageError, TypeError):
            return self._config._inicfg[_key(name)].value

    def on_command_line(self, name: str) -> bool:
        """Whether an option was given there."""
        return bool(self._config.getoption(_key(name)))

    def path(self, name: str) -> Path | None:
        """The value of an option as a path."""
        text = self.one(name)
        return None if text is None else self._full(name, text)

    def spec(self) -> Spec:
        """What is to be evaluated.

        Raises:
            InputError: A value does not read.
        """
        from kgbench.data import dataset_names
        from kgbench.models import catalog
        from kgbench.runner import Spec

        return Spec(
            localizer=self._localizer() or Spec.localizer,
            model=self._place("model", catalog.names()),
            recipient=self._place("recipient"),
            donors=self._donors(),
            dataset=self._place("dataset", dataset_names()),
            prompts=self._prompts(),
            suite=self.one("suite") or Spec.suite,
            limit=self._limit(),
        )

    def _base(self, name: str) -> Path:
        """The folder that relative paths start from: where pytest was called, or where the ini file is."""
        if self.on_command_line(name):
            return self._config.invocation_params.dir
        return (
            self._config.inipath.parent
            if self._config.inipath is not None
            else self._config.rootpath
        )

    def _place(self, name: str, known: Sequence[str] = ()) -> str | None:
        text = self.one(name)
        return None if text is None else self._resolved(name, text, known)

    def _resolved(self, name: str, text: str, known: Sequence[str] = ()) -> str:
        """A path in full; a name, or what may be the id of a checkpoint elsewhere, as it is."""
        path = self._full(name, text)
        return str(path) if text not in known and path.exists() else text

    def _full(self, name: str, text: str) -> Path:
        return Path(os.path.normpath(self._base(name) / Path(text).expanduser()))

    def _localizer(self) -> str | None:
        text = self.one("localizer")
        place, colon, attribute = (text or "").rpartition(":")
        return f"{self._resolved('localizer', place)}:{attribute}" if place and colon else text

    def _donors(self) -> dict[str, str]:
        from kgbench.runner.workload import read_donors

        donors = read_donors("--kgbench-donor", self.many("donor"))
        return {name: self._resolved("donor", place) for name, place in donors.items()}

    def _prompts(self) -> tuple[str, ...]:
        from kgbench.errors import InputError

        names = [name.strip() for text in self.many("prompt") for name in text.split(",")]
        if names and not any(names):
            raise InputError(
                "--kgbench-prompt: names no prompt; give some, see `kgbench ls prompts`, or leave it out"
            )
        return tuple(dict.fromkeys(filter(None, names)))

    def _limit(self) -> int | None:
        from kgbench.errors import InputError

        text = self.one("limit")
        if text is not None and not (text.isdecimal() and int(text) > 0):
            raise InputError(
                f"--kgbench-limit {text!r}: expected how many facts, a whole number of at least 1"
            )
        return None if text is None else int(text)


def _help(text: str) -> str:
    """A help text that argparse, which formats it, shows as it stands."""
    return text.replace("%", "%%")


def _key(name: str) -> str:
    return f"kgbench_{name.replace('-', '_')}"
