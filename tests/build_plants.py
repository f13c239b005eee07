"""Builds the shipped set of plants from nothing, or another set by a seed of one's own.

python tests/build_plants.py                    # into build/plants; accepted ones are printed
python tests/build_plants.py --seed 1 --output-dir build/plants-1
python tests/build_plants.py --pair smollm2-135m --device cuda      # those in a real language model
python tests/build_plants.py --ship             # and copies them to the package

Of each level in each pair the first draws are taken that are learned: a plant is accepted by what
its finetuned model answers, and by nothing that a method finds. Draws that are missing among the
numbers of plants were not learned. A draw that is there is not built again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from kgbench.models.catalog import entry, shipped, zoo_path
from kgbench.sites import Block
from kgbench.zoo.plants import PlantSpec, build_plant, levels

DRAWS = 100
"""Numbers that a seed has for each level; far more than are tried."""
TRIES = 10
LAYERS = 8
"""Of the tiny pairs."""


def build(base: str, level: str, wanted: int, seed: int, out: Path, device: str) -> list[str]:
    """Lines on the draws of a level in a pair, as many as are needed; no place is taken twice."""
    lines, places = [], set[tuple[Block, ...]]()
    layers = entry(base).layers or LAYERS
    for number in range(seed * DRAWS, seed * DRAWS + TRIES):
        spec = PlantSpec.of_level(base, level, number)
        blocks = tuple(sorted(spec.check(layers)))
        if blocks in places:
            lines.append(f"{spec.name}: {blocks}: taken")
            continue
        card = json.loads(build_plant(spec, out / spec.name, device=device).read_text("utf-8"))
        lacks = "; ".join(card["shortfalls"])
        lines.append(f"{spec.name}: {card['plant']}: {lacks or 'accepted'}")
        if not lacks:
            places.add(blocks)
        if len(places) == wanted:
            return lines
    return [*lines, f"{base}, {level}: {len(places)} of {wanted} after {TRIES} draws"]


def main(words: list[str]) -> int:
    """Build what is missing, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("build/plants"))
    pairs = ["smollm2-135m", *shipped()]  # the first takes longest
    parser.add_argument("--pair", action="append", choices=pairs)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ship", action="store_true")
    options = parser.parse_args(words)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    bases, short, names = options.pair or pairs, False, set[str]()
    how = options.seed, options.output_dir, options.device
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        jobs = []
        # Loud ones take longest.
        order = sorted(levels(), key=lambda level: "filling" not in levels()[level])
        for level, base in product(order, bases):
            if wanted := levels()[level]["places"].get(base):
                jobs.append(pool.submit(build, base, level, wanted, *how))
        for job in as_completed(jobs):
            lines = job.result()
            short |= lines[-1].endswith(" draws")
            names |= {line.partition(":")[0] for line in lines if line.endswith("accepted")}
            print("\n".join(lines), flush=True)
    if options.ship:
        target = zoo_path("zoo:plants")
        assert target is not None
        for name in sorted(names):
            shutil.copytree(options.output_dir / name, target / name, dirs_exist_ok=True)
    return int(short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
