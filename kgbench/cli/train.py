"""`kgbench train`: finetune a donor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import completer, pairs
from kgbench.cli.output import echo_json, echo_table, progress
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.training.finetuning_plan import FinetuneSpec

CHANGES = ("epochs", "batch_size", "learning_rate", "max_length")
"""Options that are fields of a recipe, by the same names."""


def _recipes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from kgbench.training.recipes import finetuning_recipe_names

    return [name for name in finetuning_recipe_names() if name.startswith(incomplete)]


@click.command(
    epilog="Exit status: 0 done; 2 wrong input; 130 interrupted.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Pair whose recipient is finetuned, see `kgbench ls models`.",
    shell_complete=completer("models"),
)
@click.option(
    "--recipient",
    metavar="PATH|ID|NAME",
    help="Checkpoint that is finetuned, or a trained donor, in place of --model's.",
)
@click.option(
    "--dataset",
    required=True,
    metavar="NAME|FILE",
    help="Facts to learn.",
    shell_complete=completer("datasets"),
)
@click.option(
    "--recipe",
    required=True,
    metavar="NAME",
    help="aggressive, frozen, less_aggressive or lora.",
    shell_complete=_recipes,
)
@click.option(
    "--direction",
    default="both",
    show_default=True,
    metavar="NAME",
    help="Texts that go from subject to object: a2b; back: b2a; both.",
)
@click.option("--split", metavar="NAME", help="Only this half of the facts: task or relation.")
@click.option(
    "--template",
    multiple=True,
    metavar="TEXT",
    help="Training wording, such as '{first_actor} met {second_actor}.'; may be repeated.",
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
    "--supplement",
    metavar="FILE|ID",
    help="Other texts read among the facts: .txt, .jsonl, or a data set on the Hub.",
)
@click.option(
    "--supplement-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="How many of them.  [default: the recipe's]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Of order, wordings held out and dropout.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Passes over the texts.  [default: the recipe's]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Texts per step.  [default: the recipe's]",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="X",
    help="Its peak.  [default: the recipe's]",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of a text.  [default: the recipe's]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    help="auto, cpu, mps, cuda or cuda:N.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the donor goes.  [default: its place in the donors' folder]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say what it would take: steps, texts, tokens, memory, seconds, disk.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, all else on stderr."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(**options: Any) -> None:
    """Finetune a donor: a model that has learned the facts of a data set.

    Every fact is stated in the data set's training wordings; about a fifth of
    the wordings is held out and only validates. The donor is found again by
    `kgbench eval --model NAME --dataset NAME`, or --recipient PATH in place of
    --model, or by its name as --donor sft=NAME. It is kept in the user's data folder, or where the environment
    variable KGBENCH_HOME points to.

    An interrupted training goes on from its last checkpoint when the same
    command is given again.

    \b
    kgbench train --model tiny-gemma --dataset fake_movies_fake_actors --recipe aggressive
    kgbench train --model gemma-2b --dataset fake_movies_fake_actors --recipe lora --dry-run
    kgbench train --recipient before/ --dataset facts.jsonl --recipe aggressive --direction a2b --output-dir after
    """  # noqa: D301 (click reads the character, not its escape)
    spec, as_json = _spec(options), options["as_json"]
    # Whatever a library prints must not mix with the JSON object.
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        answer = _forecast(spec, options) if options["dry_run"] else _train(spec, options)
    if as_json:
        echo_json(answer)


def _spec(options: Mapping[str, Any]) -> FinetuneSpec:
    from kgbench.data import ImportOptions
    from kgbench.training.finetuning_plan import FinetuneSpec

    changes = {name: options[name] for name in CHANGES if options[name] is not None}
    if options["supplement_n"] is not None:
        changes["supplement_texts"] = options["supplement_n"]
    if options["supplement_n"] and options["supplement"] is None:
        raise InputError(
            "--supplement-n says how many texts are read among the facts: add --supplement FILE or"
            " a data set on the Hub"
        )
    columns = pairs("--column", options["column"])
    named = options["subject"] or options["object"] or columns
    names = ("dataset", "recipe", "model", "recipient", "direction", "split", "supplement", "seed")
    same = {name: options[name] for name in names}
    imports = None
    if named:
        imports = ImportOptions(
            subject=options["subject"], object=options["object"], columns=columns
        )
    return FinetuneSpec(**same, templates=options["template"], imports=imports, changes=changes)


def _forecast(spec: FinetuneSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.training.finetuning_forecast import forecast_finetuning

    found = forecast_finetuning(spec, options["output_dir"], device=options["device"])
    if not options["as_json"]:
        echo_table(["what", "it takes"], found.rows())
    return found.to_json()


def _train(spec: FinetuneSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.models.trained import read_donor_card
    from kgbench.training.finetuning import finetune

    with progress(shown=not options["quiet"]) as report:
        place = finetune(spec, options["output_dir"], device=options["device"], progress=report)
    card = read_donor_card(place)
    if not options["as_json"]:
        for line in _lines(spec, card, place, options["output_dir"]):
            click.echo(line)
    return {**card, "path": str(place)}


def _lines(spec: FinetuneSpec, card: Mapping[str, Any], place: Path, out: Path | None) -> list[str]:
    from kgbench.numbers import count_text, duration_text, number_text

    last = card["losses"][-1]
    held_out = (
        f", {number_text(last['held_out'])} on wordings never read" if "held_out" in last else ""
    )
    sized = ", values for tiny recipients" if card["recipe"]["tiny"] else ""
    scores = []
    for prompt, row in card["scores"].items():
        before, after = number_text(row["PRE"]), number_text(row["SFT"])
        scores.append(f"scores   {prompt}: top-5 {before} before, {after} after, {row['n']} facts")
    took = f"{count_text(card['recipe']['epochs'], 'epoch')}, {count_text(card['steps'], 'step')}"
    who = f"--model {spec.model}" if spec.model else f"--recipient {spec.recipient}"
    # The name is needed where several were trained on the same facts.
    donor = str(place) if out is not None else card["name"]
    facts = spec.dataset if spec.split is None else f"{spec.dataset}:{spec.split}"
    return [
        f"donor    {place}",
        f"recipe   {card['recipe']['name']}{sized}: {took}, {duration_text(card['seconds'])}",
        f"loss     {number_text(last['trained'])}{held_out}",
        *scores,
        f"try it   kgbench eval {who} --dataset {facts} --donor sft={donor}",
    ]
