"""The leaderboard as a static site, which works from files and asks nothing of any network."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kgbench.errors import DataError
from kgbench.leaderboard.board_tables import Board, Column, Leaderboard, Line
from kgbench.leaderboard.entries import Badge, Entry
from kgbench.leaderboard.hits import STEPS, fact_ranks
from kgbench.leaderboard.site.html_tables import (
    Places,
    brief,
    run_name,
    shown_part,
    shown_rows,
    shown_table,
)
from kgbench.leaderboard.site.picture_data import (
    compact_json,
    curve_points,
    map_data,
    script_call,
    table_curves,
)
from kgbench.leaderboard.site.run_pages import environment_facts, environment_name, run_page
from kgbench.leaderboard.validate.known import known

__all__ = ["POLICY", "inline_json", "render_site"]

POLICY = (
    "default-src 'none';script-src 'self' file:;style-src 'self' file: 'unsafe-inline';"
    "img-src 'self' file: data:;base-uri 'none';form-action 'none'"
)
"""What a page may load: files of its own site."""

_LIBRARIES = ("charts/d3.min.js.gz", "charts/plot.min.js.gz")
"""Third-party scripts as published, packed; `assets/charts.js` of the site shows them."""

_CHARTS = ("charts/tables.js", "charts/pictures.js", "data.js")

DRAWN = 40
"""Methods in the picture of the first page."""


class _Pages:
    """A leaderboard, and the templates of its pages."""

    def __init__(self, leaderboard: Leaderboard) -> None:
        self.boards, self.entries = leaderboard.boards, leaderboard.entries
        self.by_id = {entry.record.id: entry for entry in self.entries}
        self.by_name: dict[str, Entry] = {}
        for entry in self.entries:
            if (first := self.by_name.get(run_name(entry.record))) is not None:
                raise DataError(
                    f"{entry.folder}: its id begins as that of {first.folder} does, and both "
                    "would have one page"
                )
            self.by_name[run_name(entry.record)] = entry
        methods = frozenset(entry.method for entry in self.entries)
        self.places = Places(methods, frozenset(self.by_name))
        self._templates = Environment(
            loader=PackageLoader("kgbench.leaderboard.site"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self._templates.filters.update(inline=inline_json, capital=_capital, brief=brief)
        self._templates.globals.update(boards=self.boards, steps=STEPS, policy=POLICY)

    def render(self, template: str, up: str = "", **content: object) -> bytes:
        """A page.

        Args:
            template: Name of its template.
            up: The way to the site's root: empty, or `../` in a folder.
            content: Variables of the template.
        """
        return self._templates.get_template(template).render(up=up, **content).encode()

    def index(self) -> bytes:
        parts = {
            board.key: shown_part(board, self.places, DRAWN)
            for board in self.boards
            if board.tables
        }
        verified = sum(entry.verified for entry in self.entries)
        count = (len(self.entries), len(self.places.methods), verified)
        return self.render("index.html", parts=parts, count=count)

    def board(self, board: Board) -> Iterator[tuple[str, bytes]]:
        """The page of a board, and a file for each table that has budget curves."""
        curves = {}
        for table in board.tables:
            data = [[name, curve_points(own)] for name, own in table_curves(table, self.by_id)]
            if data:
                curves[table.key] = data
        columns: list[Column] = []
        lines: list[Line] = []
        for table in board.tables:
            columns += table.columns
            lines += table.lines
        badges = {line.badge for line in lines}
        yield (
            f"{board.key}.html",
            self.render(
                "board.html",
                board=board,
                tables=[shown_table(table, self.places) for table in board.tables],
                curves=curves,
                columns=dict.fromkeys((column.title, column.about) for column in columns),
                badges=[badge for badge in get_args(Badge) if badge in badges],
                baselines=any(line.baseline for line in lines),
            ),
        )
        for key, data in curves.items():
            name = f"{board.key}-{key}"
            yield f"data/curves/{name}.js", script_call("kgbench.curves.put", name, data)

    def method(self, name: str) -> bytes:
        entries = [entry for entry in self.entries if entry.method == name]
        tables = [shown_rows(board, name, self.places) for board in self.boards]
        return self.render(
            "method.html",
            up="../",
            name=name,
            entries=[(run_name(entry.record), entry) for entry in entries],
            tables=[table for table in tables if table is not None],
            about=_about(entries),
            mapped=_mapped(entries),
        )

    def run(self, name: str, entry: Entry) -> bytes:
        method = "../" + self.places.method(entry.method)
        return self.render(
            "run.html", up="../", entry=entry, name=name, method=method, page=run_page(entry)
        )

    def environments(self) -> bytes:
        sources = {}
        for entry in self.entries:
            source = entry.record.provenance
            sources[entry.record.id] = environment_name(source), tuple(environment_facts(source))
        counts = Counter(name for name, _ in sources.values())
        shown = {name: (facts, counts[name]) for name, facts in sources.values()}
        return self.render("environments.html", environments=shown)

    def comparison(self) -> Iterator[tuple[str, bytes]]:
        """The comparison page and its files: an index, one per list of facts, one per run."""
        index: list[list[Any]] = []
        lists: set[str] = set()
        for name, entry in self.by_name.items():
            what = entry.record.identity
            ranks = fact_ranks(entry.ranks(), [row.graft for row in entry.record.rows])
            about = [name, entry.method, entry.pair, entry.suite, what.dataset.hash[:12]]
            index.append([*about, entry.badge, list(what.prompts)])
            if ranks.list_name not in lists:
                lists.add(ranks.list_name)
                yield (
                    f"data/facts/{ranks.list_name}.js",
                    script_call("kgbench.facts.put", ranks.list_name, ranks.facts),
                )
            data = {"facts": ranks.list_name, "prompts": ranks.prompts}
            yield f"data/runs/{name}.js", script_call("kgbench.runs.put", name, data)
        runs = {"runs": index, "first": self._first_two()}
        yield "data/runs.js", script_call("kgbench.index.put", "", runs)
        yield "compare.html", self.render("compare.html")

    def _first_two(self) -> list[str]:
        """Runs of ranks 1 and 2 on the first cell that has both; empty without one."""
        boards = sorted(self.boards, key=lambda board: board.key != "pathways")
        for table in chain.from_iterable(board.tables for board in boards):
            ranked = [line for line in table.lines if line.rank is not None and len(line.runs) == 1]
            others = [line for line in ranked[1:] if not line.baseline]
            if table.scope and ranked and others:
                second = next((line for line in others if line.rank == 2), others[0])
                return [run_name(line.runs[0]) for line in (ranked[0], second)]
        return []


def render_site(leaderboard: Leaderboard) -> Iterator[tuple[str, bytes]]:
    """All files of the site: the same leaderboard gives the same bytes.

    Args:
        leaderboard: Boards, and the entries that they are from.

    Yields:
        The path in the site, and the content.

    Raises:
        DataError: If two runs would have one page, or rows of one do not read.
    """
    pages = _Pages(leaderboard)
    yield from _assets()
    yield "index.html", pages.index()
    for board in pages.boards:
        yield from pages.board(board)
    for name in sorted(pages.places.methods):
        yield pages.places.method(name), pages.method(name)
    for name, entry in pages.by_name.items():
        yield f"runs/{name}.html", pages.run(name, entry)
    yield "read.html", pages.render("read.html")
    yield "environments.html", pages.environments()
    yield from pages.comparison()


def _assets() -> Iterator[tuple[str, bytes]]:
    """Files that pages load as they are, and one file with the scripts of all pictures."""
    here = Path(__file__).parent / "assets"
    for path in sorted(here.glob("*.*")):
        yield f"assets/{path.name}", path.read_bytes()
    yield "assets/LICENSES.txt", (here / "charts/LICENSES.txt").read_bytes()
    scripts = [gzip.decompress((here / name).read_bytes()) for name in _LIBRARIES]
    scripts += [(here / name).read_bytes() for name in _CHARTS]
    yield "assets/charts.js", b"\n".join(scripts)


def _about(entries: Sequence[Entry]) -> Mapping[str, object]:
    """What a method is, in a line, its kind, and the addresses of its papers."""
    first = entries[0].record
    name = first.identity.localizer.name
    papers = [entry.submission.paper for entry in entries if entry.submission is not None]
    what = f"the localizer {name} of whoever submitted it; see its code"
    if (builtin := known().localizers.get(name)) is not None:
        what = builtin.about
        papers.append(builtin.paper.replace("arXiv ", "https://arxiv.org/abs/"))
    kinds = {
        "scoring": "scoring: it ranks sites",
        "intervention": "intervention: it runs the model with chosen sites changed",
    }
    parameters = first.identity.localizer.parameters
    values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    kind = kinds[first.kind] + (f"; {values}" if values else "")
    return {"what": what, "kind": kind, "papers": list(dict.fromkeys(filter(None, papers)))}


def _mapped(entries: Sequence[Entry]) -> Mapping[str, object] | None:
    """The map of the first run that has one, where nothing was planted if there is such a run."""
    drawn = [entry for entry in entries if entry.record.scores]
    if not drawn:
        return None
    entry = min(drawn, key=lambda entry: entry.record.planted is not None)
    record = entry.record
    data = {"map": map_data(record), "planted": record.planted and record.planted.plant}
    return {"pair": entry.pair, "run": run_name(record), "data": data}


def _capital(text: str) -> str:
    """With a capital first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def inline_json(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = compact_json(value)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)
