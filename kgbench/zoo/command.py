"""`kgbench zoo`: tiny pairs and plants."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import CommandGroup, Folder, Natural, cli_command, completer
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.choices import CATALOGUES
from kgbench.runner.spec import listed


@click.group(cls=CommandGroup)
def zoo_command() -> None:
    """Tiny model pairs and plants: build one."""


@cli_command(
    "device", "quiet", group=zoo_command, pair={"shell_complete": completer(CATALOGUES["models"])}
)
def build_command(
    pair: str,
    *,
    level: str | None,
    blocks: tuple[str, ...],
    way: str | None,
    filling: str | None,
    tokens: str | None,
    seed: Natural | None,
    output_dir: Folder | None,
    progress: Progress | None,
    device: str | None,
) -> Output:
    """Pretrain and finetune a tiny pair from nothing, or plant facts in one.

    A pair takes about twenty minutes on one core; an interrupted build goes on
    where it stopped when the same command is given again.

    With --level or --blocks, facts are finetuned as they usually are, with only
    the matrices of some blocks trainable, and decoys, other facts, with those of
    all others. Changes have the same singular values, so that how far weights
    moved says nothing; where the facts are is known by which blocks
    learned them. It takes a minute or two on a tiny pair; of a real language
    model, such as smollm2-135m, twelve blocks change, and an accelerator is wanted.

    Args:
        pair (NAME): A pair of the catalog.
        level (LEVEL): Plant facts in blocks that are drawn for a level of the benchmark: one,
            one-loud, attention, either, either-loud, shares, together, entity, last.
        blocks (BLOCK,…): Plant facts in these blocks, the attention or FFN of layers: ffn@5,attn@3.
        way (WAY): How several blocks learn the facts: together; either (each as if the others had
            not changed); shares (each facts of its own).  [default: together]
        filling (KIND): What changes do besides what was learned: next to nothing (quiet), or much
            (loud), so that the blocks do not work in the base.  [default: quiet]
        tokens (TOKENS): With --blocks, where they act: at all tokens (ALL), the first entity (FE) or
            the last token (LT).  [default: ALL]
        seed (N): Of weights, world and order; of a plant, of facts and places.  [default: as shipped, 0]
        output_dir (DIR): Where it goes.  [default: ./NAME, or ./NAME.PLACE]
        progress: Progress callback.
        device (NAME): Where a plant is trained: cpu, cuda, cuda:1, mps.  [default: an accelerator
            where there is one]
    """
    if level is None and not blocks:
        choices = {"way": way, "filling": filling, "tokens": tokens, "device": device}
        for name, value in choices.items():
            if value is not None:
                raise InputError(f"--{name} is of a plant: add --level or --blocks")
        from kgbench.models.catalog import entry
        from kgbench.zoo.tiny_pairs import build_recipe, recipe

        target = output_dir or Path(pair)
        build_recipe(recipe(pair), target, seed=seed, progress=progress)
        models = f"--recipient {target}/recipient --donor sft={target}/sft"
        return Output(
            [
                f"pair     {target}",
                f"try it   kgbench eval {models} --dataset {entry(pair).dataset}",
            ]
        )
    from kgbench.zoo.plants import plant

    made = plant(
        pair,
        level=level,
        blocks=listed(blocks),
        way=way,
        filling=filling,
        tokens=tokens,
        seed=seed or 0,
        device=device or "auto",
        output_dir=output_dir,
        progress=progress or False,
    )
    short = [f"short of {line}" for line in made.card["shortfalls"]]
    return Output(
        [
            f"plant    {made.path}",
            *short,
            f"try it   kgbench eval --model {made.path} --suite planted --localizer "
            "graft_drop,random",
        ]
    )
