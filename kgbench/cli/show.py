"""`kgbench show`: a run that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json
from kgbench.cli.runs import find_run, output_dir

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry


@click.command()
@click.argument("run", metavar="RUN")
@output_dir
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, as `kgbench eval --json`."
)
def command(run: str, output_dir: Path, as_json: bool) -> None:
    """Print the table of a recorded run.

    RUN is its folder, or the start of its id or of its folder's name; an entry
    of the leaderboard tells who submitted it, and whether it was verified.
    """
    from kgbench.board import record_report
    from kgbench.report import to_text

    found = find_run(run, output_dir)
    if as_json:
        echo_json({**found.record.answer(str(found.folder)), **_beside(found)})
        return
    click.echo(to_text(record_report(found.record)))
    if found.submission is not None:
        click.echo(f"\n{_submitted(found)}")


def _beside(run: Entry) -> dict[str, Any]:
    """What was submitted with a record, and who ran it again."""
    if run.submission is None:
        return {}
    verification = run.verification
    return {
        "submission": run.submission.model_dump(mode="json", exclude_none=True),
        "verification": None if verification is None else verification.model_dump(mode="json"),
    }


def _submitted(run: Entry) -> str:
    from kgbench.numbers import plain_text

    submission, verification = run.submission, run.verification
    assert submission is not None
    paper = f", {submission.paper}" if submission.paper else ""
    lines = [f"submitted as {submission.name}, code {submission.code}{paper}"]
    if verification is None:
        return "\n".join([*lines, "self-reported: nobody has run a sample of it again"])
    flips = (
        f", {verification.changed_hits} of {verification.rows} hits flipped"
        if verification.changed_hits
        else ""
    )
    largest = (
        f"largest difference {plain_text(verification.largest_difference, 2)} of "
        f"{plain_text(verification.tolerance)} nats"
    )
    sample = f"{verification.about} (seed {verification.seed})"
    again = f"{sample} run again by kgbench {verification.kgbench} on {verification.time[:10]}"
    badge = "verified" if run.verified else "self-reported"
    return "\n".join([*lines, f"{badge}: {again}, {largest}{flips}"])
