"""SLURM, by submitit: an array of jobs, one per bundle.

A job that is preempted, or ends with its node or its time, is queued again and goes on from the
journals and receipts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from kgbench.errors import InputError, first_line
from kgbench.runner.sweeps.engines import Launch, Pending, local, need
from kgbench.runner.sweeps.study import StudyUnit

LOGS = "units/slurm"
"""What jobs print, in the folder of records."""
MINUTES = 240
"""Time of a job, where the study's `engines` has none."""


class Bundle:
    """What a job runs."""

    def __init__(self, asked: Launch, units: Sequence[StudyUnit]) -> None:
        """Name the bundle.

        Args:
            asked: The launch that it is of.
            units: The units.
        """
        self.root, self.units, self.retry_failed = asked.root, units, asked.retry_failed
        self.processes = round(1 / asked.gpus) if 0 < asked.gpus < 1 else 1

    def __call__(self) -> None:
        """Compute what is left, in processes of their own that share the job's GPU.

        A process that is killed, as for want of memory, is begun again.
        """
        parts = [self.units[start :: self.processes] for start in range(self.processes)]
        local.run_on_local(
            Launch(self.root, list(filter(None, parts)), len(parts), self.retry_failed)
        )

    def checkpoint(self) -> Any:
        """The same bundle, for submitit to queue it again."""
        return need("submitit.helpers", "slurm").DelayedSubmission(self)


def run_on_slurm(asked: Launch) -> Pending:
    """Submit all bundles as one array, and return.

    Raises:
        InputError: There is no SLURM here, or it refuses an option.
    """
    submitit = need("submitit", "slurm")
    # A job's working directory may be another.
    asked = replace(asked, root=asked.root.resolve())
    options = {"time": MINUTES, **asked.options}
    if asked.gpus > 0:
        options.setdefault("gpus_per_node", ceil(asked.gpus))
    own = {f"slurm_{name}": value for name, value in options.items() if name in _TYPED}
    other = {name: value for name, value in options.items() if name not in _TYPED}
    try:
        executor = submitit.AutoExecutor(asked.root / LOGS / "%j", cluster="slurm")
        executor.update_parameters(
            slurm_job_name="kgbench",
            slurm_array_parallelism=asked.at_once,
            **own,
            slurm_additional_parameters={"requeue": True, **other},
        )
        with executor.batch():
            jobs = [executor.submit(Bundle(asked, units)) for units in asked.bundles]
        array = jobs[0].job_id.partition("_")[0]
    except (RuntimeError, ValueError, NameError, submitit.core.utils.FailedJobError) as error:
        raise InputError(f"SLURM: {first_line(error)}") from error
    what = f"{len(jobs)} jobs of SLURM, {array}, which write to {asked.root / LOGS}"
    return Pending(what, partial(_queued, array))


def _queued(array: str) -> bool:
    """Whether a job of an array runs or waits; the scheduler forgets those that have ended."""
    asked = ["squeue", "--noheader", "--jobs", array, "--format", "%T"]
    told = subprocess.run(asked, capture_output=True, text=True)
    return bool(told.stdout.strip())


_TYPED = frozenset(
    (
        "account",
        "constraint",
        "cpus_per_task",
        "exclude",
        "gpus_per_node",
        "gres",
        "mem",
        "partition",
        "qos",
        "setup",
        "time",
    )
)
"""Options of sbatch that submitit knows; others are passed on as they are."""
