"""`kgbench reproduce board`: the project's own entries made again, and what is shown of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from kgbench.cli.output import Output, table_text, write_file
from kgbench.errors import check_choice
from kgbench.leaderboard.entries import BOARDS
from kgbench.numbers import count_text, duration_text
from kgbench.paper.board_runs import BoardRun, Campaign, board_runs
from kgbench.progress import Progress
from kgbench.runner import Settings
from kgbench.runner.spec import listed


def make_board(options: Mapping[str, Any], progress: Progress | None) -> Output:
    """Make the entries that are missing, or show which they are.

    Args:
        options: Those of the command.
        progress: Progress callback.

    Raises:
        InputError: No entry is of these boards, methods and pairs.
        UnknownNameError: There is no such board, method or pair.
    """
    boards, study, quiet = listed(options["board"]), options["study"], options["quiet"]
    for name in boards:
        check_choice("board", name, BOARDS)
    began = time.monotonic()
    methods, pairs = listed(options["method"]), listed([options["model"] or ""])
    runs = board_runs(boards, methods, pairs, options["limit"])
    settings = Settings(output_dir=options["output_dir"], device=options["device"])
    campaign = Campaign(runs, options["root"], settings)
    campaign.identify(progress)
    left, folders = campaign.left(), list[Path]()
    if not quiet:
        _print_campaign(campaign, left)
    if study is not None:
        write_file(study, _study(left, settings.output_dir).encode())
    elif not options["dry_run"]:
        announce = (lambda line: None) if quiet else click.echo
        campaign.compute(announce, progress)
        folders = campaign.publish(announce)
    seconds = time.monotonic() - began
    answer: dict[str, Any] = {"to_run": len(left)}
    if not options["dry_run"]:
        answer = _made(campaign, folders, seconds)
    lines = _last_lines(campaign, folders, None if options["dry_run"] or study else seconds)
    if study is not None:
        lines.append(f"next      kgbench sweep {study}, then this command without --study")
    return Output(lines, {"entries": len(runs), **answer}, int(bool(campaign.failures)))


def _study(runs: Sequence[BoardRun], output_dir: Path) -> str:
    """A study of some runs, as YAML."""
    units = []
    for spec in (run.spec for run in runs):
        unit = {"localizer": spec.localizer, "model": spec.model, "suite": spec.suite}
        units.append(unit if spec.limit is None else {**unit, "limit": spec.limit})
    return yaml.safe_dump({"output_dir": str(output_dir), "include": units}, sort_keys=False)


def _made(campaign: Campaign, folders: Sequence[Path], seconds: float) -> dict[str, Any]:
    failed = [{"run": str(run), "reason": why} for run, why in campaign.failures.items()]
    computed = {"computed": len(campaign.finished), "seconds": seconds}
    cost = {"cost_seconds": campaign.seconds}
    return {**computed, **cost, "folders": list(map(str, folders)), "failed": failed}


def _print_campaign(campaign: Campaign, left: Sequence[BoardRun]) -> None:
    """Number of entries of each board, and how many are missing."""
    boards: dict[str, list[BoardRun]] = {}
    for run in campaign.runs:
        boards.setdefault(run.board, []).append(run)
    rows = []
    for board, runs in boards.items():
        to_run = [run for run in left if run.board == board]
        counts = ({run.method for run in runs}, {run.pair for run in runs}, runs, to_run)
        rows.append([board, *map(str, map(len, counts))])
    click.echo(table_text(["board", "methods", "pairs", "entries", "to run"], rows))
    for line in campaign.other_versions():
        click.echo(f"note      some entries were {line}; to run them again, delete their folders")
    click.echo()


def _last_lines(campaign: Campaign, folders: Sequence[Path], seconds: float | None) -> list[str]:
    """Failures; of a campaign that ran, also its time and the next command."""
    lines = [f"failed    {run}: {why}" for run, why in campaign.failures.items()]
    if seconds is None:
        return lines
    computed = count_text(len(campaign.finished), "run")
    written = f"{count_text(len(folders), 'folder')} written"
    lines.append(f"computed  {computed} in {duration_text(seconds)}; {written}")
    left = len(campaign.left())
    there = f"{len(campaign.runs) - left} of {len(campaign.runs)} entries"
    lines.append(f"in all    {there}, {duration_text(campaign.seconds)} of computing")
    if folders:
        lines.append("next      kgbench leaderboard build, then kgbench leaderboard build --check")
    return lines
