"""Pictures for the documentation: `make screenshots`, which builds the leaderboard's pages first."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.page.conftest import FLAGS  # noqa: E402
from tests.page.lab import explorer_in, jupyterlab  # noqa: E402

LIMIT = 60_000
"""Bytes of a picture."""
COLORS = 24
"""Of a picture; a page has few."""

SHOTS = {
    "desktop": ("planted.html", 1200, 1000, "light"),
    "phone": ("index.html", 390, 844, "light"),
    "dark": ("pathways.html", 1200, 1000, "dark"),
}
"""Page, width, height, theme."""


def main(site: Path, folder: Path) -> None:
    """Take them."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        for name, (page, width, height, theme) in SHOTS.items():
            tab = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
            )
            tab.goto(f"{site.as_uri()}/{page}")
            tab.wait_for_selector("svg[role=img]")
            tab.wait_for_timeout(300)
            write_picture(tab.screenshot(), folder / f"leaderboard-{name}.webp")
        write_picture(notebook_picture(browser), folder / "explorer-notebook.webp")
        browser.close()


def notebook_picture(browser: Browser) -> bytes:
    """The explorer in JupyterLab, with the exact effect of one row at the last token."""
    with tempfile.TemporaryDirectory() as folder, jupyterlab(Path(folder)) as address:
        tab = browser.new_page(viewport={"width": 1320, "height": 1180}, color_scheme="light")
        widget = explorer_in(tab, address)
        effect = widget.locator(".exact-effect")
        widget.locator("button.token").last.click()
        effect.wait_for()
        whole = effect.inner_text()
        widget.get_by_role("button", name="ffn 6", exact=True).click()
        effect.filter(has_not_text=whole).wait_for()
        tab.mouse.move(0, 0)
        return tab.locator(".jp-NotebookPanel-notebook").screenshot()


def write_picture(taken: bytes, place: Path) -> None:
    """Write a picture with few colours, and nothing else of it lost."""
    picture = Image.open(BytesIO(taken)).convert("RGB")
    few = picture.quantize(COLORS, dither=Image.Dither.NONE).convert("RGB")
    few.save(place, "webp", lossless=True, quality=100, method=6)
    size = place.stat().st_size
    assert size < LIMIT, f"{place.name} is {size:,} bytes"


if __name__ == "__main__":
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "leaderboard" / "site"
    main(site.resolve(), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / ".github")
