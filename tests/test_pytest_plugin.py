"""The pytest plug-in, in sessions of their own as a user would start them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from sessions import HERE, SPREAD, STRICT, counts, session, write
from test_package import HEAVY

from kgbench.errors import InputError
from kgbench.pytest_plugin.options import Given
from kgbench.pytest_plugin.session import Session, in_a_line, in_pytest_words
from kgbench.records import RecordStore
from kgbench.records.store import read_record
from kgbench.runner import Settings, Spec, run_job


def test_it_is_installed() -> None:
    """Pytest finds it by its entry point, which loads it in every session."""
    assert [point.value for point in entry_points(group="pytest11", name="kgbench")] == ["kgbench.pytest_plugin"]


def test_no_cost_where_it_is_not_used(tmp_path: Path) -> None:
    """It loads nothing heavy for tests of others, prints nothing, and does not change what they come to."""
    tell = f"import sys\ndef pytest_unconfigure():\n    print('loaded:', *(set({HEAVY}) & set(sys.modules)))\n"
    folder = write(tmp_path, conftest=tell, test_other="def test_one(): pass\ndef test_two(): assert 0\n")
    done = session(folder)
    assert counts(done) == {"failed": 1, "passed": 1} and done.returncode == 1
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert "kgbench" not in done.stdout and "undecided" not in done.stdout


CONFTEST = """
import fake_runs, pytest

@pytest.fixture(scope="session")
def record():
    return fake_runs.record(fake_runs.rows(150))
"""

CLAIMS = """
import pytest, unittest
from kgbench.testing import assert_localized

def undecided(record):
    assert_localized(record, "LT", prompt="qa", sufficiency__ge=.31)

def test_passes(record): assert_localized(record)
def test_plain(): pass
def test_undecided(record): undecided(record)

def test_goes_on(record, tmp_path):
    undecided(record)
    assert_localized(record, "LT", prompt="headline", sufficiency__ge=.31)

def test_fails(record):
    undecided(record)
    assert_localized(record, "FE", prompt="qa")

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(record): undecided(record)

@pytest.fixture
def early(record): undecided(record)
def test_early(early): pass

@pytest.fixture
def late(record):
    yield
    undecided(record)
def test_late(late): pass

def test_skips(record):
    undecided(record)
    pytest.skip("for another reason")

class TestOfUnittest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, record): self.record = record
    def test_old_style(self): undecided(self.record)
"""

MESSAGE = (
    r"qa, LT: sufficiency \.29 \[\.\d\d, \.\d\d\] over 150 facts is not told from the bound \.31 \(ge\); about \d+ facts would decide it"
)


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("claims"), conftest=CONFTEST, test_claims=CLAIMS)


def test_undecided(claims: Path) -> None:
    """A category of its own, counted in the last line and listed with its message; a definite failure wins, and shows both."""
    done = session(claims, "--junitxml", "out.xml", "-v")
    assert counts(done) == {"failed": 1, "passed": 3, "undecided": 6, "skipped": 1}, done.stdout
    assert "test_claims.py::test_undecided UNDECIDED" in done.stdout
    listed = re.findall(rf"^UNDECIDED test_claims\.py::(?:TestOfUnittest::)?(\w+) - {MESSAGE}$", done.stdout, re.M)
    assert listed == ["test_undecided", "test_goes_on", "test_expected_to_fail", "test_early", "test_late", "test_old_style"]
    assert "UNDECIDED test_claims.py::test_goes_on - headline, LT" in done.stdout
    assert re.search(rf"undecided as well -+\n{MESSAGE}\n", done.stdout)
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1
    properties = {
        case.get("name"): [p.get("value") for p in case.iter("property")]
        for case in ElementTree.parse(claims / "out.xml").getroot().iter("testcase")
    }
    assert len(properties) == 10
    assert all(re.fullmatch(MESSAGE, str(properties[name][0])) for name in (*listed, "test_fails"))
    assert properties["test_passes"] == properties["test_plain"] == []


def test_undecided_in_several_processes(claims: Path) -> None:
    """With pytest-xdist it is the same; undecided tests leave the exit status at 0, and the table is printed once."""
    done = session(claims, "-n", "2", "-k", "not test_fails", plugins=SPREAD)
    assert counts(done) == {"passed": 3, "undecided": 6, "skipped": 1}, done.stdout
    assert done.returncode == 0
    assert len(re.findall(rf"^UNDECIDED test_claims\.py::[\w:]+ - {MESSAGE}$", done.stdout, re.M)) == 6
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1


def test_strict(claims: Path) -> None:
    """With --kgbench-strict, or in the ini file, what is undecided fails with the same message; a failure that is expected is one."""
    done = session(claims, "-o", "kgbench_strict=true")
    assert counts(done) == {"failed": 5, "passed": 3, "skipped": 1, "xfailed": 1, "error": 1}, done.stdout
    assert done.returncode == 1
    assert len(re.findall(rf"^{MESSAGE}$", done.stdout, re.M)) >= 5
    assert "UNDECIDED" not in done.stdout


CONFTEST_REAL = """
import os, pytest
from pathlib import Path

@pytest.fixture(scope="session", autouse=True)
def loads():
    from transformers import AutoModelForCausalLM
    plain = AutoModelForCausalLM.from_pretrained.__func__
    def counted(cls, *arguments, **options):
        with open(Path(__file__).parent / "loads.txt", "a") as file:
            print(os.getpid(), file=file)
        return plain(cls, *arguments, **options)
    AutoModelForCausalLM.from_pretrained = classmethod(counted)
"""

REAL = """
from kgbench.testing import assert_localized

def test_pair(model_pair): assert "sft" in model_pair.donors

def test_what_is_asked(facts, prompts, localizer, evaluation, model_pair):
    assert (len(facts.facts), len(prompts)) == (12, 12) and {p.name for p in prompts} == {"headline"}
    assert localizer.name == evaluation.identity.localizer.name == "mine"
    assert evaluation.identity.limit == 12 and {row.n for row in evaluation.rows} == {12}
    assert evaluation.identity.weights.recipient == model_pair.weight_hashes["recipient"]

def test_claim(evaluation): assert_localized(evaluation, "FE+LT", sufficiency__ge=-1)
def test_another(evaluation): assert_localized(evaluation, "FE+LT", top5__le=1)
"""

METHOD = """
from dataclasses import dataclass
from kgbench.localizers.dynamic_graft import DynamicGraft

@dataclass(frozen=True)
class Mine(DynamicGraft):
    name = "mine"
"""

INI = (
    STRICT
    + """
testpaths = tests
kgbench_model = tiny-gpt2
kgbench_localizer = method.py:Mine
kgbench_dataset = facts.jsonl
kgbench_limit = 5
kgbench_prompt = headline qa
kgbench_save = saved
"""
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody's repository, with its own method, facts, and options in the ini file."""
    root = tmp_path_factory.mktemp("repository")
    (root / "tests").mkdir()
    write(root / "tests", conftest=CONFTEST_REAL, test_mine=REAL)
    (root / "tests" / "pytest.ini").unlink()
    write(root, method=METHOD)
    (root / "pytest.ini").write_text(INI, "utf-8")
    facts = HERE.parent / "kgbench" / "data" / "files" / "tiny_movies.jsonl"
    (root / "facts.jsonl").write_text(facts.read_text("utf-8"), "utf-8")
    return root


def loads(repository: Path) -> Mapping[str, int]:
    """How many checkpoints each process loaded since this was asked last."""
    path = repository / "tests" / "loads.txt"
    lines = path.read_text("utf-8").split() if path.exists() else []
    path.unlink(missing_ok=True)
    return {process: lines.count(process) for process in lines}


def records_in(folder: Path) -> list[Path]:
    """The folders of its records; nothing else is there."""
    found = sorted(folder.iterdir())
    assert all((path / "record.json").is_file() for path in found)
    return found


def test_fixtures(repository: Path) -> None:
    """One pair serves all fixtures of a process; paths in the ini file start where it lies, and the command line wins over it.

    With pytest-xdist each process loads the pair once, and one record of all is kept, and compared.
    """
    spec = Spec(
        model="tiny-gpt2",
        localizer=f"{repository / 'method.py'}:Mine",
        dataset=str(repository / "facts.jsonl"),
        limit=12,
        prompts=("headline",),
    )
    before = run_job(spec, Settings(output_dir=repository / "before"))
    arguments = ("--kgbench-limit", "12", "--kgbench-prompt", "headline", "--kgbench-compare-fail", "../before")
    done = session(repository / "tests", "-n", "2", *arguments, plugins=SPREAD)
    assert (done.returncode, counts(done)) == (0, {"passed": 4}), done.stdout
    assert list(loads(repository).values()) == [2, 2]
    (kept,) = records_in(repository / "saved")
    assert kept.name == before.path.name and f"record   {kept}" in done.stdout
    assert done.stdout.count("mine on tiny-gpt2, tiny_movies, the first 12") == 1
    assert done.stdout.count(f"compared with {before.path}: none of 9 figures moved") == 1


@pytest.mark.parametrize("worker", [False, True])
def test_a_record_that_is_kept_is_used(tmp_path: Path, worker: bool) -> None:
    """Nothing is computed anew; one of several processes computes in its own folder what is not kept yet."""
    line = {"kgbench_model": "tiny-gpt2", "kgbench_limit": "2", "kgbench_prompt": ["qa"], "kgbench_save": "kept"}
    config = config_of(tmp_path, line, {})
    if worker:
        config.workerinput = {"workerid": "gw0"}
    mine = Session(config)
    record = mine.evaluate(tmp_path / "own")
    made = mine.folders[record.id]
    assert made.parent == (tmp_path / "own" if worker else tmp_path / "called" / "kept")
    RecordStore(tmp_path / "called" / "kept").write(record, read_record(made).facts())
    (path,) = records_in(tmp_path / "called" / "kept")
    before = (path / "record.json").stat().st_mtime_ns
    assert mine.evaluate(tmp_path / "again") == record
    assert mine.folders[record.id] == path and (path / "record.json").stat().st_mtime_ns == before
    assert not (tmp_path / "again").exists()


def test_errors_are_one_line(tmp_path: Path) -> None:
    """What a user gave wrong is told in a line for each test, without a traceback; pytest finds the plug-in by itself."""
    folder = write(tmp_path, test_mine="def test_one(evaluation): pass\ndef test_two(model_pair): pass\n")
    done = session(folder, "--kgbench-model", "tiny-gemmo", plugins=())
    assert counts(done) == {"errors": 2}, done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("kgbench: ")]
    assert len(told) == 2 and all(line.startswith("kgbench: unknown model 'tiny-gemmo'. Did you mean 'tiny-gemma'") for line in told)
    assert "Traceback" not in done.stdout and ".py:" not in done.stdout.replace("test_mine.py::", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({}, "which model? Give --kgbench-model NAME"),
        ({"kgbench_recipient": "before"}, "which facts did the donor learn? Give --kgbench-dataset NAME|FILE"),
        ({"kgbench_model": "tiny-gpt2", "kgbench_localizer": "dynamic_graf"}, "Did you mean 'dynamic_graft'"),
        ({"kgbench_model": "tiny-gpt2", "kgbench_prompt": ["headlin"]}, "Did you mean 'headline'"),
        ({"kgbench_model": "tiny-gpt2", "kgbench_suite": "pathway"}, "Did you mean 'pathways'"),
        ({"kgbench_model": "tiny-gpt2", "kgbench_compare_fail": "nowhere"}, "--kgbench-compare-fail: no record in"),
    ],
)
def test_mistakes_are_found_before_models_load(tmp_path: Path, line: Mapping[str, Any], said: str) -> None:
    """With what would do, and with what to do."""
    mine = Session(config_of(tmp_path, line, {}))
    with pytest.raises(pytest.fail.Exception, match=re.escape(said)), in_a_line():
        mine.evaluate(tmp_path / "own")
    assert "pairs" not in vars(mine)


def test_names_of_options() -> None:
    """An error that names an option of the command line names the plug-in's."""
    error = InputError("give --donor sft=PATH or --dataset FILE; give another one by --output-dir; --donors are no option")
    expected = "give --kgbench-donor sft=PATH or --kgbench-dataset FILE; give another one by --kgbench-save; --donors are no option"
    assert in_pytest_words(error) == expected


def config_of(folder: Path, line: Mapping[str, Any], ini: Mapping[str, Any]) -> Any:
    """What pytest has if it is called in one folder with its ini file in another."""
    return SimpleNamespace(
        getoption=lambda name: line.get(name),
        getini=lambda name: ini.get(name, ""),
        invocation_params=SimpleNamespace(dir=folder / "called"),
        inipath=folder / "ini" / "pytest.ini",
    )


def given_from(folder: Path, line: Mapping[str, Any], ini: Mapping[str, Any]) -> Given:
    return Given(config_of(folder, line, ini))


def test_places(tmp_path: Path) -> None:
    """Relative paths start where pytest was called, or where the ini file is; names and ids elsewhere stay as they are."""
    for place in ("called/after", "ini/before", "called/tiny-gemma", "ini/tiny_movies"):
        (tmp_path / place).mkdir(parents=True)
    line = {"kgbench_donor": ["after", "other=owner/name"], "kgbench_model": "tiny-gemma", "kgbench_save": "out"}
    ini = {"kgbench_recipient": "before", "kgbench_donor": ["no=where"], "kgbench_dataset": "tiny_movies", "kgbench_compare_fail": "old"}
    given = given_from(tmp_path, line, ini)
    spec = given.spec()
    assert spec.donors == {"sft": str(tmp_path / "called/after"), "other": "owner/name"}
    assert (spec.recipient, spec.dataset, spec.model) == (str(tmp_path / "ini/before"), "tiny_movies", "tiny-gemma")
    assert (given.path("save"), given.path("compare-fail")) == (tmp_path / "called/out", tmp_path / "ini/old")


def test_lists(tmp_path: Path) -> None:
    """Prompts with commas, by repetition, or both; a donor's path may hold an equals sign."""
    spec = given_from(tmp_path, {"kgbench_prompt": ["qa,headline", "qa", " new_film "]}, {"kgbench_donor": ["./a=b"]}).spec()
    assert spec.prompts == ("qa", "headline", "new_film") and spec.donors == {"sft": "./a=b"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"kgbench_donor": ["sft="]}, "--kgbench-donor 'sft=': expected NAME=PATH"),
        ({"kgbench_donor": ["a", "sft=b"]}, "--kgbench-donor: 'sft' is given twice"),
        ({"kgbench_limit": "0"}, "--kgbench-limit '0': expected how many facts"),
        ({"kgbench_limit": "many"}, "--kgbench-limit 'many'"),
    ],
)
def test_values_that_do_not_read(tmp_path: Path, line: Mapping[str, Any], said: str) -> None:
    """They are told with what was expected."""
    with pytest.raises(InputError, match=re.escape(said)):
        given_from(tmp_path, line, {}).spec()
