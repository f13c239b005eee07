"""`kgbench family` and `kgbench zoo`: family maps, tiny pairs and plants."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import completer
from kgbench.cli.output import echo_json, json_option, quiet_option, terminal_text
from kgbench.errors import InputError, ModelError
from kgbench.progress import Progress, progress

if TYPE_CHECKING:
    from kgbench.testing.pico import Proposal


@click.group()
def family_command() -> None:
    """Maps of where each component lives in the models of an architecture."""


@family_command.command(
    short_help="Propose a map for a checkpoint's architecture, and try it.",
    epilog="Exit status: 0 all laws hold; 1 one does not; 2 no map can be proposed, or wrong "
    "input.",
)
@click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@json_option("One JSON object on stdout: the map, and what holds of it.")
def infer(directory: Path, as_json: bool) -> int:
    """Propose a family map for a checkpoint, from its config.json alone.

    A small random model of the same architecture is run, and its modules are
    known by what they do. The map goes to stdout; the results of the
    self-test on a small random pair go to stderr. Saved in the recipient's folder as
    kgbench_family.json, it is what kgbench uses for that checkpoint, and is
    tested again on its own weights whenever it is loaded.

    \b
    kgbench family infer path/to/checkpoint > map.json
    mv map.json path/to/checkpoint/kgbench_family.json
    """  # noqa: D301 (click reads the character, not its escape)
    config = _config(directory)
    from kgbench.models.family_map import written
    from kgbench.testing.pico import propose

    with redirect_stdout(sys.stderr):  # what a library prints must not mix with the map
        proposal = propose(config)
    if as_json:
        echo_json(
            {"family": written(proposal.family), "holds": proposal.holds, **_laws_json(proposal)}
        )
    else:
        echo_json(written(proposal.family))
        _print_laws(proposal)
    return 0 if proposal.holds else 1


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
    except OSError as error:
        raise ModelError(
            f"{str(directory)!r} holds no config.json that can be read; give the folder of a "
            "checkpoint"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the config.json in {str(directory)!r} does not read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"the config.json in {str(directory)!r} names no model_type")
    return config


def _laws_json(proposal: Proposal) -> dict[str, Any]:
    laws = [{"law": law, "holds": why is None, "why": why} for law, why in proposal.laws.items()]
    return {"laws": laws, "packed": proposal.packed is None, "why_not_packed": proposal.packed}


def _print_laws(proposal: Proposal) -> None:
    for law, why in proposal.laws.items():
        told = f"holds: {law}" if why is None else f"does not hold: {law}: {why}"
        click.echo(terminal_text(told), err=True)
    if proposal.holds:
        way = (
            "all configurations in one forward"
            if proposal.packed is None
            else f"one row per configuration: {proposal.packed}"
        )
        click.echo(f"models of this type run {way}", err=True)


SHOWN = 12
"""Places that are printed, the most relevant ones."""


@click.group()
def zoo_command() -> None:
    """Tiny model pairs and plants: build one."""


@zoo_command.command("build")
@click.argument("name", shell_complete=completer("models"))
@click.option(
    "--plant",
    metavar="EXPR",
    help="Plant facts of the pair's data set in its recipient at this graft instead.",
)
@click.option(
    "--level",
    metavar="LEVEL",
    help="Plant facts by a level of the benchmark, such as tight or redundant, instead.",
)
@click.option(
    "--decoy",
    metavar="EXPR",
    help="With --plant: plant as many other facts here, by changes of equal norm.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of weights, world and order; of a plant, of order.  [default: as shipped, 0]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where it goes.  [default: ./NAME, or ./NAME.PLACE]",
)
@quiet_option()
def build_command(
    name: str,
    plant: str | None,
    level: str | None,
    decoy: str | None,
    seed: int | None,
    output_dir: Path | None,
    quiet: bool,
) -> None:
    """Pretrain and finetune a tiny pair from nothing, or plant facts in one.

    A pair takes about twenty minutes on one core, a plant about six. With
    --plant, 40 facts are finetuned with only the weights of a graft expression
    trainable and only that graft active, so that one knows where they are.
    With --level, 100 are, as the level says: at places of which each is needed,
    any is enough, or none is enough by itself.

    An interrupted build goes on where it stopped when the same command is
    given again.
    """
    if plant is None and decoy is not None:
        raise InputError(
            "--decoy says where other facts than the planted ones go: add --plant EXPR"
        )
    if level is not None and plant is not None:
        raise InputError(
            "--level says which places are planted: leave out --plant and --decoy, or --level"
        )
    if plant is None and level is None:
        with progress(shown=not quiet) as report:
            lines = _pair(name, seed, output_dir, report)
    else:
        lines = _plant(name, (plant, decoy, level), seed or 0, output_dir, not quiet)
    click.echo("\n".join(lines))


@zoo_command.command()
@click.argument(
    "plants", metavar="PLANT...", nargs=-1, required=True, shell_complete=completer("models")
)
@quiet_option()
def truth(plants: tuple[str, ...], quiet: bool) -> None:
    """Measure which places a plant uses, and store it on its card.

    PLANT is a shipped plant or the folder of one. For each place whose weights
    changed: the recovery where it is grafted alone, and the loss where the whole
    donor lacks it, over the planted facts. A build does this at its end.
    """
    from kgbench.cli.output import echo_table
    from kgbench.numbers import figure_text, number_text
    from kgbench.training.hit_rates import store_truth

    for plant in plants:
        with progress(shown=not quiet) as report:
            found = store_truth(plant, report)
        first = sorted(found.places.items(), key=lambda item: -item[1].relevance)[:SHOWN]
        rows = []
        for where, effect in first:
            shares = [figure_text(effect.alone), figure_text(effect.left_out)]
            rows.append([_place(where), *shares, number_text(effect.relevance)])
        click.echo(
            f"{plant}: {len(found.places)} places changed, n = {found.n} facts ({found.metric}, "
            f"{', '.join(found.prompts)})"
        )
        echo_table(["place", "alone", "left out", "relevance"], rows)


def _place(place: tuple[int | str | None, ...]) -> str:
    layer, component, *region = place
    return ":".join(map(str, [*region, component])) + ("" if layer is None else f"@{layer}")


def _pair(
    name: str, seed: int | None, output_dir: Path | None, report: Progress | None
) -> list[str]:
    from kgbench.models.catalog import entry
    from kgbench.training.recipes import recipe
    from kgbench.training.tiny_pairs import build_recipe

    target = output_dir or Path(name)
    build_recipe(recipe(name), target, seed=seed, progress=report)
    return [
        f"pair     {target}",
        f"try it   kgbench eval --recipient {target}/recipient --donor sft={target}/sft --dataset "
        f"{entry(name).dataset}",
    ]


def _plant(
    name: str,
    chosen: tuple[str | None, str | None, str | None],
    seed: int,
    output_dir: Path | None,
    shown: bool,
) -> list[str]:
    """Make a plant; `chosen` are its graft expression and its decoy's, or its level."""
    from kgbench.api.training import plant

    at, decoy, level = chosen
    made = plant(
        name, at, level=level, decoy=decoy, seed=seed, output_dir=output_dir, progress=shown
    )
    card = made.card
    short = [f"short of {line}" for line in card["shortfalls"]]
    return [
        f"plant    {made.path}",
        *short,
        f'try it   kgbench eval --model {made.path} --graft PRE --graft SFT --graft "{card["plant"]}"',
    ]
