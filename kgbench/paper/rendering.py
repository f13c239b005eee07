"""Pages and pictures of reproductions as files."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from io import BytesIO
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from kgbench.numbers import duration_text, number_text
from kgbench.report.bars import picture_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Shown = TypeVar("_Shown")

SMALL_COLOURS = 64
"""Of a small file; with all of them it is eight times as large."""


def small_picture(drawing: Callable[[_Shown], Figure], shown: _Shown) -> bytes:
    """A drawing as a WebP file without loss, of half the usual size, in few colours."""
    from PIL import Image

    (png,), buffer = picture_bytes(drawing, shown, "png"), BytesIO()
    with Image.open(BytesIO(png)) as drawn:
        small = drawn.convert("RGB").resize(
            (drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS
        )
        few = small.quantize(SMALL_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.convert("RGB").save(buffer, "webp", lossless=True, quality=100, method=6)
    return buffer.getvalue()


def filled_page(package: str, **values: object) -> str:
    """A Markdown page from the template REPORT.md.jinja of a package.

    Numbers are written as in tables by the filters `number`, `duration` and `median`.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= {"number": number_text, "duration": duration_text, "median": median}
    text = files(package).joinpath("REPORT.md.jinja").read_text("utf-8")
    return environment.from_string(text).render(values)
