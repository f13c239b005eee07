"""Sessions of pytest in processes of their own, as a user would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import forks

HERE = Path(__file__).parent
STRICT = "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"


def session(
    folder: Path,
    *arguments: str,
    plugins: Sequence[str] = ("kgbench.pytest_plugin",),
    run: Callable[..., subprocess.CompletedProcess[str]] = forks.run,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """A session of pytest in a folder, with these plug-ins, or where none is named all that are
    installed; `subprocess.run` runs it in a process that has imported nothing. It is not known to
    run in CI unless the variables say so.
    """
    dropped = ("PYTEST", "CI")
    ours = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if plugins else {}
    environment = {
        **ours,
        **only,
        **variables,
        "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE))),
    }
    line = [
        sys.executable,
        "-m",
        "pytest",
        *(f"-p{plugin}" for plugin in plugins),
        "-pno:cacheprovider",
        *arguments,
    ]
    return run(line, capture_output=True, text=True, cwd=folder, env=environment)


SPREAD = ("kgbench.pytest_plugin", "xdist")


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """What the last line of a session counts."""
    last = next(
        line for line in reversed(done.stdout.splitlines()) if re.search(r" in [\d.]+s", line)
    )
    return {
        what: int(number)
        for number, what in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])
    }


def write(folder: Path, **files: str) -> Path:
    for name, text in {
        "pytest.ini": STRICT,
        **{f"{name}.py": text for name, text in files.items()},
    }.items():
        (folder / name).write_text(text, "utf-8")
    return folder
