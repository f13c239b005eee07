"""Commands on recorded runs: `show`, `export`, `plot`, `rescore` and `rerun`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import RESULTS, settings_of
from kgbench.cli.output import (
    VERDICT_ONLY,
    echo_json,
    echo_table,
    json_option,
    json_text,
    quiet_option,
    working,
    write_file,
)
from kgbench.cli.runs import again_options, output_dir, places_of
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.estimate import Estimate
    from kgbench.leaderboard.entries import Entry
    from kgbench.records import Identity, Record
    from kgbench.report.export import Changed


@click.command()
@click.argument("run", metavar="RUN")
@output_dir
@json_option("One JSON object on stdout, as `kgbench eval --json`.")
def show_command(run: str, output_dir: Path, as_json: bool) -> None:
    """Print the table of a recorded run.

    RUN is its folder, or the start of its id or of its folder's name; for an
    entry of the leaderboard, its submission and verification are printed too.
    """
    from kgbench.leaderboard.entries import find_run
    from kgbench.report import to_text
    from kgbench.report.run_report import record_report

    found = find_run(run, output_dir)
    if as_json:
        echo_json({**found.record.answer(str(found.folder)), **_submission_json(found)})
        return
    click.echo(to_text(record_report(found.record)))
    if found.submission is not None:
        click.echo(f"\n{_submission_text(found)}")


def _submission_json(run: Entry) -> dict[str, Any]:
    """What was submitted with a record, and who ran it again."""
    if run.submission is None:
        return {}
    verification = run.verification
    return {
        "submission": run.submission.model_dump(mode="json", exclude_none=True),
        "verification": None if verification is None else verification.model_dump(mode="json"),
    }


def _submission_text(run: Entry) -> str:
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


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "markdown", "latex", "json"]),
    help="Format.  [default: csv]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to.  [default: stdout]",
)
@output_dir
@json_option("The same as --format json.")
def export_command(
    runs: tuple[str, ...], kind: str | None, output: Path | None, output_dir: Path, as_json: bool
) -> None:
    """Write the figures of one or several runs as text.

    CSV has a line per figure, all of them, with interval, number of facts and
    the reason where it is undefined. Markdown and LaTeX have a row per
    configuration. JSON is what `kgbench show --json` prints.

    \b
    kgbench export kgbench-results/RUN --format csv -o run.csv
    kgbench export RUN_A RUN_B --format latex
    """  # noqa: D301 (click reads the character, not its escape)
    if as_json and kind not in (None, "json"):
        raise click.UsageError(
            f"--json is --format json, and --format {kind} is given: give one of them"
        )
    from kgbench.leaderboard.entries import find_run

    found = [find_run(run, output_dir) for run in runs]
    text = _exported_json(found) if as_json or kind == "json" else _exported(found, kind or "csv")
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, text.encode())
        click.echo(f"written to {output}", err=True)


def _exported(runs: Sequence[Entry], kind: str) -> str:
    from kgbench.report.export import FORMATS

    return FORMATS[kind]([run.record for run in runs])


def _exported_json(runs: Sequence[Entry]) -> str:
    answers = [run.record.answer(str(run.folder)) for run in runs]
    return json_text(answers[0] if len(answers) == 1 else {"runs": answers}) + "\n"


SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--kind",
    type=click.Choice(["chart", "curve", "map"]),
    default="chart",
    show_default=True,
    help="What to draw.",
)
@click.option("--metric", metavar="NAME", help="What is drawn.  [default: the first run's]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to: .png, .svg or .pdf.  [default: KIND-METRIC.png here]",
)
@output_dir
@json_option("One JSON object on stdout: the file and what it shows.")
def plot_command(
    runs: tuple[str, ...],
    kind: str,
    metric: str | None,
    output: Path | None,
    output_dir: Path,
    as_json: bool,
) -> None:
    """Draw runs, with 95 % intervals.

    One run: its bars, its budget curve, or the map of its scores. Several: bars
    side by side, curves on one pair of axes, or a line of maps for each.

    \b
    kgbench plot kgbench-results/RUN -o run.pdf
    kgbench plot RUN_A RUN_B --metric logprob -o both.svg
    kgbench plot --kind curve RUN_A RUN_B RUN_C -o curves.svg
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run

    found = [find_run(run, output_dir) for run in runs]
    records = [_on_metric(run, metric or found[0].record.metric) for run in found]
    path = output or Path(f"{kind}-{records[0].metric}.png" if kind != "map" else "map.png")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--output {str(path)!r}: expected a name that ends with {', '.join(SUFFIXES)}"
        )
    from kgbench.report.bars import picture_bytes

    draw, shown = _picture(records, kind)
    write_file(path, picture_bytes(draw, shown, path.suffix.lower()[1:]))
    if as_json:
        ids = [record.id for record in records]
        echo_json({"path": str(path), "kind": kind, "metric": records[0].metric, "runs": ids})
    else:
        click.echo(f"picture  {path}")


def _on_metric(run: Entry, metric: str) -> Record:
    """The record with its ratios on a metric."""
    from kgbench.stats.scores import check_metric
    from kgbench.stats.summary import rescored

    wanted = check_metric(metric)
    return run.record if run.record.metric == wanted else rescored(run.record, run.facts(), wanted)


def _picture(records: Sequence[Record], kind: str) -> tuple[Callable[[Any], Any], Any]:
    """What draws, and what it draws.

    Raises:
        InputError: The runs have nothing of this kind, or there are too many of them.
    """
    from kgbench.report.bars import MOST, draw_chart, draw_grouped
    from kgbench.report.site_maps import draw_curve, draw_curves, draw_heatmap, draw_heatmaps

    first = records[0]
    if len(records) > MOST:
        raise InputError(
            f"{len(records)} runs in one picture cannot be told apart; give at most {MOST}"
        )
    if kind == "chart":
        return (draw_chart, first) if len(records) == 1 else (draw_grouped, records)
    for record in records:
        if not (record.curve if kind == "curve" else record.scores):
            what = "budget curve" if kind == "curve" else "map"
            raise InputError(
                f"{_run_text(record)} has no {what}, for no sites were ranked; --kind chart draws"
                " its bars"
            )
    if len(records) == 1:
        return (draw_curve if kind == "curve" else draw_heatmap), first
    for i, record in enumerate(records):
        _check_together(kind, record, records[:i])
    return (draw_curves, records) if kind == "curve" else (draw_heatmaps, _with_meanings(records))


def _check_together(kind: str, record: Record, others: Sequence[Record]) -> None:
    """Refuse a run that is not on the facts and prompts of those before it.

    Raises:
        InputError: It is one of them, or has other data or prompts.
    """
    expected = f"--kind {kind} draws runs of the same facts and prompts beside each other"
    for other in others:
        what, that = record.identity, other.identity
        if record.id == other.id:
            raise InputError(
                f"{_run_text(record)} ({record.id[:8]}) is given twice; give each run once"
            )
        if what.dataset != that.dataset:
            data = " and ".join(f"{of.dataset.name} ({of.dataset.hash[:8]})" for of in (that, what))
            raise InputError(
                f"{_run_text(other)} and {_run_text(record)} have different facts, {data};"
                f" {expected}"
            )
        if what.prompts != that.prompts:
            prompts = f"{_prompts_text(that)} and {_prompts_text(what)}"
            raise InputError(
                f"{_run_text(other)} and {_run_text(record)} have different prompts, {prompts};"
                f" {expected}"
            )


def _with_meanings(records: Sequence[Record]) -> list[tuple[Record, str]]:
    """Each record with the meaning of its scores."""
    from kgbench.localizers import score_meaning

    maps = []
    for record in records:
        method = record.identity.localizer
        maps.append((record, score_meaning(method.name, method.version)))
    return maps


def _run_text(record: Record) -> str:
    return f"the run of {record.identity.localizer.name} on {record.model}"


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
@json_option()
def rescore_command(
    run: str, metric: str | None, in_place: bool, output_dir: Path | None, as_json: bool
) -> int:
    """Recompute all figures of a run from its per-fact rows, and list those that differ.

    No model is needed. By default nothing is written.

    \b
    kgbench rescore kgbench-results/RUN
    kgbench rescore kgbench-results/RUN --metric logprob --output-dir on-logprob
    """  # noqa: D301 (click reads the character, not its escape)
    if in_place and output_dir is not None:
        raise click.UsageError(
            "--in-place and --output-dir are two places for one record: give one of them"
        )
    from kgbench.leaderboard.entries import find_run
    from kgbench.leaderboard.validate.known import judged_anew
    from kgbench.report.export import changed_figures
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
    written = None
    if in_place:
        written = _in_place(found, wanted)
    elif output_dir is not None:
        written = _written(found, wanted, output_dir)
    if as_json:
        echo_json(_rescored_json(found, wanted, changes, written))
    else:
        _print_rescored(found.record, wanted, changes, metric is not None)
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


def _print_rescored(
    stored: Record, now: Record, changes: Sequence[Changed], other_metric: bool
) -> None:
    from kgbench.report import to_text
    from kgbench.report.export import figures, from_rows
    from kgbench.report.run_report import record_report

    if other_metric:
        click.echo(to_text(record_report(now)))
        click.echo()
    if changes:
        echo_table(
            ["stored figure", "stored", "from the rows"],
            [[c.where, _estimate_text(c.stored), _estimate_text(c.now)] for c in changes],
        )
        click.echo()
    n = sum(map(from_rows, figures(stored)))
    line = f"all {n} figures of the rows are as stored ({stored.metric})"
    if changes:
        differing = f"{len(changes)} of {n} stored figures differ from what the rows give"
        line = f"{differing} ({stored.metric})"
    if stored.ranking is not None:
        line += "; how the map ranks its sites is of the models, and taken over"
    click.echo(line)


def _estimate_text(estimate: Estimate | None) -> str:
    from kgbench.numbers import exact_text

    return "–" if estimate is None else exact_text(estimate)


def _rescored_json(
    run: Entry, record: Record, changes: Sequence[Changed], written: Path | None
) -> dict[str, Any]:
    differences = []
    for change in changes:
        stored, now = change.stored and change.stored.answer(), change.now and change.now.answer()
        differences.append({"figure": change.where, "stored": stored, "now": now})
    answer = record.answer(str(written or run.folder))
    return {
        **answer,
        "metric": record.metric,
        "agrees": not changes,
        "differences": differences,
        "written": written is not None,
    }


def _prompts_text(what: Identity) -> str:
    return ", ".join(f"{name} ({text[:8]})" for name, text in what.prompts.items())


@click.command(
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be run here, or wrong input."
)
@click.argument("run", metavar="RUN")
@again_options
@output_dir
@json_option()
@quiet_option(VERDICT_ONLY)
def rerun_command(run: str, **options: Any) -> int:
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
    return rerun(run, options)


def rerun(run: str, options: Mapping[str, Any]) -> int:
    """Run a recorded run again and print how it compares.

    Args:
        run: As `find_run` takes it.
        options: Those of the command.

    Returns:
        The exit status.
    """
    from kgbench.leaderboard.entries import find_run
    from kgbench.report import to_text
    from kgbench.report.run_report import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import run_again

    found = find_run(run, options["output_dir"])
    with working(options["as_json"], options["quiet"]) as report:
        places, settings = places_of(options), settings_of(options)
        again = run_again(
            found.record, found.facts(), places, settings, options["tolerance"], report
        )
    what = f"all {len(set(found.facts()['fact'].to_pylist()))} facts"
    if options["as_json"]:
        echo_json(
            {"id": found.record.id, "path": str(found.folder), **repeated_answer(again, what)}
        )
    else:
        report_text = to_text(repeat_report(again, what))
        click.echo(repeated_sentence(again, what) if options["quiet"] else report_text)
    return 0 if again.agrees else 1
