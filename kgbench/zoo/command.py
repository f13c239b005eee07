"""`kgbench zoo`: tiny pairs and plants."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import Folder, Natural, cli_command, completer
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.choices import CATALOGUES


@click.group()
def zoo_command() -> None:
    """Tiny model pairs and plants: build one."""


@cli_command("quiet", group=zoo_command, pair={"shell_complete": completer(CATALOGUES["models"])})
def build_command(
    pair: str,
    *,
    plant: str | None,
    level: str | None,
    decoy: str | None,
    seed: Natural | None,
    output_dir: Folder | None,
    progress: Progress | None,
) -> Output:
    """Pretrain and finetune a tiny pair from nothing, or plant facts in one.

    A pair takes about twenty minutes on one core, a plant about six. With
    --plant, 40 facts are finetuned with only the weights of a graft expression
    trainable and only that graft active, so that one knows where they are.
    With --level, 100 are, as the level says: at places of which each is needed,
    any is enough, or none is enough by itself.

    An interrupted build goes on where it stopped when the same command is
    given again. Of a finished plant, that measures which places it uses, where
    its card has no truth.

    Args:
        pair (NAME): A pair of the catalog.
        plant (EXPR): Plant facts of the pair's data set in its recipient at this graft instead.
        level (LEVEL): Plant facts by a level of the benchmark, such as tight or redundant, instead.
        decoy (EXPR): With --plant: plant as many other facts here, by changes of equal norm.
        seed (N): Of weights, world and order; of a plant, of order.  [default: as shipped, 0]
        output_dir (DIR): Where it goes.  [default: ./NAME, or ./NAME.PLACE]
        progress: Progress callback.
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
        return Output(_pair(pair, seed, output_dir, progress))
    from kgbench.zoo.plants import plant as make_plant

    made = make_plant(
        pair,
        plant,
        level=level,
        decoy=decoy,
        seed=seed or 0,
        output_dir=output_dir,
        progress=progress or False,
    )
    short = [f"short of {line}" for line in made.card["shortfalls"]]
    grafts = f'--graft PRE --graft SFT --graft "{made.card["plant"]}"'
    return Output(
        [
            f"plant    {made.path}",
            *short,
            f"try it   kgbench eval --model {made.path} {grafts}",
        ]
    )


def _pair(
    name: str, seed: int | None, output_dir: Path | None, report: Progress | None
) -> list[str]:
    from kgbench.models.catalog import entry
    from kgbench.zoo.recipes import recipe
    from kgbench.zoo.tiny_pairs import build_recipe

    target = output_dir or Path(name)
    build_recipe(recipe(name), target, seed=seed, progress=report)
    return [
        f"pair     {target}",
        f"try it   kgbench eval --recipient {target}/recipient --donor sft={target}/sft --dataset "
        f"{entry(name).dataset}",
    ]
