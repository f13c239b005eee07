"""The explorer's widget in a JupyterLab, with its server, its kernel and a shipped pair."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

import kgbench
from kgbench.analyses.explorer import Reader
from tests.page.conftest import watched
from tests.page.lab import PATIENCE, SUBJECT, TEXT, explorer_in, jupyterlab

OTHER, OTHER_SUBJECT = "Terri Snow stars in a movie alongside", "Terri Snow"
THEMES: tuple[Any, ...] = ("light", "dark")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The notebook's address in a JupyterLab that runs."""
    with jupyterlab(tmp_path_factory.mktemp("lab")) as url:
        yield url


@pytest.fixture(scope="module")
def reader() -> Reader:
    """What the kernel's answers are compared with."""
    return Reader(kgbench.load_pair("tiny-gemma"))


def wait_for(found: Locator, text: str) -> None:
    """Wait for a kernel's answer."""
    expect(found).to_have_text(re.compile(re.escape(text)), timeout=PATIENCE)


def shown(value: float) -> str:
    """An effect as the widget writes it."""
    return f"{'−' if value < 0 else '+'}{abs(value):.2f} nats"


@pytest.mark.parametrize("theme", THEMES)
def test_a_typed_prompt_is_answered(
    browser: Browser, address: str, reader: Reader, theme: Any
) -> None:
    """The cell shows the widget; another prompt, a token and a row are answered by the kernel, with
    the values of the engine. Everybody can use it, and nothing is asked of the network.
    """
    with watched(browser, scheme=theme) as context:
        widget = explorer_in(context.new_page(), address)
        first = reader.read(TEXT, subject=SUBJECT)
        wait_for(widget.locator(".likely").nth(1), f"answer {first['answer'].replace(' ', '␣')}")
        assert widget.get_by_label("First entity").input_value() == SUBJECT

        widget.get_by_label("Prompt").fill(OTHER)
        widget.get_by_label("First entity").fill(OTHER_SUBJECT)
        widget.get_by_role("button", name="Read").click()
        other = reader.read(OTHER, subject=OTHER_SUBJECT)
        assert other["answer"] != first["answer"]
        wait_for(widget.locator(".likely").nth(1), f"answer {other['answer'].replace(' ', '␣')}")
        expect(widget.locator("button.token")).to_have_count(len(other["tokens"]))

        (last,) = other["regions"]["LT"]
        widget.locator("button.token").nth(last).click()
        wait_for(widget.locator(".exact-effect"), shown(other["alone"][last]))
        expect(widget.locator("code")).to_have_text('--graft "LT"')

        widget.get_by_role("button", name="ffn 6", exact=True).click()
        cells = []
        for index, row in enumerate(other["rows"]):
            if (row["layer"], row["group"]) == (6, "ffn"):
                cells.append((last, index))
        effect = reader.read(OTHER, subject=OTHER_SUBJECT, cells=cells)["selected"]["effect"]
        assert shown(effect) != shown(other["alone"][last])
        wait_for(widget.locator(".exact-effect"), shown(effect))
        expect(widget.locator("code")).to_have_text(re.compile(r'--graft "LT:[a-z+]+@6"'))

        violations = Axe().run(widget.page, context=".kgbench-explorer").response["violations"]
        assert not violations, violations
