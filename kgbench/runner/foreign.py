"""Running localizers that are not kgbench's own: what they raise is told in a line, and a record of what they spoilt is not written."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kgbench.errors import InputError, KgbenchError
from kgbench.localizers import AbstractLocalizer
from kgbench.records import Journal
from kgbench.registry import frames_in, told
from kgbench.runner.job import Job
from kgbench.runner.pairs import Pairs

__all__ = ["blamed", "guarded"]


@contextmanager
def guarded(job: Job, journal: Journal, pairs: Pairs | None) -> Iterator[None]:
    """Run a localizer; where it is somebody else's and changes the models, nothing that was computed with them is used again.

    Args:
        job: The job.
        journal: Where its parts are kept.
        pairs: Where its models are kept, if anywhere.

    Raises:
        InputError: The localizer changes weights, or raises what is no `KgbenchError`.
    """
    if not _is_foreign(job.localizer):
        yield
        return
    changed: tuple[str, ...] = ()
    try:
        with blamed(job):
            yield
    finally:
        if changed := job.pair.changed():
            journal.discard()
            if pairs is not None:
                pairs.forget()
    if changed:
        raise InputError(
            f"localizer {job.localizer.name!r} changed the weights of the {' and the '.join(changed)}, so that no record is written; "
            f"run `kgbench check {job.spec.localizer}`"
        )


@contextmanager
def blamed(job: Job) -> Iterator[None]:
    """Tell in a line what somebody else's localizer raises.

    Raises:
        InputError: Instead of what the localizer's own code raised; an error of ours passes as it is.
    """
    try:
        yield
    except KgbenchError:
        raise
    except (Exception, SystemExit) as error:  # whatever an author's code raises
        frames = frames_in(error, Path(inspect.getfile(type(job.localizer)))) if _is_foreign(job.localizer) else []
        if not frames:
            raise
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        raise InputError(
            f"localizer {job.localizer.name!r}: {frames[0].name} raised {told(error)} ({where}); run `kgbench check {job.spec.localizer}`"
        ) from error


def _is_foreign(localizer: AbstractLocalizer) -> bool:
    return not type(localizer).__module__.startswith("kgbench.")
