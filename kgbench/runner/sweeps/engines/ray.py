"""Ray: a task per bundle; Ray runs a task again whose worker or node dies."""

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


def run_on_ray(asked: Launch) -> None:
    """Run all bundles on a cluster, and wait for them.

    Raises:
        InputError: Ray cannot be reached, refuses an option, or gives a bundle up.
    """
    ray = need("ray", "ray")
    options = dict(asked.options)
    address = options.pop("address", None) or os.environ.get("RAY_ADDRESS")
    ours = not ray.is_initialized()
    try:
        if ours and address is None:
            ray.init(num_cpus=asked.at_once, include_dashboard=False, log_to_driver=False)
        elif ours:
            ray.init(address=address, log_to_driver=False)
        share = {"num_cpus": 1, "max_retries": TRIES, **options}
        if asked.gpus > 0:
            share.setdefault("num_gpus", asked.gpus)
        task = ray.remote(**share)(_work)
        _wait(ray, task, asked)
    except (ray.exceptions.RayError, ConnectionError, ValueError, TypeError) as error:
        raise InputError(
            f"Ray: {first_line(error)}; what is finished is kept, and the same command goes on"
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _wait(ray: Any, task: Any, asked: Launch) -> None:
    """Hand out bundles, no more at once than asked for, until all have ended."""
    left, running, ended = list(asked.bundles), list[Any](), 0
    root, where = asked.root.resolve(), os.getcwd()
    while left or running:
        while left and len(running) < asked.at_once:
            running.append(task.remote(root, left.pop(0), asked.retry_failed, where))
        done, running = ray.wait(running, num_returns=1)
        ray.get(done)
        ended += len(done)
        if asked.ended is not None:
            asked.ended(ended)


def _work(root: Path, units: Sequence[StudyUnit], retry_failed: bool, where: str) -> None:
    # Paths in the study are seen from the folder in which it was launched.
    if os.path.isdir(where):
        os.chdir(where)
    work(root, units, retry_failed)
