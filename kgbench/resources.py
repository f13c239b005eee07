"""Tables that are shipped with the package."""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def read_toml(package: str, name: str) -> dict[str, Any]:
    """The content of `NAME.toml` in a package, which is read once; not to be changed."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
