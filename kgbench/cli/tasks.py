"""`kgbench tasks` and `kgbench lm-eval`: list, show, validate and run tasks for lm-eval."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import ExistingFolder, Natural, cli_command, completer
from kgbench.cli.output import Output, table_text
from kgbench.progress import Progress
from kgbench.runner.spec import listed

if TYPE_CHECKING:
    from kgbench.harness.task_validation import TaskFinding, Validation


SHOWN = 10
"""Findings of one task that are printed; a fault of a template recurs in every document."""

JSON = {"help": "JSON on stdout."}


def _names() -> Iterable[str]:
    from kgbench.harness import shipped_tasks

    entries = shipped_tasks()
    known = dict.fromkeys(entry.name for entry in entries)
    for entry in entries:
        known |= dict.fromkeys(entry.tags)
    return known


@click.group()
def tasks_command() -> None:
    """Tasks for the Language Model Evaluation Harness."""


@cli_command(group=tasks_command)
def path() -> Output:
    """Print the folder of the tasks.

    For lm-eval: --include_path "$(kgbench tasks path)".
    """
    from kgbench.harness import tasks_path

    return Output([str(tasks_path())])


@cli_command("as_json", group=tasks_command, as_json=JSON)
def ls() -> Output:
    """List the tasks that kgbench ships."""
    from kgbench.harness import shipped_tasks

    entries = shipped_tasks()
    rows = [[e.name, e.dataset, e.prompt, e.form, str(e.documents)] for e in entries]
    table = table_text(["task", "data set", "prompt", "form", "documents"], rows)
    tags = Counter(chain.from_iterable(entry.tags for entry in entries))
    counts = table_text(["tag", "tasks"], [[tag, str(tags[tag])] for tag in sorted(tags)])
    return Output([table, "", counts], list(map(asdict, entries)))


@cli_command(
    "as_json", group=tasks_command, as_json=JSON, task={"shell_complete": completer(_names)}
)
def show_command(
    task: str, *, document: Natural = 0, include_path: ExistingFolder | None
) -> Output:
    """Show one document of a task as a model sees it.

    Args:
        task (NAME): The task.
        document (N): Which document, from 0.
        include_path (DIR): A folder with your own tasks.
    """
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.task_validation import preview

    with redirect_stdout(sys.stderr):  # libraries print while they load data
        rendered = preview(task, document, include_path)
    return Output(_lines(rendered), rendered)


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


@cli_command(
    *("as_json", "quiet"),
    group=tasks_command,
    epilog="Exit status: 0 all is well; 1 something is wrong with a task; 2 wrong input.",
    tasks={"shell_complete": completer(_names)},
    as_json=JSON,
)
def validate_command(
    tasks: tuple[str, ...] = (),
    *,
    include_path: ExistingFolder | None,
    tokenizer: tuple[str, ...],
    progress: Progress | None,
) -> Output:
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

    Args:
        tasks ([NAME|TAG]…): Tasks, or tags of such.
        include_path (DIR): A folder with your own tasks.
        tokenizer (NAME|PATH|ID): Tokenizer to try; several with commas.  [default: those of the
            tiny pairs]
        progress: Progress callback.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.harness import needs_lm_eval

    needs_lm_eval()
    from kgbench.harness.task_validation import validate_tasks

    with redirect_stdout(sys.stderr):
        names = tuple(dict.fromkeys(tasks))
        validation = validate_tasks(names, include_path, listed(tokenizer), progress)
    return Output(_table(validation), _answer(validation), int(bool(validation.findings)))


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


def _table(validation: Validation) -> list[str]:
    by_task: dict[str | None, list[TaskFinding]] = {}
    for finding in validation.findings:
        by_task.setdefault(finding.task, []).append(finding)
    lines: list[str] = []
    for task, findings in by_task.items():
        lines += map(str, findings[:SHOWN])
        if len(findings) > SHOWN:
            lines.append(f"… and {len(findings) - SHOWN} more in task {task}; --json has them all")
    if validation.findings:
        lines.append("")
    tokenizers = validation.tokenizers
    rows = []
    for checked in validation.tasks:
        findings_text = str(_count(validation, checked.name) or "none")
        rows.append([checked.name, str(checked.documents), str(len(tokenizers)), findings_text])
    documents = sum(checked.documents for checked in validation.tasks)
    tasks = f"{_many(len(rows), 'task')}, {_many(documents, 'document')}"
    number = len(validation.findings)
    result = _many(number, "finding") if number else "all is well"
    return [
        *lines,
        table_text(["task", "documents", "tokenizers", "findings"], rows),
        "",
        f"{tasks}, with the tokenizers of {', '.join(tokenizers)}: {result}",
    ]


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
