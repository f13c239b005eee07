"""A pytest session with kgbench: options, what its process evaluates by them, and fixtures."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from kgbench.errors import InputError, KgbenchError

if TYPE_CHECKING:
    from kgbench.data import Dataset, Prompt
    from kgbench.localizers import AbstractLocalizer
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record
    from kgbench.runner import Pairs, Run, Settings, Spec
    from kgbench.runner.guard import Watch

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
    for name, (value, about) in ONE.items():
        group.addoption(f"--kgbench-{name}", metavar=value, help=_help(about))
        parser.addini(_key(name), f"As --kgbench-{name}.", type="string", default="")
    for name, (value, about) in MANY.items():
        group.addoption(f"--kgbench-{name}", action="append", metavar=value, help=_help(about))
        parser.addini(_key(name), f"As --kgbench-{name}.", type="args", default=[])
    group.addoption(
        "--kgbench-strict",
        action="store_true",
        default=False,
        help="As --kgbench-undecided=fail.",
    )
    parser.addini("kgbench_strict", "As --kgbench-strict.", type="bool", default=False)


class Given:
    """Options from the command line, or else from the ini file."""

    def __init__(self, config: pytest.Config) -> None:
        """Read nothing yet."""
        self._config = config

    @property
    def undecided(self) -> str:
        """What becomes of a test with undecided claims, one of `UNDECIDED`.

        Raises:
            pytest.UsageError: Another word is given.
        """
        strict = str(self._ini("strict")).lower() in ("true", "1", "yes", "on")
        if strict or self.on_command_line("strict"):
            return "fail"
        in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        word = self.one("undecided") or ("fail" if in_ci else "warn")
        if word not in UNDECIDED:
            raise pytest.UsageError(
                f"kgbench_undecided {word!r}: expected {', '.join(UNDECIDED[:-1])} or fail"
            )
        return word

    def one(self, name: str) -> str | None:
        """The value of an option in `ONE`."""
        return self._config.getoption(_key(name)) or str(self._ini(name)) or None

    def many(self, name: str) -> Sequence[str]:
        """The values of an option in `MANY`."""
        given = self._config.getoption(_key(name)) or self._ini(name) or ()
        return shlex.split(given) if isinstance(given, str) else list(map(str, given))

    def _ini(self, name: str) -> Any:
        """A value of the ini file; one of another type, such as a number, as it is."""
        try:
            return self._config.getini(_key(name))
        except (pytest.UsageError, TypeError):
            return self._config._inicfg[_key(name)].value

    def on_command_line(self, name: str) -> bool:
        """Whether an option was given there."""
        return bool(self._config.getoption(_key(name)))

    def path(self, name: str) -> Path | None:
        """The value of an option as a path."""
        text = self.one(name)
        return None if text is None else self._full(name, text)

    def spec(self) -> Spec:
        """What is to be evaluated.

        Raises:
            InputError: A value does not read.
        """
        from kgbench.data import dataset_names
        from kgbench.models import catalog
        from kgbench.runner.spec import Spec, listed
        from kgbench.runner.workload import read_donors

        localizer, limit = self.one("localizer"), self.one("limit")
        place, colon, attribute = (localizer or "").rpartition(":")
        if place and colon:
            localizer = f"{self._resolved('localizer', place)}:{attribute}"
        donors = read_donors("--kgbench-donor", self.many("donor"))
        named = self.many("prompt")
        prompts = listed(named)
        if named and not prompts:
            raise InputError(
                "--kgbench-prompt: names no prompt; give some, see `kgbench ls prompts`, or leave "
                "it out"
            )
        if limit is not None and not (limit.isdecimal() and int(limit) > 0):
            raise InputError(
                f"--kgbench-limit {limit!r}: expected how many facts, a whole number of at least 1"
            )
        return Spec(
            localizer=localizer or Spec.localizer,
            model=self._place("model", catalog.pair_names()),
            recipient=self._place("recipient"),
            donors={name: self._resolved("donor", place) for name, place in donors.items()},
            dataset=self._place("dataset", dataset_names()),
            prompts=prompts,
            suite=self.one("suite") or Spec.suite,
            limit=None if limit is None else int(limit),
        )

    def _place(self, name: str, known: Sequence[str] = ()) -> str | None:
        text = self.one(name)
        return None if text is None else self._resolved(name, text, known)

    def _resolved(self, name: str, text: str, known: Sequence[str] = ()) -> str:
        """A path in full; a name, or what may be the id of a checkpoint elsewhere, as it is."""
        path = self._full(name, text)
        return str(path) if text not in known and path.exists() else text

    def _full(self, name: str, text: str) -> Path:
        """A path from where pytest was called, or of an ini file from where that is."""
        config = self._config
        base = config.invocation_params.dir
        if not self.on_command_line(name):
            base = config.rootpath if config.inipath is None else config.inipath.parent
        return Path(os.path.normpath(base / Path(text).expanduser()))


def _help(text: str) -> str:
    """Escape a help text for argparse."""
    return text.replace("%", "%%")


def _key(name: str) -> str:
    return f"kgbench_{name.replace('-', '_')}"


# ------------------------------------------------------------------------------------ session

_QUOTED = re.compile(r"""(`kgbench [^`]*`|'kgbench [^']*'|"kgbench [^"]*")""")
"""Quoted commands of kgbench, whose options keep their names."""
_OPTION = re.compile(rf"(?<![\w-])--({'|'.join((*ONE, *MANY))})\b")


@dataclass
class Session:
    """Evaluation of one process: the pair, loaded once, and the records."""

    config: pytest.Config
    records: dict[str, Record] = field(default_factory=dict)
    """Records of the fixture and of assertions, by id."""
    folders: dict[str, Path] = field(default_factory=dict)
    """Folders of records, by id, as far as known."""
    fixtures: dict[str, object] = field(default_factory=dict)
    """Values of kgbench's fixtures, by name."""
    watch: Watch | None = None
    """State that the localizer must not change, while its fixture is in use."""

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
                "which facts did the donor learn? Give --kgbench-dataset NAME|FILE, or "
                "kgbench_dataset in the ini file"
            )
        dataset = job_dataset(self.spec)
        if self.spec.limit is None:
            return dataset
        return dataset.subset(fact.id for fact in dataset.facts[: self.spec.limit])

    def prompts(self) -> list[Prompt]:
        """The facts in all prompts."""
        from kgbench.runner.workload import job_prompts

        return list(chain.from_iterable(job_prompts(self.spec, self.facts).values()))

    def pair(self) -> ModelPair:
        """The models, loaded once."""
        self.check()
        return self.pairs.load(self.spec, self._settings(Path()))

    def evaluate(self, temporary: Path) -> Record:
        """The record of the whole run, from the folder of records or computed.

        Args:
            temporary: A folder of this process alone.
        """
        self.check()
        from kgbench.records import DamagedRecordWarning
        from kgbench.runner import run_job

        with warnings.catch_warnings():
            # Reported at the end of the session.
            warnings.simplefilter("ignore", DamagedRecordWarning)
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

    def _output(self, temporary: Path) -> Path:
        """Folder for the run: that of records, unless another process of the session may use it."""
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

    def check(self) -> None:
        """Find mistakes before anything heavy is loaded."""
        from kgbench.runner import check

        self._check_model()
        _ = self.facts
        check(self.spec)

    def _check_model(self) -> None:
        if self.spec.model is None and self.spec.recipient is None:
            raise InputError(
                "which model? Give --kgbench-model NAME (see `kgbench ls models`), or "
                "--kgbench-recipient PATH with --kgbench-donor sft=PATH; or kgbench_model in the "
                "ini file"
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
    """Fail with an error of the input in one line, without a traceback."""
    try:
        yield
    except KgbenchError as error:
        raise pytest.fail.Exception(f"kgbench: {in_pytest_words(error)}", pytrace=False) from None


def in_pytest_words(error: Exception) -> str:
    """Message of an error with the plug-in's names of options, except in quoted commands."""
    parts = _QUOTED.split(str(error))
    parts[::2] = (
        _OPTION.sub(r"--kgbench-\1", part.replace("--output-dir", "--save")) for part in parts[::2]
    )
    return "".join(parts)


# ----------------------------------------------------------------------------------- fixtures

OPTIONS: Mapping[str, str] = {
    "model_pair": "model",
    "facts": "dataset",
    "prompts": "prompt",
    "localizer": "localizer",
}
"""Option that determines each fixture."""

T = TypeVar("T")


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name, loaded once per process."""
    with in_a_line():
        session = session_of(pytestconfig)
        pair = _note(pytestconfig, "model_pair", session.pair())
        if session.watch is not None:
            session.watch.add(pair)
        return pair


@pytest.fixture(scope="session")
def facts(pytestconfig: pytest.Config) -> Dataset:
    """The facts that the donor learned, as many as --kgbench-limit allows."""
    with in_a_line():
        return _note(pytestconfig, "facts", session_of(pytestconfig).facts)


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each evaluation prompt: all of the first, then all of the next."""
    with in_a_line():
        return _note(pytestconfig, "prompts", session_of(pytestconfig).prompts())


@pytest.fixture(scope="session")
def localizer(pytestconfig: pytest.Config) -> Iterator[AbstractLocalizer]:
    """The localizer that the options name; a third party's must not change models or process."""
    from kgbench.localizers import create
    from kgbench.runner.workload import localizer_arguments

    with in_a_line(), guarding(pytestconfig) as watch:
        session = session_of(pytestconfig)
        spec, pair = session.spec, session.fixtures.get("model_pair")
        made = create(spec.localizer, localizer_arguments(spec), spec.seed)
        if pair is not None:
            watch.add(cast("ModelPair", pair))
        yield _note(pytestconfig, "localizer", made)


@pytest.fixture(scope="session")
def evaluation(
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    model_pair: ModelPair,
    facts: Dataset,
    prompts: list[Prompt],
    localizer: AbstractLocalizer,
) -> Record:
    """The record of the localizer on the model pair: all prompts and configurations."""
    with in_a_line():
        given = {"model_pair": model_pair, "facts": facts, "prompts": prompts}
        _check_fixtures(pytestconfig, {**given, "localizer": localizer})
        return session_of(pytestconfig).evaluate(tmp_path_factory.mktemp("kgbench"))


def _note(config: pytest.Config, name: str, value: T) -> T:
    """Note the value of kgbench's fixture of this name."""
    session_of(config).fixtures[name] = value
    return value


def _check_fixtures(config: pytest.Config, given: Mapping[str, object]) -> None:
    """Refuse fixtures that override kgbench's.

    Raises:
        InputError: There is one.
    """
    for name, value in given.items():
        if session_of(config).fixtures.get(name) is not value:
            raise InputError(
                f"the fixture {name!r} is overridden, and `evaluation` follows the options: give "
                f"--kgbench-{OPTIONS[name]} instead, or write a fixture of your own that calls "
                "kgbench.evaluate"
            )


class _Guard:
    """A check after each test; weights are hashed at the end of the fixture alone."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.failure = ""
        """Message of the test that failed by it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that would pass, and let no other test run."""
        try:
            result = yield
        finally:
            try:
                self._watch.check(weights=False)
            except InputError as error:
                item.session.shouldfail = self.failure = f"kgbench: {in_pytest_words(error)}"
        if self.failure:
            pytest.fail(self.failure, pytrace=False)
        return result


@contextmanager
def guarding(config: pytest.Config) -> Iterator[Watch]:
    """Check that a third-party localizer changes neither models nor process.

    Args:
        config: Configuration of the session, whose localizer a fixture gives within the block.

    Yields:
        The watch, which the models are to be added to. Those of the fixture `model_pair` are.

    Raises:
        InputError: At the end something has changed, weights included, and no test failed by it.
    """
    from kgbench.runner.guard import Watch

    session = session_of(config)
    session.watch = watch = Watch(session.spec.localizer)
    guard = _Guard(watch)
    config.pluginmanager.register(guard)
    try:
        yield watch
        if not guard.failure:
            watch.check()
    finally:
        config.pluginmanager.unregister(guard)
        session.watch = None
