"""The runs of the study one after the other; what is finished is never done again.

The rows of a finished run are one file in the study's folder. Weights and checkpoints are kept
apart from them, under the user's data folder. Several processes may work on one study: each takes a
run that no other is at.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from kgbench.data import load_dataset
from kgbench.errors import DataError
from kgbench.models.trained import donors_folder
from kgbench.reproduction.study.design import Study, StudyRun
from kgbench.reproduction.study.rows import RunRows, read_rows, rows_path, write_rows
from kgbench.reproduction.study.run import make_run
from kgbench.training.builds import Progress

__all__ = ["finished", "make_runs", "work_folder"]


def work_folder() -> Path:
    """Where weights and checkpoints of the runs are kept."""
    return donors_folder().parent / "reproduction" / "study"


def finished(study: Study, folder: Path) -> list[RunRows]:
    """The rows of the runs that are in, in the order of the design.

    Raises:
        DataError: A file is none of this design.
    """
    facts = load_dataset(study.dataset).content_hash
    found = []
    for run in study.runs:
        path = rows_path(folder, run.name)
        if path.is_file():
            rows = read_rows(path)
            if rows.about.identity != study.identity(run, facts):
                raise DataError(
                    f"{path} is of another design than this one (factors, recipe or facts); "
                    "remove it to have the run made again, or give another folder with --report"
                )
            found.append(rows)
    return found


def make_runs(
    study: Study,
    runs: Sequence[StudyRun],
    folder: Path,
    most: int | None = None,
    progress: Progress | None = None,
    on_run: Callable[[RunRows], None] | None = None,
) -> int:
    """Make the runs that are missing.

    Args:
        study: The design.
        runs: Which of its runs, in this order.
        folder: Of the rows.
        most: How many at most; by default all.
        progress: Progress callback.
        on_run: Called with the rows of each run that is made, when they are stored.

    Returns:
        How many were made.

    Raises:
        DataError: A file in the folder is none of this design.
    """
    finished(study, folder)
    made = 0
    for run in runs:
        if made == most:
            break
        work, path = work_folder() / run.name, rows_path(folder, run.name)
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work.with_name(f"{run.name}.lock"))
        try:
            with lock.acquire(timeout=0):
                if path.is_file():
                    continue
                rows = make_run(study, run, work, progress)
                write_rows(rows, path)
        except Timeout:
            continue  # another process is at it
        gc.collect()  # a trainer and its model refer to each other
        made += 1
        if on_run is not None:
            on_run(rows)
    return made
