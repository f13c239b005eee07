"""`kgbench leaderboard`, `kgbench validate` and `kgbench submit`: the board and its entries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import ExistingFolder, File, Folder, cli_command
from kgbench.cli.output import Output, table_text, write_file
from kgbench.errors import InputError, check_choice
from kgbench.numbers import count_text, duration_text
from kgbench.progress import progress
from kgbench.runner.spec import listed

if TYPE_CHECKING:
    from kgbench.leaderboard.validate import Finding
    from kgbench.paper.board_runs import BoardRun, Campaign


@click.group()
def leaderboard_command() -> None:
    """The leaderboard: tables and pages of its results.

    \b
    kgbench leaderboard build            # LEADERBOARD.md and site/ from results/
    kgbench leaderboard build --serve    # look at it, together with your own runs
    kgbench leaderboard check            # every entry, and whether LEADERBOARD.md is of results/
    kgbench leaderboard run              # all of the project's own entries anew
    """  # noqa: D301 (click reads the character, not its escape)


@cli_command(
    *("root", "records", "as_json"),
    group=leaderboard_command,
    port={"type": click.IntRange(0, 65535)},
)
def build(*, serve: bool, port: int | None, **options: Path) -> Output | None:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine. With --serve nothing
    is written: the pages are shown in a browser, together with your own runs.

    \b
    kgbench leaderboard build
    kgbench leaderboard build --serve --results kgbench-results

    Args:
        serve: Show the pages instead, until Ctrl-C.
        port (N): With --serve, on this machine; 0 takes a free one.  [default: 8765]
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.build import build as build_all
    from kgbench.leaderboard.build import serve as serve_site

    root, records = options["root"], options["output_dir"]
    if port is not None and not serve:
        raise InputError("--port is for --serve: give both, or none")
    if serve:
        own = records if records.is_dir() else None
        serve_site(root, 8765 if port is None else port, own, click.echo)
        return None
    files, changed = build_all(root)
    line = (
        f"{files} files, {changed} of them written or deleted; look at "
        f"{root / 'site' / 'index.html'}"
    )
    return Output([line], {"root": str(root), "files": files, "changed": changed})


@cli_command(
    "as_json",
    group=leaderboard_command,
    epilog="Exit status: 0 all is as it should be; 1 something differs; 2 wrong input.",
)
def check(*, root: Folder) -> Output:
    """Check every entry, and whether LEADERBOARD.md is what they give."""
    from kgbench.leaderboard.build import RESULTS, differences, uncollected
    from kgbench.leaderboard.validate import validate

    wrong: list[str] = []
    entries = []
    with uncollected():
        for checked in validate(root / RESULTS, True) if (root / RESULTS).is_dir() else ():
            entries.append(checked.entry)
            wrong += [str(finding) for finding in checked.findings if finding.refuses]
        if not wrong:  # a damaged entry gives no board to compare with
            wrong = differences(root, [entry for entry in entries if entry is not None])
    fine = f"{len(entries)} entries are in order, and LEADERBOARD.md is what they give"
    answer = {"root": str(root), "entries": len(entries), "wrong": wrong}
    return Output(wrong or [fine], answer, int(bool(wrong)))


@cli_command(
    *("root", "records", "dry_run", "study", "as_json", "quiet"),
    group=leaderboard_command,
    epilog="Exit status: 0 all entries are there; 1 some runs failed; 2 wrong input; 130 "
    "interrupted.",
    quiet={"help": "The last lines only."},
)
def run(
    *,
    board: tuple[str, ...],
    method: tuple[str, ...],
    model: tuple[str, ...],
    plants: ExistingFolder | None,
    limit: int | None,
    device: str = "auto",
    dry_run: bool,
    study: File | None,
    quiet: bool,
    **options: Path,
) -> Output:
    """Make the project's own entries anew: every built-in method on every board.

    A run of which there is an entry or a record is not computed again. Records
    go to --results as they are finished, and into the packs at the end. After
    Ctrl-C or a kill the same command goes on where it was. What a pack holds
    of other weights, facts or versions of a method is replaced.

    Of a replica, a plant of a further seed, the card alone is shipped. With
    --plants the runs are those on the replicas in a folder, whose weights must
    be those of the card.

    \b
    kgbench leaderboard run --dry-run
    kgbench leaderboard run --board planted --method snip,random --model tiny-gemma
    kgbench leaderboard run --plants my-plants

    Args:
        board (NAME): Only of this board; several with commas.
        method (NAME): Only of this method; likewise.
        model (PAIR): Only on this pair and the plants in it, or on this plant; likewise.
        plants (DIR): Only on the replicas in this folder, each as `kgbench zoo build` made it.
        limit (N): Only the first N facts, to try it out.
        device (DEVICE): cpu, cuda, cuda:1, mps.
        dry_run: Only count the entries, and estimate the time.
        study (FILE): Only write what is to run as a study, for `kgbench sweep run`.
        quiet: The last lines only.
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import BOARDS
    from kgbench.paper.board_runs import Campaign, board_runs
    from kgbench.runner import Settings

    boards = listed(board)
    for name in boards:
        check_choice("board", name, BOARDS)
    began = time.monotonic()
    runs = board_runs(boards, listed(method), listed(model), limit, plants)
    packs: list[Path] = []
    output_dir = options["output_dir"]
    campaign = Campaign(runs, options["root"], Settings(output_dir=output_dir, device=device))
    with progress(shown=not quiet) as report:
        campaign.identify(report)
    left = campaign.left()
    if not quiet:
        _print_campaign(campaign, left)
    if study is not None:
        write_file(study, _study(left, output_dir).encode())
    elif not dry_run:
        announce = (lambda line: None) if quiet else click.echo
        with progress(shown=not quiet) as report:
            campaign.compute(announce, report)
        packs = campaign.publish(announce)
    seconds = time.monotonic() - began
    answer = {"to_run": len(left), "seconds_left": campaign.seconds_left(left)}
    if not dry_run:
        answer = _made(campaign, packs, seconds)
    lines = _last_lines(campaign, packs, None if dry_run or study else seconds)
    if study is not None:
        lines.append(f"next      kgbench sweep run {study}, then this command without --study")
    return Output(lines, {"entries": len(runs), **answer}, int(bool(campaign.failures)))


def _study(runs: Sequence[BoardRun], output_dir: Path) -> str:
    """A study of some runs, as YAML."""
    import yaml

    units = []
    for run in runs:
        unit = {"localizer": run.method, "model": run.pair, "suite": run.board, "limit": run.limit}
        units.append({name: value for name, value in unit.items() if value is not None})
    return yaml.safe_dump({"output_dir": str(output_dir), "include": units}, sort_keys=False)


def _made(campaign: Campaign, packs: Sequence[Path], seconds: float) -> dict[str, Any]:
    failed = [{"run": str(each.run), "reason": each.reason} for each in campaign.failures]
    computed = {"computed": len(campaign.finished), "seconds": seconds}
    cost = {"cost_seconds": campaign.seconds}
    return {**computed, **cost, "packs": list(map(str, packs)), "failed": failed}


def _print_campaign(campaign: Campaign, left: Sequence[BoardRun]) -> None:
    """Number of entries of each board, how many are missing, and the time that they take."""
    boards: dict[str, list[BoardRun]] = {}
    for run in campaign.runs:
        boards.setdefault(run.board, []).append(run)
    rows = []
    for board, runs in boards.items():
        to_run = [run for run in left if run.board == board]
        counts = ({run.method for run in runs}, {run.pair for run in runs}, runs, to_run)
        rows.append([board, *map(str, map(len, counts))])
    click.echo(table_text(["board", "methods", "pairs", "entries", "to run"], rows))
    seconds = campaign.seconds_left(left)
    known = "not known yet" if seconds is None else f"about {duration_text(seconds)}"
    click.echo(f"\ntime      {known if left else 'none: every entry is there'}")
    if seconds and (guessed := campaign.guessed(left)):
        click.echo(
            f"note      no entry tells the time of {', '.join(guessed)}: counted like the median "
            "method; `kgbench eval --dry-run` measures it"
        )
    for line in campaign.other_versions():
        click.echo(f"note      some entries were {line}; to run them again, delete their packs")
    click.echo()


def _last_lines(campaign: Campaign, packs: Sequence[Path], seconds: float | None) -> list[str]:
    """Failures; of a campaign that ran, also its time and the next command."""
    lines = [f"failed    {each.run}: {each.reason}" for each in campaign.failures]
    if seconds is None:
        return lines
    computed = count_text(len(campaign.finished), "run")
    written = f"{count_text(len(packs), 'pack')} written"
    lines.append(f"computed  {computed} in {duration_text(seconds)}; {written}")
    left = len(campaign.left())
    there = f"{len(campaign.runs) - left} of {len(campaign.runs)} entries"
    lines.append(f"in all    {there}, {duration_text(campaign.seconds)} of computing")
    if packs:
        lines.append("next      kgbench leaderboard build, then kgbench leaderboard check")
    return lines


# ------------------------------------------------------------------------- entries

SCHEMAS = ("record", "submission", "verification")


@cli_command(
    "as_json",
    epilog="Exit status: 0 all is well; 1 something is refused; 2 wrong input.",
    path={"type": click.Path(path_type=Path)},
    schema={"type": click.Choice(SCHEMAS)},
)
def validate_command(
    path: Path | None,
    *,
    strict: bool,
    beside: Folder | None,
    withdraw: tuple[str, ...],
    schema: str | None,
) -> Output | None:
    """Check results: everything that needs no model.

    PATH is a run's folder, its record.json, a folder of such folders, or a
    method's folder of the leaderboard, alone or with the name of one of its
    entries after it. Every figure is computed anew from the per-fact rows; data,
    prompts and weights are compared with what is shipped. The first line counts
    the entries in order; then a line for each finding, notes last: file, field,
    what is wrong and what was expected. With --strict and --beside, a folder of
    entries is the whole board as it is to be: what is changed or gone is refused.

    \b
    kgbench validate kgbench-results/tiny-gemma-tiny_movies-my_method-0123456789ab
    kgbench validate --strict leaderboard/results
    kgbench validate --strict leaderboard/results/planted/snip

    Args:
        path: What is checked.
        strict: As for the board: known data, models and prompts only, and a submission of each
            record.
        beside: Results on the board already, to compare with.
        withdraw (NAME): An entry, or a method, that is taken from --beside; may be repeated.
        schema: Print the JSON Schema of a file instead.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.validate import validate

    if schema is not None:
        from kgbench.leaderboard.entries import schemas

        click.echo(schemas()[schema])
        return None
    if path is None:
        raise InputError("which results? Give a run's folder, a folder of such, or a method's")
    if withdraw and beside is None:
        raise InputError("--withdraw is for --beside: give the results on the board")
    findings: list[Finding] = []
    checked = accepted = 0
    for entry in validate(path, strict, beside, withdraw):
        checked, accepted = checked + 1, accepted + entry.accepted
        findings += entry.findings
    noun = "entry is" if checked == 1 else "entries are"
    lines = [f"{accepted} of {checked} {noun} in order{'' if strict else ' (not --strict)'}"]
    lines += map(str, sorted(findings, key=lambda finding: not finding.refuses))
    answer = {"path": str(path), "strict": strict, "entries": checked, "accepted": accepted}
    answer["findings"] = [finding.to_json() for finding in findings]
    return Output(lines, answer, int(accepted != checked))


@cli_command(
    *("name", "code", "localizer", "paper", "root", "records", "dry_run", "as_json"),
    name={"flag": "--as"},
    epilog="Exit status: 0 done; 1 a run is refused, and nothing was copied; 2 wrong input.",
)
def submit_command(
    runs: tuple[str, ...],
    *,
    name: str | None,
    code: str | None,
    localizer: str | None,
    paper: str | None,
    dry_run: bool,
    **options: Any,
) -> Output:
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

    Args:
        runs (RUN...): Recorded runs.
        name (NAME): The method's name on the board.  [default: the localizer's]
        code (URL@COMMIT|PACKAGE==VERSION): Where the method's code is.  [default: its installed
            package]
        localizer (FILE.py:CLASS): The method, where it is not installed: the laws are tried on it.
        paper (URL): A paper about the method.
        dry_run: Check and show, but copy nothing.
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.api.submission import submit

    about: dict[str, Any] = {"name": name, "code": code, "localizer": localizer, "paper": paper}
    submitted = submit(*runs, **about, **options, dry_run=dry_run)
    return Output([str(submitted)], submitted.to_json(), int(not submitted.accepted))
