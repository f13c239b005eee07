"""What a reader does with the pages: sort, filter, follow a link, all with the keyboard
alone if need be.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from kgbench.leaderboard.board_tables import Leaderboard

Names = list[str]

either = pytest.mark.parametrize("address", ["file", "http"], indirect=True)


def table(page: Page) -> Locator:
    """The table that is shown."""
    return page.locator("section.table:visible table.figures")


def names(page: Page) -> Names:
    """The methods of the table, from the top."""
    return (
        table(page)
        .locator("tbody tr:visible th")
        .evaluate_all(
            "(heads) => heads.map((head) => (head.querySelector('a') ||"
            " head.firstChild).textContent.trim())"
        )
    )


def values(page: Page, key: str) -> list[float]:
    """The figures of a column, as far as they are defined, from the top."""
    at = (
        table(page)
        .locator("thead th")
        .evaluate_all("(heads, key) => heads.findIndex((head) => head.dataset.k === key)", key)
    )
    cells = table(page).locator(f"tbody tr:visible > :nth-child({at + 1})")
    exact = cells.evaluate_all("(cells) => cells.map((cell) => cell.dataset.v || '')")
    return [float(text.split()[0]) for text in exact if text]


def head(page: Page, key: str) -> Locator:
    """A column's head."""
    return table(page).locator(f"thead th[data-k='{key}']")


@either
def test_a_reader_finds_who_leads(page: Page, address: str, board: Leaderboard) -> None:
    """The first page says of each board who leads, and shows a picture of every board with ranks."""
    page.goto(f"{address}/index.html")
    for one in board.boards:
        expect(page.get_by_text(one.lead).first).to_be_visible()
    expect(page.locator("figure.chart svg[role=img]")).to_have_count(3)
    assert all(
        label and "dynamic_graft" in label
        for label in page.locator("svg[role=img]").evaluate_all("all => all.map(s => s.ariaLabel)")
    )


def test_a_click_sorts_and_another_turns_it_round(page: Page, address: str) -> None:
    """Sorting goes by the exact value, says so to readers of screens, keeps every row, and puts
    rows without a value last.
    """
    page.goto(f"{address}/pathways.html")
    before = names(page)
    head(page, "sufficiency").get_by_role("button").click()
    expect(head(page, "sufficiency")).to_have_attribute("aria-sort", "descending")
    assert values(page, "sufficiency") == sorted(values(page, "sufficiency"), reverse=True)
    head(page, "sufficiency").get_by_role("button").click()
    expect(head(page, "sufficiency")).to_have_attribute("aria-sort", "ascending")
    assert values(page, "sufficiency") == sorted(values(page, "sufficiency"))
    assert sorted(names(page)) == sorted(before)
    assert names(page)[-1] == "path_patch", "it did not run all cells"
    assert names(page)[0] == "own_idea (yours)", "one's own runs stay on top"
    assert (
        table(page).locator("thead [aria-sort='ascending'], thead [aria-sort='descending']").count()
        == 1
    )


def test_own_runs_and_sources_show_in_every_picture(page: Page, address: str) -> None:
    """A run of one's own is on top in its colour, also without a mean; of others the picture says
    who says so.
    """
    page.goto(f"{address}/pathways.html")
    page.get_by_label("Picture").select_option("separation")
    picture = page.locator("figure.chart svg[role=img]")
    expect(picture).to_have_attribute(
        "aria-label", re.compile(r": own_idea \(yours\) no mean: 2 of 4 cells; ")
    )
    label = picture.get_attribute("aria-label") or ""
    assert "dynamic_graft (verified)" in label and "causal_trace (self-reported)" in label
    expect(page.locator("figcaption")).to_contain_text("self-reported, run by the submitter alone")
    page.get_by_label("Table").select_option("tiny-gemma-headline")
    assert names(page)[0] == "own_idea (yours)"
    fills = picture.locator("rect").evaluate_all(
        "(bars) => bars.map((bar) => bar.getAttribute('fill'))"
    )
    assert fills.count("var(--own)") == 1, "no other bar has the colour of one's own runs"


@pytest.mark.parametrize("width", [360, 1280])
def test_rows_keep_names_of_their_own_in_pictures(page: Page, address: str, width: int) -> None:
    """However narrow the page, no two bars have the same label."""
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}/pathways.html")
    page.get_by_label("Picture").select_option("separation")
    page.wait_for_selector("svg[role=img] text")
    shown = set(page.locator("svg[role=img] text").all_text_contents())
    assert set(names(page)) - {"path_patch"} <= shown, "all that have a bar, and one's own"


def test_filters_take_rows_away(page: Page, address: str) -> None:
    """By a part of the name, by who says so, and without baselines; what is left is counted."""
    page.goto(f"{address}/pathways.html")
    page.get_by_label("Method contains").fill("PATCH")
    assert names(page) == ["path_patch"]
    expect(page.get_by_role("status")).to_have_text("1 of 7 rows")
    page.get_by_label("Method contains").fill("")
    page.get_by_label("Source").select_option("verified")
    assert names(page) == ["dynamic_graft"]
    page.get_by_label("Source").select_option("yours")
    assert names(page) == ["own_idea (yours)"]
    page.get_by_label("Source").select_option("")
    page.get_by_label("Baselines").uncheck()
    assert not {"none", "all", "random"} & set(names(page)) and len(names(page)) == 4


def test_every_view_has_a_link(page: Page, address: str) -> None:
    """What is chosen stands in the address, and opening that address anew shows the same table,
    order, filter and picture.
    """
    page.goto(f"{address}/pathways.html")
    page.get_by_label("Table").select_option("tiny-gpt2-qa")
    page.get_by_label("Picture").select_option("top5_LT")
    page.get_by_label("Baselines").uncheck()
    head(page, "necessity").get_by_role("button").click()
    seen, url, picture = (
        names(page),
        page.url,
        page.locator("figure.chart svg[role=img]").get_attribute("aria-label"),
    )
    other = page.context.new_page()
    other.goto(url)
    assert names(other) == seen
    assert other.get_by_label("Table").input_value() == "tiny-gpt2-qa"
    expect(other.locator("figure.chart svg[role=img]")).to_have_attribute(
        "aria-label", picture or ""
    )
    expect(head(other, "necessity")).to_have_attribute("aria-sort", "descending")


def test_going_back_shows_what_was_there(page: Page, address: str) -> None:
    """A changed address changes the view, without the page being loaded again."""
    page.goto(f"{address}/pathways.html")
    page.evaluate("location.hash = 't=tiny-gemma-qa&q=dynamic'")
    expect(page.get_by_label("Table")).to_have_value("tiny-gemma-qa")
    assert names(page) == ["dynamic_graft"]
    page.go_back()
    expect(page.get_by_label("Table")).to_have_value("all")
    assert len(names(page)) == 7


@either
def test_from_a_board_to_a_method_to_a_run(page: Page, address: str) -> None:
    """A method's page leads to the board's table and to its runs; a run's page has pictures,
    figures and the command.
    """
    page.goto(f"{address}/planted.html")
    page.get_by_role("link", name="dynamic_graft").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("dynamic_graft")
    page.get_by_role("link", name="tiny-gemma.one-0, planted").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("dynamic_graft on tiny-gemma.one-0")
    expect(page.locator("svg[role=img]")).to_have_count(3)
    expect(page.locator("svg[role=img]").last).to_have_attribute(
        "aria-label", re.compile("^Score of every site")
    )
    expect(page.get_by_text("kgbench rerun ")).to_be_visible()
    expect(page.get_by_text("of 150 known facts (180 rows)")).to_be_visible()


@either
def test_a_run_shows_hits_within_any_rank(page: Page, address: str, board: Leaderboard) -> None:
    """Rates that are no column of the table are drawn too, with the interval that the record
    holds.
    """
    entry = next(
        entry
        for entry in board.entries
        if entry.method == "dynamic_graft" and not entry.record.curve
    )
    page.goto(f"{address}/runs/{entry.record.id[:12]}.html")
    page.get_by_label("Bars show").select_option("top20")
    row = next(row for row in entry.record.rows if row.graft == "FE" and row.prompt == "headline")
    value, low, high = (
        f"{x:.2f}".removeprefix("0")
        for x in (row.top20.value or 0, row.top20.low or 0, row.top20.high or 0)
    )
    told = page.get_by_role("img", name=re.compile("^Top-20 hit rate on headline"))
    expect(told).to_have_attribute(
        "aria-label", re.compile(re.escape(f"FE {value} [{low}, {high}]"))
    )
    assert page.url.endswith("#p=top20")


@either
def test_budget_curves_are_of_the_pair_and_prompt(page: Page, address: str) -> None:
    """The table over all cells has bars; one of a pair and prompt has the curves of its methods."""
    page.goto(f"{address}/budget.html")
    expect(page.locator("svg[role=img]")).to_have_attribute("aria-label", re.compile("^Area"))
    page.get_by_label("Table").select_option("tiny-gemma-headline")
    expect(page.locator("svg[role=img]")).to_have_attribute(
        "aria-label", re.compile("^Budget curves")
    )
    assert page.locator("svg[role=img] path").count() >= 3


@either
def test_the_theme_is_remembered(page: Page, address: str) -> None:
    """The switch changes the page's colours, the next page has them too, and without a choice the
    system's are taken.
    """
    page.goto(f"{address}/index.html")
    light = background(page)
    page.get_by_role("button", name="Switch to the dark theme").click()
    dark = background(page)
    assert light != dark
    page.goto(f"{address}/pathways.html")
    assert background(page) == dark
    page.get_by_role("button", name="Switch to the light theme").click()
    assert background(page) == light
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark")
    page.reload()
    assert background(page) == dark


def background(page: Page) -> str:
    """The colour behind the text."""
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_keyboard_is_enough(page: Page, address: str) -> None:
    """Skip link, choosing a table, sorting, and opening a method: with Tab, Enter, space and
    arrows, and the focus can be seen.
    """
    page.goto(f"{address}/pathways.html")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "select[name=t]")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Table")).to_have_value("tiny-gemma-headline")
    tab_to(page, "th[data-k=separation] button")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Space")
    expect(head(page, "separation")).to_have_attribute("aria-sort", "descending")
    page.keyboard.press("Enter")
    expect(head(page, "separation")).to_have_attribute("aria-sort", "ascending")
    tab_to(page, "tbody a")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/methods/"))


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until what is focused is such an element."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"Tab does not reach {selector}")


def test_undefined_figures_say_why_to_the_pointer(page: Page, address: str) -> None:
    """A cell's title is its footnote, and of a defined figure its exact value with n."""
    page.goto(f"{address}/pathways.html#t=tiny-gemma-headline")
    cell = table(page).locator("td[data-v]").first
    cell.hover()
    expect(cell).to_have_attribute("title", re.compile(r"95 % interval .* n = \d+"))


def test_the_page_reads_without_scripts(browser_without_scripts: Page, address: str) -> None:
    """Without scripts all tables are there, and nothing that would need one."""
    page = browser_without_scripts
    page.goto(f"{address}/pathways.html")
    assert page.locator("section.table:visible").count() == 5
    assert not page.locator(".controls").is_visible() and not page.locator("#theme").is_visible()


@pytest.mark.parametrize("path", ["index.html", "pathways.html"])
def test_nothing_is_wider_than_a_phone(page: Page, address: str, path: str) -> None:
    """At 360 pixels only tables scroll sideways, within themselves."""
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{address}/{path}")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_print_has_the_tables_and_no_controls(page: Page, address: str) -> None:
    """On paper there is black on white, whatever the theme, and nothing to click."""
    page.goto(f"{address}/pathways.html")
    page.get_by_role("button", name="Switch to the dark theme").click()
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert not page.locator(".controls").is_visible()
    assert table(page).is_visible()


def test_a_reader_sees_only_what_somebody_verified(page: Page, address: str) -> None:
    """A rank that nobody verified stands in brackets, and the page can be filtered by it."""
    page.goto(f"{address}/pathways.html")
    rows = table(page).locator("tbody tr:visible")
    ranks = {
        row.locator("th").inner_text().split()[0]: row.locator("td").first.inner_text()
        for row in rows.all()
    }
    assert re.fullmatch(r"\d+", ranks["dynamic_graft"])
    assert re.fullmatch(r"\(\d+\)", ranks["causal_trace"])
    page.get_by_label("Source").select_option("verified")
    assert [row.locator("th").inner_text().split()[0] for row in rows.all()] == ["dynamic_graft"]
    assert "b=verified" in page.url


def test_quality_stands_against_cost(page: Page, address: str) -> None:
    """The picture names the front: those that no other is both cheaper and better than."""
    page.goto(f"{address}/budget.html")
    page.get_by_label("Picture").select_option("pareto")
    values = {
        row.locator("th").inner_text().split()[0]: [
            float(row.locator("td[data-v]").nth(i).get_attribute("data-v").split()[0])  # type: ignore[union-attr]
            for i in (0, 1)
        ]
        for row in table(page).locator("tbody tr:visible").all()
    }
    front = {
        n
        for n, (y, x) in values.items()
        if not any(b >= y and a <= x and (a, b) != (x, y) for b, a in values.values())
    }
    told = page.locator("figure.chart figcaption").inner_text()
    named = told.partition(": ")[2].partition(". ")[0].split(", ")
    assert set(named) <= front and len(named) >= 1
    expect(page.locator("figure.chart svg[role=img]")).to_have_attribute(
        "aria-label", re.compile("On the front")
    )
