"""Checkpoints: shipped ones, directories, plants, adapters and repositories of the Hub.

Weights are read from safetensors files only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from kgbench.errors import ModelError
from kgbench.hub import ANSWER_WITHIN, hub_errors
from kgbench.models.catalog import (
    DELTA,
    find_donor,
    is_delta,
    read_delta_card,
    read_object,
    zoo_path,
)
from kgbench.models.fetching import fetch, fetched_model
from kgbench.models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from kgbench.models.release import complete_folder
from kgbench.models.tensors import stored_hash

_FILES = ["*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "*.jinja"]
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_ROWS = re.compile(r".*\.lora_[AB]\.weight")
"""Rows of LoRA in an adapter's file."""
_BUFFER = re.compile(
    r".*\b(inv_freq|masked_bias|causal_mask|attn\.bias|attention\.bias|decoder\.version)"
)
"""Buffers that earlier versions of the model library stored.

Rotary frequencies and causal masks, which follow from the configuration.
"""

Stamp = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and inode of a file."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, as the header of its file describes it."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it, such as `BF16`."""
    file: Path

    def is_buffer(self, name: str) -> bool:
        """Whether it is a buffer that a model computes itself.

        A bias has one dimension, a mask four.
        """
        return _BUFFER.fullmatch(name) is not None and not (
            name.endswith(".bias") and len(self.shape) < 4
        )


@dataclass(frozen=True)
class Checkpoint:
    """A directory with one model, and a name of its origin without paths of this machine."""

    directory: Path
    origin: str
    delta: Path | None = None
    """Weights to put in place of the directory's, where this is a plant.

    The directory is then the recipient's.
    """
    is_adapter: bool = False
    """Whether the directory holds an adapter of the recipient."""

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration as stored."""
        return stored_config(self.directory, self.origin)

    def stamps(self) -> dict[Path, Stamp]:
        """The files that a pair is read from, as they are now."""
        files = [self.directory / ADAPTER_CONFIG, self.directory / ADAPTER_WEIGHTS]
        if not self.is_adapter:
            files = [self.directory / "config.json", *_weight_files(self.directory, self.origin)]
        files += [] if self.delta is None else [self.delta]
        stamps: dict[Path, Stamp] = {}
        for path in filter(Path.is_file, files):  # what is missing is said where it is read
            at = path.stat()
            stamps[path] = at.st_size, at.st_mtime_ns, at.st_ino
        return stamps


def locate(
    source: str, revision: str | None = None, recipient: Checkpoint | None = None
) -> Checkpoint:
    """Find a checkpoint; downloads one only where it is a Hub id that is not in the local cache.

    Args:
        source: `zoo:NAME/PART`, `fetched:NAME`, a directory, the name of a trained donor,
            or a Hub id; for a donor, also the directory of a plant, or an adapter's
            directory or Hub id.
        revision: Commit, tag or branch of a Hub id.
        recipient: The pair's recipient, where a donor is looked for.

    Raises:
        ModelError: There is no checkpoint, the Hub does not give it, or it is a plant that does not
            belong to the recipient, or a plant or an adapter where a recipient is looked for.
    """
    if (model := fetched_model(source)) is not None:
        return _found(fetch(model), source, source, recipient)
    if (place := _on_disk(source)) is not None:
        directory, origin = place
        if is_delta(directory):
            return _changed(directory, source, origin, recipient)
        return _found(directory, source, origin, recipient)
    if (folder := _cached(source, revision)) is None:
        otherwise = "it is no directory here either: connect, or give a checkpoint on this machine"
        with hub_errors(source, revision, otherwise, ModelError):
            # One quick question first: without it, the client retries every file.
            HfApi().model_info(source, revision=revision, timeout=ANSWER_WITHIN)
            folder = Path(snapshot_download(source, revision=revision, allow_patterns=_FILES))
    return _found(folder, source, f"{source}@{folder.name}", recipient)


def _on_disk(source: str) -> tuple[Path, str] | None:
    """Directory and origin of a source; None for a Hub id."""
    if (folder := zoo_path(source)) is not None:
        return complete_folder(source, folder), source
    if (folder := find_donor(source)) is not None:
        return folder, source
    directory = Path(source).expanduser()
    if not directory.exists():
        try:
            validate_repo_id(source)
            return None
        except HFValidationError:
            pass
    return directory, f"local:{directory.resolve().name}"


def find_here(source: str, revision: str | None = None) -> Checkpoint | None:
    """As `locate`, but without the Hub: None for a Hub id that is not in the local cache.

    Raises:
        ModelError: As `locate` does.
    """
    if (model := fetched_model(source)) is not None:
        return locate(source) if model.is_here() else None
    here = _on_disk(source) or _cached(source, revision)
    return None if here is None else locate(source, revision)


def _found(directory: Path, source: str, origin: str, recipient: Checkpoint | None) -> Checkpoint:
    """What a directory holds: an adapter or a checkpoint."""
    if not (directory / ADAPTER_CONFIG).is_file():
        _check_folder(directory, source, origin)
        return Checkpoint(directory, origin)
    if any(path.name != ADAPTER_WEIGHTS for path in directory.glob("*.safetensors")):
        raise ModelError(
            f"{source!r} holds both an adapter and other weights; expected one of them: give a "
            f"folder that holds {ADAPTER_CONFIG} and "
            f"{ADAPTER_WEIGHTS} alone, or one without them"
        )
    if recipient is None or recipient.delta is not None:
        raise ModelError(
            f"{source!r} is an adapter, which holds added weights only and so cannot be a "
            "recipient; give the model that it was made for with --recipient (the adapter is a "
            "donor), or both merged into one (peft: merge_and_unload, save_pretrained)"
        )
    return Checkpoint(directory, origin, is_adapter=True)


def _changed(directory: Path, source: str, origin: str, recipient: Checkpoint | None) -> Checkpoint:
    """A donor that is stored as changed weights: its base checkpoint, and the changes.

    The base is the pair's recipient or, where the recipient is another one, the checkpoint that the
    card names. A plant has no meaning with another recipient.
    """
    card = read_delta_card(directory)
    needed, base = card["recipient"]["weights"], str(card["recipient"]["source"])
    if zoo_path(base) is None:  # a folder next to the donor's
        base = (PurePath(source).parent / PurePath(base).name).as_posix()
    if recipient is None or recipient.delta is not None:
        raise ModelError(
            f"{origin} holds changed weights only and so cannot be a recipient; "
            f"give it as a donor of {base}, or a plant by itself: --model PATH"
        )
    if stored_hash(recipient.directory) == needed:
        return Checkpoint(recipient.directory, origin, directory / DELTA)
    if "plant" in card:
        raise ModelError(
            f"{origin} was made from {base}, and {recipient.origin} has other weights; give "
            f"--recipient {base}"
        )
    original = locate(base)
    if stored_hash(original.directory) != needed:
        raise ModelError(
            f"{origin} was made from {base}, which has other weights now; give a donor that is a "
            "whole checkpoint, or build the pair again"
        )
    return Checkpoint(original.directory, origin, directory / DELTA)


def _check_folder(directory: Path, source: str, origin: str) -> None:
    """Refuse what is no folder with a configuration and safetensors weights of float types."""
    if not directory.is_dir():
        raise ModelError(
            f"no checkpoint at {source!r}: no such directory; give one that holds config.json and "
            "*.safetensors, or a Hub id such as owner/name"
        )
    if not (directory / "config.json").is_file():
        inner = sorted({path.parent.name for path in directory.glob("*/*config.json")})
        raise ModelError(
            f"{source!r} is no checkpoint: it holds no config.json; give a directory written by "
            "save_pretrained" + (f", such as {inner[-1]!r} in it" if inner else "")
        )
    if "transformers_weights" in stored_config(directory, source):
        raise ModelError(
            f"{source!r}: its config.json names a file of weights (transformers_weights), which is "
            "never followed; remove it"
        )
    for name, stored in stored_tensors(directory, origin).items():
        if stored.dtype not in _FLOATS and not stored.is_buffer(name):
            raise ModelError(
                f"{origin} does not load: {name!r} is of type {stored.dtype}; expected "
                "weights of a float type "
                f"({', '.join(_FLOATS)}): give the dequantised model (model.dequantize(), "
                "save_pretrained)"
            )


def stored_config(directory: Path, source: str) -> dict[str, Any]:
    """The configuration of a checkpoint as its folder holds it.

    Args:
        directory: Where it is.
        source: What to call it in an error.

    Raises:
        ModelError: It does not read, or names no type of model.
    """
    config = read_object(directory / "config.json", f"{source!r} is no checkpoint")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{source!r} is no checkpoint: its config.json names no model_type")
    return config


def _weight_files(directory: Path, origin: str) -> list[Path]:
    """The files that hold a checkpoint's weights, those that the model library reads.

    Raises:
        ModelError: There is none, or the index names another than a safetensors file in the folder.
    """
    if (directory / _ONE_FILE).is_file():
        return [directory / _ONE_FILE]
    if not (directory / _INDEX).is_file():
        raise ModelError(
            f"{origin} does not load: it has neither {_ONE_FILE} nor {_INDEX}, and pickled weights "
            "are never loaded; save the model with save_pretrained"
        )
    named = read_object(directory / _INDEX, f"{origin} does not load").get("weight_map")
    if not isinstance(named, dict):
        raise ModelError(f"{origin} does not load: its {_INDEX} does not read: no weight_map")
    names = sorted(set(map(str, named.values())))
    for name in names:
        path = directory / name
        if path.parent != directory or path.suffix != ".safetensors" or not path.is_file():
            raise ModelError(
                f"{origin} does not load: {_INDEX} names {name!r}, expected a *.safetensors file "
                "next to it"
            )
    return [directory / name for name in names]


def stored_tensors(directory: Path, origin: str) -> dict[str, Stored]:
    """The tensors of a checkpoint by name, from the headers of its files.

    Args:
        directory: Where it is.
        origin: What to call it in an error.

    Raises:
        ModelError: A file is missing or does not read, or two hold a tensor of one name.
    """
    tensors: dict[str, Stored] = {}
    for path in _weight_files(directory, origin):
        header = _header(path, origin)
        for name in sorted(header.keys() & tensors.keys()):
            raise ModelError(
                f"{origin} does not load: {path.name} and another of its files hold {name!r}, of "
                "which one would be left out; give the files as they were saved together"
            )
        tensors |= header
    return tensors


def _header(path: Path, origin: str) -> dict[str, Stored]:
    """The tensors of one file by name.

    Raises:
        ModelError: It does not read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: Stored(tuple(tensor.get_shape()), tensor.get_dtype(), path)
                for name, tensor in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{origin} does not load: {path.name} is no whole safetensors file ({error})"
        ) from error


def stored_types(place: Checkpoint) -> set[torch.dtype]:
    """Types of weights that a model must be held in, or in a wider one, to lose nothing.

    Rows of LoRA do not count, since they stay apart from the base's weights and keep their own
    type.

    Raises:
        ModelError: A file does not read.
    """
    if not place.is_adapter:
        tensors = stored_tensors(place.directory, place.origin)
        kinds = {tensor.dtype for name, tensor in tensors.items() if not tensor.is_buffer(name)}
        kinds |= set() if place.delta is None else {"F32"}  # its steps
    elif (file := place.directory / ADAPTER_WEIGHTS).is_file():
        header = _header(file, place.origin)
        kinds = {tensor.dtype for name, tensor in header.items() if not _ROWS.fullmatch(name)}
    else:
        kinds = set()  # which is said where it is read
    return {_FLOATS[kind] for kind in kinds & _FLOATS.keys()}


def read_model_config(directory: Path) -> PreTrainedConfig:
    """The configuration in a folder.

    The attention backend that its file names would override the library's argument, and can be code
    from outside: it is left out.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    config._attn_implementation = None
    return config


def _cached(source: str, revision: str | None) -> Path | None:
    options: dict[str, Any] = {"revision": revision, "allow_patterns": _FILES}
    try:
        folder = Path(snapshot_download(source, **options, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    named = (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file()
    return folder if named and any(folder.glob("*.safetensors")) else None
