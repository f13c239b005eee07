"""Packages with entry points, as pip lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install_package(folder: Path, group: str, points: Mapping[str, str]) -> Path:
    """The folder, to which a package with these entry points is added; its modules are written by
    whoever asks.
    """
    info = folder / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    lines = "".join(f"{name} = {place}\n" for name, place in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    return folder
