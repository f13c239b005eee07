"""The site: what its files hold, whoever looks at them; how they look in a browser is tested in
tests/page.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from posixpath import dirname, join, normpath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from submissions import OTHERS, identity, result

from kgbench.cli import main
from kgbench.errors import DataError, InputError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.build import make_leaderboard, own_entries, site_server
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.known import known
from kgbench.leaderboard.site.pages import POLICY, inline_json, render_site
from kgbench.leaderboard.site.tables import Cells, map_data, method_slug, run_name
from kgbench.local_server import LocalServer
from kgbench.records import SEAL, DamagedRecordWarning, LocalizerRef, RecordStore
from kgbench.sites.configurations import BEST, REST
from tests import fake_boards

HOSTILE = "</script><script>alert(1)</script>\u2028<b>"


class Links(HTMLParser):
    """The addresses that a page names, and the text of its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.ids: set[str] = set()
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.ids |= {id for id in (own.get("id"),) if id}
        if tag == "script":
            self.scripts.append(own)
        if own.get("rel") != "external":
            self.found += [
                (tag, value) for key in ("href", "src") if (value := own.get(key)) is not None
            ]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Leaderboard:
    """Six methods on two pairs, a plant and a budget; one of them is the reader's own, with a name
    that no submission could have.
    """
    return fake_boards.leaderboard(fake_boards.several(tmp_path_factory.mktemp("results"), HOSTILE))


@pytest.fixture(scope="module")
def site(board: Leaderboard) -> dict[str, str]:
    """Its files."""
    return {path: content.decode() for path, content in render_site(board)}


def pages(site: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((path, text) for path, text in site.items() if path.endswith(".html"))


def test_the_same_leaderboard_gives_the_same_bytes(
    board: Leaderboard, site: dict[str, str]
) -> None:
    """Rendering twice gives the same files, each of them once, all of them within the site."""
    again = list(render_site(board))
    assert {path: content.decode() for path, content in again} == site
    assert len(again) == len(site)
    assert all(normpath(path) == path and not path.startswith(("/", ".")) for path in site)


def test_every_link_leads_to_a_file_of_the_site(site: dict[str, str]) -> None:
    """No page names a file that is not there, or a place outside."""
    for path, text in pages(site):
        for tag, link in Links(text).found:
            target = link.partition("#")[0]
            assert not re.match(r"[a-z]+:|//", link), f"{path} names {link}"
            assert not target or normpath(join(dirname(path), target)) in site, (
                f"{path}: {tag} leads to {link}"
            )


def test_links_to_tables_name_tables(site: dict[str, str]) -> None:
    """A deep link from a method's page into a board names a table of that board."""
    for path, text in pages(site):
        for _, link in Links(text).found:
            if "#t=" in link:
                target, _, table = link.partition("#t=")
                assert f"t-{table}" in Links(site[normpath(join(dirname(path), target))]).ids


def test_pages_forbid_every_request_elsewhere(site: dict[str, str]) -> None:
    """Each page has a policy that allows its own files only, and no script stands in a page."""
    for path, text in pages(site):
        policy = re.search(r'Content-Security-Policy content="([^"]+)"', text)
        assert policy is not None and policy[1].startswith("default-src 'none'"), path
        assert "http" not in policy[1] and "unsafe-eval" not in policy[1]
        assert all(
            own.get("src") or own.get("type") == "application/json" for own in Links(text).scripts
        ), path
    assert not any(
        "fetch(" in text
        for path, text in site.items()
        if path.startswith("assets/") and "charts.js" not in path
    )


def test_names_are_text_whatever_they_hold(site: dict[str, str]) -> None:
    """A method's name ends up neither as a tag, nor as the end of a script, nor as a line of one."""
    holding = [path for path, text in site.items() if "alert(1)" in text]
    assert {"index.html", "pathways.html"} <= set(holding)
    for path in holding:
        if path.endswith(".html"):
            assert "<script>alert" not in site[path] and "<b>" not in site[path].replace(
                " <b>=</b>", ""
            ), path
        else:
            assert "\u2028" not in site[path], path


@given(st.text())
def test_data_in_a_page_never_ends_its_element(text: str) -> None:
    """Whatever text a page's data holds, no mark of HTML is in it, and JSON reads it back."""
    written = str(inline_json({"text": text}))
    assert not set("<>&\u2028\u2029") & set(written)


@given(st.lists(st.text(), unique=True))
def test_methods_never_share_a_file(names: list[str]) -> None:
    """Two methods have two file names, also where case is not told apart, and each is a plain one."""
    slugs = [method_slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(
        re.fullmatch(r"[a-z0-9][a-z0-9_-]*|_[a-z0-9_-]*", slug) and len(slug) < 80 for slug in slugs
    )


def test_undefined_figures_say_why(site: dict[str, str]) -> None:
    """Wherever a figure is undefined, its cell names a footnote that is there, and a method without
    a rank has a reason.
    """
    assert (
        "the denominator&#39;s interval holds 0" in site["planted.html"]
        or "data-f" not in site["planted.html"]
    )
    for path, text in pages(site):
        for part in re.split(r"<section|<details", text):
            marks = [int(mark) for mark in re.findall(r"data-f=(\d+)", part)]
            reasons = re.search(
                r'<ol class="[^"]*reasons">(.*?)</ol>', text if "runs/" in path else part, re.S
            ) or re.search(r"<ol class=reasons>(.*?)</ol>", part, re.S)
            assert not marks or (reasons is not None and reasons[1].count("<li>") >= max(marks)), (
                path
            )
    assert re.search(
        r"Without a rank: .*path_patch\. Not all cells were run", site["pathways.html"]
    )


def test_boards_can_be_read_without_scripts(board: Leaderboard, site: dict[str, str]) -> None:
    """All tables of a board stand in its page, with every method of theirs."""
    for one in board.boards:
        text = site[f"{one.key}.html"]
        assert text.count("<table") == len(one.tables)
        assert text.count("<th scope=row>") == sum(len(table.lines) for table in one.tables)


@given(st.floats(-2000, 2000), st.floats(0, 300))
def test_a_cell_holds_its_figure(value: float, width: float) -> None:
    """Value, interval and n come back from beside the text, to four digits, and the value from the
    text as it is written there.
    """
    estimate = Estimate(value=value, low=value - width, high=value + width, n=7)
    found = re.fullmatch(
        r'<td data-v="(\S+) (\S+) (\S+) 7">(\S+)( \[.*\])?', str(Cells().cell(estimate))
    )
    assert found is not None
    assert [float(x) for x in found.groups()[:3]] == [
        float(f"{x:.4g}") for x in (estimate.value, estimate.low, estimate.high)
    ]
    assert np.isclose(float(found[4].replace("−", "-")), value, rtol=0.005, atol=0.0051)


def test_a_run_says_where_it_comes_from(board: Leaderboard, site: dict[str, str]) -> None:
    """Each run's page holds versions, commit, time, seed, hashes, and the command that reproduces
    it.
    """
    for entry in board.entries:
        text = site[f"runs/{entry.record.id[:12]}.html"]
        source = entry.record.provenance
        hashes = entry.record.identity.weights
        told = [
            source.time[:10],
            f"torch {source.packages['torch']}",
            f"kgbench {source.kgbench}",
            hashes.recipient[:12],
            "Seed",
        ]
        assert all(part in text for part in told)
        assert f"kgbench rerun {entry.folder.name}" in text
        assert len(text) < 12_000


def test_a_method_says_what_it_is(board: Leaderboard, site: dict[str, str]) -> None:
    """A method's page has what it does, its kind, code and paper, and the map of a run that has
    one.
    """
    text = site["methods/dynamic_graft.html"]
    about = known().localizers["dynamic_graft"]
    assert about.about.capitalize()[:20] in unescape(text) and "https://arxiv.org/abs/" in text
    assert "https://github.com/ada/code@0123456" in text and "arxiv.org/abs/2506.20746" in text
    held = re.search(r"<script type=application/json id=data>(.*?)</script>", text)
    entry = next(e for e in board.entries if e.method == "dynamic_graft" and e.record.scores)
    assert held is not None and json.loads(held[1])["map"] == map_data(entry.record)
    own = method_slug(next(e.method for e in board.entries if e.submission is None))
    assert "see its code" in site[f"methods/{own}.html"]


def test_every_page_has_the_navigation(site: dict[str, str]) -> None:
    """From every page, those of runs included, all boards and the guide are one step away."""
    for path, text in pages(site):
        nav = text[text.index("<nav") : text.index("</nav>")]
        up = "../" * path.count("/")
        assert all(f'href="{up}{name}.html"' in nav for name in ("pathways", "planted", "read")), (
            path
        )


def test_k_is_said_where_it_stands(board: Leaderboard, site: dict[str, str]) -> None:
    """Where a run's configuration is of its k best sites, the page says how many these are."""
    for entry in board.entries:
        if entry.record.planted is not None:
            text = site[f"runs/{run_name(entry.record)}.html"]
            best = [row.graft for row in entry.record.rows if row.graft in (BEST, REST)]
            assert text.count(f"k = {entry.record.planted.k} sites") == len(best)
            assert f"best {entry.record.planted.k} sites" in text


def test_taking_a_run_away_changes_no_other_run(board: Leaderboard, site: dict[str, str]) -> None:
    """Pages of the runs that stay are the same bytes."""
    gone, *rest = board.entries
    fewer = {path: content.decode() for path, content in render_site(fake_boards.leaderboard(rest))}
    for entry in rest:
        name = entry.record.id[:12]
        assert fewer[f"runs/{name}.html"] == site[f"runs/{name}.html"]
    assert f"runs/{gone.record.id[:12]}.html" not in fewer


def test_two_runs_with_one_name_are_refused(board: Leaderboard) -> None:
    """Where two runs would have the same page, an error says which."""
    first = board.entries[0]
    with pytest.raises(DataError, match="both would have one page"):
        list(render_site(replace(board, entries=(first, first))))


def test_a_run_has_its_hit_rates_within_other_ranks(
    board: Leaderboard, site: dict[str, str]
) -> None:
    """Those that no column of its table shows, with the record's intervals."""
    for entry in board.entries:
        page = site[f"runs/{run_name(entry.record)}.html"]
        held = re.search(r"<script type=application/json id=data>(.*?)</script>", page)
        assert held is not None
        rates = json.loads(held[1])["ranks"]
        for row in entry.record.rows:
            for key in ("top1", "top10", "top20", "top50", "top100"):
                found = row.estimate(key)
                wanted = [found.value, found.low, found.high, found.n]
                assert rates[key][row.prompt][row.graft] == wanted


def test_a_map_holds_every_score(board: Leaderboard) -> None:
    """Every site's score comes back from the page's data, to four digits."""
    entry = next(entry for entry in board.entries if entry.record.scores)
    data = map_data(entry.record)
    assert data is not None
    for site in entry.record.scores or ():
        layer = "embed" if site.layer is None else str(site.layer)
        shown = data["scores"][site.region][site.component][layer]
        assert shown == pytest.approx(site.score, rel=1e-3)


@contextmanager
def serving(pages: dict[str, bytes]) -> Iterator[LocalServer]:
    with site_server(pages.get, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_only_pages_of_the_site_are_served(board: Leaderboard) -> None:
    """The server gives the pages, to this machine under its own name, and nothing else."""
    with serving(dict(render_site(board))) as server:
        assert ask(server.server_port, "/") == ask(server.server_port, "/pathways.html") == 200
        for path in ("/runs/", "/../x", "/%2e%2e/x", "//etc/passwd", "/%00"):
            assert ask(server.server_port, path) == 404, path
        assert ask(server.server_port, "/", "evil.example") == 421


def test_what_a_client_does_ends_its_connection_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """A broken connection and a request that never ends print nothing; others are answered
    meanwhile.
    """
    with serving({"index.html": b"here"}) as server:
        broken = socket.create_connection(("127.0.0.1", server.server_port))
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        broken.close()
        server.limit = 0.2
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as slow:
            slow.sendall(b"GET / HT")
            assert ask(server.server_port, "/") == 200
            assert slow.recv(1) == b"", "it is closed, though its request is not whole"
    assert capfd.readouterr() == ("", "")


def test_served_pages_have_their_policy_as_a_header() -> None:
    """The header holds what the page's own element says, and that it stands in no other page."""
    with serving({"index.html": b"here"}) as server:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", "/")
        headers = connection.getresponse().headers
    assert headers["Content-Security-Policy"] == f"{POLICY};frame-ancestors 'none'"
    assert headers["Content-Type"] == "text/html"


@pytest.mark.parametrize("command", [["build"], ["build", "--check"]])
def test_a_board_that_is_not_there_is_an_error(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and one line that names the folder and the option, not an empty board."""
    assert main(["leaderboard", *command, "--root", str(tmp_path / "nowhere")]) == 2
    told = capsys.readouterr().err
    assert (
        "nowhere is no leaderboard" in told and "give the place" in told and told.count("\n") == 1
    )


def ask(port: int, path: str, host: str = "127.0.0.1") -> int:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_a_port_that_is_taken_is_said_so() -> None:
    """Where the port cannot be had, the error names it and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(InputError, match="--port"),
            site_server({}.get, taken.getsockname()[1]),
        ):
            pass


@pytest.mark.parametrize("field", ["kind", "floor"])
def test_a_run_of_an_unknown_kind_is_left_out(tmp_path: Path, field: str) -> None:
    """Whatever method a folder of runs calls itself of, the pages of all other runs are made."""
    store = RecordStore(tmp_path / "runs")
    store.write(*result())
    path = store.write(*result(identity(localizer=OTHERS), seed=1)) / "record.json"
    (path.parent / SEAL).unlink()
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "other"}))
    with pytest.warns(DamagedRecordWarning, match=field):
        (left,) = own_entries(store.root)
    assert dict(render_site(make_leaderboard([left])))


def test_own_runs_say_that_they_are_own(board: Leaderboard, site: dict[str, str]) -> None:
    """A run that was never submitted is named as the reader's, in words."""
    own: Entry = next(entry for entry in board.entries if entry.submission is None)
    assert own.record.identity.localizer == LocalizerRef(
        name=HOSTILE, version="1", parameters=own.record.identity.localizer.parameters
    )
    assert "yours: not submitted" in site[f"runs/{own.record.id[:12]}.html"]
