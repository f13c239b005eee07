"""Finding checkpoints: shipped ones, directories, plants, adapters and repositories of the Hugging Face Hub, safetensors only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # public, but not in its stub

from kgbench.errors import ModelError
from kgbench.models import adapter
from kgbench.models.catalog import DELTA, is_plant, read_plant, zoo_path
from kgbench.models.delta import stored_hash
from kgbench.models.trained import find_donor

__all__ = ["Checkpoint", "find_here", "locate"]

_FILES = ("*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "*.jinja")
_ANSWER_WITHIN = 10.0
"""Seconds to wait for the Hub before saying that it cannot be reached."""


@dataclass(frozen=True)
class Checkpoint:
    """A directory that holds one model, and how to name its origin without naming a place on this machine."""

    directory: Path
    origin: str
    delta: Path | None = None
    """Weights to put in place of the directory's, where this is a plant; the directory is then the recipient's."""
    adapter: Path | None = None
    """The adapter's directory, where this is one; the other is then the recipient's."""

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration as stored."""
        return dict(json.loads((self.directory / "config.json").read_text("utf-8")))


def locate(source: str, revision: str | None = None, recipient: Checkpoint | None = None) -> Checkpoint:
    """Find a checkpoint; downloads one only where it is a Hub id that is not in the local cache.

    Args:
        source: `zoo:NAME/PART`, a directory, the name of a trained donor, or a Hub id; for a donor, also the directory of a plant, or an
            adapter's directory or Hub id.
        revision: Commit, tag or branch of a Hub id.
        recipient: The pair's recipient, where a donor is looked for.

    Raises:
        ModelError: There is no checkpoint, the Hub does not give it, or it is a plant that does not belong to the recipient, or a plant or
            an adapter where a recipient is looked for.
    """
    kept = zoo_path(source) or find_donor(source)
    directory = kept or Path(source).expanduser()
    if kept is not None or directory.exists() or not _is_hub_id(source):
        origin = source if kept is not None else f"local:{directory.resolve().name}"
        if is_plant(directory):
            return _planted(directory, origin, recipient)
        return _found(directory, source, origin, recipient)
    found = _cached(source, revision) or _downloaded(source, revision)
    return _found(found, source, f"{source}@{found.name}", recipient)


def find_here(source: str, revision: str | None = None) -> Checkpoint | None:
    """As `locate`, but nothing is asked of the Hub: None for a Hub id that is not in the local cache.

    Raises:
        ModelError: As `locate` does.
    """
    on_hub = zoo_path(source) is None and find_donor(source) is None and not Path(source).expanduser().exists() and _is_hub_id(source)
    return None if on_hub and _cached(source, revision) is None else locate(source, revision)


def _found(directory: Path, source: str, origin: str, recipient: Checkpoint | None) -> Checkpoint:
    """What a directory holds: an adapter or a checkpoint."""
    if not (directory / adapter.CONFIG).is_file():
        return Checkpoint(_complete(directory, source), origin)
    if any(path.name != adapter.WEIGHTS for path in directory.glob("*.safetensors")):
        raise ModelError(
            f"{source!r} holds both an adapter and other weights; expected one of them: give a folder that holds {adapter.CONFIG} and "
            f"{adapter.WEIGHTS} alone, or one without them"
        )
    if recipient is None or recipient.delta is not None:
        raise ModelError(
            f"{source!r} is an adapter, which holds added weights only and so cannot be a recipient; give the model that it was made for "
            "with --recipient, and the adapter with --donor sft=PATH"
        )
    return Checkpoint(recipient.directory, origin, adapter=directory)


def _planted(directory: Path, origin: str, recipient: Checkpoint | None) -> Checkpoint:
    """A plant as a donor: its recipient's checkpoint with some weights changed."""
    needed = read_plant(directory)["recipient"]
    if recipient is None or recipient.delta is not None:
        raise ModelError(
            f"{origin} is a plant, which holds changed weights only and so cannot be a recipient; "
            f"give it as a donor of {needed['source']}, or by itself: --model PATH"
        )
    if stored_hash(recipient.directory) != needed["weights"]:
        raise ModelError(
            f"{origin} was planted in {needed['source']}, and {recipient.origin} has other weights; give --recipient {needed['source']}"
        )
    return Checkpoint(recipient.directory, origin, directory / DELTA)


def _is_hub_id(source: str) -> bool:
    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return True


def _complete(directory: Path, source: str) -> Path:
    """The directory, if it holds a configuration and safetensors weights."""
    if not directory.is_dir():
        raise ModelError(f"no checkpoint at {source!r}: no such directory; give one that holds config.json, or a Hub id such as owner/name")
    if not (directory / "config.json").is_file():
        raise ModelError(f"{source!r} is no checkpoint: it holds no config.json; give a directory written by save_pretrained")
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{source!r} is no checkpoint: its config.json does not read ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{source!r} is no checkpoint: its config.json holds no object")
    if not any(directory.glob("*.safetensors")):
        raise ModelError(
            f"{source!r} holds no weights as *.safetensors; pickled ones are never loaded: save the model with save_pretrained"
        )
    return directory


def _cached(source: str, revision: str | None) -> Path | None:
    try:
        found = Path(snapshot_download(source, revision=revision, allow_patterns=list(_FILES), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    named = any((found / name).is_file() for name in ("config.json", adapter.CONFIG))
    return found if named and any(found.glob("*.safetensors")) else None


def _downloaded(source: str, revision: str | None) -> Path:
    # One quick question first: without it, every file is asked for again and again before the client gives up.
    try:
        HfApi().model_info(source, revision=revision, timeout=_ANSWER_WITHIN)
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(_FILES)))
    except GatedRepoError as error:
        raise ModelError(f"{source!r} is gated: accept its licence on the Hub and log in with 'hf auth login'") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{source!r} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{source!r} is neither a directory here nor a repository on the Hub that you may read") from error
    except HfHubHTTPError as error:
        raise ModelError(f"the Hub did not give {source!r}: {_first_line(error)}") from error
    except Exception as error:  # the client lets its HTTP library's own errors through
        raise ModelError(
            f"{source!r} is not in the local cache and the Hugging Face Hub cannot be reached ({_first_line(error)}); "
            "connect, or name checkpoints that are on this machine"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
