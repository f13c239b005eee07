"""Finding checkpoints: shipped ones, local directories and repositories of the Hugging Face Hub, safetensors only."""

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
from kgbench.models.catalog import zoo_path

__all__ = ["Checkpoint", "locate"]

_FILES = ("*.json", "*.safetensors", "*.model", "merges.txt", "vocab.txt", "*.jinja")
_ANSWER_WITHIN = 10.0
"""Seconds to wait for the Hub before saying that it cannot be reached."""


@dataclass(frozen=True)
class Checkpoint:
    """A directory that holds one model, and how to name its origin without naming a place on this machine."""

    directory: Path
    origin: str

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration as stored."""
        return dict(json.loads((self.directory / "config.json").read_text("utf-8")))


def locate(source: str, revision: str | None = None) -> Checkpoint:
    """Find a checkpoint; downloads one only where it is a Hub id that is not in the local cache.

    Args:
        source: `zoo:NAME/PART`, a directory, or a Hub id.
        revision: Commit, tag or branch of a Hub id.

    Raises:
        ModelError: There is no checkpoint, or the Hub does not give it.
    """
    shipped = zoo_path(source)
    if shipped is not None:
        return Checkpoint(_complete(shipped, source), source)
    directory = Path(source).expanduser()
    if directory.exists() or not _is_hub_id(source):
        return Checkpoint(_complete(directory, source), f"local:{directory.resolve().name}")
    found = _cached(source, revision) or _downloaded(source, revision)
    return Checkpoint(_complete(found, source), f"{source}@{found.name}")


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
    return found if (found / "config.json").is_file() and any(found.glob("*.safetensors")) else None


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
            "connect, or give a local directory: --recipient PATH --donor sft=PATH"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
