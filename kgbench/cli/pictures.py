"""The picture of a run, beside its record."""

from __future__ import annotations

import os
from pathlib import Path

from kgbench.errors import OutputError
from kgbench.records import Record


def write_pictures(record: Record, folder: Path) -> list[Path]:
    """Draw a record's chart as PNG and SVG, unless they are there.

    Their names hold the metric, since a stored run can be shown on another one.

    Raises:
        OutputError: The folder cannot be written.
    """
    paths = [folder / f"chart-{record.metric}{suffix}" for suffix in (".png", ".svg")]
    if not all(path.exists() for path in paths):
        from kgbench.board import chart_files

        contents = {Path(name).suffix: content for name, content in chart_files(record).items()}
        for path in paths:
            _write(path, contents[path.suffix])
    return paths


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"cannot write the picture {str(path)!r}: {error.strerror}") from error
