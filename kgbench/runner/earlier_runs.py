"""Records of earlier runs, found again without loading a model.

The identity of a record holds hashes of weights, which only models that are loaded have. So a run
notes which identity it had, in the user's cache, under all that the identity follows from: what
was asked, the code, the machine, and the state of every file of the pair. A note counts only as
long as all of that is the same. No note is made of models in memory or of the Hub, of adapters, of
third-party localizers, and of files that were written just before.
"""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import platformdirs

from kgbench.data import prompt_hash
from kgbench.errors import KgbenchError
from kgbench.localizers import is_foreign
from kgbench.models.catalog import is_delta, read_delta_card, zoo_path
from kgbench.records import (
    Record,
    RecordStore,
    StoredRecord,
    code_stamp,
    other_versions,
    write_whole,
)
from kgbench.records.provenance import package_versions
from kgbench.runner.lookup import Workload, check
from kgbench.runner.sources import Sources, checkpoint_folder, note_sources
from kgbench.runner.spec import Held, Settings, Spec
from kgbench.stats import rescored
from kgbench.stats.answer_frequency import priors_of
from kgbench.stats.scores import check_metric

FRESH_NS = 2_000_000_000
"""A file that changed so shortly before may change again within one step of its clock.

The coarsest file systems count in two seconds.
"""

_ADAPTER = "adapter_config.json"


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


def known_run(spec: Spec, settings: Settings) -> Run | None:
    """The run of a specification that was made before, where that is known without its models.

    Raises:
        InputError: The specification is wrong.
    """
    work = check(spec)
    identity = known_identity(work, settings)
    stored = None if identity is None else RecordStore(settings.output_dir).find(identity)
    return None if stored is None else reused(work, settings, stored)


def known_identity(work: Workload, settings: Settings) -> str | None:
    """Digest of the identity of a run, where it is known without loading its models."""
    if work.held != Held():
        return None
    try:
        state, identity = _note(work, settings).read_text("utf-8").split()
    except (OSError, ValueError):
        return None
    return identity if state == files_state(work.sources) else None


def note_identity(work: Workload, settings: Settings, state: str | None, identity: str) -> None:
    """Note the identity of a run; nothing depends on it, and a full disk is no error.

    Args:
        work: What was asked.
        settings: How.
        state: Of the pair's files before they were read, see `files_state`; None for no note.
        identity: Digest of the identity.
    """
    if state is None or work.held != Held() or is_foreign(work.localizer_name):
        return
    path = _note(work, settings)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{state} {identity}\n".encode())


def reused(work: Workload, settings: Settings, stored: StoredRecord) -> Run:
    """A record that was computed before, on the metric that is asked for now.

    Warns where other versions computed it.
    """
    note_sources(work.sources, work.held, settings, stored.path)
    if (versions := other_versions(stored.record.provenance)) is not None:
        warnings.warn(f"{versions}; to compute it again, delete {stored.path}", stacklevel=2)
    record, dropped = stored.record, dict(work.dataset.dropped)
    if record.answers is None or record.dropped != dropped:
        record = rescored(record.model_copy(update={"dropped": dropped}), stored.facts())
    metric = work.metric or priors_of(record).usual_metric
    if record.metric != check_metric(metric):
        record = rescored(record, stored.facts(), metric)
    return Run(record, stored.path, reused=True)


def _note(work: Workload, settings: Settings) -> Path:
    """The file of a note, named by what an identity follows from besides the pair's files.

    The metric of the ratios is no part of it.
    """
    readout = ""
    if work.readout is not None:
        from kgbench.readouts import readout_code  # which loads torch

        readout = readout_code(work.readout)
    variables = sorted(os.environ.items())
    visible = [f"{name}={value}" for name, value in variables if name.endswith("VISIBLE_DEVICES")]
    question = {
        **vars(replace(work, metric=None, expected={})),
        "settings": replace(settings, output_dir=Path(), on_record=None),
        "dataset": [work.dataset.name, work.dataset.content_hash, len(work.dataset.facts)],
        "prompts": {name: prompt_hash(name, work.dataset) for name in work.prompts},
        "code": [code_stamp(), package_versions()],
        "readout code": readout,
        # What decides which device is taken by default, as far as that shows without torch.
        "machine": [platform.node(), *visible, *map(str, sorted(Path("/dev").glob("nvidia*")))],
    }
    text = json.dumps(question, sort_keys=True, default=repr)
    cache = platformdirs.user_cache_path("kgbench", appauthor=False)
    return cache / "known" / sha256(text.encode()).hexdigest()


def files_state(sources: Sources, now_ns: int | None = None) -> str | None:
    """SHA-256 over name, inode, size and times of all files of a pair's checkpoints.

    It is another one whenever a file was written, replaced, removed or added. None where the pair
    is not in folders of this machine alone, and where a file has just changed.

    Args:
        sources: Name the pair.
        now_ns: The time, in nanoseconds since 1970; by default now.
    """
    now = time.time_ns() if now_ns is None else now_ns
    files: list[list[object]] = []
    named = [sources.recipient, *sources.donors.values()]
    try:
        if (entry := sources.entry) is not None:
            named += [entry.recipient, *entry.donors.values()]
        for source in sorted({source for source in named if source is not None}):
            folder = checkpoint_folder(source)
            if not folder.is_dir() or (folder / _ADAPTER).exists():
                return None
            for path in _files(folder):
                at = path.stat()
                if max(at.st_mtime_ns, at.st_ctime_ns) > now - FRESH_NS:
                    return None
                times = [at.st_mtime_ns, at.st_ctime_ns]
                files.append([source, path.name, at.st_dev, at.st_ino, at.st_size, *times])
    except (OSError, KgbenchError):  # what is wrong with a checkpoint is said where it is loaded
        return None
    return sha256(json.dumps(files).encode()).hexdigest() if files else None


def _files(folder: Path) -> Iterator[Path]:
    """Files of a checkpoint's folder and, of changed weights, those of their base."""
    yield from sorted(folder.iterdir())
    yield from sorted(folder.glob("additional_chat_templates/*"))
    if is_delta(folder):
        base = str(read_delta_card(folder)["recipient"]["source"])
        beside = folder.parent / PurePath(base).name
        yield from sorted((zoo_path(base) or beside).iterdir())
