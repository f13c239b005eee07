"""Ray: a task per group of units; Ray runs a task again whose worker or node dies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, first_line
from kgbench.runner.sweeps.engines import Launch, need
from kgbench.runner.sweeps.study import StudyUnit
from kgbench.runner.sweeps.work import work

TRIES = 3
"""How often a task is begun again whose worker or node dies."""


def run_on_ray(launch: Launch) -> None:
    """Run all groups on a cluster, and wait for them.

    Raises:
        InputError: Ray cannot be reached, refuses an option, or gives a group up.
    """
    ray = need("ray", "ray")
    options = dict(launch.options)
    address = options.pop("address", None) or os.environ.get("RAY_ADDRESS")
    ours = not ray.is_initialized()
    try:
        if ours and address is None:
            ray.init(num_cpus=launch.at_once, include_dashboard=False, log_to_driver=False)
        elif ours:
            ray.init(address=address, log_to_driver=False)
        _run(ray, ray.remote(**{"num_cpus": 1, "max_retries": TRIES, **options})(_work), launch)
    except (ray.exceptions.RayError, ConnectionError, ValueError, TypeError) as error:
        raise InputError(
            f"Ray: {first_line(error)}; what is finished is kept, and the same command goes on"
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, task: Any, launch: Launch) -> None:
    """Hand out groups, no more at once than there are workers, until all have ended."""
    left, running = list(launch.groups), list[Any]()
    root, where = launch.root.resolve(), os.getcwd()
    while left or running:
        while left and len(running) < launch.at_once:
            running.append(task.remote(root, left.pop(0), launch.retry_failed, where))
        done, running = ray.wait(running, num_returns=1)
        ray.get(done)
        if launch.ended is not None:
            launch.ended(len(launch.groups) - len(left) - len(running))


def _work(root: Path, units: Sequence[StudyUnit], retry_failed: bool, where: str) -> None:
    # Paths in the study are seen from the folder in which it was launched.
    if os.path.isdir(where):
        os.chdir(where)
    work(root, units, retry_failed)
