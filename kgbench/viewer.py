"""The viewer: a reader's own runs, each with its figures, map and single facts, and two compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from operator import itemgetter

from markupsafe import Markup

from kgbench.analyses.compare import compare_records, comparison_report
from kgbench.data import is_shipped, load_dataset
from kgbench.errors import KgbenchError
from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.site.pages import Site, assets
from kgbench.leaderboard.site.tables import method_slug
from kgbench.report import to_html
from kgbench.report.export import run_columns
from kgbench.runner.sources import sources_of

COLUMNS, ROWS = 30, 5000
"""Configurations and facts of a page; a note has the number of others."""

_assets = cache(lambda: dict(assets()))


class Viewer:
    """Pages of runs, each drawn when it is asked for.

    Args:
        read: Gives the runs; it is called again whenever the list is shown.
    """

    def __init__(self, read: Callable[[], Iterable[Entry]]) -> None:
        self._read = read
        self._site = self._drawn()

    def _drawn(self) -> Site:
        return Site(Leaderboard((), tuple(self._read())), viewed=True)

    def page(self, path: str) -> bytes | None:
        """A page by its path; None where there is none."""
        if path == "index.html":
            self._site = self._drawn()
            rows = [(name, run_columns(run.record)) for name, run in self._site.by_name.items()]
            rows.sort(key=lambda row: row[1]["date"], reverse=True)
            return self._site.page("runs", rows=rows)
        site, (folder, _, name) = self._site, path.removesuffix(".html").rpartition("/")
        methods = {method_slug(method): method for method in site.by_method}
        pair = tuple(filter(None, map(site.by_name.get, name.split("-"))))
        if folder == "methods" and name in methods:
            return site.method(methods[name])
        try:
            if folder == "runs" and len(pair) == 1:
                return site.run(name, pair[0])
            if folder == "facts" and len(pair) == 1:
                return self._facts(name, pair[0])
            if folder == "compare" and len(pair) == 2:
                return self._compared(*pair)
        except KgbenchError as error:
            return site.page("compare", up="../", runs=pair, text=str(error))
        return site.page("read") if path == "read.html" else _assets().get(path)

    def _facts(self, name: str, entry: Entry) -> bytes:
        """Ranks of a run's single facts, or their shares of texts."""
        table = entry.facts()
        key = "rank" if "rank" in table.column_names else "prob"
        columns = ("prompt", "fact", "position", "graft", key, "prob")
        rows = table.select(list(dict.fromkeys(columns))).to_pylist()
        place = itemgetter("prompt", "fact", "position")
        known = _fact_texts(entry)
        grafts = entry.result.identity.configurations
        lines = []
        for (prompt, fact, _), group in groupby(sorted(rows, key=place), place):
            cells = {row["graft"]: (row[key], row["prob"]) for row in group}
            lines.append((prompt, fact, known.get(fact), [cells.get(g) for g in grafts[:COLUMNS]]))
        shown = {"lines": lines[:ROWS], "grafts": grafts[:COLUMNS], "key": key}
        left = (len(grafts[COLUMNS:]), len(lines[ROWS:]))
        return self._site.page("facts", up="../", name=name, entry=entry, left=left, **shown)

    def _compared(self, first: Entry, second: Entry) -> bytes:
        """The second less the first."""
        comparison = compare_records((first.record, first.facts()), (second.record, second.facts()))
        text = Markup(to_html(comparison_report(comparison)))
        return self._site.page("compare", up="../", runs=(first, second), text=text)


def _fact_texts(entry: Entry) -> Mapping[str, str]:
    """Subject and object of a run's facts by id, where these are still at hand."""
    of = entry.result.identity.dataset
    try:
        noted = sources_of(entry.folder)
        alone = noted.dataset is None and is_shipped(of.name)
        dataset = load_dataset(of.name) if alone else noted.facts()
    except KgbenchError:
        return {}
    if dataset.content_hash != of.hash:
        return {}
    shown = list(filter(None, (dataset.subject, dataset.object))) or dataset.fields[:1]
    texts = {}
    for fact in dataset.facts:
        texts[fact.id] = " → ".join(fact.fields[name] for name in shown)
    return texts
