"""The command of an analysis, made from its class: arguments, options, and how it is printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kgbench.analyses import Analysis, Answer, Inputs, Need, analyses
from kgbench.cli.eval import trained_lines
from kgbench.cli.options import (
    COMPUTING,
    check_pair_options,
    field_options,
    listed,
    run_options,
    settings_of,
    spec_of,
)
from kgbench.cli.output import (
    echo_json,
    echo_table,
    json_option,
    quiet_option,
    terminal_text,
    working,
    write_file,
)
from kgbench.cli.runs import output_dir
from kgbench.errors import InputError, OutputError
from kgbench.progress import Progress

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry
    from kgbench.runner.spec import Spec

__all__ = ["analysis_command"]


def analysis_command(name: str) -> click.Command:
    """The command of an analysis.

    Raises:
        InputError: The analysis of an installed package does not load.
    """
    kind: type[Analysis] = analyses().load(name)

    def callback(**options: Any) -> None:
        _run(kind, options)

    runs = [] if not kind.arguments else kind.arguments.split()
    decorators = list(map(_run_argument, runs))
    decorators.append(run_options(*kind.takes, **kind.changes))
    decorators.append(field_options(kind, skip=kind.takes))
    if runs and "output_dir" not in kind.takes:
        decorators.append(output_dir)
    decorators += _output_options(kind)
    for decorator in reversed(decorators):
        callback = decorator(callback)
    return click.command(name, help=kind.__doc__)(callback)


def _run_argument(metavar: str) -> Any:
    several = metavar.endswith("...")
    parameter = f"run_{metavar.strip('[].').lower()}"
    return click.argument(
        parameter,
        metavar=metavar,
        nargs=-1 if several else 1,
        required=not metavar.startswith("["),
    )


def _output_options(kind: type[Analysis]) -> list[Any]:
    """Options of how the answer is printed."""
    options = []
    if kind.forecast is not Analysis.forecast:
        options.append(
            click.option("--dry-run", is_flag=True, help="Only show what it would take.")
        )
    if kind.writes_csv:
        file = click.Path(path_type=Path, dir_okay=False)
        options.append(
            click.option(
                "--csv", "csv_file", type=file, metavar="FILE", help="Write the rows there as CSV."
            )
        )
    options.append(json_option())
    if {*COMPUTING} & {*kind.takes}:
        options.append(quiet_option())
    return options


def _run(kind: type[Analysis], options: Mapping[str, Any]) -> None:
    """Answer or forecast, and print the result."""
    analysis = kind(**{field.name: options[field.name] for field in dataclasses.fields(kind)})
    target: Path | None = options.get("csv_file")
    quiet, as_json = options.get("quiet", False), options["as_json"]
    needs: Sequence[Need] = ()
    with working(as_json, quiet) as report:
        inputs = _inputs(kind, options, report)
        if target is not None and not target.parent.is_dir():
            raise OutputError(
                f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}"
            )
        if options.get("dry_run"):
            needs = analysis.forecast(inputs)
        else:
            answer = analysis.answer(inputs)
    if needs:
        _print_forecast(needs, as_json)
        return
    if target is not None:
        write_file(target, answer.csv.encode())
    _print(answer, as_json)


def _announce(line: str) -> None:
    click.echo(terminal_text(line), err=True)


def _silent(line: str) -> None:
    pass


def _print(answer: Answer, as_json: bool) -> None:
    from kgbench.report import to_text

    if as_json:
        echo_json(answer.json)
    else:
        click.echo("\n".join([to_text(answer.report), *trained_lines(answer.origins)]))


def _print_forecast(needs: Sequence[Need], as_json: bool) -> None:
    if as_json:
        answers = [need.json for need in needs]
        echo_json(answers[0] if len(answers) == 1 else {"methods": answers})
        return
    for need in needs:
        echo_table(["what", need.title], need.rows)


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
    announce = _silent if options.get("quiet", False) else _announce
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
