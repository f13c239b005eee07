"""Picture files: one style; equal records give equal bytes under one version of matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FAINT", "INK", "KINDS", "picture_bytes", "picture_files", "styled"]

_Shown = TypeVar("_Shown")

INK, FAINT = "#222222", "#D9D9D9"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "kgbench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
}


KINDS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Of files, with what is left out of each: date and program version, which would differ from run to run."""


def styled(draw: Callable[[_Shown], Figure]) -> Callable[[_Shown], Figure]:
    """Draw in the style of all pictures."""

    @wraps(draw)
    def drawn(shown: _Shown) -> Figure:
        import matplotlib

        with matplotlib.rc_context(SETTINGS):
            return draw(shown)

    return drawn


def picture_files(name: str, draw: Callable[[_Shown], Figure], shown: _Shown) -> dict[str, bytes]:
    """A picture as PNG and SVG, by file name."""
    return _drawn(draw, shown, {kind: f"{name}.{kind}" for kind in ("png", "svg")})


def picture_bytes(draw: Callable[[_Shown], Figure], shown: _Shown, kind: str) -> bytes:
    """A picture as a file of one of `KINDS`."""
    return _drawn(draw, shown, {kind: kind})[kind]


def _drawn(
    draw: Callable[[_Shown], Figure], shown: _Shown, names: dict[str, str]
) -> dict[str, bytes]:
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        figure = draw(shown)
        return {name: _bytes(figure, kind) for kind, name in names.items()}


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=160, metadata=KINDS[kind], facecolor="white")
    return buffer.getvalue()
