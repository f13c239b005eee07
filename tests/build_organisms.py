"""Builds the organisms and their cases from nothing.

python tests/build_organisms.py [NAME …]     # into build/organisms; what is there is not built again
python tests/build_organisms.py --ship       # and copies them to the package
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from kgbench.models.catalog import CARD, zoo_path
from kgbench.zoo.organisms import build_organism, organisms, write_cases

PARTS = ("adapter_config.json", "adapter_model.safetensors", CARD)


def main(words: list[str]) -> int:
    """Build what is missing, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(organisms()))
    parser.add_argument("--output-dir", type=Path, default=Path("build/organisms"))
    parser.add_argument("--ship", action="store_true")
    chosen = parser.parse_args(words)
    for name in chosen.names:
        out = chosen.output_dir / name

        def show(step: int, total: int, what: str) -> None:
            print(f"{what}: step {step} of {total}", flush=True) if step % 10 == 0 else None

        if not (out / CARD).is_file():
            build_organism(name, out, progress=show)
        print(out, flush=True)
        if not chosen.ship:
            continue
        place = zoo_path(f"zoo:organisms/{name}")
        place.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            shutil.copyfile(out / part, place / part)
        if organisms()[name].like is None:
            cases = Path(sys.modules[build_organism.__module__].__file__).with_name("data")
            write_cases(organisms()[name], cases / f"organism_{name}.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
