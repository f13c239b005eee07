"""`kgbench submit`: recorded runs as entries of the leaderboard."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.leaderboard import root_option
from kgbench.cli.output import echo_json, json_option
from kgbench.cli.runs import output_dir
from kgbench.errors import InputError
from kgbench.numbers import count_text

if TYPE_CHECKING:
    from kgbench.leaderboard.drafts import Standing
    from kgbench.leaderboard.submission import Contract
    from kgbench.leaderboard.validate import Finding
    from kgbench.records import Record
    from kgbench.report import Table

_ADVICE = {
    "id": "this result is on the board already: submit another run, or delete the old pack first",
    "name": (
        "choose another name by --as, or if the method has changed, delete the packs of its name in"
        " the same pull request"
    ),
    "code": "say by --code where the method's code is",
    "identity.localizer.version": (
        "record the run with `kgbench eval --localizer NAME` or `FILE.py:CLASS`, so that it says"
        " which code ran"
    ),
    "identity.configurations": (
        "run a whole suite: `kgbench eval --suite pathways`, `budget` or `planted`, without --graft"
    ),
    "logprob": "run it again on the shipped pair as it is, with the versions of constraints.txt",
}
"""What to do about a finding, by its field."""

_FIGURES = ("rows[", "synergy", "baselines", "curve", "planted", "verdict")
_ANEW = (
    "these figures are not those of the run's rows: record it again, with this version of kgbench"
)


@click.command(
    epilog="Exit status: 0 done; 1 a run is refused, and nothing was copied; 2 wrong input.",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="The method's name on the board.  [default: the localizer's]",
)
@click.option(
    "--code",
    metavar="URL@COMMIT|PACKAGE==VERSION",
    help="Where the method's code is.  [default: its installed package]",
)
@click.option(
    "--localizer",
    metavar="FILE.py:CLASS",
    help="The method, where it is not installed: the laws are tried on it.",
)
@click.option("--paper", metavar="URL", help="A paper about the method.")
@root_option
@output_dir
@click.option("--dry-run", is_flag=True, help="Check and show, but copy nothing.")
@json_option()
def command(
    runs: tuple[str, ...],
    root: Path,
    output_dir: Path,
    localizer: str | None,
    dry_run: bool,
    as_json: bool,
    **about: str | None,
) -> int:
    """Check recorded runs, copy them into the leaderboard, and show their rank.

    RUN is a run's folder, or the start of its id or of its folder's name, as in
    `kgbench show`; give all runs of a method at once. Only results are copied:
    the method's code comes as an installed package or a pull request of its own.
    The laws of `kgbench check-localizer` are tried on it, and the outcome
    is part of the entry: a method that breaks one, or on which they were not
    tried, has no rank.

    \b
    kgbench submit kgbench-results/*-my_method-* --as "my method" --code my-package==1.0
    kgbench submit 0123abcd --code https://github.com/me/method@89abcdef
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.drafts import checked, drafts, publish, standings
    from kgbench.records import load_record
    from kgbench.report import Report, to_text

    stored = [load_record(run, output_dir) for run in runs]
    records = {run.record.id: run for run in stored}
    tried = {id: _tried(run.record, localizer, as_json) for id, run in records.items()}
    contracts = {id: outcome for id, outcome in tried.items() if not isinstance(outcome, str)}
    prepared = drafts(list(records.values()), contracts, **about)
    entries = checked(prepared, root)
    findings = list(chain.from_iterable(entry.findings for entry in entries))
    if refused := [finding for finding in findings if finding.refuses]:
        return _refuse(refused, as_json)
    shown = standings(prepared, root)
    places = [] if dry_run else publish(prepared, root)
    steps = next_steps(list(dict.fromkeys(entry.method for entry in prepared)), root)
    if as_json:
        echo_json(
            {
                "accepted": True,
                "entries": [
                    {"id": entry.record.id, "folder": entry.folder}
                    for entry in entries
                    if entry.record is not None
                ],
                "copied": list(map(str, places)),
                "findings": [finding.to_json() for finding in findings],
                "tables": list(map(_answer, shown)),
                "steps": steps if places else [],
                "contracts": {id: _contract_answer(outcome) for id, outcome in tried.items()},
            }
        )
        return 0
    if shown:
        click.echo(f"{to_text(Report('', list(map(_table, shown))))}\n")
    lines = list(map(str, findings))
    for outcome in tried.values():
        line = f"contract      {outcome if isinstance(outcome, str) else outcome.about}"
        lines += [] if line in lines else [line]
    if places:
        lines += [f"copied        {place}" for place in places]
        lines += ["", "The pull request's next steps:", *(f"  {step}" for step in steps)]
    else:
        lines.append(f"{count_text(len(entries), 'run')} in order; nothing was copied (--dry-run)")
    click.echo("\n".join(lines))
    return 0


def _tried(record: Record, localizer: str | None, as_json: bool) -> Contract | str:
    """Contract test results of a run's method, or why it was not tested.

    Raises:
        InputError: The code that was given is not what ran.
    """
    from kgbench.testing.contract import contract_of

    try:
        with redirect_stdout(sys.stderr if as_json else sys.stdout):
            return contract_of(record, localizer)
    except InputError as error:
        if localizer is not None:
            raise
        return f"not run: {error}"


def _contract_answer(outcome: Contract | str) -> dict[str, Any]:
    return {"not_run": outcome} if isinstance(outcome, str) else outcome.model_dump(mode="json")


def _refuse(findings: list[Finding], as_json: bool) -> int:
    advice = list(dict.fromkeys(_advice(finding.field) for finding in findings))
    advice = [text for text in advice if text]
    if as_json:
        answers = [finding.to_json() for finding in findings]
        echo_json({"accepted": False, "findings": answers, "advice": advice})
        return 1
    lines = [*map(str, findings), "", "Refused, and nothing was copied."]
    click.echo("\n".join([*lines, *(f"- {line}" for line in advice)]))
    return 1


def _advice(field: str) -> str:
    return _ANEW if field.startswith(_FIGURES) else _ADVICE.get(field, "")


def next_steps(names: Sequence[str], root: Path) -> list[str]:
    """The commands that lead from here to a pull request.

    Args:
        names: The methods' names on the board.
        root: The leaderboard's folder.
    """
    branch = re.sub(r"[^a-z0-9]+", "-", names[0].lower()).strip("-")
    told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    folder = shlex.quote(str(root))
    place = "" if root == Path("leaderboard") else f" --root {folder}"
    return [
        f"kgbench leaderboard build{place}",
        f"git switch -c results-{branch}",
        f"git add {folder}",
        f"git commit -m 'Leaderboard: results of {told}'",
        f"git push -u origin results-{branch}   # and open the pull request",
    ]


def _table(standing: Standing) -> Table:
    from kgbench.report import Dash, Table

    table, rows = standing.table, []
    directed = [column for column in table.columns if column.better is not None]
    columns = directed or table.columns
    for line in standing.lines:
        method = f"{line.method} (new)" if line.method in standing.new else line.method
        figures = [line.figures.get(column.key, Dash()) for column in columns]
        have, of = line.coverage
        rows.append([line.rank_text or "–", method, *figures, f"{have} of {of}"])
    heads = ["rank", "method", *(column.title for column in columns), "cells"]
    title = f"{standing.board.title}: {table.title}"
    return Table(title, heads, rows)


def _answer(standing: Standing) -> dict[str, Any]:
    lines = []
    for line in standing.lines:
        about = {"method": line.method, "new": line.method in standing.new, "rank": line.rank}
        figures = {key: estimate.answer() for key, estimate in line.figures.items()}
        lines.append({**about, "unranked": line.unranked or None, "figures": figures})
    return {"board": standing.board.key, "table": standing.table.key, "lines": lines}
