"""The pictures of a run, beside its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kgbench.cli.files import write_file
from kgbench.records import Record

Draw = Callable[[Record], Mapping[str, bytes]]


def write_pictures(record: Record, folder: Path) -> list[Path]:
    """Draw a record's pictures as PNG and SVG, unless they are there: bars, and where sites were ranked the curve and the map.

    The names of those that depend on it hold the metric, since a stored run can be shown on another one.

    Raises:
        OutputError: The folder cannot be written.
    """
    from kgbench import board

    drawn: list[tuple[str, Draw]] = [(f"chart-{record.metric}", board.chart_files)]
    if record.curve:
        drawn.append((f"curve-{record.metric}", board.curve_files))
    if record.scores:
        drawn.append(("map", board.heatmap_files))
    return [
        path
        for name, draw in drawn
        for path in _missing(
            record, [folder / f"{name}{suffix}" for suffix in (".png", ".svg")], draw
        )
    ]


def _missing(record: Record, paths: list[Path], draw: Draw) -> list[Path]:
    """Write what is not there yet."""
    if not all(path.exists() for path in paths):
        contents = {Path(name).suffix: content for name, content in draw(record).items()}
        for path in paths:
            write_file(path, contents[path.suffix])
    return paths
