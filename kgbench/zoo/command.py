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
    blocks: str | None,
    way: str | None,
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

    With --blocks, facts are finetuned as they usually are, with no graft: with
    only the matrices of these blocks trainable, and other facts with those of
    all other blocks. Changes have one rank and one relative size, so that how
    far weights moved says nothing; where the facts are is known by which blocks
    learned them. It takes a minute or two.

    An interrupted build goes on where it stopped when the same command is
    given again; one with --blocks begins anew. Of a finished plant, that measures which places it uses, where
    its card has no truth.

    Args:
        pair (NAME): A pair of the catalog.
        plant (EXPR): Plant facts of the pair's data set in its recipient at this graft instead.
        level (LEVEL): Plant facts by a level of the benchmark, such as tight or redundant, instead.
        decoy (EXPR): With --plant: plant as many other facts here, by changes of equal norm.
        blocks (BLOCK,…): Plant facts in the attention or the FFN of layers instead: ffn@5,attn@3.
        way (WAY): How several blocks learn the facts: together; either (each as if the others had
            not changed); shares (each facts of its own).  [default: together]
        seed (N): Of weights, world and order; of a plant, of order, with --blocks of facts too.  [default: as shipped, 0]
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
    if blocks is not None and (plant is not None or level is not None):
        raise InputError("--blocks says where facts are planted: leave out --plant and --level")
    named = tuple(filter(None, (blocks or "").split(",")))
    if way is not None and len(named) < 2:
        raise InputError("--way is how several blocks learn the facts: add --blocks ffn@2,ffn@5")
    if plant is None and level is None and blocks is None:
        return Output(_pair(pair, seed, output_dir, progress))
    from kgbench.zoo.plants import plant as make_plant

    made = make_plant(
        pair,
        plant,
        level=level,
        decoy=decoy,
        blocks=named,
        way=way or "together",
        seed=seed or 0,
        output_dir=output_dir,
        progress=progress or False,
    )
    short = [f"short of {line}" for line in made.card["shortfalls"]]
    options = f'--graft PRE --graft SFT --graft "{made.card["plant"]}"'
    if named:
        options = "--suite planted --localizer graft_drop,random"
    return Output(
        [
            f"plant    {made.path}",
            *short,
            f"try it   kgbench eval --model {made.path} {options}",
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
