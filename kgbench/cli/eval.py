"""`kgbench eval`: run localizers on a model pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import (
    VERDICT_ONLY,
    Options,
    check_options,
    cli_command,
    settings_of,
    spec_of,
)
from kgbench.cli.output import Output, table_text, write_file, write_picture
from kgbench.errors import InputError, ModelError
from kgbench.progress import progress
from kgbench.runner.spec import COMPUTING, FACTS, PAIR, listed

if TYPE_CHECKING:
    from kgbench.records import Record
    from kgbench.runner import Pairs, Run, Settings, Spec


@cli_command(
    *(
        "localizer",
        "localizer_args",
        "readout",
        "readout_args",
        *PAIR,
        *FACTS,
        "grafts",
        "suite",
        "layers",
        "limit",
    ),
    *("metric", "seed", *COMPUTING, "output_dir", "dry_run", "as_json", "quiet"),
    epilog="Exit status: 0 done; 1 ran, and something did not hold; 2 wrong input; 130 "
    "interrupted.",
    localizer={
        "multiple": True,
        "default": ["dynamic_graft"],
        "help": "Localizer; several with commas.",
    },
    localizer_args={
        "metavar": "[NAME.]KEY=VALUE",
        "help": "Argument of all localizers, or of the one named; may be repeated.",
    },
    model={
        "multiple": True,
        "metavar": "NAME|all",
        "help": "Model pair by name, see `kgbench ls models`; several with commas; all: every "
        "shipped pair, or plant of --suite planted.",
    },
    quiet=VERDICT_ONLY,
)
def eval_command(*, dry_run: bool, as_json: bool, quiet: bool, **options: Any) -> Output:
    """Measure where a finetuned fact is retrieved from, by one or several localizers.

    Runs every configuration of the suite on every prompt, prints a table that
    ends with a verdict, and writes a record and a picture. A run whose record
    exists already is not computed again.

    \b
    kgbench eval --localizer dynamic_graft --model tiny-gemma
    kgbench eval --model all --localizer dynamic_graft,activation_patch
    kgbench eval --model tiny-gemma --prompt qa --graft "LT:o+ffn@second_half,FE"
    kgbench eval --suite planted --localizer oracle,random,weight_delta
    kgbench eval --recipient before/ --donor after/ --dataset facts.jsonl

    Args:
        dry_run: Only say what it would take: forwards, token rows, memory, seconds.
        as_json: One JSON object on stdout, all else on stderr; of several runs {"runs": [...]}.
        quiet: No progress.
        **options: Fields of the specification and of how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.report.donors import donor_groups, donor_name, donors_report, draw_donors

    specs, settings = _specs(options), settings_of(options)
    for line in _check_specs(specs):
        click.echo(f"kgbench: warning: {line}", err=True)
    shown = not (as_json and quiet)
    if dry_run:
        answers = list(_forecasts(specs, settings, shown))
        status = 2 if any(answer["lacking"] for answer in answers) else 0
    else:
        runs = list(_runs(specs, settings, quiet))
        for group in donor_groups(run.record for run in runs) if shown else ():
            ids = "-".join(record.id[:6] for record in group[:: len(group) - 1])
            path = settings.output_dir / f"donors-{ids}-{group[0].metric}.png"
            write_picture(path, draw_donors, group)
            Output(["", donors_report(group), "", f"picture  {path}"]).print()
        if len(runs) > 1 or quiet:
            Output([*[""] * (not quiet), _verdicts(runs)] if shown else []).print()
        order = list(dict.fromkeys(spec.localizer for spec in specs))
        by_localizer = sorted(
            zip(specs, runs, strict=True), key=lambda of: order.index(of[0].localizer)
        )
        answers, status = [run.to_json() for _, run in by_localizer], 0
        for (spec, run), answer in zip(by_localizer, answers, strict=True):
            answer |= {"donor": donor_name(run.record)} if len(runs) > 1 and spec.donors else {}
    return Output(json=answers[0] if len(answers) == 1 else {"runs": answers}, status=status)


def _specs(options: Options) -> list[Spec]:
    """A specification per model and localizer; a pair's in turn, so that it is loaded once.

    Raises:
        InputError: The options cannot be those of a job.
    """
    from kgbench.runner.lookup import along_donors, load_suite

    localizers = listed(options["localizer"])
    if not localizers:
        raise InputError("--localizer: expected a name, see `kgbench ls localizers`")
    planted = options["suite"] is not None and load_suite(options["suite"]).truth
    models = listed(options["model"])
    check_options(options, bool(models) or planted)
    for name in ("recipient", "donor"):
        if options[name] and (len(models) > 1 or "all" in models):
            raise InputError(
                f"--{name} is about one pair, and --model names several: give one --model, or "
                f"leave out --{name}"
            )
    specs: list[Spec] = []
    for model in models_of(options, planted):
        for name in localizers:
            spec = spec_of(options, localizer=name, model=model)
            specs += along_donors(spec).values() or [spec]
    return specs


def models_of(options: Options, planted: bool = False) -> tuple[str | None, ...]:
    """Named pairs, `all` for all shipped ones; in a suite of plants, the shipped plants in them."""
    from kgbench.models.catalog import shipped
    from kgbench.runner.lookup import planted_models

    names = listed(options["model"])
    models: list[str] = []
    if planted and not any(options[name] for name in ("recipient", "donor", "dataset")):
        for name in names or ("all",):
            models += planted_models(None if name == "all" else name) or (name,)
    else:
        for name in names:
            models += shipped() if name == "all" else (name,)
    return tuple(dict.fromkeys(models)) or (None,)


def _check_specs(specs: Sequence[Spec]) -> list[str]:
    """Check all specifications before anything heavy is loaded or run.

    Returns:
        Warnings about what can be run but hardly is what was meant.
    """
    from kgbench.runner import check
    from kgbench.runner.lookup import idle_donors, unlearned
    from kgbench.runner.sources import Sources, check_different

    for spec in specs:
        check_different(Sources.of(spec))
    works = list(map(check, specs))
    if len(specs) > 1:
        from kgbench.runner.third_party_process import method_of

        for work in works:
            method_of(work)
    return list(filter(None, dict.fromkeys([*map(unlearned, works), *map(idle_donors, works)])))


def _forecasts(specs: Sequence[Spec], settings: Settings, shown: bool) -> Iterator[dict[str, Any]]:
    """What each run would take, and for want of what it would stop."""
    from kgbench.runner import Pairs, check, dry_run
    from kgbench.runner.costs import cost_table
    from kgbench.runner.job import check_donor

    pairs = Pairs()
    for spec in specs:
        cost, lacking = dry_run(spec, settings, pairs), None
        headers, rows = cost_table([cost])
        about = {"model": spec.model, "localizer": spec.localizer}
        if donors := ", ".join(spec.donors):
            about["donor"], rows = donors, [["donor", donors], *rows]
        try:
            check_donor(check(spec).sources)
        except ModelError as error:
            lacking = str(error)
            rows = [*rows, ["the run would stop", lacking]]
        if shown:
            click.echo(table_text(headers, rows))
        yield {**about, **cost.to_json(), "lacking": lacking}


def _runs(specs: Sequence[Spec], settings: Settings, quiet: bool) -> Iterator[Run]:
    """Run all jobs, and print each."""
    from kgbench.numbers import duration_text
    from kgbench.report.run_report import record_report
    from kgbench.runner import known_run

    @cache
    def pairs() -> Pairs:
        from kgbench.runner import Pairs  # loads torch, which runs that are known do without

        return Pairs()

    for spec in specs:
        run = known_run(spec, settings)
        if run is None:
            from kgbench.runner import run_job

            with progress(not quiet) as report:
                run = run_job(spec, settings, report, pairs())
        pictures = ", ".join(map(str, write_pictures(run.record, run.path)))
        computed = f"computed in {duration_text(run.record.cost.seconds)}"
        if run.reused:
            computed = "computed before: this run computed nothing"
        lines = [computed, *trained_lines(run.record.notes.get("origins"))]
        lines += [f"record   {run.path}", f"picture  {pictures}"]
        if not quiet:
            Output([record_report(run.record), "", *lines]).print()
        yield run


def _verdicts(runs: Sequence[Run]) -> str:
    """The verdict of a run, or a table of those of several."""
    from kgbench.report.donors import donor_name
    from kgbench.stats import verdict_of

    if len(runs) == 1:
        return verdict_of(runs[0].record)
    rows, several = [], len({donor_name(run.record) for run in runs}) > 1
    for run in runs:
        record = run.record
        names = [record.model, *[donor_name(record)] * several, record.identity.localizer.name]
        rows.append([*names, verdict_of(record)])
    return table_text(["model", *["donor"] * several, "localizer", "verdict"], rows)


def trained_lines(origins: object) -> list[str]:
    """One line per model of a pair that was trained here.

    Args:
        origins: Where the models of the pair are from, by name, as a record's notes have it.
    """
    from kgbench.models.catalog import is_donor_name

    parts = origins.items() if isinstance(origins, dict) else ()
    lines = []
    for part, origin in parts:
        if is_donor_name(str(origin)):
            lines.append(f"donor    {part} is {origin}, trained with kgbench train")
    return lines


def write_pictures(record: Record, folder: Path) -> list[Path]:
    """Draw a record's missing pictures (PNG, SVG): bars; of ranked sites the curve and the map.

    The names of those that depend on it hold the metric, since a stored run can be shown on another
    one.

    Raises:
        OutputError: The folder cannot be written.
    """
    from kgbench.localizers import score_meaning
    from kgbench.report.bars import picture_bytes
    from kgbench.report.site_maps import drawing, pictures_of

    paths: list[Path] = []
    for kind in pictures_of(record):
        name = kind if kind == "map" else f"{kind}-{record.metric}"
        files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
        if not all(path.exists() for path in files):
            draw = drawing([record], kind, score_meaning)
            contents = picture_bytes(draw, [record], "png", "svg")
            for path, content in zip(files, contents, strict=True):
                write_file(path, content)
        paths += files
    return paths
