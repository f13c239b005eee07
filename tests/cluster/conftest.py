"""Real clusters on one machine: SLURM and Ray with two nodes each, and an S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"
WAIT_S = 600.0
"""A cluster that has done nothing for so long is broken."""

STUDY: dict[str, Any] = {
    "matrix": {"model": ["tiny-gemma", "tiny-gpt2"], "localizer": ["dynamic_graft", "all"]},
    "include": [{"model": "tiny-gemma", "localizer": "weight_delta", "suite": "budget"}],
    "prompt": "headline",
    "limit": 66,
}
"""Five units of two groups of prompts each; one ranks sites."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray and moto leave sockets and threads to the garbage collector."""
    for name in ("PytestUnraisableExceptionWarning", "PytestUnhandledThreadExceptionWarning"):
        for item in items:
            item.add_marker(pytest.mark.filterwarnings(f"default::pytest.{name}"))


@dataclass
class Site:
    """A folder with a study, and what its processes see."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        """Its file."""
        return self.folder / "study.yaml"

    @property
    def faults(self) -> Path:
        """Where points are armed."""
        return self.folder / "faults"

    def write(self, **changes: Any) -> None:
        """Write the study, with some keys changed."""
        self.faults.mkdir(exist_ok=True)
        content = {**STUDY, "output_dir": str(self.folder / "records"), **changes}
        self.study.write_text(yaml.safe_dump(content), encoding="utf-8")

    @property
    def variables(self) -> dict[str, str]:
        """Environment of its processes."""
        paths = os.pathsep.join([str(FAULTS), str(ROOT), os.environ.get("PYTHONPATH", "")])
        own = {"FAULTS": str(self.faults), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        own |= {"KGBENCH_HOME": str(self.folder / "home"), "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **own, **self.environment}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin `kgbench sweep …` on the study."""
        call = [sys.executable, "-m", "kgbench", "sweep", str(self.study)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*call, *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run `kgbench sweep …` on the study to its end; gives what it printed."""
        return ended(self.start(*arguments), status)

    def records(self) -> dict[str, str]:
        """Hash of the rows of each record, by id; no id has two."""
        found: dict[str, str] = {}
        for path in (self.folder / "records").glob("*/record.json"):
            id = json.loads(path.read_text(encoding="utf-8"))["id"]
            assert id not in found
            found[id] = sha256((path.parent / "facts.parquet").read_bytes()).hexdigest()
        return found

    def receipts(self) -> list[dict[str, Any]]:
        """All receipts."""
        found = []
        for path in sorted((self.folder / "records" / "units").glob("*.json")):
            found.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    def groups(self) -> int:
        """Groups of prompts that were computed, those done twice counted twice."""
        return len((self.faults / "groups").read_text(encoding="utf-8").splitlines())

    def stopped(self, point: str) -> int:
        """Wait until a process stops at a point that was armed; gives its id."""
        return wait_for(lambda: self._stopped(point), f"a process at {point}")

    def _stopped(self, point: str) -> int | None:
        for path in self.faults.glob(f"{point}-*"):
            pid = int(path.name.rpartition("-")[2])
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    path.rename(path.with_name(f"done-{path.name}"))
                    return pid
        return None


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """What a process printed, once it has ended as expected."""
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, f"{out}\n{errors}"
    return out + errors


def wait_for(asked: Callable[[], Any], what: str) -> Any:
    """The first answer that is true."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if answer := asked():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited for {what}")


def kill(*pids: int) -> None:
    """SIGKILL, to processes that may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A folder for a study."""
    made = Site(tmp_path)
    made.write()
    return made


@pytest.fixture(scope="session")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The study, computed by one process."""
    made = Site(tmp_path_factory.mktemp("serial"))
    made.write()
    made.run("-q")
    return made


@dataclass
class Slurm:
    """A SLURM of two nodes on this machine."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What finds it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, node: str) -> None:
        """Start a node."""
        call = ["slurmd", "-f", str(self.folder / "slurm.conf"), "-N", node]
        subprocess.run(call, check=True, env={**os.environ, **self.environment})

    def idle(self) -> bool:
        """Whether both nodes can take jobs."""
        return self.states() == ["idle", "idle"]

    def states(self) -> list[str]:
        """States of the nodes."""
        call = ["sinfo", "--noheader", "--Node", "--format", "%T"]
        told = subprocess.run(
            call, capture_output=True, text=True, env={**os.environ, **self.environment}
        )
        return told.stdout.split()

    def kill_node(self, pid: int) -> str:
        """Kill the node on which a process runs, with all that runs there; gives its name."""
        name = psutil.Process(pid).environ()["SLURMD_NODENAME"]
        daemon = int((self.folder / f"slurmd.{name}.pid").read_text())
        doomed = [daemon]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == name or (
                    "slurmstepd" in process.name() and self._runs_on(process, name)
                ):
                    doomed.append(process.pid)
        kill(*doomed)
        return name

    @staticmethod
    def _runs_on(step: psutil.Process, name: str) -> bool:
        for child in step.children(recursive=True):
            with suppress(psutil.Error):
                if child.environ().get("SLURMD_NODENAME") == name:
                    return True
        return False


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A SLURM of two nodes with one processor each, that listens on the loopback device alone."""
    # Paths of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    for name in ("state", "log", "munge", "spool.n1", "spool.n2"):
        (folder / name).mkdir(mode=0o755)
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    ports = _free_ports(3)
    text = (Path(__file__).parent / "slurm.conf").read_text(encoding="utf-8")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    values = {"folder": folder, "user": user, "host": socket.gethostname().partition(".")[0]}
    values |= {"controller": ports[0], "first": ports[1], "second": ports[2]}
    (folder / "slurm.conf").write_text(text.format_map(values), encoding="utf-8")
    munge = folder / "munge"
    subprocess.run(
        [
            *("munged", "--force", f"--key-file={key}", f"--socket={munge}/sock"),
            *(f"--pid-file={munge}/pid", f"--log-file={folder}/log/munged"),
            f"--seed-file={munge}/seed",
        ],
        check=True,
    )
    made = Slurm(folder)
    environment = {**os.environ, **made.environment}
    subprocess.run(["slurmctld", "-f", str(folder / "slurm.conf")], check=True, env=environment)
    for node in ("n1", "n2"):
        made.start(node)
    wait_for(made.idle, "two idle nodes")
    yield made
    for path in (*folder.glob("*.pid"), munge / "pid"):
        with suppress(OSError, ValueError):
            kill(int(path.read_text()))
    shutil.rmtree(folder, ignore_errors=True)


def _free_ports(number: int) -> list[int]:
    held = [socket.socket() for _ in range(number)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of an S3 server on this machine."""
    made = Bucket(_free_ports(1)[0])
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # those of another server
    made.start()
    made.create()
    yield made
    made.stop()


class Bucket:
    """A bucket, whose server can be stopped and started with all that it holds."""

    url = "s3://bucket/study"

    def __init__(self, port: int) -> None:
        self.port, self.server = port, None

    @property
    def environment(self) -> dict[str, str]:
        """What finds it; a server that does not answer is given up soon."""
        config = {"read_timeout": 2, "connect_timeout": 2, "retries": {"max_attempts": 1}}
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "FSSPEC_S3": json.dumps({"config_kwargs": config}),
        }

    def start(self) -> None:
        """Start the server."""
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self.server.start()

    def stop(self) -> None:
        """Stop the server; what it holds is kept."""
        if self.server is not None:
            self.server.stop()
        self.server = None

    def create(self) -> None:
        """Create the bucket, empty."""
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=self.environment["AWS_ENDPOINT_URL"])
        with suppress(FileNotFoundError):
            system.rm("bucket", recursive=True)
        with suppress(FileExistsError):
            system.mkdir("bucket")

    def files(self) -> dict[str, bytes]:
        """All that it holds."""
        import s3fs

        system = s3fs.S3FileSystem(
            endpoint_url=self.environment["AWS_ENDPOINT_URL"], use_listings_cache=False
        )
        return {path: system.cat_file(path) for path in system.find("bucket")}
