"""`kgbench tasks` and `kgbench lm-eval`: list, show, validate and run tasks for lm-eval."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import listed
from kgbench.cli.output import echo_json, echo_table, json_option, quiet_option, working

if TYPE_CHECKING:
    from kgbench.harness.task_validation import TaskFinding, Validation


SHOWN = 10
"""Findings of one task that are printed; a fault of a template recurs in every document."""

_folder = click.option(
    "--include-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A folder with your own tasks.",
)
_json = json_option("JSON on stdout.")


def _names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from kgbench.harness import shipped_tasks

    entries = shipped_tasks()
    known = dict.fromkeys(entry.name for entry in entries)
    for entry in entries:
        known |= dict.fromkeys(entry.tags)
    return [name for name in known if name.startswith(incomplete)]


@click.group()
def tasks_command() -> None:
    """Tasks for the Language Model Evaluation Harness."""


@tasks_command.command()
def path() -> None:
    """Print the folder of the tasks.

    For lm-eval: --include_path "$(kgbench tasks path)".
    """
    from kgbench.harness import tasks_path

    click.echo(tasks_path())


@tasks_command.command()
@_json
def ls(as_json: bool) -> None:
    """List the tasks that kgbench ships."""
    from kgbench.harness import shipped_tasks

    entries = shipped_tasks()
    if as_json:
        echo_json(list(map(asdict, entries)))
        return
    rows = [[e.name, e.dataset, e.prompt, e.form, str(e.documents)] for e in entries]
    echo_table(["task", "data set", "prompt", "form", "documents"], rows)
    click.echo()
    tags = Counter(chain.from_iterable(entry.tags for entry in entries))
    echo_table(["tag", "tasks"], [[tag, str(tags[tag])] for tag in sorted(tags)])


@tasks_command.command("show")
@click.argument("name", shell_complete=_names)
@click.option(
    "--document",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Which document, from 0.",
)
@_folder
@_json
def show_document(name: str, document: int, include_path: Path | None, as_json: bool) -> None:
    """Show one document of a task as a model sees it."""
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.task_validation import preview

    with redirect_stdout(sys.stderr):  # libraries print while they load data
        rendered = preview(name, document, include_path)
    if as_json:
        echo_json(rendered)
    else:
        click.echo("\n".join(_lines(rendered)))


def _lines(rendered: dict[str, Any]) -> list[str]:
    gold = rendered["gold"] if isinstance(rendered["gold"], list) else [rendered["gold"]]
    identifier = "" if rendered["id"] is None else f", {rendered['id']}"
    lines = [
        f"task      {rendered['task']}",
        f"file      {rendered['file']}",
        f"document  {rendered['document']} of 0 to {rendered['documents'] - 1}{identifier}",
        f"context   {rendered['context']!r}",
    ]
    for number, target in enumerate(rendered["targets"]):
        right = "   (right)" if number in gold or target in gold else ""
        lines.append(f"target    {target!r}{right}")
    for region, text in (rendered["spans"] or {}).items():
        lines.append(f"{region:<9} {text!r}")
    return [*lines, f"metrics   {', '.join(rendered['metrics'])}"]


@tasks_command.command(
    "validate",
    epilog="Exit status: 0 all is well; 1 something is wrong with a task; 2 wrong input.",
)
@click.argument("names", nargs=-1, metavar="[NAME|TAG]…", shell_complete=_names)
@_folder
@click.option(
    "--tokenizer",
    multiple=True,
    metavar="NAME|PATH|ID",
    help="Tokenizer to try; several with commas.  [default: those of the tiny pairs]",
)
@_json
@quiet_option()
def validate_command(
    names: Sequence[str],
    include_path: Path | None,
    tokenizer: Sequence[str],
    as_json: bool,
    quiet: bool,
) -> int:
    """Check tasks, every document of them.

    Loads each task with lm-eval, renders every document, and checks spans
    and targets, also as tokens. Names files that lm-eval cannot read and
    leaves out silently. Without a name, checks all tasks that kgbench
    ships, or with --include-path all of that folder.

    Loading a task runs the code that its YAML names with !function:
    validate only folders that you trust.

    \b
    kgbench tasks validate
    kgbench tasks validate --include-path my_tasks --tokenizer path/to/checkpoint
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.task_validation import validate_tasks

    with working(as_json=True, quiet=quiet) as report:
        validation = validate_tasks(
            tuple(dict.fromkeys(names)), include_path, listed(tokenizer), report
        )
    if as_json:
        echo_json(_answer(validation))
    else:
        _print(validation)
    return 1 if validation.findings else 0


def _answer(validation: Validation) -> dict[str, Any]:
    tasks = []
    for task in validation.tasks:
        tasks.append({**asdict(task), "findings": _count(validation, task.name)})
    findings = list(map(asdict, validation.findings))
    return {
        "holds": not findings,
        "tokenizers": list(validation.tokenizers),
        "tasks": tasks,
        "findings": findings,
    }


def _count(validation: Validation, task: str) -> int:
    return sum(finding.task == task for finding in validation.findings)


def _print(validation: Validation) -> None:
    by_task: dict[str | None, list[TaskFinding]] = {}
    for finding in validation.findings:
        by_task.setdefault(finding.task, []).append(finding)
    for task, findings in by_task.items():
        click.echo("\n".join(map(str, findings[:SHOWN])))
        if len(findings) > SHOWN:
            click.echo(f"… and {len(findings) - SHOWN} more in task {task}; --json has them all")
    if validation.findings:
        click.echo()
    tokenizers = validation.tokenizers
    rows = []
    for checked in validation.tasks:
        number = _count(validation, checked.name)
        rows.append(
            [checked.name, str(checked.documents), str(len(tokenizers)), str(number or "none")]
        )
    echo_table(["task", "documents", "tokenizers", "findings"], rows)
    documents = sum(checked.documents for checked in validation.tasks)
    tasks = f"{_many(len(rows), 'task')}, {_many(documents, 'document')}"
    result = _many(len(validation.findings), "finding") if validation.findings else "all is well"
    click.echo(f"\n{tasks}, with the tokenizers of {', '.join(tokenizers)}: {result}")


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lm_eval_command(arguments: Sequence[str]) -> int:
    """Run lm-eval with `--model kgbench` registered and kgbench's tasks on the path.

    All arguments are lm-eval's, but for --continuation lt|none|all.
    """
    from kgbench.harness.command_line import launch

    return launch(arguments)
