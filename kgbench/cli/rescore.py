"""`kgbench rescore`: all figures of a run again, from its stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import RESULTS
from kgbench.cli.output import echo_json, echo_table, write_file
from kgbench.cli.runs import find_run
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.board.figures import Changed
    from kgbench.estimate import Estimate
    from kgbench.leaderboard.entries import Entry
    from kgbench.records import Record


@click.command(
    epilog="Exit status: 0 the stored figures are those of the rows; 1 some differ; 2 wrong input.",
)
@click.argument("run", metavar="RUN")
@click.option(
    "--metric",
    metavar="NAME",
    help="Make the ratios and the verdict on this metric.  [default: the run's]",
)
@click.option("--in-place", is_flag=True, help="Write the record back, in the present format.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the record to this folder of records.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: str, metric: str | None, in_place: bool, output_dir: Path | None, as_json: bool
) -> int:
    """Make all figures of a run anew from its per-fact rows, and say which differ.

    No model is needed. By default nothing is written.

    \b
    kgbench rescore kgbench-results/RUN
    kgbench rescore kgbench-results/RUN --metric logprob --output-dir on-logprob
    """  # noqa: D301 (click reads the character, not its escape)
    if in_place and output_dir is not None:
        raise click.UsageError(
            "--in-place and --output-dir are two places for one record: give one of them"
        )
    from kgbench.board.figures import changed_figures
    from kgbench.leaderboard.validate.recomputation import judged_anew
    from kgbench.stats.summary import rescored

    found = find_run(run, RESULTS)
    if in_place and found.pack is not None:
        raise InputError(
            f"{found.pack} is a pack, whose entries are never edited; give --output-dir DIR"
        )
    facts = found.facts()
    again = judged_anew(rescored(found.record, facts))
    wanted = again if metric is None else judged_anew(rescored(found.record, facts, metric))
    changes = changed_figures(found.record, again)
    written = (
        _in_place(found, wanted)
        if in_place
        else _written(found, wanted, output_dir)
        if output_dir is not None
        else None
    )
    if as_json:
        echo_json(_answer(found, wanted, changes, written))
    else:
        _print(found.record, wanted, changes, metric is not None)
        if written is not None:
            click.echo(f"\nrecord   {written}")
    return 1 if changes else 0


def _written(run: Entry, record: Record, root: Path) -> Path:
    """The record in another folder of records.

    Raises:
        InputError: It is there already.
    """
    from kgbench.records import RecordStore

    store = RecordStore(root)
    if (there := store.find(record.id)) is not None:
        raise InputError(
            f"{str(root)!r} holds a record of this run already, in {there.path.name!r}; rescore "
            "that one --in-place"
        )
    return store.write(record, run.facts())


def _in_place(run: Entry, record: Record) -> Path:
    """The record in its own folder; rows of the present format are left as they are."""
    import pyarrow.parquet as pq

    from kgbench.records import renew_seal
    from kgbench.records.fact_rows import STORED, write_facts

    rows = run.folder / "facts.parquet"
    if not pq.read_schema(rows).equals(STORED):
        temporary = rows.with_name(f".{rows.name}.new")
        write_facts(run.facts(), temporary)
        temporary.replace(rows)
        if run.verification is not None:
            click.echo(
                "verification.json goes with the rows as they were: run `kgbench verify --write` "
                "again",
                err=True,
            )
    write_file(run.folder / "record.json", record.to_json().encode())
    renew_seal(run.folder)
    return run.folder


def _print(stored: Record, now: Record, changes: Sequence[Changed], other_metric: bool) -> None:
    from kgbench.board import record_report
    from kgbench.board.figures import figures, from_rows
    from kgbench.report import to_text

    if other_metric:
        click.echo(to_text(record_report(now)))
        click.echo()
    if changes:
        echo_table(
            ["stored figure", "stored", "from the rows"],
            [[c.where, _text(c.stored), _text(c.now)] for c in changes],
        )
        click.echo()
    n = sum(map(from_rows, figures(stored)))
    some = (
        f"{len(changes)} of {n} stored figures differ from what the rows give"
        if changes
        else f"all {n} figures of the rows are as stored"
    )
    maps = (
        "; how the map ranks its sites is of the models, and taken over"
        if stored.ranking is not None
        else ""
    )
    click.echo(f"{some} ({stored.metric}){maps}")


def _text(estimate: Estimate | None) -> str:
    from kgbench.numbers import exact_text

    return "–" if estimate is None else exact_text(estimate)


def _answer(
    run: Entry, record: Record, changes: Sequence[Changed], written: Path | None
) -> dict[str, Any]:
    found = [
        {
            "figure": c.where,
            "stored": c.stored and c.stored.answer(),
            "now": c.now and c.now.answer(),
        }
        for c in changes
    ]
    answer = record.answer(str(written or run.folder))
    return {
        **answer,
        "metric": record.metric,
        "agrees": not changes,
        "differences": found,
        "written": written is not None,
    }
