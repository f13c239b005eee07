"""`kgbench train`: finetune a donor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import imports_of, run_options
from kgbench.cli.output import echo_json, echo_table, json_option, quiet_option
from kgbench.errors import InputError
from kgbench.progress import progress
from kgbench.runner.spec import Settings

if TYPE_CHECKING:
    from kgbench.training.finetuning_plan import FinetuneSpec

CHANGES = ("epochs", "batch_size", "learning_rate", "max_length")
"""Options that are fields of a recipe, by the same names."""
FIELDS = (
    "model",
    "recipient",
    "revision",
    "chat_template",
    "dataset",
    "recipe",
    "direction",
    "split",
    "supplement",
    "seed",
    "dtype",
)
"""Options that are fields of the specification, likewise."""


def _recipes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from kgbench.training.recipes import finetuning_recipe_names

    return [name for name in finetuning_recipe_names() if name.startswith(incomplete)]


@click.command(epilog="Exit status: 0 done; 2 wrong input; 130 interrupted.")
@run_options(
    "model",
    "recipient",
    "revision",
    "chat_template",
    "dataset",
    model={"help": "Pair whose recipient is finetuned, see `kgbench ls models`."},
    recipient={
        "metavar": "PATH|ID|NAME",
        "help": "Checkpoint that is finetuned, or a trained donor, in place of --model's.",
    },
    chat_template={
        "help": "Put texts and prompts into the tokenizer's chat template.  [default: off]"
    },
    dataset={"required": True, "help": "Facts to learn."},
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
@run_options(
    "templates",
    "subject",
    "object",
    "columns",
    templates={
        "metavar": "TEXT",
        "help": "Training wording, such as '{first_actor} met {second_actor}.'; may be repeated.",
    },
    subject={"help": "Your file: what a fact is about."},
    object={"help": "Your file: what is asked for."},
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
@run_options("batch_size", batch_size={"help": "Texts per step.  [default: the recipe's]"})
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
@run_options(
    "dtype",
    "device",
    "device_map",
    dtype={"help": "float32, float64, bfloat16, float16.  [default: float32]"},
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
@json_option("One JSON object on stdout, all else on stderr.")
@quiet_option()
def command(**options: Any) -> None:
    """Finetune a donor: a model that has learned the facts of a data set.

    Every fact is stated in the data set's training wordings; about a fifth of
    the wordings is held out and only validates. The donor is found again by
    `kgbench eval --model NAME --dataset NAME`, or --recipient PATH in place of
    --model, or by its name as --donor sft=NAME. It is kept in the user's data folder, or where the environment
    variable KGBENCH_HOME points to.

    With --chat-template each fact is the model's turn after an empty turn of
    the user, and prompts are scored as `kgbench eval --chat-template` reads them.

    An interrupted training goes on from its last checkpoint when the same
    command is given again.

    \b
    kgbench train --model tiny-gemma --dataset fake_movies_fake_actors --recipe aggressive
    kgbench train --model gemma-2b --dataset fake_movies_fake_actors --recipe lora --dry-run
    kgbench train --recipient before/ --dataset facts.jsonl --recipe aggressive --direction a2b --output-dir after
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.runner.job import device_map_of, main_device_of

    spec, as_json = _spec(options), options["as_json"]
    settings = Settings(device=options["device"], device_map=options["device_map"])
    devices = {"device": main_device_of(settings), "device_map": device_map_of(settings)}
    # Whatever a library prints must not mix with the JSON object.
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        run = _forecast if options["dry_run"] else _train
        answer = run(spec, options, devices)
    if as_json:
        echo_json(answer)


def _spec(options: Mapping[str, Any]) -> FinetuneSpec:
    from kgbench.training.finetuning_plan import FinetuneSpec

    changes = {name: options[name] for name in CHANGES if options[name] is not None}
    if options["supplement_n"] is not None:
        changes["supplement_texts"] = options["supplement_n"]
    if options["supplement_n"] and options["supplement"] is None:
        raise InputError(
            "--supplement-n says how many texts are read among the facts: add --supplement FILE or"
            " a data set on the Hub"
        )
    # The templates of these options are wordings to train in.
    imports = imports_of({**options, "template": ()})
    values = {name: options[name] for name in FIELDS}
    return FinetuneSpec(**values, templates=options["template"], imports=imports, changes=changes)


def _forecast(
    spec: FinetuneSpec, options: Mapping[str, Any], devices: Mapping[str, Any]
) -> dict[str, Any]:
    from kgbench.training.finetuning import forecast_finetuning

    found = forecast_finetuning(spec, options["output_dir"], **devices)
    if not options["as_json"]:
        echo_table(["what", "it takes"], found.rows())
    return found.to_json()


def _train(
    spec: FinetuneSpec, options: Mapping[str, Any], devices: Mapping[str, Any]
) -> dict[str, Any]:
    from kgbench.models.catalog import read_donor_card
    from kgbench.training.finetuning import finetune

    with progress(shown=not options["quiet"]) as report:
        place = finetune(spec, options["output_dir"], **devices, progress=report)
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
    who += f" --revision {spec.revision}" if spec.revision else ""
    who += " --chat-template" if spec.chat_template else ""
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
