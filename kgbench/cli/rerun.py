"""`kgbench rerun`: a recorded run again, or a sample of its facts."""

from __future__ import annotations

from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

from kgbench.cli.options import (
    VERDICT_ONLY,
    Natural,
    cli_command,
    given_fields,
    settings_of,
)
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.spec import INSTALLED

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Contract, Entry
    from kgbench.runner.rerun import Repetition
    from kgbench.runner.spec import Settings
    from kgbench.stats.rerun_comparison import Repeated

PARTS = ("model", "recipient", "donors", "dataset")
"""Options for parts of a run that are elsewhere now."""


@cli_command(
    *("sample", "write", "seed", "tolerance", "localizer", *PARTS),
    *("batch_size", "device", "records", "as_json", "quiet"),
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be run here, or wrong input.",
    localizer=INSTALLED,
    model={"metavar": "NAME|PATH", "help": "Pair of the run, if a plant of your own has moved."},
    recipient={"help": "Base (recipient), if it has moved."},
    donors={"help": "Finetuned model (donor), if it has moved; may be repeated."},
    dataset={"help": "Facts, if their file has moved."},
    quiet=VERDICT_ONLY,
)
def rerun_command(
    run: str,
    *,
    sample: int | None,
    write: bool,
    seed: Natural | None,
    progress: Progress | None,
    **options: Any,
) -> Output:
    """Run a recorded run again, and compare.

    The run starts from nothing, and every row is compared; with --sample N
    only those of a fresh random sample of N facts. What a method learns from all facts, such as a ranking of sites,
    it learns from all of them here too. Weights, facts, prompts and code must be
    those of the record: where one is not, it is named. A row agrees where its
    log-probability does within the tolerance, by default 0.001 nats for float32,
    which is room for the rounding of one platform: another device or version of
    torch may round otherwise. Cost is not compared.

    The code of a method that is not built in runs with your rights: read it
    first. It runs in a process of its own, which gets the pair under another name
    and with answers exchanged at random, and hands on treatments of tokens or
    scores of sites; kgbench measures these itself. So a method that looks answers
    up, or writes its own scores, differs. One that is given the answers, since it
    needs them to intervene, is not verified. Of an entry of the leaderboard
    the laws of `kgbench check-localizer` are tried too, and compared with its
    submission.

    \b
    kgbench rerun kgbench-results/RUN
    kgbench rerun kgbench-results/RUN --sample 20
    kgbench rerun ENTRY --sample 200 --write

    Args:
        run: A recorded run.
        sample (N): Only N facts, drawn now; all where there are fewer.
        write: Add its verification to an entry of the leaderboard, if it agrees.
        seed (N): Of the sample; not with --write.  [default: drawn by this machine]
        progress: Progress callback.
        **options: Fields of the run's parts and of how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run

    entry = find_run(run, options["output_dir"])
    if write:
        _check_write(entry, sample, seed, options["tolerance"])
    if seed is not None and sample is None:
        raise InputError("--seed draws a sample of the facts: add --sample N")
    from kgbench.runner.rerun import Repetition
    from kgbench.runner.sources import sources_of

    moved = {name: value for name, value in given_fields(options).items() if name in PARTS}
    sources, settings = sources_of(entry.folder), settings_of(options)
    how = Repetition(
        sources.model_copy(update=moved),
        options["localizer"],
        sample,
        randbits(32) if seed is None else seed,
        options["tolerance"],
    )
    return _again(entry, how, sources.on(settings), write, progress)


KNOWS_ANSWERS = "the method is given the answers (it needs 'answer') and could write them itself"


def _again(
    run: Entry, how: Repetition, settings: Settings, write: bool, progress: Progress | None
) -> Output:
    """Run facts again; compare rows, and of an entry of the leaderboard the laws of its method."""
    from kgbench.report.run_report import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import repeat
    from kgbench.testing.contract import contract_of

    again, chosen = repeat(run.record, run.facts(), how, settings, progress)
    n = max(row.n for row in run.record.rows)
    answer: dict[str, Any] = {"id": run.record.id, "path": str(run.folder)}
    what = f"all {len(chosen)} facts"
    if how.sample is not None:
        what = f"{len(chosen)} of {n} facts (seed {how.seed})"
        answer |= {"seed": how.seed, "facts": list(chosen)}
    answer |= repeated_answer(again, what)
    notes, laws, agrees, written = list[str](), None, again.agrees, False
    place = f"not written: {KNOWS_ANSWERS}" if write else f"none: {KNOWS_ANSWERS}"
    if run.submission is not None:
        contract, claimed = contract_of(run.record, how.localizer), run.submission.contract
        same, differs = True, ""
        if claimed is not None and set(claimed.broken) != set(contract.broken):
            same, differs = False, f"; the submission differs, and says: {claimed.about}"
        notes += ["", f"contract      {contract.about}{differs}"]
        laws = {**contract.model_dump(mode="json"), "as_claimed": same}
        agrees = agrees and same
        written = write and agrees and not again.knows_answers
        if written:
            place = str(_write(run, again, (how.seed, len(chosen)), contract))
        elif write and not agrees:
            place = "not written, since it differs"
    if write or again.knows_answers:
        notes += ["", f"verification  {place}"]
    if written:
        notes.append("the board says so after kgbench leaderboard build")
    if how.sample is not None or laws is not None:
        answer |= {"contract": laws, "written": written}
    brief = "\n".join([repeated_sentence(again, what), *notes])
    return Output([repeat_report(again, what), *notes], answer, int(not agrees), brief)


def _check_write(run: Entry, sample: int | None, seed: int | None, tolerance: float | None) -> None:
    """Refuse what would verify nothing.

    Raises:
        InputError: The run is no entry, the seed is chosen, the sample too small, or the tolerance
            too large.
    """
    from kgbench.leaderboard.entries import SAMPLE
    from kgbench.stats.rerun_comparison import TOLERANCES

    if run.submission is None:
        raise InputError(
            f"--write is for entries of the leaderboard, and {str(run.folder)!r} was not "
            "submitted: it has no submission.json"
        )
    record = run.record
    least = min(SAMPLE, max(row.n for row in record.rows))
    if seed is not None:
        raise InputError("--seed goes without --write: a sample known beforehand verifies nothing")
    if sample is not None and sample < least:
        raise InputError(f"--sample {sample} is too few for --write: expected {least}")
    most = TOLERANCES[record.identity.dtype]
    if tolerance is not None and tolerance > most:
        raise InputError(
            f"--tolerance {tolerance} is too large for --write: expected {most} or less"
        )


def _write(entry: Entry, again: Repeated, sample: tuple[int, int], contract: Contract) -> Path:
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
