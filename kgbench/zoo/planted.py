"""Plants made in Python: finetune facts into a model at a known place."""

from __future__ import annotations

import os
from pathlib import Path

from kgbench.api.training import Trained
from kgbench.errors import InputError, UnknownNameError, python_names
from kgbench.models import catalog
from kgbench.progress import Progress, with_progress
from kgbench.training.builds import read_card
from kgbench.zoo.planting import build_plant
from kgbench.zoo.plants import PlantSpec


@python_names()
def plant(
    model: str,
    at: str | None = None,
    *,
    level: str | None = None,
    decoy: str | None = None,
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool = True,
) -> Trained:
    """Plant facts at a known place: a donor whose answers a method should find there.

    Facts are finetuned with only the weights of the place trainable and only their graft active.
    An interrupted build goes on where it stopped when it is asked for again.

    Args:
        model: A pair of the catalog, in whose recipient the facts are planted.
        at: Graft expression of the place, such as `FE:ffn@1`; or else
        level: a level of the benchmark, such as `tight` or `redundant`.
        decoy: With `at`: graft expression of other facts, planted by changes of equal norm.
        seed: Seed of the order of texts.
        output_dir: The plant's folder; by default its name in the working directory.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The plant; a path, which `load_pair` and `evaluate` take as `model`.

    Raises:
        InputError: Something is wrong with what was given; nothing is written.
    """
    if (at is None) == (level is None):
        raise InputError("where are facts planted? Give a graft expression or a level, one of them")
    if level is not None and decoy is not None:
        raise InputError("a level says where its decoys are; leave out the decoy, or the level")
    bases = [name for name in catalog.pair_names() if name not in catalog.plants()]
    if model not in (*bases, *catalog.plants()):
        hint = "Plants grow in pairs that have a name, see `kgbench ls models`."
        raise UnknownNameError("pair", model, bases, hint)
    if level is not None:
        spec = PlantSpec.of_level(model, level, seed)
    else:
        assert at is not None
        spec = PlantSpec.at(model, at, decoy, seed)
    target = Path(output_dir or spec.name)
    card = with_progress(progress, lambda report: build_plant(spec, target, progress=report))
    # A name without a separator could also be one of the catalog.
    path = target if target.is_absolute() or len(target.parts) > 1 else Path.cwd() / target
    return Trained(path, read_card(card))
