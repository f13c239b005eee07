"""`kgbench rerun` and `kgbench verify`: a recorded run, or a sample of its facts, run again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

from kgbench.cli.options import (
    VERDICT_ONLY,
    Natural,
    cli_command,
    donors_of,
    imports_of,
    settings_of,
)
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.spec import COMPUTING, FACTS, PAIR

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Contract, Entry
    from kgbench.records import Record
    from kgbench.runner.rerun import Places
    from kgbench.stats.repetition import Repeated


AGAIN = (
    *("localizer", *PAIR),
    *(name for name in FACTS if name != "prompts"),
    *(name for name in COMPUTING if name != "dtype"),
    "tolerance",
)
"""Options for the parts of a recorded run, and for how it is computed now."""

AGAIN_HELP: dict[str, Any] = {
    "localizer": {
        "default": None,
        "metavar": "FILE.py:CLASS",
        "help": "Localizer of the run, where it is not installed.",
    },
    "model": {
        "metavar": "NAME|PATH",
        "help": "Pair of the run, where it is a plant of your own.  [default: the record's]",
    },
    "recipient": {"help": "Checkpoint before finetuning, where the pair has no name."},
    "chat_template": {"help": "The run had prompts in a chat template.  [default: off]"},
    "dataset": {"help": "Facts, where they are a file of your own."},
}


def _places_of(options: Mapping[str, Any]) -> Places:
    """Locations of the parts of a run, from the options."""
    from kgbench.runner.rerun import Places

    same = {}
    for name in ("localizer", "model", "recipient", "revision", "chat_template", "dataset"):
        same[name] = options[name]
    return Places(**same, donors=donors_of(options["donor"]), imports=imports_of(options))


def rerun(run: str, options: Mapping[str, Any], progress: Progress | None) -> Output:
    """Run a recorded run again.

    Args:
        run: As `find_run` takes it.
        options: Those of the command.
        progress: Progress callback.
    """
    from kgbench.leaderboard.entries import find_run
    from kgbench.report.run_report import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import Sample, verify

    found = find_run(run, options["output_dir"])
    places, settings = _places_of(options), settings_of(options)
    facts, sample = found.facts(), Sample(tolerance=options["tolerance"])
    again, _ = verify(found.record, facts, places, settings, sample, progress)
    what = f"all {len(set(facts['fact'].to_pylist()))} facts"
    about = {"id": found.record.id, "path": str(found.folder)}
    return Output(
        [repeat_report(again, what)],
        {**about, **repeated_answer(again, what)},
        int(not again.agrees),
        repeated_sentence(again, what),
    )


@cli_command(
    *(*AGAIN, "records", "as_json", "quiet"),
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be run here, or wrong input.",
    quiet=VERDICT_ONLY,
    **AGAIN_HELP,
)
def rerun_command(run: str, *, progress: Progress | None, **options: Any) -> Output:
    """Run a recorded run again from nothing, and compare every row.

    The weights, facts, prompts and code must be those of the record: where one
    is not, it is named. A row agrees where its log-probability does within
    the tolerance, by default 0.001 nats for float32, which is room for the
    rounding of one platform: another device, executor or version of torch may
    round otherwise. Cost is not compared. `kgbench verify` runs a sample of the
    facts; `kgbench rescore` needs no model.

    \b
    kgbench rerun kgbench-results/RUN
    kgbench rerun ENTRY --localizer my_method.py:Mine
    """  # noqa: D301 (click reads the character, not its escape)
    return rerun(run, options, progress)


@cli_command(
    *("facts", "seed", "write", *AGAIN, "records", "as_json", "quiet"),
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be checked here, or wrong input.",
    facts={"flag": "--limit", "alias": "--facts"},
    quiet=VERDICT_ONLY,
    **AGAIN_HELP,
)
def verify_command(
    run: str,
    *,
    facts: int | None,
    seed: Natural | None,
    write: bool,
    progress: Progress | None,
    **options: Any,
) -> Output:
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

    Args:
        run: A recorded run.
        facts (N): Facts in the sample.  [default: 200, or all where there are fewer]
        seed (N): Of the sample; not with --write.  [default: drawn by this machine]
        write: Add verification.json to an entry of the leaderboard, if it agrees.
        progress: Progress callback.
        **options: Fields of the run's parts and of how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run

    found = find_run(run, options["output_dir"])
    if write and found.submission is None:
        raise InputError(
            f"--write is for entries of the leaderboard, and {str(found.folder)!r} was not "
            "submitted: it has no submission.json"
        )
    from kgbench.leaderboard.entries import SAMPLE
    from kgbench.report.run_report import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import Sample, verify
    from kgbench.testing.contract import contract_of

    if write:
        _check_write(found.record, facts, seed, options["tolerance"])
    seed = randbits(32) if seed is None else seed
    sample = Sample(SAMPLE if facts is None else facts, seed, options["tolerance"])
    places, settings = _places_of(options), settings_of(options)
    again, chosen = verify(found.record, found.facts(), places, settings, sample, progress)
    contract = claimed = None
    if found.submission is not None:
        contract = contract_of(found.record, options["localizer"])
        claimed = found.submission.contract
    same = not contract or not claimed or set(claimed.broken) == set(contract.broken)
    what = f"{len(chosen)} of {max(row.n for row in found.record.rows)} facts (seed {seed})"
    written, notes, laws = None, [], None
    if write and again.agrees and same:
        written = _write(found, again, (seed, len(chosen)), contract)
    if contract is not None:
        laws = {**contract.model_dump(mode="json"), "as_claimed": same}
        differs = ""
        if claimed is not None and not same:
            differs = f"; the submission differs, and says: {claimed.about}"
        notes += ["", f"contract      {contract.about}{differs}"]
    if write:
        notes += ["", f"verification  {written or 'not written, since it differs'}"]
    if written is not None:
        notes.append("the board says so after kgbench leaderboard build")
    answer = {
        "id": found.record.id,
        "path": str(found.folder),
        "seed": seed,
        "facts": list(chosen),
        **repeated_answer(again, what),
        "contract": laws,
        "written": written is not None,
    }
    brief = "\n".join([repeated_sentence(again, what), *notes])
    status = int(not (again.agrees and same))
    return Output([repeat_report(again, what), *notes], answer, status, brief)


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
    from kgbench.leaderboard.entries import Verification
    from kgbench.leaderboard.folders import changed, document_hash, rows_hash
    from kgbench.records import collect_provenance

    assert entry.method_folder is not None  # it was submitted

    now = collect_provenance("")
    seed, n = sample
    verification = Verification(
        record=entry.record.id,
        record_hash=document_hash(entry.documents["record.json"]),
        facts_hash=rows_hash(entry.rows()),
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
    name, added = entry.folder.name, {"verification.json": verification.to_json()}
    with changed(entry.method_folder) as (documents, _):
        documents[name] = {**documents[name], **added}
    return entry.folder / "verification.json"
