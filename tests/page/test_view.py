"""The viewer in a browser: a run is found, its facts are searched, and two are compared."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import stored_runs
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from kgbench.leaderboard.build import own_entries, site_server
from kgbench.viewer import Viewer


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a viewer of two runs."""
    runs = tmp_path_factory.mktemp("runs")
    stored_runs.folder(runs)
    stored_runs.folder(
        runs, *stored_runs.stored(stored_runs.WORSE, seed=1, **stored_runs.OTHER, limit=60)
    )
    with site_server(Viewer(lambda: own_entries(runs)).page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


def test_search_facts_and_compare(page: Page, viewed: str) -> None:
    """By clicks and typing alone, from the list to a run, to one of its facts, and to a comparison."""
    page.goto(viewed)
    rows = page.locator("table.found tbody tr:visible")
    expect(rows).to_have_count(2)
    page.get_by_label("Search").fill("no such run")
    expect(rows).to_have_count(0)
    expect(page.get_by_role("status")).to_have_text("0 of 2 rows")
    page.get_by_label("Search").fill("dynamic tiny-gemma")
    expect(rows).to_have_count(2)
    for box in page.get_by_role("checkbox").all():
        expect(page.get_by_role("link", name="Compare the two")).to_be_hidden()
        box.check()
    page.get_by_role("link", name="Compare the two").click()
    expect(page.get_by_text("paired over the facts that both have")).to_be_visible()
    page.locator("main a").first.click()
    expect(page.locator("figure.chart svg[role=img]").first).to_be_visible()
    page.get_by_role("link", name="Single facts").click()
    page.get_by_label("Search").fill("tiny_movies/17 headline")
    expect(rows).to_have_count(1)


@pytest.mark.parametrize("width", [1280, 390])
def test_it_can_be_used_by_everyone(page: Page, viewed: str, width: int) -> None:
    """Axe finds nothing, and no page is wider than its window."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(viewed)
    names = [box.get_attribute("value") for box in page.get_by_role("checkbox").all()]
    for path in (
        "",
        f"runs/{names[0]}.html",
        f"facts/{names[0]}.html",
        f"compare/{names[0]}-{names[1]}.html",
    ):
        page.goto(f"{viewed}{path}")
        page.wait_for_timeout(250)
        found = Axe().run(page, options={"preload": False})
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
