"""Tables that are shipped with the package, and the hash that a file is known by."""

from __future__ import annotations

import sys
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def read_toml(package: str, name: str) -> dict[str, Any]:
    """The content of `NAME.toml` in a package, which is read once; not to be changed."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))


def file_hash(path: Path) -> str:
    """SHA-256, in hexadecimal, of a file of any size."""
    digest = sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
