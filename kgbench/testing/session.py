"""A pytest session with kgbench: options, what its process evaluates by them, and fixtures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from kgbench.errors import InputError, KgbenchError

if TYPE_CHECKING:
    from kgbench.data import Dataset, Prompt
    from kgbench.localizers import AbstractLocalizer
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record
    from kgbench.runner import Pairs, Spec
    from kgbench.runner.lookup import Workload
    from kgbench.runner.third_party_watch import Watch

ONE: Mapping[str, tuple[str, str]] = {
    "model": ("NAME", "Model pair by name, see `kgbench ls models`."),
    "recipient": ("PATH|ID", "Base (recipient), without or in place of the model's."),
    "localizer": ("NAME|FILE.py:CLASS", "Method. Default: dynamic_graft."),
    "dataset": (
        "NAME|FILE",
        "Facts: a shipped data set, or your own file. Default: the pair's own.",
    ),
    "limit": ("N", "Only the first N facts."),
    "suite": ("NAME", "Named set of configurations. Default: pathways."),
    "save": (
        "DIR",
        "Keep records of the fixture `evaluation` here; one that is here already is not computed "
        "again. Default: a temporary folder.",
    ),
    "undecided": (
        "pass|warn|fail",
        "What becomes of a test with claims that the facts do not decide: it passes, is counted "
        "apart, or fails. Default: fail where the environment variable CI is set, else warn.",
    ),
}
"""Options with one value."""

UNDECIDED = ("pass", "warn", "fail")

MANY: Mapping[str, tuple[str, str]] = {
    "donor": ("NAME=PATH", "Finetuned model (donor), sft=PATH or only PATH; may be repeated."),
    "prompt": (
        "NAMES",
        "Evaluation prompts; several with commas, may be repeated. Default: the suite's.",
    ),
}
"""Options that may be repeated."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the group of options, and an ini key for each."""
    group = parser.getgroup("kgbench", "where finetuned facts are retrieved from (kgbench)")
    for name, (metavar, about) in {**ONE, **MANY}.items():
        action = "append" if name in MANY else "store"
        group.addoption(f"--kgbench-{name}", action=action, metavar=metavar, help=about)
        ini: Literal["args", "string"] = "args" if name in MANY else "string"
        parser.addini(f"kgbench_{name}", f"As --kgbench-{name}.", type=ini)


@dataclass(frozen=True)
class Options:
    """Options from the command line, or else from the ini file."""

    config: pytest.Config

    @property
    def undecided(self) -> str:
        """What becomes of a test with undecided claims, one of `UNDECIDED`.

        Raises:
            pytest.UsageError: Another word is given.
        """
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        word = self.one("undecided") or ("fail" if in_ci else "warn")
        if word not in UNDECIDED:
            raise pytest.UsageError(
                f"kgbench_undecided {word!r}: expected {', '.join(UNDECIDED[:-1])} or fail"
            )
        return word

    def one(self, name: str) -> str | None:
        """The value of an option in `ONE`."""
        return self._given(name) or None

    def many(self, name: str) -> Sequence[str]:
        """The values of an option in `MANY`."""
        return self._given(name) or ()

    def _given(self, name: str) -> Any:
        key = f"kgbench_{name}"
        return self.config.getoption(key) or self.config.getini(key)

    def path(self, name: str, text: str) -> Path:
        """A path from where pytest was called, or of an ini file from where that is."""
        base = self.config.invocation_params.dir
        if not self.config.getoption(f"kgbench_{name}"):
            base = (self.config.inipath or self.config.rootpath / "pytest.ini").parent
        return Path(os.path.normpath(base / Path(text).expanduser()))

    @property
    def save(self) -> Path | None:
        """The folder of records that outlive the session."""
        folder = self.one("save")
        return None if folder is None else self.path("save", folder)

    def _place(self, name: str, text: str | None, names: Sequence[str] = ()) -> str | None:
        """A path in full; a name, or what may be the id of a checkpoint elsewhere, as it is."""
        if text is None or text in names:
            return text
        path = self.path(name, text)
        return str(path) if path.exists() else text

    def spec(self) -> Spec:
        """What is to be evaluated.

        Raises:
            InputError: A value does not read.
        """
        from kgbench.data import dataset_names
        from kgbench.models import catalog
        from kgbench.runner.sources import read_donors
        from kgbench.runner.spec import Spec, listed

        localizer, limit = self.one("localizer") or Spec.localizer, self.one("limit")
        file, colon, attribute = localizer.rpartition(":")
        donors = {}
        for name, place in read_donors("--kgbench-donor", self.many("donor")).items():
            donors[name] = str(self._place("donor", place))
        prompts = listed(self.many("prompt"))
        if self.many("prompt") and not prompts:
            raise InputError(
                "--kgbench-prompt: names no prompt; give some, see `kgbench ls prompts`, or leave "
                "it out"
            )
        if limit is not None and not (limit.isdecimal() and int(limit) > 0):
            raise InputError(
                f"--kgbench-limit {limit!r}: expected how many facts, a whole number of at least 1"
            )
        return Spec(
            localizer=f"{self._place('localizer', file)}:{attribute}" if colon else localizer,
            model=self._place("model", self.one("model"), catalog.pair_names()),
            recipient=self._place("recipient", self.one("recipient")),
            donors=donors,
            dataset=self._place("dataset", self.one("dataset"), dataset_names()),
            prompts=prompts,
            suite=self.one("suite") or Spec.suite,
            limit=None if limit is None else int(limit),
        )


# ------------------------------------------------------------------------------------ session


@dataclass
class Session:
    """Evaluation of one process: the pair, loaded once, and the records."""

    config: pytest.Config
    records: dict[str, Record] = field(default_factory=dict)
    """Records of the fixture and of assertions, by id."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders of the fixture's records, by id."""
    watch: Watch | None = None
    """State that the localizer must not change, while its fixture is in use."""

    @cached_property
    def spec(self) -> Spec:
        """What is to be evaluated.

        Raises:
            InputError: A value does not read.
        """
        return Options(self.config).spec()

    @cached_property
    def pairs(self) -> Pairs:
        """Where the pair is loaded."""
        from kgbench.runner import Pairs

        return Pairs()

    @cached_property
    def work(self) -> Workload:
        """The same with its names looked up; no model is loaded.

        Raises:
            InputError: No model is named, or a name is wrong.
        """
        from kgbench.runner import check

        if self.spec.model is None and self.spec.recipient is None and self.spec.dataset is None:
            raise InputError(
                "which model? Give --kgbench-model NAME (see `kgbench ls models`), or "
                "--kgbench-recipient PATH with --kgbench-donor sft=PATH; or kgbench_model in the "
                "ini file"
            )
        return check(self.spec)

    @cached_property
    def facts(self) -> Dataset:
        """The facts, as many as the limit allows."""
        dataset = self.work.dataset
        if self.spec.limit is None:
            return dataset
        return dataset.subset(fact.id for fact in dataset.facts[: self.spec.limit])

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The facts in all prompts."""
        return list(chain.from_iterable(self.work.prompts.values()))

    @cached_property
    def model_pair(self) -> ModelPair:
        """The models; mistakes are found before they are loaded."""
        from kgbench.runner import Settings

        work = self.work
        return self.pairs.load(work.sources, Settings(), work.dtype)

    @cached_property
    def localizer(self) -> AbstractLocalizer:
        """The method."""
        from kgbench.runner.lookup import made_localizer

        return made_localizer(self.work)

    def evaluate(self, temporary: Path) -> Record:
        """The record of the whole run, from the folder of records or computed.

        Several processes, as of pytest-xdist, divide the work of one folder.

        Args:
            temporary: A folder for it where the options name none.
        """
        from kgbench.runner import Settings, run_job

        folder = Options(self.config).save or temporary
        run = run_job(self.spec, Settings(output_dir=folder), pairs=self.pairs)
        self.folders[run.record.id] = run.path
        self.records[run.record.id] = run.record
        return run.record


_KEY = pytest.StashKey[Session]()


def session_of(config: pytest.Config) -> Session:
    """The session of this process."""
    return config.stash.setdefault(_KEY, Session(config))


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of several processes that pytest-xdist spreads the tests over."""
    return hasattr(config, "workerinput")


_QUOTED = re.compile(r"""(`kgbench [^`]*`|'kgbench [^']*'|"kgbench [^"]*")""")
"""Quoted commands of kgbench, whose options keep their names."""
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join((*ONE, *MANY))})\b")


def in_pytest_words(error: Exception) -> str:
    """Message of an error with the plug-in's names of options, except in quoted commands."""
    parts = _QUOTED.split(str(error).replace("--output-dir", "--save"))
    parts[::2] = (_OPTION.sub(r"--kgbench-\1", part) for part in parts[::2])
    return f"kgbench: {''.join(parts)}"


@contextmanager
def in_a_line() -> Iterator[None]:
    """Fail with an error of the input in one line, without a traceback."""
    try:
        yield
    except KgbenchError as error:
        raise pytest.fail.Exception(in_pytest_words(error), pytrace=False) from None


# ----------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name, loaded once per process."""
    with in_a_line():
        return session_of(pytestconfig).model_pair


@pytest.fixture(scope="session")
def facts(pytestconfig: pytest.Config) -> Dataset:
    """The facts that the donor learned, as many as --kgbench-limit allows."""
    with in_a_line():
        return session_of(pytestconfig).facts


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each evaluation prompt: all of the first, then all of the next."""
    with in_a_line():
        return session_of(pytestconfig).prompts


@pytest.fixture(scope="session")
def localizer(pytestconfig: pytest.Config) -> Iterator[AbstractLocalizer]:
    """The localizer that the options name; a third party's must not change models or process.

    Each test is followed by a check (`kgbench.pytest_plugin`); weights are read at the end.
    """
    from kgbench.runner.third_party_watch import Watch

    session = session_of(pytestconfig)
    with in_a_line():
        session.watch = Watch(session.spec.localizer)  # its code is not loaded yet
        session.watch.add(session.model_pair)
        yield session.localizer
        if session.watch is not None:  # no test has failed by it
            session.watch.check()


OPTIONS: Mapping[str, str] = {
    "model_pair": "model",
    "facts": "dataset",
    "prompts": "prompt",
    "localizer": "localizer",
}
"""Option that determines each fixture."""


@pytest.fixture(scope="session")
def evaluation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the localizer on the model pair: all prompts and configurations."""
    session = session_of(request.config)
    with in_a_line():
        for name, option in OPTIONS.items():
            if request.getfixturevalue(name) is not getattr(session, name):
                raise InputError(
                    f"the fixture {name!r} is overridden, and `evaluation` follows the options: "
                    f"give --kgbench-{option} instead, or write a fixture of your own that calls "
                    "kgbench.evaluate"
                )
        return session.evaluate(tmp_path_factory.mktemp("kgbench"))
