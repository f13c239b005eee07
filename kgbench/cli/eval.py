"""`kgbench eval`: run localizers on a model pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kgbench.cli.config import read_config, told_with_key
from kgbench.cli.values import completer

RESULTS = Path("kgbench-results")
"""Where records go unless told otherwise: beside the work that they belong to, and found again there by the next run."""


@click.command(
    epilog="Exit status: 0 done; 1 ran, and something did not hold; 2 wrong input; 130 interrupted.",
)
@click.option(
    "--localizer",
    multiple=True,
    default=["dynamic_graft"],
    show_default=True,
    metavar="NAME|FILE.py:CLASS",
    help="Method; several with commas.",
    shell_complete=completer("localizers"),
)
@click.option(
    "--localizer-arg",
    multiple=True,
    metavar="[NAME.]KEY=VALUE",
    help="Argument of all localizers, or of the one named; may be repeated.",
)
@click.option(
    "--model",
    multiple=True,
    metavar="NAME|all",
    help="Model pair by name, see `kgbench ls models`; several with commas; all: every shipped pair, or plant of --suite planted.",
    shell_complete=completer("models"),
)
@click.option(
    "--recipient",
    metavar="PATH|ID",
    help="Checkpoint before finetuning, without or in place of --model's.",
)
@click.option(
    "--donor",
    multiple=True,
    metavar="[NAME=]PATH|ID",
    help="Finetuned checkpoint, by default named sft; may be repeated.",
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of Hub checkpoints.")
@click.option(
    "--chat-template/--no-chat-template",
    default=False,
    help="Put prompts into the tokenizer's chat template.  [default: off]",
)
@click.option(
    "--dataset",
    metavar="NAME|FILE",
    help="Facts: a shipped data set, or your own .jsonl or .csv.  [default: the pair's own]",
    shell_complete=completer("datasets"),
)
@click.option("--subject", metavar="COLUMN", help="Your file: what a fact is about.")
@click.option("--object", metavar="COLUMN", help="Your file: what is asked for.")
@click.option(
    "--column",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Your file: column that holds a field, where the names differ.",
)
@click.option(
    "--template",
    multiple=True,
    metavar="NAME=TEXT",
    help="Evaluation template of your own, to be named in --prompt.",
)
@click.option(
    "--prompt",
    multiple=True,
    metavar="NAME",
    help="Evaluation prompts; several with commas.  [default: the suite's]",
    shell_complete=completer("prompts"),
)
@click.option(
    "--graft",
    multiple=True,
    metavar="GRAFT",
    help='Graft expression, such as "FE+LT" or "LT:o+ffn@second_half"; several with commas.',
)
@click.option(
    "--suite",
    metavar="NAME",
    help="Named set of configurations.  [default: pathways]",
    shell_complete=completer("suites"),
)
@click.option(
    "--layers",
    metavar="LAYERS",
    help="Layers for all grafts that name none, such as second_half or 8-17.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N facts.")
@click.option(
    "--metric",
    default="top5",
    show_default=True,
    metavar="NAME",
    help="What the ratios and the verdict are about.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the bootstrap and of random localizers.",
)
@click.option(
    "--dtype",
    metavar="DTYPE",
    help="float32, float64, bfloat16, float16.  [default: float32 on CPU, as stored elsewhere]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Prompts per forward.  [default: by a token budget]",
)
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1, mps."
)
@click.option(
    "--device-map",
    metavar="MAP",
    help="Spread layers over devices: auto, balanced, sequential, or JSON of paths and devices.",
)
@click.option(
    "--stream-donor",
    "stream_donors",
    is_flag=True,
    help="Leave donors on disk and read them layer by layer.",
)
@click.option(
    "--executor",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, packed, rows or sequential.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    show_default=True,
    help="Where records go.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="YAML with these options as keys; options given here win.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say what it would take: forwards, token rows, memory, seconds.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='One JSON object on stdout, all else on stderr; of several runs {"runs": [...]}.',
)
@click.option("-q", "--quiet", is_flag=True, help="The verdict only, with --json not even that.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Say where a finetuned fact is retrieved from, as a localizer sees it.

    Runs every configuration of the suite on every prompt, prints a table that
    ends with a verdict, and writes a record and a picture. A run whose record
    exists already is not computed again.

    \b
    kgbench eval --localizer dynamic_graft --model tiny-gemma
    kgbench eval --model all --localizer dynamic_graft,activation_patch
    kgbench eval --model tiny-gemma --prompt qa --graft "LT:o+ffn@second_half,FE"
    kgbench eval --suite planted --localizer oracle,random,weight_delta
    kgbench eval --recipient before/ --donor after/ --dataset facts.jsonl
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.cli.jobs import run_all

    with told_with_key(ctx):
        return run_all(options)
