"""`kgbench verify`: a sample of a recorded run, run again."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from hashlib import sha256
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import Renamed, settings_of
from kgbench.cli.output import VERDICT_ONLY, echo_json, json_option, quiet_option, write_file
from kgbench.cli.runs import again_options, output_dir, places_of
from kgbench.errors import InputError
from kgbench.progress import progress

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Contract, Entry
    from kgbench.records import Record
    from kgbench.stats.repetition import Repeated


@click.command(
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be checked here, or wrong input.",
)
@click.argument("run", metavar="RUN")
@click.option(
    "--limit",
    "--facts",
    "facts",
    cls=Renamed,
    type=click.IntRange(min=1),
    metavar="N",
    help="Facts in the sample.  [default: 200, or all where there are fewer]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of the sample; not with --write.  [default: drawn by this machine]",
)
@click.option(
    "--write",
    is_flag=True,
    help="Add verification.json to an entry of the leaderboard, if it agrees.",
)
@again_options
@output_dir
@json_option()
@quiet_option(VERDICT_ONLY)
def command(run: str, facts: int | None, seed: int | None, write: bool, **options: Any) -> int:
    """Run a sample of a run's facts again and compare each with its rows.

    Up to 200 facts all of them are run; of more, 200 that are drawn now, so
    that they cannot be known beforehand.

    What a method learns from all facts, such as a ranking of sites, it learns
    from all of them here too; its map is compared as well. A row agrees as in
    `kgbench rerun`. Of an entry of the leaderboard the laws of `kgbench
    check-localizer` are tried too, and compared with its submission.
    With --write an entry that agrees is no longer self-reported but verified.

    \b
    kgbench verify ENTRY --write
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run

    found, as_json = find_run(run, options["output_dir"]), options["as_json"]
    if write and found.submission is None:
        raise InputError(
            f"--write is for entries of the leaderboard, and {str(found.folder)!r} was not "
            "submitted: it has no submission.json"
        )
    from kgbench.leaderboard.entries import SAMPLE
    from kgbench.report import to_text
    from kgbench.report.run_report import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import Sample, verify
    from kgbench.testing.contract import contract_of

    if write:
        _check_write(found.record, facts, seed, options["tolerance"])
    seed = randbits(32) if seed is None else seed
    sample = Sample(SAMPLE if facts is None else facts, seed, options["tolerance"])
    contract = None
    with (
        redirect_stdout(sys.stderr if as_json else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        again, chosen = verify(
            found.record, found.facts(), places_of(options), settings_of(options), sample, report
        )
        if found.submission is not None:
            contract = contract_of(found.record, options["localizer"])
    claimed = None if found.submission is None else found.submission.contract
    same = not contract or not claimed or set(claimed.broken) == set(contract.broken)
    what = f"{len(chosen)} of {max(row.n for row in found.record.rows)} facts (seed {seed})"
    written = None
    if write and again.agrees and same:
        written = _write(found, again, (seed, len(chosen)), contract)
    if as_json:
        laws = None
        if contract is not None:
            laws = {**contract.model_dump(mode="json"), "as_claimed": same}
        echo_json(
            {
                "id": found.record.id,
                "path": str(found.folder),
                "seed": seed,
                "facts": list(chosen),
                **repeated_answer(again, what),
                "contract": laws,
                "written": written is not None,
            }
        )
        return 0 if again.agrees and same else 1
    if options["quiet"]:
        click.echo(repeated_sentence(again, what))
    else:
        click.echo(to_text(repeat_report(again, what)))
    if contract is not None:
        differs = ""
        if claimed is not None and not same:
            differs = f"; the submission differs, and says: {claimed.about}"
        click.echo(f"\ncontract      {contract.about}{differs}")
    if write:
        click.echo(f"\nverification  {written or 'not written, since it differs'}")
        if written:
            click.echo("the board says so after kgbench leaderboard build")
    return 0 if again.agrees and same else 1


def _check_write(
    record: Record, facts: int | None, seed: int | None, tolerance: float | None
) -> None:
    """Refuse a sample that would verify nothing.

    Raises:
        InputError: The seed is chosen, the sample too small, or the tolerance too large.
    """
    from kgbench.leaderboard.entries import SAMPLE
    from kgbench.stats.repetition import TOLERANCES

    n = max(row.n for row in record.rows)
    if seed is not None:
        raise InputError("--seed goes without --write: a sample known beforehand verifies nothing")
    if facts is not None and facts < min(n, SAMPLE):
        raise InputError(f"--limit {facts} is too few for --write: expected {min(n, SAMPLE)}")
    if tolerance is not None and tolerance > TOLERANCES[record.identity.dtype]:
        most = TOLERANCES[record.identity.dtype]
        raise InputError(
            f"--tolerance {tolerance} is too large for --write: expected {most} or less"
        )


def _write(
    entry: Entry, again: Repeated, sample: tuple[int, int], contract: Contract | None
) -> Path:
    from kgbench import __version__
    from kgbench.leaderboard.entries import Verification
    from kgbench.leaderboard.packs import add
    from kgbench.records import collect_provenance

    now = collect_provenance(__version__, "")
    seed, n = sample
    verification = Verification(
        record=entry.record.id,
        record_hash=sha256(entry.content("record.json")).hexdigest(),
        facts_hash=sha256(entry.content("facts.parquet")).hexdigest(),
        kgbench=now.kgbench,
        platform=now.platform,
        time=now.time,
        seed=seed,
        drawn=True,
        n=n,
        rows=again.rows,
        largest_difference=again.largest,
        changed_hits=again.flipped,
        tolerance=again.tolerance,
        contract=contract,
    )
    path, content = entry.folder / "verification.json", verification.to_json().encode()
    if entry.pack is None:
        write_file(path, content)
    else:
        add(entry.pack, {entry.folder.name: {path.name: content}})
    return path
