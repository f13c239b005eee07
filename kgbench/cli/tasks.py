"""`kgbench tasks`: the tasks for lm-eval, and whether they are right."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, echo_table, progress
from kgbench.cli.values import listed

if TYPE_CHECKING:
    from kgbench.harness.validation import TaskFinding, Validation

SHOWN = 10
"""Findings of one task that are printed; a fault of a template is one in every document."""

_folder = click.option(
    "--include-path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A folder of tasks of your own.",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


def _names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from kgbench.harness.task_files import shipped_tasks

    entries = shipped_tasks()
    known = dict.fromkeys(
        [*(entry.name for entry in entries), *(tag for entry in entries for tag in entry.tags)]
    )
    return [name for name in known if name.startswith(incomplete)]


@click.group()
def command() -> None:
    """Tasks for the Language Model Evaluation Harness."""


@command.command()
def path() -> None:
    """Print the folder of the tasks.

    For lm-eval: --include_path "$(kgbench tasks path)".
    """
    from kgbench.harness import tasks_path

    click.echo(tasks_path())


@command.command()
@_json
def ls(as_json: bool) -> None:
    """List the tasks that kgbench ships."""
    from kgbench.harness.task_files import shipped_tasks

    entries = shipped_tasks()
    if as_json:
        echo_json([asdict(entry) for entry in entries])
        return
    rows = [[e.name, e.dataset, e.prompt, e.form, str(e.documents)] for e in entries]
    echo_table(["task", "data set", "prompt", "form", "documents"], rows)
    click.echo()
    tags = Counter(tag for entry in entries for tag in entry.tags)
    echo_table(["tag", "tasks"], [[tag, str(tags[tag])] for tag in sorted(tags)])


@command.command()
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
def show(name: str, document: int, include_path: Path | None, as_json: bool) -> None:
    """Show one document of a task as a model sees it."""
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.validation import preview

    with redirect_stdout(sys.stderr):  # libraries print while they load data
        told = preview(name, document, include_path)
    if as_json:
        echo_json(told)
    else:
        click.echo("\n".join(_lines(told)))


def _lines(told: dict[str, Any]) -> list[str]:
    right = told["gold"] if isinstance(told["gold"], list) else [told["gold"]]
    targets = [
        f"target    {target!r}{'   (right)' if i in right or target in right else ''}"
        for i, target in enumerate(told["targets"])
    ]
    spans = [f"{region:<9} {text!r}" for region, text in (told["spans"] or {}).items()]
    number = f"{told['document']} of 0 to {told['documents'] - 1}{'' if told['id'] is None else ', ' + str(told['id'])}"
    head = [
        f"task      {told['task']}",
        f"file      {told['file']}",
        f"document  {number}",
        f"context   {told['context']!r}",
    ]
    return [*head, *targets, *spans, f"metrics   {', '.join(told['metrics'])}"]


@command.command(
    epilog="Exit status: 0 all is well; 1 something is wrong with a task; 2 wrong input."
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
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def validate(
    names: Sequence[str],
    include_path: Path | None,
    tokenizer: Sequence[str],
    as_json: bool,
    quiet: bool,
) -> int:
    """Check tasks, every document of them.

    Loads each task as lm-eval does, renders every document, and checks
    spans, targets and choices, also as tokens. Names files that lm-eval
    would leave out without a word. Without a name, checks all tasks that
    kgbench ships, or with --include-path all of that folder.

    Loading a task runs the code that its YAML names with !function:
    validate only folders that you trust.

    \b
    kgbench tasks validate
    kgbench tasks validate --include-path my_tasks --tokenizer path/to/checkpoint
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.validation import validate_tasks

    with redirect_stdout(sys.stderr), progress(shown=not quiet) as report:
        found = validate_tasks(tuple(dict.fromkeys(names)), include_path, listed(tokenizer), report)
    if as_json:
        echo_json(_answer(found))
    else:
        _print(found)
    return 1 if found.findings else 0


def _answer(report: Validation) -> dict[str, Any]:
    tasks = [
        {**asdict(task), "file": str(task.file), "findings": _count(report, task.name)}
        for task in report.tasks
    ]
    findings = [
        {
            "file": str(found.place.file),
            "task": found.place.task,
            "document": found.place.document,
            "id": found.place.identifier,
            "field": found.place.field,
            "tokenizers": list(found.tokenizers),
            "message": found.message,
        }
        for found in report.findings
    ]
    return {
        "holds": not report.findings,
        "tokenizers": list(report.tokenizers),
        "tasks": tasks,
        "findings": findings,
    }


def _count(report: Validation, task: str) -> int:
    return sum(found.place.task == task for found in report.findings)


def _print(report: Validation) -> None:
    by_task: dict[str | None, list[TaskFinding]] = {}
    for found in report.findings:
        by_task.setdefault(found.place.task, []).append(found)
    for task, findings in by_task.items():
        click.echo("\n".join(map(str, findings[:SHOWN])))
        if len(findings) > SHOWN:
            click.echo(f"… and {len(findings) - SHOWN} more in task {task}; --json has them all")
    if report.findings:
        click.echo()
    rows = [
        [
            t.name,
            str(t.documents),
            str(len(report.tokenizers)),
            str(_count(report, t.name) or "none"),
        ]
        for t in report.tasks
    ]
    echo_table(["task", "documents", "tokenizers", "findings"], rows)
    documents = sum(task.documents for task in report.tasks)
    what = f"{_many(len(report.tasks), 'task')}, {_many(documents, 'document')}, with the tokenizers of {', '.join(report.tokenizers)}"
    click.echo(
        f"\n{what}: {_many(len(report.findings), 'finding') if report.findings else 'all is well'}"
    )


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
