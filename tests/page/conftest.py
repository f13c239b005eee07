"""A browser with a site of its own. These tests need Chromium: `make test-page`."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.build import site_server
from kgbench.leaderboard.site.pages import render_site
from tests import fake_boards

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

OURS = ("file:///", "http://127.0.0.1:", "ws://127.0.0.1:", "data:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one that CHROMIUM names."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    """Baselines, methods, one of the reader's own."""
    return fake_boards.leaderboard(fake_boards.several(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="session")
def site(board: Leaderboard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its pages."""
    folder = tmp_path_factory.mktemp("site")
    fake_boards.write_site(board, folder)
    return folder


@pytest.fixture(scope="session")
def served(board: Leaderboard) -> Iterator[str]:
    """The pages as they are served on this machine, until no browser asks any more."""
    with site_server(dict(render_site(board)).get, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def address(request: pytest.FixtureRequest, site: Path) -> str:
    """The pages' address: opened as files, or, where a test asks for `http`, served on this
    machine.
    """
    if getattr(request, "param", "file") == "file":
        return site.as_uri()
    return str(request.getfixturevalue("served"))


@contextmanager
def watched(
    browser: Browser, width: int = 1280, scheme: Literal["light", "dark"] = "light"
) -> Iterator[BrowserContext]:
    """A new reader: nothing is remembered. Whatever the test does, no page may complain, and no
    request may leave it.
    """
    made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    made.on(
        "console",
        lambda message: (
            wrong.append(f"console: {message.text}")
            if message.type in ("error", "warning")
            else None
        ),
    )
    made.on("weberror", lambda error: wrong.append(f"error: {error.error}"))
    made.on(
        "request",
        lambda request: None if ours(request.url) else wrong.append(f"request: {request.url}"),
    )
    made.on(
        "requestfailed",
        lambda request: None if left_behind(request) else wrong.append(f"failed: {request.url}"),
    )
    made.on(
        "response",
        lambda answer: (
            wrong.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
        ),
    )
    made.on(
        "page",
        lambda page: page.on(
            "websocket",
            lambda socket: None if ours(socket.url) else wrong.append(f"socket: {socket.url}"),
        ),
    )
    try:
        yield made
    finally:
        made.close()
    assert wrong == []


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A new reader on a desk."""
    with watched(browser) as made:
        yield made


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A tab."""
    return context.new_page()


def left_behind(request: Request) -> bool:
    """Whether a file was no longer wanted, since the reader had gone to another page."""
    return "ERR_ABORTED" in (request.failure or "")


def ours(url: str) -> bool:
    """Whether a request stays with the page's own files."""
    return url.removeprefix("blob:").startswith(OURS)


@pytest.fixture
def browser_without_scripts(browser: Browser) -> Iterator[Page]:
    """A tab that runs no scripts."""
    made = browser.new_context(java_script_enabled=False)
    yield made.new_page()
    made.close()


@pytest.fixture
def site_address(site: Path) -> str:
    """The pages, opened as files."""
    return site.as_uri()
