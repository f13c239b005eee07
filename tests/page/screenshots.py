"""Pictures of the leaderboard's pages for the documentation: `make screenshots`, which builds them first."""

from __future__ import annotations

import os
import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.page.conftest import FLAGS  # noqa: E402

LIMIT = 60_000
"""Bytes of a picture."""
COLORS = 128
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
            place = folder / f"leaderboard-{name}.png"
            taken = Image.open(BytesIO(tab.screenshot())).convert("RGB")
            taken.quantize(COLORS, dither=Image.Dither.NONE).save(place, optimize=True)
            assert place.stat().st_size < LIMIT, f"{name} is {place.stat().st_size:,} bytes"
        browser.close()


if __name__ == "__main__":
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "leaderboard" / "site"
    main(site.resolve(), Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / ".github")
