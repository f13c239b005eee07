"""Pictures as files: one style, and equal bytes for equal records under one version of matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from io import BytesIO
from typing import TYPE_CHECKING, Any

from kgbench.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FAINT", "INK", "picture_files", "styled"]

INK, FAINT = "#222222", "#D9D9D9"
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "kgbench", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9.0}


def styled(draw: Callable[[Record], Figure]) -> Callable[[Record], Figure]:
    """Draw in the style of all pictures."""

    @wraps(draw)
    def drawn(record: Record) -> Figure:
        import matplotlib

        with matplotlib.rc_context(SETTINGS):
            return draw(record)

    return drawn


def picture_files(name: str, draw: Callable[[Record], Figure], record: Record) -> dict[str, bytes]:
    """A picture as PNG and SVG, by file name."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        figure = draw(record)
        return {f"{name}.{kind}": _bytes(figure, kind) for kind in ("png", "svg")}


def _bytes(figure: Figure, kind: str) -> bytes:
    """The file without date and program version, which would differ from run to run."""
    buffer = BytesIO()
    unnamed = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(buffer, format=kind, dpi=160, metadata=unnamed, facecolor="white")
    return buffer.getvalue()
