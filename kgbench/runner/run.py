"""Run a job: find its record, or compute it group by group."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench import __version__
from kgbench.errors import InputError
from kgbench.localizers import is_foreign
from kgbench.records import Journal, Record, RecordStore, code_stamp, other_versions
from kgbench.runner.assembly import make_record, on_metric
from kgbench.runner.job import prepare_job
from kgbench.runner.measure import GROUP, Measurement, run_group
from kgbench.runner.pairs import Pairs
from kgbench.runner.ranking import Progress
from kgbench.runner.ready import ready
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import guarded, isolated
from kgbench.runner.workload import check
from kgbench.sites import split_grafts

__all__ = ["Progress", "Run", "compute_job", "evaluate", "run_job"]


@dataclass(frozen=True)
class Run:
    """A record, where it is stored, and whether it was computed."""

    record: Record
    path: Path
    """Its folder."""
    reused: bool
    """Whether it was there already, so that nothing was computed."""

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench eval --json` prints."""
        return self.record.answer(str(self.path))


def run_job(
    spec: Spec, settings: Settings, progress: Progress | None = None, pairs: Pairs | None = None
) -> Run:
    """Evaluate a localizer, or find that this was done before.

    A localizer that is not kgbench's own runs in a process of its own, which loads its own models.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: The specification is wrong, before anything is computed; or a third-party
            localizer fails, or changes the models.
    """
    if is_foreign(spec.localizer):
        check(spec)
        if pairs is not None:
            pairs.forget()  # there may be no room for the models twice
        return isolated(spec.localizer, compute_job, spec, settings, progress=progress)
    return compute_job(spec, settings, progress, pairs)


def compute_job(
    spec: Spec, settings: Settings, progress: Progress | None = None, pairs: Pairs | None = None
) -> Run:
    """Evaluate a localizer in this process, whoever wrote it.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: As of `run_job`.
    """
    store = RecordStore(settings.output_dir)
    store.check_writable()
    job = prepare_job(spec, settings, pairs)
    if (found := store.find(job.identity.digest())) is not None:
        if (versions := other_versions(found.record.provenance, __version__)) is not None:
            warnings.warn(f"{versions}; to compute it again, delete {found.path}", stacklevel=2)
        return Run(on_metric(job, found.record, found.facts()), found.path, reused=True)
    localizer = job.identity.localizer
    code = f"{code_stamp(__version__)}, {localizer.name} {localizer.version}"
    journal = store.journal(job.identity.digest(), code)
    with guarded(job, journal, pairs):
        measurement = ready(job, journal, progress)
        _compute(measurement, journal, progress)
    if changed := job.pair.changed_files():
        journal.discard()
        if pairs is not None:
            pairs.forget()
        raise InputError(
            f"{' and '.join(changed)} changed on disk during the run, so that no record is "
            "written; run it again when whole"
        )
    record = make_record(measurement, journal)
    path = store.write(record, journal.table(), searched=True)
    journal.discard()
    return Run(record, path, reused=False)


def evaluate(
    model: str | None = None,
    *,
    localizer: str = "dynamic_graft",
    prompts: str | Sequence[str] = (),
    output_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Record:
    """Evaluate a localizer on a model pair.

    Args:
        model: A pair of the catalog; otherwise give `recipient` and `donors`.
        localizer: A registered name, or `path/to/file.py:Class`.
        prompts: Evaluation prompts by name; by default the suite's.
        output_dir: Where records are kept; by default `kgbench-results` in the working directory.
        progress: Progress callback.
        **options: Further fields of `Spec` and `Settings`, such as `limit`, `suite`, `dataset`,
            `seed`, `batch_size`, `executor`; `grafts` is a list of graft expressions, or a text
            of several with commas.

    Raises:
        InputError: Something is wrong with what was given.
    """
    settings = ("batch_size", "device", "executor", "attention", "device_map", "stream_donors")
    how: dict[str, Any] = {name: options.pop(name) for name in settings if name in options}
    if "grafts" in options:
        grafts = options["grafts"]
        options["grafts"] = split_grafts(grafts) if isinstance(grafts, str) else tuple(grafts)
    if output_dir is not None:
        how["output_dir"] = Path(output_dir)
    names = (prompts,) if isinstance(prompts, str) else tuple(prompts)
    spec = Spec(model=model, localizer=localizer, prompts=names, **options)
    return run_job(spec, Settings(**how), progress).record


def _compute(measurement: Measurement, journal: Journal, progress: Progress | None) -> None:
    """Run what the journal does not hold yet, group by group."""
    job = measurement.job
    total, done = len(job.all_prompts), len(journal.finished())
    for name, prompts in job.prompts.items():
        left = [p for p in prompts if (name, p.fact.id) not in journal.finished()]
        for start in range(0, len(left), GROUP):
            if progress is not None:
                progress(done, total, name)
            group = left[start : start + GROUP]
            journal.append(*run_group(measurement, group))
            done += len(group)
    if progress is not None:
        progress(total, total, "intervals")
