"""The explorer in a browser: from disk without a network, and served."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from kgbench.analyses.explorer import Reader, page_of, serve
from kgbench.testing import pico_pair

TEXT, SUBJECT, TARGET = "Uma Lind plays beside", "Uma Lind", "Bo Ek"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(pico_pair("llama"))


@pytest.fixture(scope="module")
def live(reader: Reader) -> Iterator[str]:
    """The address of a served explorer."""
    with serve(reader, reader.read(TEXT, TARGET, SUBJECT)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def opened(browser: Browser, address: str, width: int = 1280, scheme: str = "light") -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        offline=address.startswith("file:"),
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.wait_for_selector(".cell")
    assert not errors
    return page


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (390, "light")])
def test_it_can_be_used_by_everyone(browser: Browser, live: str, width: int, scheme: str) -> None:
    page = opened(browser, live, width, scheme)
    page.locator("button.token").last.click()
    expect(page.locator(".exact-effect")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = Axe().run(page).response["violations"]
    assert not violations, [found["id"] for found in violations]
    page.context.close()


def test_a_typed_prompt_is_answered(browser: Browser, live: str, reader: Reader) -> None:
    """Boxes, tokens and rows ask the models again, and the expression of the choice is shown."""
    found = reader.read("Bo Ek plays beside", "Uma Lind", "Bo Ek")
    last = found["regions"]["LT"][-1]
    named = [(row["component"], row["layer"]) for row in found["rows"]]
    head = (last, named.index(("o.h1", 1)))
    # Before the page asks: two threads cannot read with one pair.
    exact = reader.read("Bo Ek plays beside", "Uma Lind", "Bo Ek", [head])["selected"]
    page = opened(browser, live)
    page.get_by_label("Prompt").fill("Bo Ek plays beside")
    page.get_by_label("First entity").fill("Bo Ek")
    page.get_by_label("Answer").fill("Uma Lind")
    page.get_by_role("button", name="Read").click()
    expect(page.locator("button.token")).to_have_count(len(found["tokens"]))
    page.locator("button.token").nth(last).click()
    expect(page.locator("code")).to_have_text('--graft "LT"')
    effect = f"{abs(found['alone'][last]):.2f}"
    expect(page.locator(".exact-effect")).to_have_text(re.compile(re.escape(effect)))
    page.get_by_role("button", name="ffn 1", exact=True).click()
    expect(page.locator("code")).to_have_text(re.compile(r'--graft "LT:[a-z+]+@1"'))
    page.get_by_role("button", name="ffn 1", exact=True).click()
    page.get_by_role("button", name="heads of o 1").click()
    page.get_by_role("button", name="· o.h1 1", exact=True).click()
    expect(page.locator("code")).to_have_text('--graft "LT:o.h1@1"')
    expect(page.locator(".exact-effect")).to_have_text(
        re.compile(re.escape(f"{abs(exact['effect']):.2f}"))
    )
    page.get_by_label("First entity").fill("Nobody")
    page.get_by_role("button", name="Read").click()
    expect(page.get_by_role("status")).to_have_text(re.compile("'Nobody' is not in the prompt"))
    page.context.close()


def test_a_page_from_disk(browser: Browser, reader: Reader, tmp_path: Path) -> None:
    """Without Python and network; rows unfold, and arrow keys walk over the cells."""
    file = tmp_path / "page.html"
    file.write_text(page_of(reader.read(TEXT, TARGET, SUBJECT)), "utf-8")
    page = opened(browser, file.as_uri())
    lines = page.locator("tbody tr").count()
    page.get_by_role("button", name="components of ffn 2").click()
    page.get_by_role("button", name="components of attn 2").click()
    unfolded = page.locator("tbody tr").count()
    page.get_by_role("button", name="heads of q 2").click()
    assert lines < unfolded < page.locator("tbody tr").count()
    page.locator(".cell").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.parentElement.cellIndex") == 2
    page.keyboard.press("Enter")
    expect(page.locator(".selection")).to_contain_text("this page computes nothing")
    assert not Axe().run(page).response["violations"]
    page.context.close()


def test_colours_are_of_a_fixed_scale(browser: Browser, reader: Reader, tmp_path: Path) -> None:
    """An effect has the colour that the legend gives it, whatever else is in the prompt; small ones
    have none.
    """
    found = reader.read(TEXT, TARGET, SUBJECT)
    wanted = [0.2, -1, 0.04, *([9] * (len(found["tokens"]) - 3))]
    file = tmp_path / "page.html"
    file.write_text(page_of({**found, "alone": wanted}), "utf-8")
    page = opened(browser, file.as_uri())
    colour = "(places) => places.map((place) => place.style.background)"
    against5, against1, _, none, few, _, most = page.locator(".legend li").evaluate_all(colour)
    shown = page.locator("td.exact").evaluate_all(colour)
    assert shown == [few, against1, none, *([most] * (len(wanted) - 3))]
    assert len({against5, against1, none, few, most}) == 5 and " 0%" in none
    page.context.close()
