"""GGUF files as checkpoints: weights of few bits become float32, which loses nothing more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgbench.errors import InputError, ModelError, first_line
from kgbench.models.catalog import CARD, HOME, home_folder, is_kept
from kgbench.models.library import quiet_library
from kgbench.resources import file_hash

SUFFIX = ".gguf"


def gguf_in(place: Path) -> Path | None:
    """The GGUF file that a file or a folder without another checkpoint is; None where it is none.

    Raises:
        ModelError: The folder holds several.
    """
    if place.is_file():
        return place if place.suffix.lower() == SUFFIX else None
    files = sorted(place.glob(f"*{SUFFIX}"))
    others = ("config.json", "adapter_config.json", CARD)
    if not files or any((place / name).is_file() for name in others):
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{place.name} holds several GGUF files, {names}: give one of them")
    return files[0]


def check_gguf() -> None:
    """Refuse to go on without the library by which transformers reads such files.

    Raises:
        InputError: It is not installed.
    """
    if find_spec("gguf") is None:
        raise InputError("GGUF files are read by the package gguf: pip install 'kgbench[gguf]'")


def kept_checkpoint(file: Path) -> Path:
    """The checkpoint of a GGUF file, written once and kept in the user's data folder.

    Args:
        file: The file; its content is what the checkpoint is found again by.

    Raises:
        InputError: As `write_checkpoint`.
        ModelError: Likewise; or the checkpoint cannot be kept.
    """
    content = file_hash(file)
    folder = home_folder() / "models" / f"{file.stem}-{content[:12]}"
    if not is_kept(folder):
        card = {"about": f"the weights of {file.name} as float32", "sha256": content}
        with kept_in(folder), FileLock(folder.with_name(f".{folder.name}.lock")):
            if not is_kept(folder):
                write_checkpoint(file, folder, card)
    return folder


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Make a kept checkpoint's place, and say what was wrong where it cannot be written.

    Raises:
        ModelError: It cannot be.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ModelError(
            f"{folder.name} cannot be kept in {folder.parent} ({first_line(error)}): set {HOME} to "
            "a folder that can be written and has room"
        ) from error


def write_checkpoint(file: Path, folder: Path, card: Mapping[str, object]) -> None:
    """Write model and tokenizer of a GGUF file as a checkpoint in float32, whole or not at all.

    Args:
        file: The file.
        folder: The checkpoint's, which is not there yet.
        card: What is known of the file; the checkpoint's card.

    Raises:
        InputError: The library that reads such files is not installed.
        ModelError: The file does not load.
    """
    check_gguf()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # One of the library's bars cannot be switched off.
    with quiet_library(), redirect_stderr(StringIO()):
        try:
            named = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **named)
            read: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, **named
            )
        except Exception as error:  # the library raises what it likes on a broken file
            raise ModelError(f"{file.name} does not load: {first_line(error)}") from error
        _check_tensors(file, read)
        # The library refuses to save a model that says that it is quantised.
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)
        model = type(read)(type(read.config)(**settings))
        model.load_state_dict(read.state_dict())
        model.tie_weights()
        model.save_pretrained(partial)
        tokenizer.init_kwargs.pop("local_files_only", None)  # how it was read here
        tokenizer.save_pretrained(partial)
    (partial / CARD).write_text(json.dumps(dict(card), indent=1), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)  # a copy that was cut off
    partial.replace(folder)


def _check_tensors(file: Path, model: nn.Module) -> None:
    """Refuse a file whose tensors are not the model's, one by one.

    The library makes random weights where a tensor is missing, as in one file of several, and
    leaves out a tensor that it has no place for, such as a bias or the frequencies of a longer
    context; the model is then another one.
    """
    from gguf import GGUFReader

    stored = {str(tensor.name): tensor.n_elements for tensor in GGUFReader(file).tensors}
    expected = [weight.numel() for weight in model.parameters()]  # tied ones once
    if sorted(map(int, stored.values())) != sorted(expected):
        raise ModelError(
            f"{file.name} holds {len(stored)} tensors of {sum(map(int, stored.values())):,} "
            f"numbers, and its model has {len(expected)} of {sum(expected):,}: it is a part of a "
            "model, or one that is not read whole; give the checkpoint that it was made from"
        )
