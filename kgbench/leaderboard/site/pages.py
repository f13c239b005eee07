"""The leaderboard as a static site, which works from files and asks nothing of any network."""

from __future__ import annotations

import lzma
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kgbench.errors import DataError
from kgbench.leaderboard.board_tables import Board, Leaderboard, spread_text
from kgbench.leaderboard.entries import SOURCES, TRUSTED, Badge, Entry
from kgbench.leaderboard.known import known
from kgbench.leaderboard.site.tables import (
    Cells,
    brief,
    compact_json,
    lines_of,
    map_data,
    method_page,
    method_slug,
    run_name,
    shown_table,
    table_curves,
)
from kgbench.numbers import count_text, duration_text, metric_name, number_text
from kgbench.records import Record
from kgbench.sites import BASELINES
from kgbench.sites.configurations import BEST, REST
from kgbench.stats import verdict_of

POLICY = (
    "default-src 'none';script-src 'self' file:;style-src 'self' file: 'unsafe-inline';"
    "img-src 'self' file: data:;base-uri 'none';form-action 'none'"
)
"""What a page may load: files of its own site."""

_LIBRARIES = ("charts/d3.min.js.xz", "charts/plot.min.js.xz")
"""Third-party scripts as published, packed; `assets/charts.js` of the site shows them."""

_CHARTS = ("charts/tables.js", "charts/pictures.js")

DRAWN = 40
"""Methods in the picture of the first page."""


@cache
def _templates() -> Environment:
    """The templates of all sites, each of which is compiled once in a process."""
    templates = Environment(
        loader=PackageLoader("kgbench.leaderboard.site"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    filters = {f.__name__: f for f in (brief, capital, number_text, method_page, run_name)}
    templates.filters.update(filters, inline=inline_json)
    texts = {f.__name__: f for f in (count_text, duration_text, spread_text)}
    constants = {"Cells": Cells, "policy": POLICY, "trusted": TRUSTED, "sources": SOURCES}
    templates.globals.update(texts, **constants)
    return templates


class Site:
    """A leaderboard, and the templates of its pages.

    Args:
        leaderboard: Its boards, and the entries that they are from.
        viewed: Whether pages belong to a viewer, which has single facts and comparisons too.

    Raises:
        DataError: If two runs would have one page.
    """

    def __init__(self, leaderboard: Leaderboard, viewed: bool = False) -> None:
        self.boards, self.entries = leaderboard.boards, leaderboard.entries
        self.by_name: dict[str, Entry] = {}
        self.by_method: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if (first := self.by_name.get(run_name(entry.result))) is not None:
                raise DataError(
                    f"{entry.folder}: its id begins as that of {first.folder} does, and both "
                    "would have one page"
                )
            self.by_name[run_name(entry.result)] = entry
            self.by_method.setdefault(entry.method, []).append(entry)
        self.viewed = viewed

    def page(self, template: str, up: str = "", **content: object) -> bytes:
        """A page.

        Args:
            template: Name of its template.
            up: The way to the site's root: empty, or `../` in a folder.
            content: Variables of the template.
        """
        shared = {"up": up, "boards": self.boards, "viewed": self.viewed}
        return _templates().get_template(f"{template}.html").render(**shared, **content).encode()

    def board(self, board: Board) -> bytes:
        """A board's tables and their budget curves."""
        curves = {table.key: table_curves(table, self.by_name) for table in board.tables}
        columns = chain.from_iterable(table.columns for table in board.tables)
        return self.page(
            "board",
            board=board,
            tables=list(map(shown_table, board.tables)),
            curves={key: data for key, data in curves.items() if data},
            columns=dict.fromkeys((column.title, column.about) for column in columns),
            badges=get_args(Badge),
        )

    def method(self, name: str) -> bytes:
        """What a method is, its papers, a map, its lines in all tables, and its runs."""
        entries = self.by_method[name]
        result = entries[0].result
        builtin = known().localizers.get(result.identity.localizer.name)
        papers = [entry.submission.paper for entry in entries if entry.submission is not None]
        if builtin is not None:
            papers.append(builtin.paper.replace("arXiv ", "https://arxiv.org/abs/"))
        # A map where nothing was planted, if there is one.
        scored = [entry for entry in entries if entry.result.scores]
        mapped = min(scored, key=lambda entry: entry.suite == "planted", default=None)
        data: dict[str, Any] = {}
        if mapped is not None:
            truth = mapped.result.identity.truth
            data = {"map": map_data(mapped.result), "planted": truth and truth.plant}
        return self.page(
            "method",
            up="../",
            name=name,
            entries=entries,
            result=result,
            builtin=builtin,
            papers=dict.fromkeys(filter(None, papers)),
            mapped=mapped,
            data=data,
            tables=filter(None, (lines_of(board, name) for board in self.boards)),
        )

    def run(self, name: str, entry: Entry) -> bytes:
        """All figures of a run, and where they come from."""
        record, keys = entry.record, [entry.record.metric, "sufficiency"]
        losses = [row.necessity for row in record.rows if row.graft not in _REFERENCES]
        lost = {loss.undefined or "" for loss in losses}
        if len(lost) != 1 or "" in lost:
            keys.append("necessity")
            lost = set()
        data = {
            "map": map_data(record),
            "curves": list(record.curve or {}),
            "ranks": _hit_rates(record, keys),
            "planted": record.planted and record.planted.plant,
        }
        return self.page(
            "run",
            up="../",
            name=name,
            entry=entry,
            record=record,
            verdict=verdict_of(record),
            lost="".join(lost),
            heads={key: _TITLES.get(key) or metric_name(key).capitalize() for key in keys},
            baselines=BASELINES,
            best=(BEST, REST),
            figures=Cells(),
            data={key: value for key, value in data.items() if value},
        )


def render_site(leaderboard: Leaderboard) -> Iterator[tuple[str, bytes]]:
    """All files of the site: the same leaderboard gives the same bytes.

    Args:
        leaderboard: Boards, and the entries that they are from.

    Yields:
        The path in the site, and the content.

    Raises:
        DataError: If two runs would have one page, or rows of one do not read.
    """
    site = Site(leaderboard)
    yield from assets()
    parts = {}
    for board in filter(lambda board: board.tables, site.boards):
        ranked_by = board.tables[0].ranked_by
        keys = ("sufficiency", "necessity", ranked_by) if ranked_by else ()
        parts[board.key] = shown_table(board.tables[0], DRAWN, keys)
    sources = Counter(entry.badge for entry in site.entries)
    count = (len(site.entries), len(site.by_method), sources)
    yield "index.html", site.page("index", parts=parts, count=count)
    for board in site.boards:
        yield f"{board.key}.html", site.board(board)
    for name in sorted(site.by_method):
        yield f"methods/{method_slug(name)}.html", site.method(name)
    for name, entry in site.by_name.items():
        yield f"runs/{name}.html", site.run(name, entry)
    yield "read.html", site.page("read")


def assets() -> Iterator[tuple[str, bytes]]:
    """Files that pages load as they are, and one file with the scripts of all pictures."""
    here = Path(__file__).parent / "assets"
    for path in sorted(here.glob("*.*")):
        yield f"assets/{path.name}", path.read_bytes()
    yield "assets/LICENSES.txt", (here / "charts/LICENSES.txt").read_bytes()
    scripts = [lzma.decompress((here / name).read_bytes()) for name in _LIBRARIES]
    scripts += [(here / name).read_bytes() for name in _CHARTS]
    yield "assets/charts.js", b"\n".join(scripts)


def capital(text: str) -> str:
    """With a capital first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def inline_json(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = compact_json(value)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


_REFERENCES = (*BASELINES, "ALL", "NONE")
RANKS = (1, 5, 10, 20, 50, 100)
"""Ranks within which the target is a hit, whose rates the page of a run draws."""

_TITLES = {"mrr": "MRR", "sufficiency": "Sufficiency", "necessity": "Necessity"}


def _hit_rates(record: Record, keys: Collection[str]) -> dict[str, Any]:
    """Hit rates within the ranks that no column shows, by prompt and configuration."""
    rates: dict[str, Any] = {}
    shown = [f"top{rank}" for rank in RANKS if f"top{rank}" not in keys]
    for key, row in product(shown, record.rows):
        rate = row.estimate(key)
        if rate.value is not None:
            ends = (rate.value, rate.low, rate.high, rate.n)
            rates.setdefault(key, {}).setdefault(row.prompt, {})[row.graft] = ends
    return rates
