"""Studies in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kgbench.api.evaluation import Evaluation, open_run
from kgbench.errors import python_names
from kgbench.progress import Progress, with_progress
from kgbench.records.mirror import folder_of
from kgbench.report import to_html, to_text
from kgbench.sweeps.engines import Pending
from kgbench.sweeps.plan import StudyPlan, run_study
from kgbench.sweeps.study import read_study, study_of

__all__ = ["Sweep", "sweep"]


class Sweep:
    """A study and what is done of it. In a notebook it shows as a table."""

    def __init__(self, plan: StudyPlan, submitted: Sequence[Pending] = ()) -> None:
        """Take up what is done.

        Args:
            plan: The study.
            submitted: What an engine goes on with.
        """
        self.plan, self.submitted = plan, submitted

    def status(self) -> Sweep:
        """The same study and what is done by now."""
        return Sweep(StudyPlan(self.plan.study, self.plan.root), self.submitted)

    @property
    def units(self) -> list[dict[str, Any]]:
        """A mapping per unit: `options`, `state`, and `record`, `error`, `seconds`, `host`."""
        units: list[dict[str, Any]] = self.plan.to_json()["units"]
        return units

    @property
    def going(self) -> bool:
        """Whether an engine that this call submitted to still has anything to do."""
        return any(each.going() for each in self.submitted)

    @property
    def done(self) -> bool:
        """Whether every unit is done."""
        return all(state.word == "done" for state in self.plan.states)

    def runs(self) -> Iterator[Evaluation]:
        """The runs of all units that are done."""
        for state in self.plan.states:
            if state.word == "done" and state.receipt is not None and state.receipt.record:
                yield open_run(state.receipt.record, self.plan.root)

    def __repr__(self) -> str:
        return to_text(self.plan.status())

    def _repr_html_(self) -> str:
        return to_html(self.plan.status())


@python_names()
def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any],
    on: str = "local",
    *,
    workers: int = 1,
    part: tuple[int, int] | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    progress: Progress | bool = True,
) -> Sweep:
    """Compute a study: many evaluations, each once, wherever it is launched.

    What is done is not done again, so that the same call goes on after any interruption.

    Args:
        study: A YAML file, or what it holds: `matrix`, `include`, `exclude`, `output_dir`,
            `shards`, `gpu_memory`, `engines`, and any option of `kgbench eval`.
        on: Engine: `local`, `slurm` or `ray`. SLURM goes on after the call; see `Sweep.status`.
        workers: Bundles that run at once.
        part: The k-th of n parts of all units, from 1, in this process.
        retry_failed: Whether to compute units that failed again.
        dry_run: Compute nothing.
        progress: A callback, True for a bar, False for none.

    Returns:
        The study and what is done of it; a unit that failed stops no other, and has its reason.

    Raises:
        InputError: The study or the engine is wrong.
    """
    read = study_of(study) if isinstance(study, Mapping) else read_study(Path(study))
    plan = StudyPlan(read, folder_of(read.output_dir))
    if dry_run:
        return Sweep(plan)
    submitted = with_progress(
        progress,
        lambda report: run_study(
            plan, on, workers=workers, part=part, retry_failed=retry_failed, announce=report
        ),
    )
    return Sweep(StudyPlan(read, plan.root), submitted)
