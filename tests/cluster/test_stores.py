"""Records at a URL: published whole, found again, and never read half-written."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from conftest import Bucket, Site, ended

from kgbench.cli import main
from kgbench.errors import OutputError
from kgbench.records import RecordStore
from kgbench.records.mirror import Mirror, folder_of


@pytest.fixture
def remote(site: Site, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose records go to the bucket."""
    site.write(output_dir=bucket.url)
    site.environment = bucket.environment
    monkeypatch.setenv("KGBENCH_HOME", site.variables["KGBENCH_HOME"])
    return site


def rows(bucket: Bucket) -> dict[str, str]:
    """Hash of the rows of each record at the URL, by id."""
    found = {}
    for path, content in bucket.files().items():
        if path.endswith("/facts.parquet"):
            found[path.split("/")[-2]] = hashlib.sha256(content).hexdigest()
    return found


def test_records_at_a_url(
    remote: Site, serial: Site, bucket: Bucket, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They have the bytes of those in a folder; another machine finds and shows them."""
    remote.run("--workers", "2", "-q")
    assert rows(bucket) == serial.records()
    # Another machine has no copy.
    remote.environment["KGBENCH_HOME"] = str(tmp_path / "another")
    assert "all 5 units are done" in remote.run("-q")
    assert remote.groups() == serial.groups()
    id = next(iter(serial.records()))
    assert main(["show", id[:16], "--output-dir", bucket.url]) == 0
    assert id[:12] in capsys.readouterr().out
    assert {found.record.id for found in RecordStore(folder_of(bucket.url)).scan()} == set(
        serial.records()
    )


def test_a_record_is_never_replaced(serial: Site, bucket: Bucket, tmp_path: Path) -> None:
    """Of two writers one wins, and what is cut off on the way is no record."""
    source = next((serial.folder / "records").glob("*/record.json")).parent
    id = json.loads((source / "record.json").read_text())["id"]
    one = Mirror(bucket.url, tmp_path / "one")
    one.write(f"{id[:2]}/{id}/facts.parquet", b"cut off")
    assert not one.has(id) and one.ids() == []
    one.push(id, source)
    before = bucket.files()
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in source.iterdir():
        (changed / path.name).write_bytes(path.read_bytes() + b" ")
    one._create(f"bucket/study/{id[:2]}/{id}/record.json", b"{}")
    Mirror(bucket.url, tmp_path / "two").push(id, changed)
    assert bucket.files() == before and one.ids() == [id]


def test_a_store_that_refuses(remote: Site, serial: Site, bucket: Bucket) -> None:
    """What is computed meanwhile is kept on this machine, and published by the same command."""
    (remote.faults / "receipt").touch()
    run = remote.start("-q")
    pid = remote.stopped("receipt")
    bucket.stop()
    os.kill(pid, signal.SIGCONT)
    assert "does not answer" in ended(run, status=2)
    bucket.start()
    remote.run("-q")
    assert rows(bucket) == serial.records()
    assert remote.groups() == serial.groups()


def test_a_store_that_is_silent(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts and never answers is given up."""
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    bucket.stop()
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", bucket.port))
        silent.listen()
        with pytest.raises(OutputError, match=r"does not answer.*the same command goes on"):
            RecordStore(folder_of(bucket.url)).check_writable()
