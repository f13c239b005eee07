"""From the options of `kgbench eval` to jobs, and from their records to what is printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, echo_table
from kgbench.cli.pictures import write_pictures
from kgbench.cli.progress import progress
from kgbench.cli.values import listed, pairs
from kgbench.errors import InputError
from kgbench.sites import BASELINES, parse_graft

if TYPE_CHECKING:
    from kgbench.data import ImportOptions
    from kgbench.runner import Run, Settings, Spec

Options = Mapping[str, Any]

FILE_OPTIONS = ("subject", "object", "column", "template")
"""Options about a user's own file of facts."""

SAME_NAME = ("model", "recipient", "revision", "chat_template", "dataset", "suite", "layers", "limit", "dtype", "seed", "metric")
"""Options that are fields of the specification as they stand; one that is not given has the specification's default."""


def run_all(options: Options) -> int:
    """Run one job per localizer and print what came of each.

    Returns:
        The exit status.
    """
    from kgbench.runner import check

    localizers = listed(options["localizer"])
    if not localizers:
        raise InputError("--localizer: expected a name, see `kgbench ls localizers`")
    _check(options)
    # Whatever a library or a localizer prints must not mix with the JSON object.
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        settings = _settings(options)
        specs = [_spec(options, name) for name in localizers]
        for spec in specs:
            check(spec)  # a mistake is told before anything heavy is loaded
        answers = [_estimate(spec, settings, options) if options["dry_run"] else _run(spec, settings, options) for spec in specs]
    if options["as_json"]:
        echo_json(answers[0] if len(answers) == 1 else {"runs": answers})
    return 0


def _check(options: Options) -> None:
    """Refuse what cannot be a job before anything heavy is loaded."""
    if options["model"] is None and options["recipient"] is None:
        raise InputError("which model? Give --model NAME (see `kgbench ls models`), or --recipient PATH with --donor sft=PATH")
    for name in FILE_OPTIONS:
        if options[name] and options["dataset"] is None:
            raise InputError(f"--{name} says how to read a file of facts: add --dataset FILE")
    for name in ("donor", "localizer_arg", "column", "template"):
        pairs(f"--{name.replace('_', '-')}", options[name])
    for graft in options["graft"]:
        if graft not in BASELINES:
            parse_graft(graft)


def _spec(options: Options, localizer: str) -> Spec:
    from kgbench.runner import Spec

    given = {name: options[name] for name in SAME_NAME if options[name] is not None}
    return Spec(
        localizer=localizer,
        localizer_args=pairs("--localizer-arg", options["localizer_arg"]),
        donors=pairs("--donor", options["donor"]),
        imports=_imports(options),
        prompts=listed(options["prompt"]),
        grafts=tuple(options["graft"]),
        **given,
    )


def _imports(options: Options) -> ImportOptions | None:
    from kgbench.data import ImportOptions

    if not any(options[name] for name in FILE_OPTIONS):
        return None
    return ImportOptions(
        subject=options["subject"],
        object=options["object"],
        columns=pairs("--column", options["column"]),
        templates=pairs("--template", options["template"]),
    )


def _settings(options: Options) -> Settings:
    from kgbench.runner import Settings

    return Settings(**{name: options[name] for name in ("batch_size", "device", "executor", "output_dir")})


def _run(spec: Spec, settings: Settings, options: Options) -> dict[str, Any]:
    from kgbench.runner import run_job

    with progress(shown=not options["quiet"]) as report:
        run = run_job(spec, settings, report)
        pictures = write_pictures(run.record, run.path)
    if not (options["as_json"] and options["quiet"]):
        _print(run, pictures)
    return run.to_json()


def _print(run: Run, pictures: Sequence[Path]) -> None:
    from kgbench.board import render_table

    click.echo(render_table(run.record))
    click.echo()
    click.echo("computed before: this run computed nothing" if run.reused else f"computed in {run.record.cost.seconds:.1f} s")
    click.echo(f"record   {run.path}")
    click.echo(f"picture  {', '.join(map(str, pictures))}")


def _estimate(spec: Spec, settings: Settings, options: Options) -> dict[str, Any]:
    from kgbench.runner import dry_run

    estimate = dry_run(spec, settings)
    if not (options["as_json"] and options["quiet"]):
        echo_table(["what", spec.localizer], estimate.rows())
    return estimate.to_json()
