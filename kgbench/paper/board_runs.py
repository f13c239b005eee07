"""`kgbench reproduce board`: the project's own entries, their runs, and making them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click

from kgbench.cli.output import Output, table_text
from kgbench.errors import InputError, KgbenchError, check_choice
from kgbench.leaderboard.boards.organisms import NULL
from kgbench.leaderboard.drafts import drafts
from kgbench.leaderboard.entries import (
    BOARD_FACTS,
    BOARD_METRICS,
    BOARDS,
    Entry,
    folder_of_method,
    read_entries,
)
from kgbench.leaderboard.folders import RESULTS, changed
from kgbench.leaderboard.known import known
from kgbench.models.catalog import (
    plants,
    plants_in_shipped_pairs,
    shipped,
    with_fetched_base,
)
from kgbench.numbers import count_text, duration_text
from kgbench.progress import Progress
from kgbench.records import RecordStore, Result, other_versions
from kgbench.runner import Settings, Spec, check
from kgbench.runner.earlier_runs import known_identity, note_identity
from kgbench.runner.spec import listed
from kgbench.stats.scores import DEFAULT_METRIC

COSTLY = frozenset({"greedy_graft"})
"""Methods that rank by hundreds of evaluations in turn: no language model is ranked by one."""


NOT_OF_REPLIES = frozenset(
    {"causal_trace", "path_patch"}  # they read a first token, or noise an FE
    | {"graft_drop", "graft_scan", "greedy_graft", "mask_graft"}  # hours, at each of many sites
)
"""Methods without an entry on organisms."""


def pairs_of(board: str, method: str) -> tuple[str, ...]:
    """The pairs on which a built-in method has an entry on a board.

    This is the whole table of the project's entries. Every method ranks the sites of every plant;
    one whose map is another's scan has that one's entries, and none of its own. Of the pairs
    without a plant, methods that intervene have pathways; budget curves have all but those that
    must be given the truth. Costly methods have fewer. Of organisms there is the one
    without a behaviour. Prompts and configurations are those of the suite that is called as the
    board is, the facts the pair's own, as many as `BOARD_FACTS` says, the seed 0.

    Args:
        board: One of `BOARDS`.
        method: Name of a built-in localizer.
    """
    what = known().localizers[method]
    if what.scan_of:
        return ()
    if board == "organisms":
        return () if "truth" in what.needs or method in NOT_OF_REPLIES else (NULL,)
    if board == "planted":
        return plants_in_shipped_pairs() if method in COSTLY else plants()
    if "truth" in what.needs or (board == "pathways" and what.kind != "intervention"):
        return ()
    if board == "budget" and method in COSTLY:
        return shipped()
    return *shipped(), *with_fetched_base()


@dataclass(frozen=True)
class BoardRun:
    """One run that gives an entry."""

    board: str
    method: str
    pair: str
    limit: int | None
    """Number of facts, the first ones of the pair; None of all."""

    @property
    def spec(self) -> Spec:
        """Specification of the run."""
        return Spec(
            localizer=self.method,
            model=self.pair,
            suite=self.board,
            limit=self.limit,
            metric=BOARD_METRICS.get(self.board, DEFAULT_METRIC),
            chat_template=self.board == "organisms",
        )

    def __str__(self) -> str:
        """In words."""
        return f"{self.board}: {self.method} on {self.pair}"


def board_runs(
    boards: Sequence[str] = (),
    methods: Sequence[str] = (),
    pairs: Sequence[str] = (),
    limit: int | None = None,
) -> tuple[BoardRun, ...]:
    """The runs that give the project's entries, those on one pair together.

    Args:
        boards: Only of these boards.
        methods: Only of these methods.
        pairs: Only on these pairs and on the plants in them, or on these plants.
        limit: Only the first so many facts, to try it out.

    Raises:
        InputError: No entry is of these boards, methods and pairs.
        UnknownNameError: There is no such board, method or pair.
    """
    built_in = tuple(known().localizers)
    there = (*shipped(), *with_fetched_base(), *plants(), NULL)
    choices = (("board", boards, BOARDS), ("localizer", methods, built_in), ("model", pairs, there))
    for kind, given, names in choices:
        for name in given:
            check_choice(kind, name, names)
    asked = product(boards or BOARDS, methods or built_in)
    table = {(board, method): pairs_of(board, method) for board, method in asked}
    inside = tuple(f"{pair}." for pair in pairs)
    runs: list[BoardRun] = []
    for pair in there:
        if not pairs or f"{pair}.".startswith(inside):
            for (board, method), own in table.items():
                if pair in own:
                    runs.append(BoardRun(board, method, pair, limit or BOARD_FACTS.get(board)))
    if not runs:
        raise InputError(
            "no entry is of these boards, methods and pairs at once: leave one of them out"
        )
    return tuple(runs)


class Campaign:
    """Make entries again: find those that are there, run the others, and put all on the board.

    A finished run is a record in the folder of records, an unfinished one its journal there, and
    the board's folders are written at the end. So whenever a campaign ends, by whatever signal, the
    next one goes on where it was.
    """

    def __init__(
        self,
        runs: Sequence[BoardRun],
        root: Path,
        settings: Settings,
        progress: Progress | None = None,
    ) -> None:
        """Find the entry or record of each run; a pair of unknown identity is loaded once.

        Args:
            runs: Of `board_runs`.
            root: The leaderboard's folder.
            settings: How runs are computed, and where records are kept.
            progress: Progress callback.

        Raises:
            DataError: An entry on the board does not read.
        """
        self.runs, self.root, self.settings = tuple(runs), root, settings
        self.store = RecordStore(settings.output_dir)
        entries = read_entries(root / RESULTS)
        self.entries: dict[str, Entry] = {entry.result.id: entry for entry in entries}
        self.ids: dict[BoardRun, str] = {}
        """Of the runs whose pair and method could be loaded."""
        self.records: dict[BoardRun, Result] = {}
        """Of the runs with an entry or a record."""
        self.failures: dict[BoardRun, str] = {}
        """Why runs gave no record."""
        loaded = None
        for i, run in enumerate(self.runs):
            if progress is not None:
                progress(i, len(self.runs), f"identity of {run}")
            try:
                work = check(run.spec)
                id = known_identity(work, settings)
                if id is None:
                    from kgbench.runner.job import Pairs, load_job  # takes seconds to import

                    loaded = loaded or Pairs()
                    id = load_job(work, settings, loaded).identity.digest()
                    note_identity(work, settings, loaded.state, id)
            except KgbenchError as error:
                self.failures[run] = str(error)
                continue
            self.ids[run] = id
            if id in self.entries:
                self.records[run] = self.entries[id].result
            elif (stored := self.store.find(id)) is not None:
                self.records[run] = stored.record

    @property
    def left(self) -> list[BoardRun]:
        """Runs without an entry or a record."""
        return [run for run in self.ids if run not in self.records]

    def compute(self, announce: Callable[[str], None], progress: Progress | None = None) -> None:
        """Run what is missing; a failure is kept with its reason, and the next run follows.

        Args:
            announce: Callback for a line on each run.
            progress: Progress callback, within a run.
        """
        from kgbench.runner.job import Pairs
        from kgbench.runner.run import run_job

        runs, loaded = self.left, Pairs()
        for i, run in enumerate(runs):
            name, began = f"[{i + 1}/{len(runs)}] {run}", time.monotonic()
            try:
                self.records[run] = run_job(run.spec, self.settings, progress, loaded).record
            except KgbenchError as error:
                self.failures[run] = str(error)
                announce(f"{name}: failed: {error}")
                continue
            announce(f"{name}: {duration_text(time.monotonic() - began)}")

    def publish(self, announce: Callable[[str], None]) -> list[Path]:
        """Let the folders of the runs' methods hold the entries that there are now.

        An entry of a run that is on the board already stays as it is. Others of its pair are
        taken away, and so are those on pairs that the table does not have.

        Args:
            announce: Callback for a line on each folder that changes.

        Returns:
            The folders that changed.

        Raises:
            InputError: The laws cannot be tried on a method.
            OutputError: A folder cannot be written.
        """
        written = []
        by_folder: dict[Path, list[BoardRun]] = {}
        for run in self.runs:
            path = self.root / RESULTS / folder_of_method(run.board, run.method)
            by_folder.setdefault(path, []).append(run)
        for path, runs in by_folder.items():
            before = [entry for entry in self.entries.values() if entry.method_folder == path]
            kept = [entry for entry in before if self._stays(entry, runs)]
            new = self._new(runs)
            if new or kept != before:
                with changed(path) as (documents, rows):
                    documents.clear()
                    rows.clear()
                    for entry in (*kept, *new):
                        name = entry.folder.name
                        documents[name], rows[name] = entry.documents, entry.rows()
                written.append(path)
                gone = f", {len(before) - len(kept)} taken away" if kept != before else ""
                announce(f"{path}: {len(kept)} entries kept, {len(new)} new{gone}")
        return written

    def _stays(self, entry: Entry, runs: Sequence[BoardRun]) -> bool:
        """Whether an entry of a method folder belongs to a run, or to a pair without runs."""
        if entry.result.id in map(self.ids.get, runs):
            return True
        replaced = {(run.pair, run.limit) for run in runs if run in self.records}
        cell = entry.pair, entry.result.identity.limit
        return entry.pair in pairs_of(runs[0].board, runs[0].method) and cell not in replaced

    def _new(self, runs: Sequence[BoardRun]) -> list[Entry]:
        """The entries of runs that are recorded and not on the board yet."""
        from kgbench.testing.contract import contract_of

        records, contracts = [], {}
        for id in map(self.ids.get, runs):
            stored = self.store.find(id) if id and id not in self.entries else None
            if stored is not None:
                records.append(stored)
                contracts[stored.record.id] = contract_of(stored.record)
        return drafts(records, contracts, source=None)


# ----------------------------------------------------------------------------------- the command


def make_board(options: Mapping[str, Any], progress: Progress | None) -> Output:
    """Make the entries that are missing, or show which they are.

    Args:
        options: Those of the command.
        progress: Progress callback.

    Raises:
        InputError: No entry is of these boards, methods and pairs.
        UnknownNameError: There is no such board, method or pair.
    """
    began = time.monotonic()
    boards, methods = listed(options["board"]), listed(options["method"])
    runs = board_runs(boards, methods, listed([options["model"] or ""]), options["limit"])
    settings = Settings(output_dir=options["output_dir"], device=options["device"])
    campaign = Campaign(runs, options["root"], settings, progress)
    announce = (lambda line: None) if options["quiet"] else click.echo
    announce(_overview(campaign))
    n_left, lines = len(campaign.left), list[str]()
    answer: dict[str, Any] = {"entries": len(runs), "to_run": n_left}
    if not options["dry_run"]:
        campaign.compute(announce, progress)
        folders = campaign.publish(announce)
        computed, seconds = n_left - len(campaign.left), time.monotonic() - began
        of_all = sum(record.cost.seconds for record in campaign.records.values())
        there = f"{len(runs) - len(campaign.left)} of {len(runs)} entries"
        lines = [
            f"computed  {count_text(computed, 'run')} in {duration_text(seconds)}; "
            f"{count_text(len(folders), 'folder')} written",
            f"in all    {there}, {duration_text(of_all)} of computing",
        ]
        if folders:
            after = "kgbench leaderboard build, then kgbench leaderboard build --check"
            lines.append(f"next      {after}")
        answer = {
            "entries": len(runs),
            "computed": computed,
            "seconds": seconds,
            "cost_seconds": of_all,
            "folders": list(map(str, folders)),
            "failed": [{"run": str(run), "reason": why} for run, why in campaign.failures.items()],
        }
    failed = [f"failed    {run}: {why}" for run, why in campaign.failures.items()]
    return Output([*failed, *lines], answer, int(bool(failed)))


def _overview(campaign: Campaign) -> str:
    """Number of entries of each board, how many are missing, and which other versions made some."""
    rows = []
    for board in dict.fromkeys(run.board for run in campaign.runs):
        runs = [run for run in campaign.runs if run.board == board]
        left = [run for run in campaign.left if run.board == board]
        counts = ({run.method for run in runs}, {run.pair for run in runs}, runs, left)
        rows.append([board, *map(str, map(len, counts))])
    lines = [table_text(["board", "methods", "pairs", "entries", "to run"], rows)]
    others = (other_versions(record.provenance) for record in campaign.records.values())
    for other in dict.fromkeys(filter(None, others)):
        lines.append(
            f"note      some entries were {other}; to run them again, delete their folders"
        )
    return "\n".join([*lines, ""])
