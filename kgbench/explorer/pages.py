"""Homes of the explorer: a page without Python, and a server on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from kgbench.errors import KgbenchError
from kgbench.explorer.reading import Reader

__all__ = ["HOST", "answer", "page_of", "serve"]

HOST = "127.0.0.1"
_LARGEST = 1 << 20
"""Bytes of a request."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src {}"
)

_ASK = """async (request) => {
  const headers = { "Content-Type": "application/json" };
  const found = await fetch("read", { method: "POST", headers, body: JSON.stringify(request) });
  if (!found.ok) throw new Error(`the server answered ${found.status}`);
  return found.json();
}"""
"""Asks the server that the page came from."""
_FRAME = (
    ":root { color-scheme: light dark; } "
    "body { background: Canvas; color: CanvasText; margin: 0 auto; max-width: 72rem; "
    "padding: 0 1rem 2rem; font: 16px/1.4 system-ui, sans-serif; }"
)
"""Style of a page around the explorer."""


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def page_of(payload: Mapping[str, Any], live: bool = False) -> str:
    """A page that shows what was read of a prompt, and requests nothing.

    Args:
        payload: As of `Reader.read`.
        live: Whether a server behind the page reads further prompts.
    """
    data = json.dumps(payload).replace("<", "\\u003c")
    script = _part("explorer.js").rpartition("export default")[0]
    start = _ASK if live else "undefined"
    policy = _POLICY.format("'self'" if live else "'none'")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>kgbench: {escape(str(payload.get('text', '')))}</title>"
        f"<style>{_FRAME}{_part('explorer.css')}</style></head>"
        '<body><main><h1>Where is it retrieved from?</h1><div id="explorer"></div></main>'
        f'<script type="module">{script}\nconst data = {data};\n'
        f'show(document.getElementById("explorer"), data, {start});</script></body></html>\n'
    )


def answer(reader: Reader, asked: Any) -> dict[str, Any]:
    """The payload of a request from a page or a notebook, or `{"error": …}` in a line."""
    if not isinstance(asked, dict) or not isinstance(asked.get("text"), str):
        return {"error": "expected an object with the prompt as `text`"}
    cells = []
    for cell in asked.get("cells") or ():
        if not (isinstance(cell, list) and len(cell) == 2 and all(type(i) is int for i in cell)):
            return {"error": f"expected cells as pairs of token and row; found {str(cell)[:40]}"}
        cells.append((cell[0], cell[1]))
    try:
        return reader.read(
            asked["text"], asked.get("answer") or None, asked.get("subject") or None, cells
        )
    except KgbenchError as error:
        return {"error": str(error)}


class _Handler(BaseHTTPRequestHandler):
    """Serves the page, and reads prompts for it, one at a time."""

    server: ThreadingHTTPServer

    def __init__(self, reader: Reader, page: str, lock: Lock, *arguments: Any) -> None:
        self.reader, self.page, self.lock = reader, page, lock
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """The page."""
        if self._is_ours() and self.path in ("/", "/index.html"):
            self._send(self.page.encode(), "text/html; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """A prompt."""
        length = self.headers.get("Content-Length", "")
        json_alone = self.headers.get_content_type() == "application/json"
        if not (self._is_ours() and self.path == "/read" and json_alone):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not length.isdigit() or int(length) > _LARGEST:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            try:
                asked = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                asked = None
            with self.lock:
                found = answer(self.reader, asked)
            self._send(json.dumps(found).encode(), "application/json")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""

    def _is_ours(self) -> bool:
        """Whether the request names this machine, as one of another site's page does not."""
        port = self.server.server_port
        return self.headers.get("Host") in {f"{HOST}:{port}", f"localhost:{port}"}

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)


def serve(reader: Reader, payload: Mapping[str, Any], port: int = 0) -> ThreadingHTTPServer:
    """A server of the explorer on this machine alone; `serve_forever` runs it.

    Args:
        reader: Reads prompts.
        payload: What is shown at first.
        port: By default any that is free.

    Raises:
        OSError: The port is in use.
    """
    handler = partial(_Handler, reader, page_of(payload, live=True), Lock())
    return ThreadingHTTPServer((HOST, port), handler)
