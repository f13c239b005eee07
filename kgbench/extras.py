"""Optional dependencies: whether they are installed, and the command that installs them.

The command names the packages themselves, since no package index has kgbench.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement


def requirements(extra: str) -> Iterator[Requirement]:
    """What an extra of kgbench asks for, without its marker; extras in it are resolved."""
    for line in metadata.requires("kgbench") or ():
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if (
            marker is None
            or marker.evaluate({"extra": ""})
            or not marker.evaluate({"extra": extra})
        ):
            continue
        if requirement.name != "kgbench":
            yield requirement
        for inner in sorted(requirement.extras) if requirement.name == "kgbench" else ():
            yield from requirements(inner)


def install_command(extra: str) -> str:
    """The command that installs an extra, as for a shell."""
    try:
        texts = dict.fromkeys(map(str, requirements(extra)))
    except metadata.PackageNotFoundError:  # kgbench itself runs from a clone, uninstalled
        texts = dict.fromkeys(["-e", f".[{extra}]"])
    return f"pip install {' '.join(map(shlex.quote, texts))}"


def is_installed(extra: str) -> bool:
    """Whether all that an extra asks for is installed, in whatever version."""
    try:
        for requirement in requirements(extra):
            metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return True
