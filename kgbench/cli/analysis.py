"""The command of an analysis, made from its class: arguments, options, and how it is printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kgbench.analyses import Analysis, Inputs, Need, analyses
from kgbench.cli.eval import trained_lines
from kgbench.cli.options import (
    check_pair_options,
    declared_fields,
    options_of,
    settings_of,
    spec_of,
)
from kgbench.cli.output import Output, table_text, terminal_text, working, write_file
from kgbench.errors import InputError, OutputError
from kgbench.progress import Progress
from kgbench.runner.spec import COMPUTING, listed

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry
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

    runs = kind.arguments.split()
    own = {n: each for n, each in declared_fields(kind).items() if n not in kind.takes}
    names = [*kind.takes, *own]
    if runs and "output_dir" not in kind.takes:
        names.append("records")
    if kind.forecast is not Analysis.forecast:
        names.append("dry_run")
    if kind.writes_csv:
        names.append("csv_file")
    names.append("as_json")
    if {*COMPUTING} & {*kind.takes}:
        names.append("quiet")
    params = [*map(_run_argument, runs), *options_of(names, kind.changes, own)]
    return click.Command(name, params=params, callback=callback, help=kind.__doc__)


def _run_argument(metavar: str) -> click.Argument:
    name = f"run_{metavar.strip('[].').lower()}"
    several, required = metavar.endswith("..."), not metavar.startswith("[")
    return click.Argument([name], metavar=metavar, nargs=-1 if several else 1, required=required)


def _run(kind: type[Analysis], options: Mapping[str, Any], report: Progress | None) -> Output:
    """Answer or forecast."""
    analysis = kind(**{field.name: options[field.name] for field in dataclasses.fields(kind)})
    inputs = _inputs(kind, options, report)
    target: Path | None = options.get("csv_file")
    if target is not None and not target.parent.is_dir():
        raise OutputError(
            f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}"
        )
    if options.get("dry_run"):
        return _forecast(analysis.forecast(inputs))
    answer = analysis.answer(inputs)
    if target is not None:
        write_file(target, answer.csv.encode())
    return Output([answer.report, *trained_lines(answer.origins)], answer.json)


def _forecast(needs: Sequence[Need]) -> Output:
    tables = [table_text(["what", need.title], need.rows) for need in needs]
    answers = [need.json for need in needs]
    return Output(tables, answers[0] if len(answers) == 1 else {"methods": answers})


def _inputs(kind: type[Analysis], options: Mapping[str, Any], report: Progress | None) -> Inputs:
    """The specifications or recorded runs that options name.

    Raises:
        InputError: Options are invalid, name no pair, or ask to compute recorded runs.
    """
    from kgbench.leaderboard.entries import find_run

    texts: list[str] = []
    for name, value in options.items():
        if name.startswith("run_"):
            texts += [value] if isinstance(value, str) else value
    specs: tuple[Spec, ...] = ()
    runs: tuple[Entry, ...] = ()
    if texts or not kind.takes:
        _refuse_computing(kind)
        runs = tuple(find_run(text, options["output_dir"]) for text in texts)
    else:
        check_pair_options(options)
        specs = _specs(options)

    def announce(line: str) -> None:
        if not options.get("quiet", False):
            click.echo(terminal_text(line), err=True)

    return Inputs(specs, runs, settings_of(options), report, announce)


def _specs(options: Mapping[str, Any]) -> tuple[Spec, ...]:
    """The specification of each localizer, or of the default one where that is no option."""
    if "localizer" not in options:
        return (spec_of(options),)
    given = options["localizer"]
    names = (given,) if isinstance(given, str) else listed(given)
    if not names:
        raise InputError("--localizer: expected a name, see `kgbench ls localizers`")
    return tuple(spec_of(options, localizer=name) for name in names)


def _refuse_computing(kind: type[Analysis]) -> None:
    """Refuse options about what to run where recorded runs are given.

    Raises:
        InputError: There is one.
    """
    context = click.get_current_context()
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if name in fields:
            allowed = not fields[name].metadata.get("computes", False)
        else:
            allowed = name.startswith("run_") or name in ("output_dir", "as_json", "quiet")
        if not allowed:
            raise InputError(
                f"--{name.replace('_', '-')} says what to run, and runs are given that exist; "
                "leave out one of the two"
            )
