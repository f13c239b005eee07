"""Processes of this machine: one per group of units, and several at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Lock

from kgbench.errors import InputError, OutputError
from kgbench.runner.sweeps.engines import Launch
from kgbench.runner.sweeps.study import StudyUnit
from kgbench.runner.sweeps.work import REFUSED

TRIES = 3
"""How often a group is begun whose process is killed."""


def run_on_local(launch: Launch) -> None:
    """Run all groups, and wait for them.

    Raises:
        OutputError: A record or a receipt could not be written.
        InputError: A group's process was killed again and again, as by a machine without memory.
    """
    if launch.options:
        raise InputError("engines: local has no options; give the number of processes by --workers")
    processes = _Processes(launch)
    with ThreadPoolExecutor(launch.at_once) as threads:
        try:
            running = [threads.submit(processes.run, group) for group in launch.groups]
            for number, _ in enumerate(as_completed(running), 1):
                if launch.ended is not None:
                    launch.ended(number)
        except BaseException:
            processes.stop()
            raise
    killed = list(filter(None, (each.result() for each in running)))
    if killed:
        raise InputError(
            f"{len(killed)} groups ended {TRIES} times before they were finished "
            f"(status {killed[0]}; on Linux -9 means killed, as for want of memory): give fewer "
            "--workers or a smaller batch-size; the same command goes on"
        )


class _Processes:
    """The processes that work on groups."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.lock, self.stopped = launch, Lock(), False
        self.started: list[subprocess.Popen[str]] = []

    def run(self, group: Sequence[StudyUnit]) -> int:
        """Run a group, again where its process is killed; gives the status of the last one.

        Raises:
            OutputError: A record or a receipt could not be written.
        """
        task = {
            "root": str(self.launch.root),
            "units": [dict(unit.options) for unit in group],
            "retry_failed": self.launch.retry_failed,
        }
        status = 0
        for _ in range(TRIES):
            process = self._started()
            if process is None:
                return 0
            answer, _ = process.communicate(json.dumps(task))
            status = process.returncode
            if status == REFUSED:
                raise OutputError(answer)
            if status == 0:
                break
        return status

    def _started(self) -> subprocess.Popen[str] | None:
        """A process that waits for its group; None once all are stopped."""
        # Not multiprocessing, which would run the caller's script again.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from kgbench.runner.sweeps.work import work_on_group; work_on_group()"
        )
        pipe = subprocess.PIPE
        with self.lock:
            if self.stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
            )
            self.started.append(process)
        return process

    def stop(self) -> None:
        """End all processes, and start no more; what they have finished is kept."""
        with self.lock:
            self.stopped = True
        for process in self.started:
            process.terminate()
