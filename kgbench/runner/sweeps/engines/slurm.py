"""SLURM, by submitit: an array of jobs, one per group of units.

A job that is preempted, or ends with its node or its time, is queued again and goes on from the
journals and receipts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, first_line
from kgbench.runner.sweeps.engines import Launch, Pending, local, need
from kgbench.runner.sweeps.study import StudyUnit

LOGS = "units/slurm"
"""What jobs print, in the folder of records."""
MINUTES = 240
"""Time of a job, where the study's `engines` has none."""


@dataclass(frozen=True)
class Group:
    """What a job runs."""

    root: Path
    units: Sequence[StudyUnit]
    retry_failed: bool

    def __call__(self) -> None:
        """Compute what is left, in a process of its own.

        One that is killed, as for want of memory, is begun again.
        """
        local.run_on_local(Launch(self.root, [self.units], 1, self.retry_failed))

    def checkpoint(self) -> Any:
        """The same group, for submitit to queue it again."""
        return need("submitit.helpers", "slurm").DelayedSubmission(self)


def run_on_slurm(launch: Launch) -> Pending:
    """Submit all groups as one array, and return.

    Raises:
        InputError: There is no SLURM here, or it refuses an option.
    """
    submitit = need("submitit", "slurm")
    root = launch.root.resolve()  # a job's working directory may be another
    options = {"time": MINUTES, **launch.options}
    typed = {f"slurm_{name}": value for name, value in options.items() if name in _TYPED}
    other = {name: value for name, value in options.items() if name not in _TYPED}
    try:
        executor = submitit.AutoExecutor(root / LOGS / "%j", cluster="slurm")
        executor.update_parameters(
            slurm_job_name="kgbench",
            slurm_array_parallelism=launch.at_once,
            **typed,
            slurm_additional_parameters={"requeue": True, **other},
        )
        jobs = []
        with executor.batch():
            for units in launch.groups:
                jobs.append(executor.submit(Group(root, units, launch.retry_failed)))
        array = jobs[0].job_id.partition("_")[0]
    except (RuntimeError, ValueError, NameError, submitit.core.utils.FailedJobError) as error:
        raise InputError(f"SLURM: {first_line(error)}") from error
    what = f"{len(jobs)} jobs of SLURM, {array}, which write to {root / LOGS}"
    return Pending(what, partial(_queued, array))


def _queued(array: str) -> bool:
    """Whether a job of an array runs or waits; the scheduler forgets those that have ended."""
    call = ["squeue", "--noheader", "--jobs", array, "--format", "%T"]
    queue = subprocess.run(call, capture_output=True, text=True)
    return bool(queue.stdout.strip())


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
