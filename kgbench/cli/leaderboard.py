"""`kgbench leaderboard`: write the board from its entries, check it, look at it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import listed
from kgbench.cli.output import echo_json, echo_table, json_option, quiet_option, write_file
from kgbench.cli.runs import output_dir
from kgbench.errors import UnknownNameError
from kgbench.numbers import count_text, duration_text
from kgbench.progress import progress

if TYPE_CHECKING:
    from kgbench.analyses.reproduction.board_runs import BoardRun, Campaign

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("leaderboard"),
    show_default=True,
    help="The leaderboard's folder, which holds results/.",
)


@click.group()
def command() -> None:
    """The leaderboard: tables and pages of its results.

    \b
    kgbench leaderboard build     # LEADERBOARD.md and site/ from results/
    kgbench leaderboard check     # every entry, and whether LEADERBOARD.md is what results/ gives
    kgbench leaderboard serve     # look at it, together with your own runs
    kgbench leaderboard pack      # entries that are folders into packs
    kgbench leaderboard run       # all of the project's own entries anew
    """  # noqa: D301 (click reads the character, not its escape)


@command.command()
@root_option
@json_option()
def build(root: Path, as_json: bool) -> int:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine.
    """
    from kgbench.leaderboard.build import build as build_all

    files, changed = build_all(root)
    if as_json:
        echo_json({"root": str(root), "files": files, "changed": changed})
    else:
        click.echo(
            f"{files} files, {changed} of them written or deleted; look at "
            f"{root / 'site' / 'index.html'}"
        )
    return 0


@command.command(
    epilog="Exit status: 0 all is as it should be; 1 something differs; 2 wrong input."
)
@root_option
@json_option()
def check(root: Path, as_json: bool) -> int:
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
    if as_json:
        echo_json({"root": str(root), "entries": len(entries), "wrong": wrong})
    else:
        fine = f"{len(entries)} entries are in order, and LEADERBOARD.md is what they give"
        click.echo("\n".join(wrong or [fine]))
    return 1 if wrong else 0


@command.command()
@root_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="On this machine; 0 takes a free one.",
)
@output_dir
def serve(root: Path, port: int, output_dir: Path) -> int:
    """Show the pages in a browser, together with your own runs."""
    from kgbench.leaderboard.build import serve as serve_site

    serve_site(root, port, output_dir if output_dir.is_dir() else None, click.echo)
    return 0


@command.command()
@root_option
@json_option()
def pack(root: Path, as_json: bool) -> int:
    """Move entries that are folders into packs, one for each method and board.

    The files of each entry stay as they are: `tar xf PACK` unpacks them. Run
    `kgbench leaderboard check` first, for nothing is judged here.
    """
    from kgbench.leaderboard.drafts import pack_loose

    packs = pack_loose(root)
    if as_json:
        echo_json({"root": str(root), "packs": list(map(str, packs))})
    else:
        click.echo("\n".join(map(str, packs)) or "no entry is a folder")
    return 0


@command.command(
    epilog="Exit status: 0 all entries are there; 1 some runs failed; 2 wrong input; 130 "
    "interrupted."
)
@click.option(
    "--board", multiple=True, metavar="NAME", help="Only of this board; several with commas."
)
@click.option("--method", multiple=True, metavar="NAME", help="Only of this method; likewise.")
@click.option(
    "--model",
    multiple=True,
    metavar="PAIR",
    help="Only on this pair and the plants in it, or on this plant; likewise.",
)
@click.option(
    "--plants",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Only on the replicas in this folder, each as `kgbench zoo build` made it.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N facts, to try it out.",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1, mps."
)
@root_option
@output_dir
@click.option("--dry-run", is_flag=True, help="Only count the entries, and estimate the time.")
@click.option(
    "--study",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Only write what is to run as a study, for `kgbench sweep run`.",
)
@json_option()
@quiet_option("The last lines only.")
def run(root: Path, output_dir: Path, study: Path | None, **options: Any) -> int:
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
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.analyses.reproduction.board_runs import Campaign, board_runs
    from kgbench.leaderboard.entries import BOARDS
    from kgbench.runner import Settings

    boards, methods, pairs = (listed(options[name]) for name in ("board", "method", "model"))
    for name in boards:
        if name not in BOARDS:
            raise UnknownNameError("board", name, BOARDS)
    began = time.monotonic()
    runs = board_runs(boards, methods, pairs, options["limit"], options["plants"])
    watched, as_json, dry = not options["quiet"], options["as_json"], options["dry_run"]
    packs: list[Path] = []
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        campaign = Campaign(runs, root, Settings(output_dir=output_dir, device=options["device"]))
        with progress(shown=watched) as report:
            campaign.identify(report)
        left = campaign.left()
        if watched:
            _print_campaign(campaign, left)
        if study is not None:
            write_file(study, _study(left, output_dir).encode())
        elif not dry:
            announce = click.echo if watched else lambda line: None
            with progress(shown=watched) as report:
                campaign.compute(announce, report)
            packs = campaign.pack(announce)
    seconds = time.monotonic() - began
    if as_json:
        forecast = {"to_run": len(left), "seconds_left": campaign.seconds_left(left)}
        echo_json({"entries": len(runs), **(forecast if dry else _made(campaign, packs, seconds))})
    else:
        _print_end(campaign, packs, None if dry or study else seconds)
        if study is not None:
            click.echo(f"next      kgbench sweep run {study}, then this command without --study")
    return 1 if campaign.failures else 0


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
    echo_table(["board", "methods", "pairs", "entries", "to run"], rows)
    seconds = campaign.seconds_left(left)
    known = "nobody knows yet" if seconds is None else f"about {duration_text(seconds)}"
    click.echo(f"\ntime      {known if left else 'none: every entry is there'}")
    for line in campaign.other_versions():
        click.echo(f"note      some entries were {line}; to run them again, delete their packs")
    click.echo()


def _print_end(campaign: Campaign, packs: Sequence[Path], seconds: float | None) -> None:
    """Failures; of a campaign that ran, also its time and the next command."""
    for each in campaign.failures:
        click.echo(f"failed    {each.run}: {each.reason}")
    if seconds is None:
        return
    computed = count_text(len(campaign.finished), "run")
    written = f"{count_text(len(packs), 'pack')} written"
    click.echo(f"computed  {computed} in {duration_text(seconds)}; {written}")
    left = len(campaign.left())
    there = f"{len(campaign.runs) - left} of {len(campaign.runs)} entries"
    click.echo(f"in all    {there}, {duration_text(campaign.seconds)} of computing")
    if packs:
        click.echo("next      kgbench leaderboard build, then kgbench leaderboard check")
