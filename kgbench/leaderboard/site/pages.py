"""How templates become pages."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["POLICY", "Pages", "brief", "script_call"]

POLICY = (
    "default-src 'none';script-src 'self' file:;style-src 'self' file: 'unsafe-inline';"
    "img-src 'self' file: data:;base-uri 'none';form-action 'none'"
)
"""What a page may load: files of its own site."""


class Pages:
    """The templates, and what all pages share."""

    def __init__(self, **shared: object) -> None:
        """Read the templates.

        Args:
            shared: What every page may use, such as the boards that it links to.
        """
        loader = PackageLoader("kgbench.leaderboard.site")
        self._templates = Environment(
            loader=loader,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self._templates.filters["inline"] = _inline
        self._templates.filters["capital"] = _capital
        self._templates.filters["brief"] = brief
        self._templates.globals.update(shared, policy=POLICY)

    def render(self, template: str, up: str = "", **content: object) -> bytes:
        """A page.

        Args:
            template: Name of its template.
            up: The way to the site's root: empty, or `../` in a folder.
            content: What the template asks for.
        """
        return self._templates.get_template(template).render(up=up, **content).encode()


def script_call(function: str, *arguments: Any) -> bytes:
    """A data file: a script that passes JSON to the page, since pages opened as files cannot fetch."""
    return f"{function}({','.join(map(_json, arguments))});\n".encode()


def _capital(text: str) -> str:
    """With a capital first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def brief(title: str) -> str:
    """A table's title without what it says after a colon."""
    return title.partition(": ")[0]


def _inline(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever texts it holds."""
    text = _json(value)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
