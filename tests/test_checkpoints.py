"""Finding checkpoints: what is one, and what is said of what is not."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from kgbench.errors import ModelError
from kgbench.models.checkpoints import locate

ROOT = Path(__file__).parent.parent


def refusal(source: object) -> str:
    """The one line of the refusal."""
    with pytest.raises(ModelError) as caught:
        locate(str(source))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory(folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory written by save_pretrained is a checkpoint, by absolute or relative path; its
    origin names its last part only.
    """
    found = locate(str(folders["sft"]))
    assert (found.directory, found.origin) == (folders["sft"], "local:sft")
    assert found.config["model_type"] == "gpt2"
    monkeypatch.chdir(folders["sft"])
    assert locate(".").origin == "local:sft"
    assert locate("../recipient/").origin == "local:recipient"


@pytest.mark.parametrize(
    "name", ["no/such/folder", "./nothing", "/nowhere/at/all", "~/nothing-here", ".."]
)
def test_no_such_directory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path to nothing, or to a directory that is no checkpoint, is refused at once and never
    asked of the Hub.
    """
    monkeypatch.chdir(tmp_path)
    assert repr(name) in refusal(name)


def test_what_a_checkpoint_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, an empty folder, one without weights, one with pickled weights only, a configuration
    that is no JSON: each its own line.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    (tmp_path / "file").write_text("x")
    assert "no such directory" in refusal(tmp_path / "file")
    assert "no such directory" in refusal(tmp_path / "none" / "such")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "holds no config.json" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": ')
    assert "config.json does not read" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert "pickled weights are never loaded" in refusal(folder)


def test_a_configuration_that_is_no_object(tmp_path: Path) -> None:
    """JSON that is not an object is no configuration."""
    (tmp_path / "config.json").write_text("[1, 2]")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "config.json" in refusal(tmp_path)


def test_offline_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With HF_HUB_OFFLINE set, as in these tests, the line of a closed Hub comes without a
    connection.
    """
    tried = list[object]()
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: tried.append(address))
    assert "cannot be reached" in refusal("someone/some-model")
    assert not tried
