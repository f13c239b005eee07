"""The command of an analysis, made from its class: arguments, options, and how it is printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kgbench.analyses import Analysis, Inputs, analyses, inputs_of
from kgbench.cli.eval import trained_lines
from kgbench.cli.options import declared_fields, given_fields, options_of, refuse_given, settings_of
from kgbench.cli.output import Output, terminal_text, working, write_file
from kgbench.errors import InputError, OutputError
from kgbench.progress import Progress
from kgbench.runner.spec import Spec


def analysis_command(name: str) -> click.Command:
    """The command of an analysis.

    Raises:
        InputError: The analysis of an installed package does not load.
    """
    kind: type[Analysis] = analyses().load(name)

    def callback(**options: Any) -> None:
        with working(options["as_json"], options.get("quiet", False)) as report:
            output = _run(kind, options, report)
        output.print(options["as_json"])

    fields = {n: each for n, each in declared_fields(kind).items() if n not in kind.takes}
    names = [*kind.takes, *fields, "records"]
    if kind.writes_csv:
        names.append("csv_file")
    names.append("as_json")
    if kind.of:
        names.append("quiet")
    changes = {}
    for field in kind.takes:  # one of a run has no default but what the run has
        change = {"asked": True} if field in declared_fields(Spec) else {}
        changes[field] = {**change, **kind.changes.get(field, {})}
    arguments = []
    for metavar in kind.arguments.split():
        argument, nargs = f"run_{metavar.strip('.').lower()}", -1 if metavar.endswith("...") else 1
        required = not kind.of
        arguments.append(
            click.Argument([argument], metavar=metavar, nargs=nargs, required=required)
        )
    return click.Command(
        name,
        params=[*arguments, *options_of(names, changes, fields)],
        callback=callback,
        help=kind.__doc__,
    )


def _run(kind: type[Analysis], options: Mapping[str, Any], report: Progress | None) -> Output:
    """Answer or forecast."""
    analysis = kind(**{field.name: options[field.name] for field in dataclasses.fields(kind)})
    inputs = _inputs(kind, options, report)
    target: Path | None = options.get("csv_file")
    if target is not None and not target.parent.is_dir():
        raise OutputError(
            f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}"
        )
    answer = analysis.answer(inputs)
    if target is not None:
        write_file(target, answer.csv.encode())
    return Output([answer.report, *trained_lines(answer.origins)], answer.json)


def _inputs(kind: type[Analysis], options: Mapping[str, Any], report: Progress | None) -> Inputs:
    """The recorded runs, or the specification of the only one where more is computed of it.

    Raises:
        InputError: No run is given, there is none, or options ask to compute several.
    """
    from kgbench.leaderboard.entries import find_run

    texts: list[str] = []
    for name, value in options.items():
        if name.startswith("run_") and value is not None:
            texts += [value] if isinstance(value, str) else value
    if not texts:
        raise InputError(
            f"`kgbench {kind.name}` asks about a run: `kgbench eval --model tiny-gemma` makes one, "
            f"then `kgbench {kind.name} RUN` (see `kgbench ls runs`)"
        )
    runs = [find_run(text, options["output_dir"]) for text in texts]

    def announce(line: str) -> None:
        if not options.get("quiet", False):
            click.echo(terminal_text(line), err=True)

    if not kind.of or len(runs) > 1:
        read = [each.name for each in dataclasses.fields(kind) if "computes" not in each.metadata]
        refuse_given(
            (*read, "output_dir", "csv_file", "as_json", "quiet"),
            "says what to run, and several runs are read as they are; leave out one of the two",
        )
    changes = {name: value for name, value in given_fields(options).items() if name in kind.takes}
    return inputs_of(kind, runs, settings_of(options), report, announce, **changes)
