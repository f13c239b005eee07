"""Where a result comes from: versions, commit, platform, time."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from kgbench.records.identity import Strict
from kgbench.version import __version__

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pyarrow",
    "pydantic",
)
"""Whose versions are stored."""

DECISIVE = ("torch", "transformers", "numpy")
"""Of these, the packages that compute."""

SOURCES = (".py", ".json", ".toml")
"""Endings of the package's files that decide what comes out of a run."""


class Commit(Strict):
    """The commit of the package's own checkout."""

    hash: str
    dirty: bool
    """Whether files of the package differ from the commit."""


class Provenance(Strict):
    """Where a result comes from; no absolute paths, no credentials."""

    kgbench: str
    commit: Commit | None = None
    """None where the package was installed without a checkout."""
    packages: dict[str, str]
    python: str
    platform: str
    device: str
    """Name of the device, such as the processor's or accelerator's model."""
    time: str
    """When the run ended, UTC, ISO 8601."""


def collect_provenance(device: str) -> Provenance:
    """Provenance as of now.

    Args:
        device: Name of the device that computed.
    """
    return Provenance(
        kgbench=__version__,
        commit=package_commit(Path(__file__).resolve().parents[1]),
        packages=package_versions(),
        python=platform.python_version(),
        platform=platform.platform(terse=True) + " " + platform.machine(),
        device=device,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


@cache
def package_versions() -> dict[str, str]:
    """Versions of the packages that results depend on, as far as they are installed."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def code_stamp() -> str:
    """The state of the code that computes: parts of one run by two of these do not go together."""
    sources = sources_hash(Path(__file__).resolve().parents[1])[:16]
    return ", ".join(_decisive(f"{__version__} (sources {sources})", package_versions()))


@cache
def sources_hash(package: Path) -> str:
    """SHA-256, in hexadecimal, over names and bytes of a package's files at the first call."""
    digest = sha256()
    files = (path for path in package.rglob("*") if path.suffix in SOURCES and path.is_file())
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def other_versions(before: Provenance) -> str | None:
    """Which versions computed a result and which are here, where they differ.

    Args:
        before: Of the result.
    """
    then = _decisive(before.kgbench, before.packages)
    now = _decisive(__version__, package_versions())
    differing = [(old, new) for old, new in zip(then, now, strict=True) if old != new]
    if not differing:
        return None
    old, new = map(", ".join, zip(*differing, strict=True))
    return f"computed before by {old} (here: {new})"


def _decisive(version: str, packages: Mapping[str, str]) -> list[str]:
    return [f"kgbench {version}", *(f"{name} {packages.get(name, 'unknown')}" for name in DECISIVE)]


def package_commit(package: Path) -> Commit | None:
    """The commit of the checkout that holds this package folder, not of the working directory.

    Args:
        package: The folder of the package. A folder that git does not track, such as an installed
            one inside another repository, has no commit.
    """
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = None if tracked is None else _git(package, "rev-parse", "HEAD")
    if commit is None:
        return None
    return Commit(hash=commit, dirty=bool(_git(package, "status", "--porcelain", "--", ".")))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
