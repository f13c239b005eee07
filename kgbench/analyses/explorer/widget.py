"""The explorer in a notebook: requests and answers travel by the kernel's own channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kgbench.analyses.explorer import Reader, answer, page_of


class Explorer(anywidget.AnyWidget):
    """A widget that shows a prompt, and reads those that are typed.

    Args:
        reader: Reads prompts.
        payload: What is shown at first, as of `Reader.read`.
    """

    _esm = Path(__file__).with_name("explorer.js")
    _css = Path(__file__).with_name("explorer.css")
    request = traitlets.Dict().tag(sync=True)
    """What the widget asks for: `text`, `answer`, `subject`, `cells`, and a number."""
    payload = traitlets.Dict().tag(sync=True)
    """What was read of it, with the same number; or `error`."""

    def __init__(self, reader: Reader, payload: dict[str, Any]) -> None:
        self._reader = reader
        super().__init__(request={}, payload=payload)
        self.observe(self._read, "request")

    def _read(self, change: Any) -> None:
        request = change["new"]
        self.payload = {**answer(self._reader, request), "number": request.get("number")}

    def save(self, path: str | Path) -> None:
        """Write what is shown as a page, which needs no Python."""
        Path(path).write_text(page_of(self.payload), encoding="utf-8")
