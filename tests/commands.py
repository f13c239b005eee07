"""Commands run in this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import NamedTuple

import pytest

from kgbench.cli import main


class Answer(NamedTuple):
    """Exit status, stdout and stderr of a command."""

    status: int
    out: str
    err: str


Call = Callable[..., Answer]
"""Runs a command whose first words are one text."""


def caller(capsys: pytest.CaptureFixture[str], *before: str) -> Call:
    """What runs commands that begin with some words."""

    def call(line: str = "", *more: object) -> Answer:
        status = main([*before, *shlex.split(line), *map(str, more)])
        return Answer(status, *capsys.readouterr())

    return call


def refused(answer: Answer) -> str:
    """The one line of a refusal, having checked that it is one: status 2, nothing on stdout, no
    traceback.
    """
    assert answer.status == 2, answer.err
    assert answer.out == ""
    assert answer.err.startswith("kgbench: error: ")
    assert answer.err.count("\n") == 1, answer.err
    return answer.err
