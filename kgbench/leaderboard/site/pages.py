"""The leaderboard as a static site, which works from files and asks nothing of any network."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Leaderboard, spread_text
from kgbench.leaderboard.entries import SOURCES, TRUSTED, Badge, Entry
from kgbench.leaderboard.site.tables import (
    Cells,
    Places,
    brief,
    compact_json,
    map_data,
    run_name,
    script_call,
    shown_part,
    shown_rows,
    shown_table,
    table_curves,
)
from kgbench.leaderboard.validate.known import known, pair_of
from kgbench.models import catalog
from kgbench.numbers import count_text, duration_text, metric_name, number_text
from kgbench.records import Record, Row
from kgbench.sites import BASELINES
from kgbench.sites.configurations import BEST, REST
from kgbench.stats import verdict_of

POLICY = (
    "default-src 'none';script-src 'self' file:;style-src 'self' file: 'unsafe-inline';"
    "img-src 'self' file: data:;base-uri 'none';form-action 'none'"
)
"""What a page may load: files of its own site."""

_LIBRARIES = ("charts/d3.min.js.gz", "charts/plot.min.js.gz")
"""Third-party scripts as published, packed; `assets/charts.js` of the site shows them."""

_EXPLORER = files("kgbench") / "analyses" / "explorer"
"""The explorer's files; its modules need torch."""

_CHARTS = ("charts/tables.js", "charts/pictures.js", "data.js")

_SHOW = """
const found = JSON.parse(document.getElementById("data").textContent);
show(document.getElementById("explorer"), found);
"""

DRAWN = 40
"""Methods in the picture of the first page."""


class _Pages:
    """A leaderboard, and the templates of its pages."""

    def __init__(self, leaderboard: Leaderboard) -> None:
        self.boards, self.entries = leaderboard.boards, leaderboard.entries
        self.by_id = {entry.result.id: entry for entry in self.entries}
        self.by_name: dict[str, Entry] = {}
        for entry in self.entries:
            if (first := self.by_name.get(run_name(entry.result))) is not None:
                raise DataError(
                    f"{entry.folder}: its id begins as that of {first.folder} does, and both "
                    "would have one page"
                )
            self.by_name[run_name(entry.result)] = entry
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
        texts = {f.__name__: f for f in (count_text, duration_text, spread_text)}
        self._templates.globals.update(texts, boards=self.boards, policy=POLICY, trusted=TRUSTED)

    def render(self, template: str, up: str = "", **content: object) -> bytes:
        """A page.

        Args:
            template: Name of its template.
            up: The way to the site's root: empty, or `../` in a folder.
            content: Variables of the template.
        """
        return self._templates.get_template(template).render(up=up, **content).encode()

    def index(self) -> bytes:
        parts = {}
        for board in self.boards:
            if board.tables:
                parts[board.key] = shown_part(board, self.places, DRAWN)
        sources = Counter(entry.badge for entry in self.entries)
        count = (len(self.entries), len(self.places.methods), sources)
        return self.render("index.html", parts=parts, count=count)

    def board(self, board: Board) -> Iterator[tuple[str, bytes]]:
        """The page of a board, and a file for each table that has budget curves."""
        curves = {}
        for table in board.tables:
            if data := table_curves(table, self.by_id):
                curves[table.key] = data
        columns = chain.from_iterable(table.columns for table in board.tables)
        yield (
            f"{board.key}.html",
            self.render(
                "board.html",
                board=board,
                tables=[shown_table(table, self.places) for table in board.tables],
                curves=curves,
                columns=dict.fromkeys((column.title, column.about) for column in columns),
                badges=get_args(Badge),
            ),
        )
        for key, data in curves.items():
            name = f"{board.key}-{key}"
            yield f"data/curves/{name}.js", script_call("kgbench.curves.set", name, data)

    def method(self, name: str) -> bytes:
        entries = [entry for entry in self.entries if entry.method == name]
        tables = [shown_rows(board, name) for board in self.boards]
        return self.render(
            "method.html",
            up="../",
            name=name,
            entries=[(run_name(entry.result), entry) for entry in entries],
            tables=[table for table in tables if table is not None],
            about=_about(entries),
            mapped=_mapped(entries),
        )

    def run(self, name: str, entry: Entry) -> bytes:
        return self.render(
            "run.html",
            up="../",
            entry=entry,
            sources=SOURCES,
            name=name,
            method=self.places.method(entry.method),
            page=run_page(entry),
            explored=_explored(entry),
        )

    def explorer(self, pair: str) -> bytes:
        """What the explorer shows of one prompt of a shipped pair."""
        shown = explorer_data()[pair]["shown"]
        asked = shown["asked"]
        words = {"--model": pair, "--subject": asked["subject"], "--answer": asked["answer"]}
        options = " ".join(f"{name} {quote(word)}" for name, word in words.items())
        return self.render(
            "explore.html",
            up="../",
            pair=pair,
            published=catalog.published(pair),
            shown=shown,
            command=f"kgbench explore {quote(shown['text'])} {options} --serve",
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
    pages = _Pages(leaderboard)
    yield from _assets()
    yield "index.html", pages.index()
    for board in pages.boards:
        yield from pages.board(board)
    for name in sorted(pages.places.methods):
        yield pages.places.method(name), pages.method(name)
    for name, entry in pages.by_name.items():
        yield f"runs/{name}.html", pages.run(name, entry)
    for pair in sorted(filter(None, set(map(_explored, pages.entries)))):
        yield f"explore/{pair}.html", pages.explorer(pair)
    yield "read.html", pages.render("read.html", sources=SOURCES)


def _assets() -> Iterator[tuple[str, bytes]]:
    """Files that pages load as they are, and one file with the scripts of all pictures."""
    here = Path(__file__).parent / "assets"
    for path in sorted(here.glob("*.*")):
        yield f"assets/{path.name}", path.read_bytes()
    yield "assets/LICENSES.txt", (here / "charts/LICENSES.txt").read_bytes()
    scripts = [gzip.decompress((here / name).read_bytes()) for name in _LIBRARIES]
    scripts += [(here / name).read_bytes() for name in _CHARTS]
    yield "assets/charts.js", b"\n".join(scripts)
    yield "assets/explorer.css", (_EXPLORER / "explorer.css").read_bytes()
    script = (_EXPLORER / "explorer.js").read_text("utf-8").rpartition("export default")[0]
    yield "assets/explorer.js", f"(() => {{\n{script}{_SHOW}}})();\n".encode()


@cache
def explorer_data() -> Mapping[str, Any]:
    """By shipped pair, no plant, its `weights` and what `Reader.read` has `shown` of one prompt.

    `tests/write_known.py` writes it from the loaded pairs, so that pages need no model.
    """
    packed = Path(__file__).with_name("explorer.json.gz").read_bytes()
    data: dict[str, Any] = json.loads(gzip.decompress(packed))
    return data


def _explored(entry: Entry) -> str | None:
    """The name of an entry's pair where it is a shipped one, with weights that a prompt shows."""
    shipped = pair_of(entry.result) is not None and entry.pair in explorer_data()
    return entry.pair if shipped else None


def _about(entries: Sequence[Entry]) -> Mapping[str, object]:
    """What a method is, in a line, its kind and parameters, and the addresses of its papers."""
    first = entries[0].result
    name = first.identity.localizer.name
    papers = [entry.submission.paper for entry in entries if entry.submission is not None]
    what = f"the localizer {name} of whoever submitted it; see its code"
    if (builtin := known().localizers.get(name)) is not None:
        what = builtin.about
        papers.append(builtin.paper.replace("arXiv ", "https://arxiv.org/abs/"))
    papers = list(dict.fromkeys(filter(None, papers)))
    return {
        "what": what,
        "papers": papers,
        "kind": first.kind,
        "localizer": first.identity.localizer,
    }


def _mapped(entries: Sequence[Entry]) -> Mapping[str, object] | None:
    """The map of the first run that has one, where nothing was planted if there is such a run."""
    drawn = [entry for entry in entries if entry.result.scores]
    if not drawn:
        return None
    entry = min(drawn, key=lambda entry: entry.suite == "planted")
    result, truth = entry.result, entry.result.identity.truth
    data = {"map": map_data(result), "planted": truth and truth.plant}
    return {"pair": entry.pair, "run": run_name(result), "data": data}


def _capital(text: str) -> str:
    """With a capital first letter, and the others as they are."""
    return text[:1].upper() + text[1:]


def inline_json(value: Any) -> Markup:
    """JSON that is safe inside a script element, whatever texts it holds."""
    text = compact_json(value)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


# -------------------------------------------------------------------------------- the page of a run


_REFERENCES = (*BASELINES, "ALL", "NONE")
RANKS = (1, 5, 10, 20, 50, 100)
"""Ranks within which the target is a hit, whose rates the page of a run draws."""

_TITLES = {"mrr": "MRR", "sufficiency": "Sufficiency", "necessity": "Necessity"}


def run_page(entry: Entry) -> Mapping[str, object]:
    """Variables of an entry's page."""
    record, cells = entry.record, Cells()
    lost = {row.necessity.undefined or "" for row in record.rows if row.graft not in _REFERENCES}
    keys = [record.metric, "sufficiency"]
    if len(lost) != 1 or "" in lost:
        keys.append("necessity")
        lost = set()
    prompts = []
    for prompt, by_graft in record.by_prompt.items():
        rows = [(row, _cells(row, keys, cells)) for row in by_graft.values()]
        prompts.append((prompt, rows))
    others = [(name, cells.precise(estimate)) for name, estimate in _others(record)]
    planted = record.planted
    data = {
        "map": map_data(record),
        "curves": list(record.curve or {}),
        "ranks": _hit_rates(record, keys),
        "planted": planted and planted.plant,
    }
    return {
        "verdict": verdict_of(record),
        "lost": "".join(lost),
        "heads": [(key, _TITLES.get(key) or metric_name(key).capitalize()) for key in keys],
        "prompts": prompts,
        "reasons": cells.footnotes.reasons,
        "others": others,
        "data": {key: value for key, value in data.items() if value},
        "best": {} if planted is None else dict.fromkeys((BEST, REST), planted.k),
    }


def _hit_rates(record: Record, keys: Collection[str]) -> dict[str, Any]:
    """Hit rates within the ranks that no column shows, by prompt and configuration."""
    found: dict[str, Any] = {}
    for rank in RANKS:
        if (key := f"top{rank}") in keys:
            continue
        for row in record.rows:
            rate = row.estimate(key)
            if rate is not None and rate.value is not None:
                ends = (rate.value, rate.low, rate.high, rate.n)
                found.setdefault(key, {}).setdefault(row.prompt, {})[row.graft] = ends
    return found


def _cells(row: Row, keys: list[str], cells: Cells) -> list[Markup]:
    if not row.applicable:
        return [cells.cell(row.sufficiency, len(keys))]
    shown = []
    for key in keys:
        blank = row.graft in BASELINES and key == "necessity"
        shown.append(cells.precise(None if blank else row.estimate(key)))
    return shown


def _others(record: Record) -> Iterator[tuple[str, Estimate]]:
    for prompt, estimate in record.synergy.items():
        if estimate.undefined is None:
            yield f"Synergy of FE and LT, {prompt}", estimate
    for name, prompts in record.baselines.items():
        for prompt, estimate in prompts.items():
            yield f"{name.replace('_', ' ').capitalize()}, {prompt}", estimate
    for prompt, curve in (record.curve or {}).items():
        yield f"Area under the budget curve, {prompt}", curve.area
    if record.ranking is not None:
        yield "Agreement of the two halves’ scores", record.ranking.agreement
    yield from _planted(record)
    yield "Cost, in plain forwards", record.cost.plain_forward_ratio


def _planted(record: Record) -> Iterator[tuple[str, Estimate]]:
    planted = record.planted
    if planted is None:
        return
    chance = "" if planted.chance is None else f" (chance {number_text(planted.chance)})"
    yield f"Average precision{chance}", planted.average_precision
    yield f"Sufficiency of the best {planted.k} sites", planted.effect.sufficiency
    yield f"Necessity of the best {planted.k} sites", planted.effect.necessity
    for prompt, pathway in (planted.pathways or {}).items():
        if pathway.outcome != "not applicable":
            yield (
                f"Recovery of {pathway.planted}, {prompt}: {pathway.outcome}",
                pathway.recovery_planted,
            )
            yield f"Recovery of {pathway.other}, {prompt}", pathway.recovery_other
