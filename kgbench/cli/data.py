"""`kgbench data`: facts of one's own, brought into a form that everything here reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kgbench.cli.values import completer
from kgbench.errors import InputError


def _sources(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from kgbench.data.sources import source_names

    return [name for name in source_names() if name.startswith(incomplete)]


@click.group()
def command() -> None:
    """Facts of your own or by others: import them."""


@command.command(
    "import",
    epilog="Exit status: 0 done; 1 written, but --tokenizer cannot read every prompt; 2 wrong input, nothing written.",
)
@click.argument("file", type=click.Path(), required=False)
@click.option(
    "--source",
    metavar="NAME",
    help="A set by others: counterfact, counterfact-rome, lre, popqa.",
    shell_complete=_sources,
)
@click.option(
    "--relation",
    metavar="NAME",
    help="One relation of it; without this, they are listed. With hub:, COLUMN=VALUE.",
)
@click.option(
    "--split",
    metavar="NAME",
    help="Which part of it.  [default: that of the source; with hub:, train]",
)
@click.option(
    "--subject", metavar="COLUMN", help="What a fact is about.  [default: first_actor or subject]"
)
@click.option(
    "--object", metavar="COLUMN", help="What is asked for.  [default: second_actor or object]"
)
@click.option(
    "--template",
    multiple=True,
    metavar="NAME=TEXT",
    help="Evaluation template with {columns} to fill; may be repeated.",
)
@click.option(
    "--column",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Rename a column, so that a template or built-in prompt finds it.",
)
@click.option("--name", metavar="NAME", help="What to call the data set.  [default: as FILE]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N facts.")
@click.option(
    "--tokenizer",
    metavar="PATH|PAIR",
    help="Also try whether the words of each prompt can be found in its tokens, and whether the answer's first token is among them.",
    shell_complete=completer("models"),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="OUT.jsonl",
    help="Where it goes.  [default: ./NAME.jsonl]",
)
@click.option("--force", is_flag=True, help="Replace OUT.jsonl.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, all else on stderr."
)
def import_(file: str | None, as_json: bool, **options: Any) -> int:
    """Bring FILE, a JSONL or CSV file of facts, into one file with all that an evaluation needs.

    With --source, FILE is that of a set by others, and may be left out
    where the Hugging Face Hub has it; hub:OWNER/NAME[:CONFIG][@REVISION]
    is any data set there, read with extra hub. Origin and licence are told
    before anything is fetched. A --template is then asked in place of the
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
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.cli.importing import import_facts, import_source
    from kgbench.cli.output import echo_json, terminal_text
    from kgbench.data.origins import PREFIX

    if options["source"] or (file or "").startswith(PREFIX):
        imported = import_source(
            file, options, lambda line: click.echo(terminal_text(f"kgbench: {line}"), err=True)
        )
    elif file is None or options["relation"] or options["split"]:
        raise InputError(
            f"give a FILE of your own, or a set by others: --source NAME or {PREFIX}OWNER/NAME; --relation and --split are of one"
        )
    else:
        imported = import_facts(Path(file), options)
    for line in imported.warnings():
        click.echo(terminal_text(f"kgbench: warning: {line}"), err=True)
    if as_json:
        echo_json(imported.to_json())
    else:
        click.echo("\n".join(imported.lines()))
    return 1 if imported.faults else 0
