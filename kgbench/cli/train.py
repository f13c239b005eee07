"""`kgbench train`: finetune a donor on the facts of a data set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kgbench.cli.options import Folder, Natural, cli_command, completer, imports_of
from kgbench.cli.output import Output, table_text
from kgbench.data import ImportOptions
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.choices import later
from kgbench.runner.spec import Settings

if TYPE_CHECKING:
    from kgbench.runner.training.finetuning_plan import FinetuneSpec


FIELDS = ("model", "recipient", "revision", "chat_template", "dtype")
"""Fields of the specification of a training that are fields of a run."""


@cli_command(
    *("model", "recipient", "revision", "chat_template", "dataset"),
    *("recipe", "direction"),
    *("templates", "subject", "object", "columns"),
    *("supplement", "supplement_n", "seed", "epochs", "batch_size", "learning_rate"),
    *("max_length", "dtype", "device", "device_map", "output_dir", "dry_run"),
    *("as_json", "quiet"),
    epilog="Exit status: 0 done; 2 wrong input; 130 interrupted.",
    model={"help": "Pair whose recipient is finetuned, see `kgbench ls models`."},
    recipient={
        "metavar": "PATH|ID|NAME",
        "help": "Base (recipient) that is finetuned, or a trained donor, in place of --model's.",
    },
    chat_template={
        "help": "Put texts and prompts into the tokenizer's chat template.  [default: off]"
    },
    dataset={"help": "Facts to learn.  [default: the pair's own]"},
    recipe={
        "shell_complete": completer(later("runner.training.recipes", "finetuning_recipe_names"))
    },
    templates={
        "metavar": "TEXT",
        "help": "Training wording, such as '{first_actor} met {second_actor}.'; may be repeated.",
    },
    subject={"help": "Your file: what a fact is about."},
    object={"help": "Your file: what is asked for."},
    seed={"type": click.IntRange(0, 2**32 - 1)},
    batch_size={"help": "Texts per step.  [default: the recipe's]"},
    learning_rate={"range": {"min": 0, "max": 1, "min_open": True}},
    dtype={"help": "float32, float64, bfloat16, float16.  [default: float32]"},
    as_json={"help": "One JSON object on stdout, all else on stderr."},
)
def train_command(
    *,
    recipe: str | None,
    direction: str = "both",
    supplement: str | None,
    supplement_n: Natural | None,
    seed: Natural = 0,
    epochs: int | None,
    learning_rate: float | None,
    max_length: int | None,
    output_dir: Folder | None,
    dry_run: bool,
    progress: Progress | None,
    **options: Any,
) -> Output:
    """Make a finetuned model (donor): a base (recipient) learns the facts of a data set.

    Every fact is stated in the data set's training wordings; about a fifth of
    the wordings is held out and only validates. The donor is found again by
    `kgbench eval --model NAME --dataset NAME`, or --recipient PATH in place of
    --model, or by its name as --donor sft=NAME. It is kept in the user's data
    folder, or where the environment variable KGBENCH_HOME points to.

    With --chat-template each fact is the model's turn after an empty turn of
    the user, and prompts are scored as `kgbench eval --chat-template` reads them.

    An interrupted training goes on from its last checkpoint when the same
    command is given again.

    \b
    kgbench train --model tiny-gemma --dataset fake_movies_fake_actors --recipe aggressive
    kgbench train --model gemma-2b --recipe lora --dry-run
    kgbench train --recipient before/ --dataset facts.jsonl --recipe aggressive --direction a2b --output-dir after

    Args:
        recipe (NAME): aggressive, frozen, less_aggressive or lora.
        direction (NAME): Texts that go from subject to object: a2b; back: b2a; both.
        supplement (FILE): Other texts read among the facts: .txt or .jsonl.
        supplement_n (N): How many of them.  [default: the recipe's]
        seed (N): Of order, wordings held out and dropout.
        epochs (N): Passes over the texts.  [default: the recipe's, of few texts as many as give
            200 steps]
        learning_rate (X): Its peak.  [default: the recipe's]
        max_length (N): Most tokens of a text.  [default: the recipe's]
        output_dir (DIR): Where the donor goes.  [default: its place in the donors' folder]
        dry_run: Only say what it would take: steps, texts, tokens, memory, seconds, disk.
        progress: Progress callback.
        **options: Fields of the pair, of the facts and of how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.models.catalog import read_donor_card
    from kgbench.runner.costs import cost_table
    from kgbench.runner.job import main_device_of
    from kgbench.runner.training.finetuning import finetune
    from kgbench.runner.training.finetuning_cost import finetuning_cost
    from kgbench.runner.training.finetuning_plan import FinetuneSpec

    if supplement_n and supplement is None:
        raise InputError(
            "--supplement-n says how many texts are read among the facts: add --supplement FILE"
        )
    changes = {
        "epochs": epochs,
        "batch_size": options["batch_size"],
        "learning_rate": learning_rate,
        "max_length": max_length,
        "supplement_texts": supplement_n,
    }
    imports = imports_of({**options, "template": ()})  # those of these options are trained in
    facts = _facts(options["model"], options["recipient"], options["dataset"])
    spec = FinetuneSpec(
        **{name: options[name] for name in FIELDS},
        dataset=facts,
        recipe=recipe or _no_recipe(),
        direction=direction,
        supplement=supplement,
        seed=seed,
        templates=options["template"],
        imports=imports,
        changes={name: value for name, value in changes.items() if value is not None},
    )
    settings = Settings(device=options["device"], device_map=options["device_map"])
    devices: dict[str, Any] = {
        "device": main_device_of(settings),
        "device_map": settings.device_map,
    }
    if dry_run:
        cost = finetuning_cost(spec, output_dir, **devices)
        return Output([table_text(*cost_table([cost]))], cost.to_json())
    place = finetune(spec, output_dir, **devices, progress=progress)
    card = read_donor_card(place)
    return Output(_lines(spec, card, place, output_dir), {**card, "path": str(place)})


def _facts(model: str | None, recipient: str | None, dataset: str | None) -> str:
    """The data set, or else the pair's own.

    Raises:
        InputError: The model that is finetuned, or the facts, are missing.
    """
    from kgbench.models import catalog
    from kgbench.runner.training.finetuning_plan import recipient_of

    recipient_of(model, recipient)
    if dataset is None and model is None:
        raise InputError(
            "which facts are learned? Give --dataset NAME (see `kgbench ls datasets`) or --dataset "
            "FILE"
        )
    return dataset or catalog.entry(str(model)).dataset


def _no_recipe() -> NoReturn:
    from kgbench.runner.training.recipes import finetuning_recipe_names

    choices = ", ".join(finetuning_recipe_names())
    raise InputError(
        f"how is it finetuned? Give --recipe with one of {choices}; --dry-run shows what it takes"
    )


def _lines(spec: FinetuneSpec, card: Mapping[str, Any], place: Path, out: Path | None) -> list[str]:
    from kgbench.numbers import count_text, duration_text, number_text
    from kgbench.runner.training.finetuning import learned_little

    last = card["losses"][-1]
    held_out = (
        f", {number_text(last['held_out'])} on wordings never read" if "held_out" in last else ""
    )
    sized = ", values for tiny recipients" if card["recipe"]["tiny"] else ""
    scores = []
    for prompt, row in card["scores"].items():
        before, after = number_text(row["PRE"]), number_text(row["SFT"])
        scores.append(f"scores   {prompt}: top-5 {before} before, {after} after, {row['n']} facts")
    if (little := learned_little(card)) is not None:
        scores.append(f"note     {little}")
    took = f"{count_text(card['recipe']['epochs'], 'epoch')}, {count_text(card['steps'], 'step')}"
    # The name is needed where several were trained on the same facts.
    donor = str(place) if out is not None else card["name"]
    return [
        f"donor    {place}",
        f"recipe   {card['recipe']['name']}{sized}: {took}, {duration_text(card['seconds'])}",
        f"loss     {number_text(last['trained'])}{held_out}",
        *scores,
        f"try it   {_evaluation(spec, card, donor)}",
    ]


def _evaluation(spec: FinetuneSpec, card: Mapping[str, Any], donor: str) -> str:
    """The command that evaluates a donor on the facts that it was trained on."""
    columns = spec.imports or ImportOptions()
    options = [
        ("--model", spec.model),
        ("--recipient", None if spec.model else spec.recipient),
        ("--revision", spec.revision),
        ("--dataset", spec.dataset),
        ("--subject", columns.subject),
        ("--object", columns.object),
        *(("--column", f"{field}={column}") for field, column in columns.columns.items()),
    ]
    for prompt, row in card["scores"].items():
        options += [("--template", f"{prompt}={row['template']}")] if "template" in row else []
    words = ["kgbench", "eval", *["--chat-template"] * spec.chat_template]
    for option, value in (*options, ("--donor", f"sft={donor}")):
        words += [option, value] if value else []
    return shlex.join(words)
