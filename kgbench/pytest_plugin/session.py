"""What one process of a session evaluates: one pair, loaded once, and the records that came of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kgbench.errors import InputError, KgbenchError
from kgbench.pytest_plugin.options import MANY, ONE, Given

if TYPE_CHECKING:
    from kgbench.data import Dataset, Prompt
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record, StoredRecord
    from kgbench.runner import Pairs, Run, Settings, Spec
    from kgbench.runner.watch import Watch

__all__ = ["Session", "existing_session", "in_a_line", "in_pytest_words", "is_worker", "session_of"]

_QUOTED = re.compile(r"""(`kgbench [^`]*`|'kgbench [^']*'|"kgbench [^"]*")""")
"""Commands of kgbench's own, whose options stay theirs."""
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join((*ONE, *MANY))})\b")


@dataclass
class Session:
    """What one process evaluates."""

    config: pytest.Config
    records: dict[str, Record] = field(default_factory=dict)
    """All that the fixture made and assertions looked at, by id."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Of records, by id, as far as it is known where they lie."""
    own: dict[str, object] = field(default_factory=dict)
    """What kgbench's own fixtures gave, by name."""
    watch: Watch | None = None
    """What the localizer must not change, as long as a fixture gives it."""

    @cached_property
    def given(self) -> Given:
        """The options."""
        return Given(self.config)

    @cached_property
    def spec(self) -> Spec:
        """What is to be evaluated.

        Raises:
            InputError: A value does not read.
        """
        return self.given.spec()

    @cached_property
    def pairs(self) -> Pairs:
        """Where the pair is loaded."""
        from kgbench.runner import Pairs

        return Pairs()

    @cached_property
    def facts(self) -> Dataset:
        """The facts, as many as the limit allows."""
        from kgbench.runner.workload import job_dataset

        if self.spec.dataset is None:
            self._check_model()
        if self.spec.dataset is None and self.spec.model is None:
            raise InputError(
                "which facts did the donor learn? Give --kgbench-dataset NAME|FILE, or kgbench_dataset in the ini file"
            )
        dataset = job_dataset(self.spec)
        return (
            dataset
            if self.spec.limit is None
            else dataset.subset(fact.id for fact in dataset.facts[: self.spec.limit])
        )

    def prompts(self) -> list[Prompt]:
        """The facts in all prompts."""
        from kgbench.runner.workload import job_prompts

        return [prompt for some in job_prompts(self.spec, self.facts).values() for prompt in some]

    def pair(self) -> ModelPair:
        """The models, loaded once."""
        self._check()
        return self.pairs.load(self.spec, self._settings(Path()))

    def evaluate(self, temporary: Path) -> Record:
        """The record of the whole run: found in the folder of records, or computed.

        Args:
            temporary: A folder of this process alone.
        """
        self._check()
        from kgbench.records import DamagedRecordWarning
        from kgbench.runner import run_job

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DamagedRecordWarning
            )  # the end of the session tells of them
            run = run_job(self.spec, self._settings(self._output(temporary)), pairs=self.pairs)
            self.folders[run.record.id] = self._keep(run)
        self.records[run.record.id] = run.record
        return run.record

    def _keep(self, run: Run) -> Path:
        """Put a record at once where it outlives the process."""
        from kgbench.records import RecordStore
        from kgbench.records.store import read_record

        save = self.given.path("save")
        if save is None or run.path.parent == save:
            return run.path
        stored = read_record(run.path)
        return RecordStore(save).write(stored.record, stored.facts())

    @cached_property
    def baseline(self) -> list[StoredRecord]:
        """The saved records that figures are compared with, as they were before this session wrote any.

        Raises:
            InputError: There are none where they were said to be.
        """
        from kgbench.pytest_plugin.comparison import saved_records

        path = self.given.path("compare-fail")
        return [] if path is None else saved_records(path)

    def _output(self, temporary: Path) -> Path:
        """Where to compute: in the folder of records, but never two processes of a session in the same."""
        save = self.given.path("save")
        if save is None or (is_worker(self.config) and not self._is_saved(save)):
            return temporary
        return save

    def _is_saved(self, save: Path) -> bool:
        from kgbench.records import RecordStore
        from kgbench.runner.job import prepare_job

        store = RecordStore(save)
        store.check_writable()
        identity = prepare_job(self.spec, self._settings(save), self.pairs).identity
        return store.find(identity.digest()) is not None

    def _settings(self, output: Path) -> Settings:
        from kgbench.runner import Settings

        return Settings(output_dir=output)

    def _check(self) -> None:
        """Find mistakes before anything heavy is loaded."""
        from kgbench.runner import check

        self._check_model()
        _ = self.facts, self.baseline
        check(self.spec)

    def _check_model(self) -> None:
        if self.spec.model is None and self.spec.recipient is None:
            raise InputError(
                "which model? Give --kgbench-model NAME (see `kgbench ls models`), or --kgbench-recipient PATH with "
                "--kgbench-donor sft=PATH; or kgbench_model in the ini file"
            )


_KEY = pytest.StashKey[Session]()


def session_of(config: pytest.Config) -> Session:
    """The session of this process."""
    return config.stash.setdefault(_KEY, Session(config))


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of several processes that pytest-xdist spreads the tests over."""
    return hasattr(config, "workerinput")


def existing_session(config: pytest.Config) -> Session | None:
    """The session of this process; None where nothing of kgbench was used."""
    return config.stash.get(_KEY, None)


@contextmanager
def in_a_line() -> Iterator[None]:
    """Tell an error of a user's input in a line, without where in the code it was found."""
    try:
        yield
    except KgbenchError as error:
        raise pytest.fail.Exception(f"kgbench: {in_pytest_words(error)}", pytrace=False) from None


def in_pytest_words(error: Exception) -> str:
    """What an error says, with options as pytest has them, but for those of commands in quotes."""
    parts = _QUOTED.split(str(error))
    parts[::2] = (
        _OPTION.sub(r"--kgbench-\1", part.replace("--output-dir", "--save")) for part in parts[::2]
    )
    return "".join(parts)
