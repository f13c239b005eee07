"""The project's own entries of the leaderboard: their runs, and making them again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from kgbench.errors import InputError, KgbenchError, check_choice
from kgbench.leaderboard.drafts import drafts
from kgbench.leaderboard.entries import (
    BOARD_FACTS,
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
from kgbench.numbers import duration_text
from kgbench.progress import Progress
from kgbench.records import RecordStore, Result, other_versions
from kgbench.runner import Settings, Spec, check
from kgbench.runner.earlier_runs import known_identity, note_identity
from kgbench.stats.scores import DEFAULT_METRIC

COSTLY = frozenset({"greedy_graft"})
"""Methods that rank by hundreds of evaluations in turn; one pair shows what they do at a budget, and
none of a real language model is ranked."""


def pairs_of(board: str, method: str) -> tuple[str, ...]:
    """The pairs on which a built-in method has an entry on a board.

    This is the whole table of the project's entries. Every method ranks the sites of every plant.
    Of the pairs without a plant, methods that intervene have pathways; budget curves have all but
    those that must be given the truth. Costly methods have fewer. Prompts and configurations are
    those of the suite that is called as the board is, the facts the pair's own, as many as
    `BOARD_FACTS` says, the seed 0.

    Args:
        board: One of `BOARDS`.
        method: Name of a built-in localizer.
    """
    what = known().localizers[method]
    if board == "planted":
        return plants_in_shipped_pairs() if method in COSTLY else plants()
    if "truth" in what.needs or (board == "pathways" and what.kind != "intervention"):
        return ()
    if board == "budget" and method in COSTLY:
        return shipped()[:1]
    return *shipped(), *with_fetched_base()


@dataclass(frozen=True)
class BoardRun:
    """One run that gives an entry."""

    board: str
    method: str
    pair: str
    limit: int | None = None

    @property
    def spec(self) -> Spec:
        """Specification of the run."""
        return Spec(
            localizer=self.method,
            model=self.pair,
            suite=self.board,
            limit=self.n_facts,
            metric=DEFAULT_METRIC,
        )

    @property
    def n_facts(self) -> int | None:
        """Number of facts, the first ones of the pair; None of all."""
        return self.limit if self.limit is not None else BOARD_FACTS.get(self.board)

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
        UnknownNameError: There is no such method or pair.
    """
    built_in = tuple(known().localizers)
    there = (*shipped(), *with_fetched_base(), *plants())
    for kind, given, names in (("localizer", methods, built_in), ("model", pairs, there)):
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
                    runs.append(BoardRun(board, method, pair, limit))
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

    def __init__(self, runs: Sequence[BoardRun], root: Path, settings: Settings) -> None:
        """Read the entries that are there.

        Args:
            runs: Of `board_runs`.
            root: The leaderboard's folder.
            settings: How runs are computed, and where records are kept.

        Raises:
            DataError: An entry on the board does not read.
        """
        self.runs, self.root, self.settings = tuple(runs), root, settings
        self.store = RecordStore(settings.output_dir)
        entries = read_entries(root / RESULTS)
        self.entries: dict[str, Entry] = {entry.result.id: entry for entry in entries}
        self.ids: dict[BoardRun, str] = {}
        """Of the runs whose pair and method could be loaded."""
        self.failures: dict[BoardRun, str] = {}
        """Why runs gave no record."""
        self.finished: dict[BoardRun, float] = {}
        """Seconds of the runs that this campaign computed."""

    def identify(self, progress: Progress | None = None) -> None:
        """Find the identity of each run; a pair of which it is not known is loaded once.

        Args:
            progress: Progress callback.
        """
        loaded = None
        for i, run in enumerate(self.runs):
            if progress is not None:
                progress(i, len(self.runs), f"identity of {run}")
            try:
                work = check(run.spec)
                identity = known_identity(work, self.settings)
                if identity is None:
                    from kgbench.runner.job import Pairs, load_job  # takes seconds to import

                    loaded = loaded or Pairs()
                    job = load_job(work, self.settings, loaded)
                    identity = job.identity.digest()
                    note_identity(work, self.settings, loaded.state, identity)
                self.ids[run] = identity
            except KgbenchError as error:
                self.failures[run] = str(error)

    def left(self) -> list[BoardRun]:
        """Runs without an entry or a record."""
        return [run for run, id in self.ids.items() if self._record(id) is None]

    def _record(self, id: str) -> Result | None:
        if (entry := self.entries.get(id)) is not None:
            return entry.result
        found = self.store.find(id)
        return None if found is None else found.record

    def compute(self, announce: Callable[[str], None], progress: Progress | None = None) -> None:
        """Run what is missing; a failure is kept with its reason, and the next run follows.

        Args:
            announce: Callback for a line on each run.
            progress: Progress callback, within a run.
        """
        from kgbench.runner.job import Pairs
        from kgbench.runner.run import run_job

        runs, loaded = self.left(), Pairs()
        for i, run in enumerate(runs):
            name, began = f"[{i + 1}/{len(runs)}] {run}", time.monotonic()
            try:
                run_job(run.spec, self.settings, progress, loaded)
            except KgbenchError as error:
                self.failures[run] = str(error)
                announce(f"{name}: failed: {error}")
                continue
            self.finished[run] = time.monotonic() - began
            announce(f"{name}: {duration_text(self.finished[run])}")

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
                now = {entry.folder.name: entry for entry in (*kept, *new)}
                with changed(path) as (documents, rows):
                    documents.clear()
                    rows.clear()
                    for name, entry in now.items():
                        documents[name], rows[name] = entry.documents, entry.rows()
                written.append(path)
                gone = f", {len(before) - len(kept)} taken away" if kept != before else ""
                announce(f"{path}: {len(kept)} entries kept, {len(new)} new{gone}")
        return written

    def _stays(self, entry: Entry, runs: Sequence[BoardRun]) -> bool:
        """Whether an entry of a method folder belongs to a run, or to a pair without runs."""
        replaced = set()
        for run in runs:
            id = self.ids.get(run)
            if id == entry.result.id:
                return True
            if id is not None and self._record(id) is not None:
                replaced.add((run.pair, run.n_facts))
        cell = entry.pair, entry.result.identity.limit
        return entry.pair in pairs_of(runs[0].board, runs[0].method) and cell not in replaced

    def _new(self, runs: Sequence[BoardRun]) -> list[Entry]:
        """The entries of runs that are recorded and not on the board yet."""
        from kgbench.testing.contract import contract_of

        records, contracts = [], {}
        for run in runs:
            id = self.ids.get(run)
            stored = self.store.find(id) if id and id not in self.entries else None
            if stored is not None:
                records.append(stored)
                contracts[stored.record.id] = contract_of(stored.record)
        return drafts(records, contracts)

    @property
    def seconds(self) -> float:
        """Seconds of all runs with a record, whenever they were computed."""
        found = map(self._record, self.ids.values())
        return sum(record.cost.seconds for record in found if record is not None)

    def other_versions(self) -> list[str]:
        """Other versions that computed entries, each once, in words."""
        there = (self._record(id) for run, id in self.ids.items() if run not in self.finished)
        lines = (other_versions(record.provenance) for record in there if record is not None)
        return list(dict.fromkeys(filter(None, lines)))
