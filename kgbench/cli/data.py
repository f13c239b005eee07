"""`kgbench data import`: convert facts of your own, or of a public set, into one file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kgbench.cli.options import CommandGroup, cli_command, completer, imports_of
from kgbench.cli.output import Output, terminal_text
from kgbench.data import Dataset, ImportOptions, Prompt, load_prompts
from kgbench.data.facts import check_target, dataset_from, left_out, write_dataset
from kgbench.data.imports import FactTable, read_fact_table
from kgbench.data.prompts import (
    Giveaways,
    find_giveaways,
    prompts_of_builtins,
    refuse_leaks,
    subject_mentions,
)
from kgbench.data.rows import row_unit
from kgbench.data.sources import (
    PREFIX,
    fetch_rows,
    load_source,
    locate_source,
    source_names,
    source_table,
)
from kgbench.data.templates import escaped
from kgbench.errors import InputError
from kgbench.numbers import count_text
from kgbench.testing.decisions import FEWEST


@click.group(cls=CommandGroup)
def data_command() -> None:
    """Facts of your own or by others: import them."""


@cli_command(
    *("source", "relation", "split", "subject", "object", "templates", "columns"),
    *("name", "limit", "output", "force", "as_json"),
    group=data_command,
    epilog="Exit status: 0 done; 2 wrong input, nothing written.",
    file={"type": click.Path()},
    source={"shell_complete": completer(source_names)},
    subject={"help": "What a fact is about.  [default: first_actor or subject]"},
    object={"help": "What is asked for.  [default: second_actor or object]"},
    templates={"help": "Evaluation template with {columns} to fill; may be repeated."},
    columns={"help": "Rename a column, so that a template or built-in prompt finds it."},
    output={"type": click.Path(path_type=Path)},
    as_json={"help": "One JSON object on stdout, all else on stderr."},
)
def import_command(
    file: str | None,
    *,
    source: str | None,
    relation: str | None,
    split: str | None,
    name: str | None,
    output: Path | None,
    force: bool,
    **options: Any,
) -> Output:
    """Bring FILE, a table of facts, into one file with all that an evaluation needs.

    A table is a .csv, .tsv, .jsonl, .json or .parquet. Rows of a prompt, a
    subject and a target need no options.

    With --source, FILE is that of a set by others, and may be left out
    where the Hugging Face Hub has it; hub:OWNER/NAME[:CONFIG][@REVISION]
    is any data set there, read with extra hub. Origin and licence are
    printed before anything is fetched. A --template is then asked in place of the
    set's own wordings, which are for training.

    The file then holds subject, object and templates too, so that `kgbench
    eval --dataset OUT.jsonl` and pytest need nothing else. In a template,
    {country} is filled from that column, and {P:of} marks the words of a
    region: R relation word, RP its preposition, P the preposition before the
    answer, M a title. The first mention of the subject is the first entity.

    \b
    kgbench data import towns.csv --subject country --object capital --template "ask=The capital {P:of} {country} is"
    kgbench data import cast.csv --column first_actor=actor --column second_actor=costar --column movie_title=film
    kgbench data import --source counterfact --relation P103
    kgbench data import hub:OWNER/NAME --subject country --object capital --template "ask=The capital {P:of} {country} is"

    Args:
        file: A file of your own, or of the source.
        source (NAME): A set by others: counterfact, counterfact-rome, popqa.
        relation (NAME): One relation of it, where it has several. With hub:, COLUMN=VALUE.
        split (NAME): Which part of it.  [default: that of the source; with hub:, train]
        name (NAME): What to call the data set.  [default: as FILE]
        output (OUT.jsonl): Where it goes.  [default: ./NAME.jsonl]
        force: Replace OUT.jsonl.
        **options: Meaning of the columns, templates, and how many facts are taken.
    """  # noqa: D301 (click reads the character, not its escape)
    columns = imports_of(options) or ImportOptions()
    origin: list[str] = []
    if source or (file or "").startswith(PREFIX):
        place = locate_source(load_source(source) if source else None, file, split)
        origin = list(place.lines())
        _print_errors("", origin)
        table = source_table(place.source, fetch_rows(place), relation, columns)
    elif file is None or relation or split:
        raise InputError(
            f"give a FILE of your own, or a set by others: --source NAME or {PREFIX}OWNER/NAME;"
            " --relation and --split are of one"
        )
    else:
        table = read_fact_table(Path(file), columns)
    title = table.name if name is None else name.strip()
    if not title:
        raise InputError("--name: expected a name that is not empty")
    path = _target(title, file, output)
    check_target(path, force)
    every = dataset_from(table)
    dataset = replace(every.subset(fact.id for fact in every.facts[: options["limit"]]), name=title)
    builtin = prompts_of_builtins(dataset)
    prompts = {name: load_prompts(dataset, [name]) for name in dataset.templates} or builtin
    if not prompts:
        raise InputError(_no_prompt(table.path, dataset))
    giveaways = {prompt: find_giveaways(dataset, texts) for prompt, texts in prompts.items()}
    refuse_leaks(str(table.path), giveaways, len(dataset.facts))
    warnings, choices = list[str](), list[str]()
    for prompt, texts in prompts.items():
        warnings += _warnings(dataset, len(texts), giveaways[prompt], prompt)
        if facts := giveaways[prompt].in_wording:
            share = _share(facts, len(texts))
            choices.append(
                f"the answer is among the words of prompt {prompt!r} itself in {share}, as choices "
                "are"
            )
    write_dataset(dataset, path, force)
    if (n := len(dataset.facts)) < FEWEST:
        warnings.append(
            f"{count_text(n, 'fact')} {'is' if n == 1 else 'are'} too few: tests call every claim"
            f" undecided below {FEWEST}"
        )
    _print_errors("warning: ", warnings)
    shown = _output(path, table, origin, dataset, prompts, builtin, choices)
    return replace(shown, json={**shown.json, "warnings": warnings})


def _target(title: str, file: str | None, output: Path | None) -> Path:
    """Where facts from a file are written."""
    path = output or Path(f"{title}.jsonl")
    if output is None and path.name != f"{title}.jsonl":
        raise InputError(
            f"the name {title!r} cannot be that of a file here; say by -o OUT.jsonl where the facts "
            "go"
        )
    if file is not None and path.exists() and Path(file).exists() and path.samefile(file):
        raise InputError(
            f"{path} is the file that is read; give another one to write to by -o, or another "
            "--name"
        )
    return path


def _output(
    path: Path,
    table: FactTable,
    origin: Sequence[str],
    dataset: Dataset,
    prompts: Mapping[str, Sequence[Prompt]],
    builtin: Mapping[str, object],
    choices: Sequence[str],
) -> Output:
    """What was written, and what to do next."""
    n = len(dataset.facts)
    beyond = len(dataset_from(table).facts) - n
    roles = {"subject": dataset.subject, "object": dataset.object}
    columns = "".join(f", {role} {column}" for role, column in roles.items() if column)
    lines = [
        f"wrote {path}: {count_text(n, 'fact')} of {table.path}{columns}",
        *origin,
        *_left_out(table, beyond),
        "",
        "the first fact in each prompt:"
        if dataset.templates
        else "the first fact in each built-in prompt that has its fields:",
    ]
    width = max(map(len, prompts))
    lines += [f"    {prompt:{width}}  {_marked(texts[0])}" for prompt, texts in prompts.items()]
    lines += choices
    if dataset.templates and builtin:
        lines.append(f"built-in prompts that fit too, by --prompt: {', '.join(builtin)}")
    if origin:
        number = len(dataset.training) or "none, so give some by kgbench train --template"
        lines.append(f"wordings to train in: {number}")
    commands = _commands(path, dataset, builtin)
    lines += ["", "next: where are these facts retrieved, and a test of it (docs, Test a finetune)"]
    lines += [f"    {command}" for command in commands]
    first = {}
    for prompt, (text, *_) in prompts.items():
        first[prompt] = {"text": text.text, "target": text.target, "spans": dict(text.spans)}
    answer = {
        "path": str(path),
        "origin": origin,
        "name": dataset.name,
        "content_hash": dataset.content_hash,
        "subject": dataset.subject,
        "object": dataset.object,
        "fields": dataset.fields,
        "facts": n,
        "dropped_lines": left_out(table),
        "incomplete_columns": table.incomplete,
        "beyond_limit": beyond,
        "templates": dataset.templates,
        "training": dataset.training,
        "builtin_prompts": list(builtin),
        "first": first,
        "next": commands,
    }
    return Output(lines, answer)


def _print_errors(kind: str, lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(terminal_text(f"kgbench: {kind}{line}"), err=True)


SHOWN = 5
"""How many lines, facts or names are listed before the list is cut."""


def _share(prompts: Sequence[Prompt], n: int) -> str:
    ids = [prompt.fact.id for prompt in prompts]
    return f"{len(ids)} of {count_text(n, 'fact')} ({_listed(ids)})"


def _warnings(dataset: Dataset, n: int, giveaways: Giveaways, name: str) -> Iterator[str]:
    """What may disappoint in a prompt of n facts."""
    if giveaways.by_field:
        yield (
            f"prompt {name!r} holds the answer already in {_share(giveaways.by_field, n)}, where a "
            "model only has to copy it"
        )
    if giveaways.first_word:
        yield (
            f"prompt {name!r} holds the first word of the answer in "
            f"{_share(giveaways.first_word, n)}; top1, top5 and mrr ask for the first token only"
        )
    if (mentions := subject_mentions(dataset, name)) > 1:
        yield (
            f"prompt {name!r} mentions the subject {mentions} times; only the first is FE, and the "
            "others count as other tokens"
        )


def _listed(names: Sequence[object]) -> str:
    """A list that is cut where it is long."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")


def _left_out(table: FactTable, beyond: int) -> Iterator[str]:
    """The line on rows and columns that were left out, if any."""
    unit = row_unit(table.path)
    parts = []
    for reason, numbers in left_out(table).items():
        plural = "s" if len(numbers) > 1 else ""
        parts.append(f"{len(numbers)} {reason} ({unit}{plural} {_listed(numbers)})")
    for name, line in table.incomplete.items():
        parts.append(f"column {name} (empty at {unit} {line})")
    if beyond:
        parts.append(f"{beyond} beyond --limit")
    if parts:
        yield f"left out: {', '.join(parts)}"


def _commands(path: Path, dataset: Dataset, builtin: Mapping[str, object]) -> list[str]:
    """An evaluation of the facts, and a test of it."""
    from kgbench.runner import Spec
    from kgbench.runner.lookup import load_suite

    # The suite's prompts fit, asked of a data set without its own; else some are to be named.
    fits = dataset.templates or set(load_suite(Spec.suite).prompts) <= set(builtin)
    commands = []
    for program, prefix in (("kgbench eval", ""), ("python -m pytest", "kgbench-")):
        models = f"--{prefix}recipient path/to/before --{prefix}donor sft=path/to/after"
        prompts = "" if fits else f" --{prefix}prompt {','.join(builtin)}"
        file = shlex.quote(str(path))
        commands.append(f"{program} {models} --{prefix}dataset {file}{prompts}")
    return commands


def _no_prompt(file: Path, dataset: Dataset) -> str:
    """Why nothing can be asked of some facts, and what to do."""
    subject = dataset.subject if dataset.subject.isidentifier() else "subject"
    question = f"ask=Q: What is the {escaped(dataset.object)} {{P:of}} {{{subject}}}? A:"
    return (
        f"{file}: no built-in prompt can be filled from the fields {', '.join(dataset.fields)}; "
        f"give a template of your own, such as --template {shlex.quote(question)}, or rename "
        "columns by --column FIELD=COLUMN to the fields of a prompt in `kgbench ls prompts`"
    )


def _marked(prompt: Prompt) -> str:
    """A prompt in one line, with the words of each region in brackets and its target behind."""
    regions: dict[tuple[int, int], list[str]] = {}
    for region, span in prompt.spans.items():
        regions.setdefault(span, []).append(region)
    text, done = "", 0
    for (start, end), names in sorted(regions.items()):
        text += f"{prompt.text[done:start]}[{'+'.join(names)}: {prompt.text[start:end]}]"
        done = end
    line = f"{text}{prompt.text[done:]} → {prompt.target}"
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in line)
