"""Parameters of plug-ins that are given as text, as on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kgbench.errors import InputError
from kgbench.parameters import made


@dataclass
class Method:
    """Parameters of several types."""

    layers: int | str = 0
    share: float | str | None = None
    several: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("layers", "3", 3),
        ("layers", "last", "last"),
        ("share", ".5", 0.5),
        ("share", "half", "half"),
        ("share", "none", None),
        ("several", "1, 2", (1, 2)),
        ("several", "none", None),
        ("names", "a,3", ("a", "3")),
    ],
)
def test_the_first_type_that_takes_the_text(name: str, text: str, value: Any) -> None:
    """Of several types the first that can be read from the text."""
    found = getattr(made(Method, "localizer", "method", {name: text}), name)
    assert found == value and type(found) is type(value)


def test_no_type_takes_the_text() -> None:
    """The parameter, what was expected and the text."""
    with pytest.raises(
        InputError, match=r"'method': the parameter several: expected .*, not '1,a'"
    ):
        made(Method, "localizer", "method", {"several": "1,a"})
