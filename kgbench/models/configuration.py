"""A checkpoint's configuration, without what it says of how attention is computed."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

__all__ = ["read_config"]


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration in a folder.

    The attention backend that its file names goes before the one that the library is told, and can be code from outside: it is left out.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    config._attn_implementation = None
    return config
