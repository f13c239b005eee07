"""Processes of this machine, each with a bundle at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock

from kgbench.errors import InputError, OutputError
from kgbench.runner.sweeps.engines import Launch
from kgbench.runner.sweeps.study import StudyUnit

TRIES = 3
"""How often a bundle is begun whose process is killed."""


def run_on_local(asked: Launch) -> None:
    """Run all bundles, and wait for them.

    Raises:
        OutputError: A record or a receipt could not be written.
        InputError: A bundle's process was killed again and again, as by a machine without memory.
    """
    if asked.options:
        raise InputError("engines: local has no options; give the number of processes by --workers")
    slots = _Slots(asked)
    with ThreadPoolExecutor(asked.at_once) as threads:
        try:
            running = [threads.submit(slots.serve) for _ in range(asked.at_once)]
            wait(running)
        except BaseException:
            slots.stop()
            raise
        for each in running:
            each.result()
    if slots.refused:
        raise OutputError(slots.refused[0])
    if slots.killed:
        raise InputError(
            f"{len(slots.killed)} bundles ended {TRIES} times before they were finished "
            f"(status {slots.killed[0]}; on Linux -9 means killed, as for want of memory): give "
            "fewer --workers or a smaller batch-size; the same command goes on"
        )


class _Slots:
    """Bundles that are left, and the processes that work on them."""

    def __init__(self, asked: Launch) -> None:
        self.asked = asked
        self.left = deque((bundle, 1) for bundle in asked.bundles)
        self.lock, self.stopped, self.finished = Lock(), False, 0
        self.processes: list[subprocess.Popen[str]] = []
        self.killed: list[int] = []
        self.refused: list[str] = []

    def serve(self) -> None:
        """Give one process after the other bundle; a process that dies is replaced."""
        process: subprocess.Popen[str] | None = None
        while True:
            with self.lock:
                if not self.left or self.stopped:
                    break
                bundle, tries = self.left.popleft()
            process = process or self._started()
            done = self._answered(process, bundle)
            status = 0 if done else process.wait()
            process = process if done else None
            with self.lock:
                if done:
                    self.finished += 1
                    if self.asked.ended is not None:
                        self.asked.ended(self.finished)
                elif tries < TRIES:
                    self.left.append((bundle, tries + 1))
                elif not self.stopped:
                    self.killed.append(status)
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def _started(self) -> subprocess.Popen[str]:
        # Not multiprocessing, which would run the caller's script again.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from kgbench.runner.sweeps.work import serve_bundles; serve_bundles()"
        )
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, encoding="utf-8"
        )
        with self.lock:
            self.processes.append(process)
        return process

    def _answered(self, process: subprocess.Popen[str], bundle: Sequence[StudyUnit]) -> bool:
        """Whether a process has ended a bundle, rather than died."""
        assert process.stdin is not None and process.stdout is not None
        asked = {
            "root": str(self.asked.root),
            "units": [[dict(unit.options), unit.command] for unit in bundle],
            "retry_failed": self.asked.retry_failed,
        }
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
        except OSError:
            return False
        answer = process.stdout.readline()
        if not answer:
            return False
        if error := json.loads(answer)["error"]:
            self.refused.append(error)
        return True

    def stop(self) -> None:
        """End all processes; what they have finished is kept."""
        with self.lock:
            self.stopped = True
            self.left.clear()
        for process in self.processes:
            with suppress(OSError):
                process.terminate()
