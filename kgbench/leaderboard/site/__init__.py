"""The leaderboard as a static site, which works from files and asks nothing of any network."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from kgbench.errors import DataError
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.limits import FACTS
from kgbench.leaderboard.model import Badge, Board, Leaderboard
from kgbench.leaderboard.site.curves import curve_files, has_curves
from kgbench.leaderboard.site.environments import environment_facts, environment_name
from kgbench.leaderboard.site.links import run_name
from kgbench.leaderboard.site.maps import map_data
from kgbench.leaderboard.site.pages import Pages, script_call
from kgbench.leaderboard.site.ranks import STEPS, fact_ranks, read_ranks
from kgbench.leaderboard.site.run_pages import run_page
from kgbench.leaderboard.site.suites import badge, suite
from kgbench.leaderboard.site.tables import Places, shown_part, shown_rows, shown_table
from kgbench.leaderboard.validate.known import known

__all__ = ["render_site"]

_LIBRARIES = ("charts/d3.min.js.gz", "charts/plot.min.js.gz")
"""Third-party scripts as published, packed; `assets/charts.js` of the site shows them."""

_CHARTS = ("charts/tables.js", "charts/pictures.js", "data.js")

DRAWN = 40
"""Methods in the picture of the first page."""


def render_site(leaderboard: Leaderboard) -> Iterator[tuple[str, bytes]]:
    """All files of the site: the same leaderboard gives the same bytes.

    Args:
        leaderboard: Boards, and the entries that they are from.

    Yields:
        The path in the site, and the content.

    Raises:
        DataError: If two runs could not be told apart, or rows of one do not read.
    """
    entries = _by_name(leaderboard)
    places = Places(frozenset(entry.method for entry in leaderboard.entries), frozenset(entries))
    pages = Pages(boards=leaderboard.boards, steps=STEPS, suite=suite, badge=badge)
    yield from _assets()
    yield "index.html", _index(leaderboard, pages, places)
    by_id = {entry.record.id: entry for entry in leaderboard.entries}
    for board in leaderboard.boards:
        yield f"{board.key}.html", _board(board, pages, places, by_id)
        yield from curve_files(board, by_id)
    for name in sorted(places.methods):
        yield places.method(name), _method(name, leaderboard, pages, places)
    for name, entry in entries.items():
        yield f"runs/{name}.html", _run(name, entry, pages, places)
    yield "read.html", pages.render("read.html")
    yield (
        "environments.html",
        pages.render("environments.html", environments=_environments(leaderboard)),
    )
    yield from _compare(leaderboard, pages)


def _by_name(leaderboard: Leaderboard) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry in leaderboard.entries:
        if (name := run_name(entry.record)) in found:
            raise DataError(
                f"{entry.folder}: its id begins as that of {found[name].folder} does, and both "
                "would have one page"
            )
        found[name] = entry
    return found


def _assets() -> Iterator[tuple[str, bytes]]:
    """What pages load, as it is; what all pages with pictures load, in one file."""
    here = Path(__file__).parent / "assets"
    for path in sorted(here.glob("*.*")):
        yield f"assets/{path.name}", path.read_bytes()
    yield "assets/LICENSES.txt", (here / "charts/LICENSES.txt").read_bytes()
    libraries = (gzip.decompress((here / name).read_bytes()) for name in _LIBRARIES)
    yield (
        "assets/charts.js",
        b"\n".join((*libraries, *((here / name).read_bytes() for name in _CHARTS))),
    )


def _index(leaderboard: Leaderboard, pages: Pages, places: Places) -> bytes:
    parts = {
        board.key: shown_part(board, places, DRAWN) for board in leaderboard.boards if board.tables
    }
    verified = sum(entry.verified for entry in leaderboard.entries)
    count = (len(leaderboard.entries), len(places.methods), verified)
    return pages.render("index.html", parts=parts, count=count)


def _board(board: Board, pages: Pages, places: Places, entries: Mapping[str, Entry]) -> bytes:
    curves = {table.key for table in board.tables if has_curves(table, entries)}
    tables = [shown_table(table, places) for table in board.tables]
    columns = dict.fromkeys(
        (column.title, column.about) for table in board.tables for column in table.columns
    )
    lines = [line for table in board.tables for line in table.lines]
    given = {line.badge for line in lines}
    return pages.render(
        "board.html",
        board=board,
        tables=tables,
        curves=curves,
        columns=columns,
        badges=[badge for badge in get_args(Badge) if badge in given],
        baselines=any(line.baseline for line in lines),
    )


def _method(name: str, leaderboard: Leaderboard, pages: Pages, places: Places) -> bytes:
    found = [entry for entry in leaderboard.entries if entry.method == name]
    rows = [
        rows
        for board in leaderboard.boards
        if (rows := shown_rows(board, name, places)) is not None
    ]
    return pages.render(
        "method.html",
        up="../",
        name=name,
        entries=[(run_name(entry.record), entry) for entry in found],
        tables=rows,
        about=_about(found),
        mapped=_mapped(found),
    )


def _about(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a method is, in a line, its kind, and the addresses of its papers."""
    first = entries[0].record
    name = first.identity.localizer.name
    papers = [entry.submission.paper for entry in entries if entry.submission is not None]
    what, own = (
        f"the localizer {name} of whoever submitted it; see its code",
        known().localizers.get(name),
    )
    if own is not None:
        what = own.about
        papers.append(own.paper.replace("arXiv ", "https://arxiv.org/abs/"))
    kinds = {
        "scoring": "scoring: it ranks sites",
        "intervention": "intervention: it runs the model with chosen sites changed",
    }
    parameters = first.identity.localizer.parameters
    values = ", ".join(f"{key} = {value}" for key, value in parameters.items())
    kind = kinds[first.kind] + (f"; {values}" if values else "")
    return {"what": what, "kind": kind, "papers": list(dict.fromkeys(filter(None, papers)))}


def _mapped(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """The map of the first run that has one, where nothing was planted if there is such a run."""
    drawn = sorted(
        (e for e in entries if e.record.scores), key=lambda e: e.record.planted is not None
    )
    if not drawn:
        return None
    record = drawn[0].record
    data = {"map": map_data(record), "planted": record.planted and record.planted.plant}
    return {"pair": drawn[0].pair, "run": run_name(record), "data": data}


def _run(name: str, entry: Entry, pages: Pages, places: Places) -> bytes:
    method = "../" + places.method(entry.method)
    return pages.render(
        "run.html", up="../", entry=entry, name=name, method=method, page=run_page(entry)
    )


def _environments(leaderboard: Leaderboard) -> dict[str, tuple[tuple[tuple[str, str], ...], int]]:
    sources = [entry.record.provenance for entry in leaderboard.entries]
    counts = Counter(map(environment_name, sources))
    return {
        environment_name(source): (
            tuple(environment_facts(source)),
            counts[environment_name(source)],
        )
        for source in sources
    }


def _compare(leaderboard: Leaderboard, pages: Pages) -> Iterator[tuple[str, bytes]]:
    """The comparison page and its files: an index, one per list of facts, one per run."""
    index: list[list[Any]] = []
    lists: set[str] = set()
    for entry in leaderboard.entries:
        name, record = run_name(entry.record), entry.record
        ranks = fact_ranks(
            read_ranks(entry.content(FACTS), entry.folder / FACTS),
            [row.graft for row in record.rows],
        )
        what = record.identity
        index.append(
            [
                name,
                entry.method,
                entry.pair,
                suite(entry),
                what.dataset.hash[:12],
                badge(entry),
                list(what.prompts),
            ]
        )
        if ranks.list_name not in lists:
            lists.add(ranks.list_name)
            yield (
                f"data/facts/{ranks.list_name}.js",
                script_call("kgbench.facts.put", ranks.list_name, ranks.facts),
            )
        yield (
            f"data/runs/{name}.js",
            script_call(
                "kgbench.runs.put", name, {"facts": ranks.list_name, "prompts": ranks.prompts}
            ),
        )
    yield (
        "data/runs.js",
        script_call("kgbench.index.put", "", {"runs": index, "first": _first_two(leaderboard)}),
    )
    yield "compare.html", pages.render("compare.html")


def _first_two(leaderboard: Leaderboard) -> list[str]:
    """Runs of ranks 1 and 2 on the first cell that has both; empty without one."""
    boards = sorted(leaderboard.boards, key=lambda board: board.key != "pathways")
    for table in (table for board in boards for table in board.tables):
        ranked = [line for line in table.lines if line.rank is not None and len(line.runs) == 1]
        others = [line for line in ranked[1:] if not line.baseline]
        if table.scope and ranked and others:
            second = next((line for line in others if line.rank == 2), others[0])
            return [run_name(line.runs[0]) for line in (ranked[0], second)]
    return []
