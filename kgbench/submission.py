"""Recorded runs as entries of the leaderboard: checked, ranked, and copied there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from kgbench.api import AnyRun
from kgbench.errors import InputError, python_names
from kgbench.leaderboard.drafts import Standing, checked, drafts, publish, standings
from kgbench.leaderboard.entries import Contract, read_entries
from kgbench.leaderboard.folders import RESULTS as BOARD
from kgbench.leaderboard.pull_requests import repository
from kgbench.leaderboard.validate import CheckedEntry, Finding
from kgbench.numbers import count_text
from kgbench.records import Record, load_record
from kgbench.records.mirror import folder_of
from kgbench.report import Dash, Lines, Report, Table, to_html, to_text
from kgbench.runner import Run
from kgbench.runner.spec import RESULTS
from kgbench.testing.contract import contract_of

NARROW = 4
"""Number of columns up to which a table is shown whole; of others, those that have a direction."""

_ADVICE = {
    "id": "this result is on the board already: submit another run, or delete the old entry first",
    "name": (
        "choose another name by --as, or if the method has changed, delete the folders of its name"
        " in the same pull request"
    ),
    "code": "say by --code where the method's code is",
    "identity.localizer.version": (
        "record the run with `kgbench eval --localizer NAME` or `FILE.py:CLASS`, so that it says"
        " which code ran"
    ),
    "identity.configurations": (
        "run a whole suite: `kgbench eval --suite pathways`, `budget`, `planted` or `organisms`,"
        " without --graft"
    ),
    "logprob": "run it again on the shipped pair as it is, with the versions of constraints.txt",
}
"""What to do about a finding, by its field."""

_VERIFIED = (
    "a maintainer has run all of its facts again, or of more than 200 facts 200 that are drawn then, "
    "with the code that is named: in a process of its own, which gets the pair under another name "
    "and with exchanged answers; every row has to come out the same"
)


@dataclass(frozen=True)
class Submitted:
    """What came of a submission."""

    entries: Sequence[CheckedEntry]
    contracts: Mapping[str, Contract | str]
    """By id of the record: contract test results, or why there are none."""
    standings: Sequence[Standing] = ()
    """Each table of the board with the new lines."""
    copied: Sequence[Path] = ()
    """Entries that were written; none where a run is refused, or nothing was to be copied."""
    steps: Sequence[str] = ()
    """Commands that lead from here to a pull request; none where `pull_request` is given."""
    pull_request: str | None = None
    """Its page, or where that is not known the branch that was pushed; None of a local folder."""

    @property
    def findings(self) -> list[Finding]:
        """Findings of all entries."""
        return list(chain.from_iterable(entry.findings for entry in self.entries))

    @property
    def refused(self) -> list[Finding]:
        """Findings for which runs are refused."""
        return [finding for finding in self.findings if finding.refuses]

    @property
    def accepted(self) -> bool:
        """Whether no run is refused."""
        return not self.refused

    @property
    def advice(self) -> list[str]:
        """What to do about refusals."""
        advice = [_ADVICE[each.field] for each in self.refused if each.field in _ADVICE]
        return list(dict.fromkeys(advice))

    @property
    def report(self) -> Report:
        """The tables of the board with the new lines."""
        return Report("", list(map(_table, self.standings)))

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        if not self.accepted:
            findings = [finding.to_json() for finding in self.refused]
            return {"accepted": False, "findings": findings, "advice": self.advice}
        contracts: dict[str, Any] = {}
        for id, outcome in self.contracts.items():
            not_run = {"not_run": outcome}
            contracts[id] = not_run if isinstance(outcome, str) else outcome.model_dump(mode="json")
        return {
            "accepted": True,
            "entries": [
                {"id": entry.entry.result.id, "folder": entry.folder}
                for entry in self.entries
                if entry.entry is not None
            ],
            "copied": list(map(str, self.copied)),
            "findings": [finding.to_json() for finding in self.findings],
            "tables": list(map(_answer, self.standings)),
            "steps": list(self.steps) if self.copied else [],
            "pull_request": self.pull_request,
            "contracts": contracts,
        }

    def __str__(self) -> str:
        if not self.accepted:
            advice = [f"- {line}" for line in self.advice]
            lines = [*map(str, self.refused), "", "Refused, and nothing was copied.", *advice]
            return "\n".join(lines)
        lines = [f"{to_text(self.report)}\n"] if self.standings else []
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        if not self.accepted:
            return to_html(Report("", [Lines(str(self).split("\n"))]))
        return to_html(Report("", self.report.parts, notes=self._notes()))

    def _notes(self) -> list[str]:
        lines = list(map(str, self.findings))
        for outcome in self.contracts.values():
            line = f"contract      {outcome if isinstance(outcome, str) else outcome.about}"
            lines += [] if line in lines else [line]
        lines.append(f"source        self-reported, its ranks in brackets, until {_VERIFIED}")
        if self.copied:
            lines += [f"copied        {place}" for place in self.copied]
            if self.pull_request:
                return [*lines, f"pull request  {self.pull_request}"]
            return [*lines, "", "The pull request's next steps:", *(f"  {s}" for s in self.steps)]
        number = count_text(len(self.entries), "run")
        return [*lines, f"{number} in order; nothing was copied (--dry-run)"]


@python_names(**{"as": "name"})
def submit(
    *runs: AnyRun,
    name: str | None = None,
    code: str | None = None,
    localizer: str | None = None,
    paper: str | None = None,
    open_pr: str | None = None,
    root: str | os.PathLike[str] = "leaderboard",
    output_dir: str | os.PathLike[str] = RESULTS,
    dry_run: bool = False,
) -> Submitted:
    """Check recorded runs, copy them into a leaderboard, and show their rank.

    Only results are copied: the method's code comes as an installed package or a pull request of
    its own. The contract tests of `kgbench check-localizer` are run on it, and the outcome is part
    of the entry: methods that fail or skip them are not ranked.

    Args:
        *runs: All runs of a method: runs, their folders, or the starts of their ids.
        name: The method's name on the board; by default the localizer's.
        code: Where its code is, `URL@COMMIT` or `PACKAGE==VERSION`; by default its installed
            package.
        localizer: The method as `path/to/file.py:Class`, where it is not installed: the laws are
            tried on it.
        paper: Address of a paper about the method.
        open_pr: A repository of results, by URL or path of git or as `hf://datasets/ORG/NAME`: the
            runs are checked against its entries and come on a branch of it.
        root: The leaderboard's folder, which holds `results/`; with `open_pr` in that repository.
        output_dir: Where runs are looked up by the start of their ids.
        dry_run: Check and show, but copy nothing.

    Raises:
        InputError: There is no such run, the code is not what ran, or its place is not known; the
            repository does not take the branch.
    """
    if not runs:
        raise InputError("nothing to submit: give runs, their folders, or the starts of their ids")
    records = {}
    for run in runs:
        path = os.fspath(run.path if isinstance(run, Run) else run)
        stored = load_record(path, folder_of(output_dir))
        records[stored.record.id] = stored
    with repository(open_pr, Path(root)) as (board, propose):
        contracts = {id: _tried(run.record, localizer) for id, run in records.items()}
        prepared = drafts(list(records.values()), contracts, name, code, paper)
        before = list(read_entries(board / BOARD))
        submitted = Submitted(checked(prepared, before, board), contracts)
        if not submitted.accepted:
            return submitted
        copied = [] if dry_run else publish(prepared, board)
        branch, message = _commit_of(list(dict.fromkeys(entry.method for entry in prepared)))
        shown = replace(submitted, standings=standings(prepared, before), copied=copied)
        if propose is None:
            return replace(shown, steps=_next_steps(branch, message, board))
        page = propose(f"{branch}-{prepared[0].result.id[:8]}", message, copied) if copied else None
        copied = [Path(root, place.relative_to(board)) for place in copied]
        return replace(shown, copied=copied, pull_request=page)


def _tried(record: Record, localizer: str | None) -> Contract | str:
    """Contract test results of a run's method, or why it was not tested.

    Raises:
        InputError: The code that was given is not what ran.
    """
    try:
        return contract_of(record, localizer)
    except InputError as error:
        if localizer is not None:
            raise
        return f"not run: {error}"


def _commit_of(names: Sequence[str]) -> tuple[str, str]:
    """Branch and message of the commit of some methods' results."""
    slug = re.sub(r"[^a-z0-9]+", "-", names[0].lower()).strip("-")
    methods = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"results-{slug}", f"Leaderboard: results of {methods}"


def _next_steps(branch: str, message: str, root: Path) -> list[str]:
    """The commands that lead from here to a pull request.

    Args:
        branch: Its branch.
        message: That of the commit.
        root: The leaderboard's folder.
    """
    folder = shlex.quote(str(root))
    place = "" if root == Path("leaderboard") else f" --root {folder}"
    return [
        f"kgbench leaderboard build{place}",
        f"git switch -c {branch}",
        f"git add {folder}",
        f"git commit -m '{message}'",
        f"git push -u origin {branch}   # and open the pull request",
    ]


def _table(standing: Standing) -> Table:
    table, rows = standing.table, []
    directed = [column for column in table.columns if column.better is not None]
    columns = directed if directed and len(table.columns) > NARROW else table.columns
    for line in standing.lines:
        method = f"{line.method} (new)" if line.method in standing.new else line.method
        figures = [line.figures.get(column.key, Dash()) for column in columns]
        have, of = line.coverage
        rows.append([line.rank_text or "–", method, *figures, f"{have} of {of}"])
    heads = ["ranks", "method", *(column.title for column in columns), "cells"]
    reasons = [line.unranked for line in standing.lines if line.method in standing.new]
    why = "".join(f"; no rank: {reason}" for reason in dict.fromkeys(filter(None, reasons)))
    return Table(f"{standing.board.title}: {table.title}{why}", heads, rows)


def _answer(standing: Standing) -> dict[str, Any]:
    lines = []
    for line in standing.lines:
        about = {"method": line.method, "new": line.method in standing.new}
        about["ranks"] = None if line.unranked else line.ranks
        figures = {key: estimate.answer() for key, estimate in line.figures.items()}
        lines.append({**about, "unranked": line.unranked or None, "figures": figures})
    return {"board": standing.board.key, "table": standing.table.key, "lines": lines}
