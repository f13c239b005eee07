"""The documentation's pages, as `make docs` builds them: for everyone, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext

from tests.page.conftest import watched

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build" / "html"
SOURCES = [
    path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if "_build" not in path.parts
]
GENERATED = ["genindex.html", "py-modindex.html", "search.html"]
PAGES = sorted([*SOURCES, *GENERATED])
PHONE = 390
NOT_SHOWN = """
async () => {
    for (const each of document.images) {
        each.loading = "eager";
        await each.decode().catch(() => {});
    }
    return [...document.images].filter((each) => !each.naturalWidth).map((each) => each.src);
}
"""
# The theme hides what is too wide for the window, and lets its content scroll as a whole instead.
TOO_WIDE = """
[document.documentElement, document.querySelector(".content")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className)
"""


@pytest.fixture(scope="module")
def phone(browser: Browser) -> Iterator[BrowserContext]:
    """One reader of all pages; whatever is wrong on any of them is told at the end."""
    with watched(browser, PHONE) as context:
        yield context


def test_every_page_is_looked_at() -> None:
    """What is built are the pages of the sources and three that Sphinx adds."""
    built = [path.relative_to(BUILT).as_posix() for path in BUILT.rglob("*.html")]
    assert built, f"there are no pages in {BUILT}; run make docs"
    assert sorted(name for name in built if not name.startswith("_static")) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_everyone_can_read_it(phone: BrowserContext, name: str) -> None:
    """Nothing but a table or code scrolls sideways, be it on a phone, where the list of pages stands
    beside the text, or where that of headings does too; pictures load, and axe finds nothing on a
    phone in light colours nor on a desk in dark ones.
    """
    page = phone.new_page()
    page.goto((BUILT / name).as_uri())
    for width in (1380, 1100, PHONE):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(NOT_SHOWN) == []
    for width, theme in ((PHONE, "light"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        # The frame of a page is the explorer, which has tests of its own.
        options = {"preload": False, "iframes": False, "resultTypes": ["violations"]}
        found = Axe().run(page, options=options)
        assert found.violations_count == 0, found.generate_report()
    page.close()
