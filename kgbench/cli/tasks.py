"""`kgbench tasks new`: tasks of lm-eval made of facts of your own."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import CommandGroup, Folder, cli_command, imports_of
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.numbers import count_text


@click.group(cls=CommandGroup)
def tasks_command() -> None:
    """Tasks of lm-eval; `kgbench ls tasks` lists those that are shipped."""


@cli_command(
    *("subject", "object", "templates", "columns", "force", "as_json"),
    group=tasks_command,
    file={"type": click.Path()},
    output_dir={"flag": "-o --output-dir"},
)
def new(
    file: str, *, output_dir: Folder = Path("lm-eval-tasks"), force: bool, **options: object
) -> Output:
    """Make lm-eval tasks of FILE, a table of facts, as `kgbench data import` reads it.

    A task per template and form goes into a folder, and the facts with it:
    stock lm-eval runs them on any model, where kgbench is installed.

    \b
    kgbench tasks new towns.csv --subject country --object capital --template "ask=The capital {P:of} {country} is"
    lm_eval run --model hf --model_args pretrained=PATH --tasks kgbench_towns_ask --include_path lm-eval-tasks

    Args:
        file: A .jsonl, .csv, .tsv, .json or .parquet.
        output_dir (DIR): For lm-eval's --include_path.  [default: lm-eval-tasks]
        force: Replace tasks that are there.
        **options: Meaning of the columns.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.data import is_shipped, load_dataset
    from kgbench.harness import write_tasks

    if is_shipped(file):
        raise InputError(f"{file} is shipped, and so are its tasks: see `kgbench ls tasks`")
    tasks = write_tasks(load_dataset(file, imports_of(options)), output_dir, force)
    names = [task.name for task in tasks]
    lines = [
        f"{count_text(tasks[0].documents, 'fact')}, {count_text(len(tasks), 'task')} in {output_dir}: "
        + ", ".join(names),
        f"next: lm_eval run --model hf --model_args pretrained=PATH --tasks {names[0]} "
        f"--include_path {output_dir}",
    ]
    return Output(lines, {"path": str(output_dir), "tasks": names})
