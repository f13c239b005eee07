"""All engines give the records of one process, to the byte, whatever is killed on the way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psutil
import pytest
from conftest import Site, Slurm, ended, kill, wait_for

UNITS, GROUPS = 5, 10
POINTS = ("start", "mid", "receipt")


def same(site: Site, serial: Site, faults: int = 0) -> None:
    """Nothing is lost, nothing is there twice, and little was computed twice.

    A group that was computed when a process was killed is computed again, and what another process
    finishes meanwhile is found.
    """
    assert site.records() == serial.records() and len(site.records()) == UNITS
    receipts = site.receipts()
    assert len(receipts) == UNITS and not [each for each in receipts if "error" in each]
    assert GROUPS <= site.groups() <= GROUPS + faults
    assert not list((site.folder / "records").glob(".partial/*/*.parquet"))


def test_a_study_is_computed_once(serial: Site) -> None:
    """The same command finds all units done."""
    before = serial.groups()
    assert "all 5 units are done" in serial.run("-q")
    assert serial.groups() == before == GROUPS


def test_local_processes(site: Site, serial: Site) -> None:
    """Two processes give the bytes of one."""
    site.run("--workers", "2", "-q")
    same(site, serial)


def test_two_launches_at_once(site: Site, serial: Site) -> None:
    """Two commands on one study share its work."""
    for launch in [site.start("-q"), site.start("-q")]:
        ended(launch)
    same(site, serial)


def test_killed_local_processes(site: Site, serial: Site) -> None:
    """A process killed at the start, in the middle or before the receipt of a unit is replaced."""
    run = site.start("--workers", "2", "-q")
    for point in POINTS:
        (site.faults / point).touch()
        kill(site.stopped(point))
    ended(run)
    same(site, serial, faults=len(POINTS))


def test_a_killed_command_goes_on(site: Site, serial: Site) -> None:
    """After kill -9 of all processes the same command goes on."""
    for point in POINTS:
        (site.faults / point).touch()
        run = site.start("-q")
        kill(site.stopped(point))
        ended(run, status=-9)
    site.run("-q")
    same(site, serial, faults=len(POINTS))


def test_slurm(site: Site, serial: Site, slurm: Slurm) -> None:
    """An array of jobs on two nodes gives the bytes of one process."""
    site.environment = slurm.environment
    told = site.run("--on", "slurm", "--workers", "2", "--watch", "-q")
    assert "jobs of SLURM" in told
    same(site, serial)


def test_killed_processes_on_slurm(site: Site, serial: Site, slurm: Slurm) -> None:
    """A process of a job that is killed is replaced."""
    site.environment = slurm.environment
    run = site.start("--on", "slurm", "--workers", "2", "--watch", "-q")
    for point in POINTS:
        (site.faults / point).touch()
        kill(site.stopped(point))
    ended(run)
    same(site, serial, faults=len(POINTS))


@pytest.mark.parametrize("point", POINTS)
def test_killed_nodes_on_slurm(site: Site, serial: Site, slurm: Slurm, point: str) -> None:
    """The job of a node that dies goes on at another."""
    site.environment = slurm.environment
    (site.faults / point).touch()
    run = site.start("--on", "slurm", "--workers", "2", "--watch", "-q")
    node = slurm.kill_node(site.stopped(point))
    ended(run)
    same(site, serial, faults=1)
    slurm.start(node)
    wait_for(slurm.idle, "two idle nodes")


def test_preempted_jobs_on_slurm(site: Site, serial: Site, slurm: Slurm) -> None:
    """A job that is told to leave is queued again and goes on where it was."""
    site.environment = slurm.environment
    (site.faults / "mid").touch()
    run = site.start("--on", "slurm", "--workers", "2", "--watch", "-q")
    pid = site.stopped("mid")
    job = psutil.Process(pid).environ()["SLURM_JOB_ID"]
    subprocess.run(["scancel", "--signal", "USR2", job], check=True, env=site.variables)
    kill(pid)
    ended(run)
    same(site, serial, faults=1)
    logs = (site.folder / "records" / "units" / "slurm").rglob("*.out")
    assert any("Requeued job" in path.read_text(encoding="utf-8") for path in logs)


@pytest.fixture
def ray_cluster() -> Iterator[object]:
    """Ray with two nodes of one processor each, and a head that computes nothing."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 10**8},
    )
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=10**8)
    yield made
    made.shutdown()


@pytest.fixture
def on_ray(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose processes are Ray's: they have the environment of the cluster."""
    for name in ("FAULTS", "PYTHONPATH", "OMP_NUM_THREADS", "KGBENCH_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, site.variables[name])
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    yield site


def test_ray(on_ray: Site, serial: Site, ray_cluster: object) -> None:
    """Tasks on two nodes give the bytes of one process."""
    on_ray.environment = {"RAY_ADDRESS": ray_cluster.address}  # type: ignore[attr-defined]
    on_ray.run("--on", "ray", "--workers", "2", "-q")
    same(on_ray, serial)


def test_killed_processes_on_ray(on_ray: Site, serial: Site, ray_cluster: object) -> None:
    """A task whose process is killed is run again."""
    on_ray.environment = {"RAY_ADDRESS": ray_cluster.address}  # type: ignore[attr-defined]
    run = on_ray.start("--on", "ray", "--workers", "2", "-q")
    for point in POINTS:
        (on_ray.faults / point).touch()
        kill(on_ray.stopped(point))
    ended(run)
    same(on_ray, serial, faults=len(POINTS))


@pytest.mark.parametrize("point", POINTS)
def test_killed_nodes_on_ray(on_ray: Site, serial: Site, ray_cluster: object, point: str) -> None:
    """A task whose node dies is run on another."""
    on_ray.environment = {"RAY_ADDRESS": ray_cluster.address}  # type: ignore[attr-defined]
    (on_ray.faults / point).touch()
    run = on_ray.start("--on", "ray", "--workers", "2", "-q")
    pid = on_ray.stopped(point)
    parent = psutil.Process(pid).ppid()
    for node in list(ray_cluster.worker_nodes):  # type: ignore[attr-defined]
        if node.all_processes["raylet"][0].process.pid == parent:
            ray_cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
    kill(pid)
    ended(run)
    same(on_ray, serial, faults=1)
