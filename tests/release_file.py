"""Writes the file of weights that wheels leave out, for a release: build/kgbench-pairs-VERSION.zip.

python tests/release_file.py          # the file
python tests/release_file.py --pin    # kgbench/models/release.toml, the hashes of what is in it
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import kgbench.models
from kgbench.models.release import FILE, release_hashes
from kgbench.resources import file_hash

__all__ = ["IN_WHEELS", "ZOO", "left_out", "write_release_file"]

ZOO = Path(kgbench.models.__file__).parent / "zoo"
IN_WHEELS = ("tiny-gemma", "tiny-llama")
"""Pairs of which wheels hold all weights, their plants included; pyproject.toml leaves out others."""

HEAD = """\
# SHA-256 of the weights that wheels leave out, by path in the zoo: all but those of tiny-gemma, tiny-llama and their plants.
# Written by `python tests/release_file.py --pin`.

"""


def left_out() -> list[str]:
    """Paths in the zoo."""
    names = [path.relative_to(ZOO).as_posix() for path in sorted(ZOO.rglob("*.safetensors"))]
    built = [name for name in names if "-seed" in name]  # by `zoo build`, and in no clone
    return [
        n for n in names if n not in built and not n.removeprefix("plants/").startswith(IN_WHEELS)
    ]


def write_release_file(folder: Path) -> Path:
    """Write the file; equal weights give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with ZipFile(folder / FILE, "w", ZIP_DEFLATED) as out:
        for name in release_hashes():
            out.writestr(ZipInfo(name), (ZOO / name).read_bytes(), ZIP_DEFLATED)
    return folder / FILE


if __name__ == "__main__":
    if "--pin" in sys.argv:
        lines = [f'"{name}" = "{file_hash(ZOO / name)}"\n' for name in left_out()]
        (ZOO.parent / "release.toml").write_text(HEAD + "".join(lines), "utf-8")
    else:
        print(write_release_file(Path("build")))
