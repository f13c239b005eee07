"""The pages pass axe, in both themes, on a desk and on a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from kgbench.leaderboard.board_tables import Leaderboard

WIDTHS = {"desktop": 1280, "phone": 360}
PAGES = (
    "index",
    "pathways",
    "planted",
    "budget",
    "published",
    "read",
    "method",
    "run",
    "curve",
)


def path_of(name: str, board: Leaderboard) -> str:
    """Where a page lies: of a method and of runs, an example."""
    runs = {
        ("curve" if entry.record.curve else "run"): entry.record.id[:12]
        for entry in board.entries
        if entry.method == "dynamic_graft"
    }
    places = {
        "method": "methods/dynamic_graft.html",
        **{kind: f"runs/{id}.html" for kind, id in runs.items()},
    }
    return places.get(name, f"{name}.html")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(
    page: Page, site_address: str, board: Leaderboard, name: str, theme: str, width: str
) -> None:
    """No violation of WCAG 2 A or AA, nor of axe's best practice; contrast counts in both themes."""
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(f"{site_address}/{path_of(name, board)}")
    page.wait_for_timeout(250)
    page.evaluate(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
    )
    # axe is put into the page by the test's hand, past the policy that forbids the page to load it.
    found = Axe().run(page, options={"preload": False})
    assert found.violations_count == 0, found.generate_report()
