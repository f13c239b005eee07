"""The pytest plug-in, in sessions of their own as a user would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import fake_runs
import pytest
from test_package import HEAVY

from kgbench.errors import DataError, InputError
from kgbench.pytest_plugin.comparison import compare, saved_records
from kgbench.pytest_plugin.options import Given
from kgbench.pytest_plugin.session import Session, in_a_line, in_pytest_words
from kgbench.records import Record, RecordStore, StoredRecord
from kgbench.records.store import read_record

HERE = Path(__file__).parent
STRICT = "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n"


def session(folder: Path, *arguments: str, plugins: Sequence[str] = ("kgbench.pytest_plugin",)) -> subprocess.CompletedProcess[str]:
    """A session of pytest in a folder, with these plug-ins, or where none is named all that are installed."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if plugins else {}
    environment = {**ours, **only, "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE)))}
    line = [sys.executable, "-m", "pytest", *(f"-p{plugin}" for plugin in plugins), "-pno:cacheprovider", *arguments]
    return subprocess.run(line, capture_output=True, text=True, cwd=folder, env=environment)


SPREAD = ("kgbench.pytest_plugin", "xdist")


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """What the last line of a session counts."""
    last = next(line for line in reversed(done.stdout.splitlines()) if re.search(r" in [\d.]+s", line))
    return {what: int(number) for number, what in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])}


def write(folder: Path, **files: str) -> Path:
    for name, text in {"pytest.ini": STRICT, **{f"{name}.py": text for name, text in files.items()}}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


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
import pytest
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
    assert counts(done) == {"failed": 1, "passed": 3, "undecided": 5, "skipped": 1}, done.stdout
    assert "test_claims.py::test_undecided UNDECIDED" in done.stdout
    listed = re.findall(rf"^UNDECIDED test_claims\.py::(\w+) - {MESSAGE}$", done.stdout, re.M)
    assert listed == ["test_undecided", "test_goes_on", "test_expected_to_fail", "test_early", "test_late"]
    assert "UNDECIDED test_claims.py::test_goes_on - headline, LT" in done.stdout
    assert re.search(rf"undecided as well -+\n{MESSAGE}\n", done.stdout)
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1
    properties = {
        case.get("name"): [p.get("value") for p in case.iter("property")]
        for case in ElementTree.parse(claims / "out.xml").getroot().iter("testcase")
    }
    assert len(properties) == 9
    assert all(re.fullmatch(MESSAGE, str(properties[name][0])) for name in (*listed, "test_fails"))
    assert properties["test_passes"] == properties["test_plain"] == []


def test_undecided_in_several_processes(claims: Path) -> None:
    """With pytest-xdist it is the same; undecided tests leave the exit status at 0, and the table is printed once."""
    done = session(claims, "-n", "2", "-k", "not test_fails", plugins=SPREAD)
    assert counts(done) == {"passed": 3, "undecided": 5, "skipped": 1}, done.stdout
    assert done.returncode == 0
    assert len(re.findall(rf"^UNDECIDED test_claims\.py::\w+ - {MESSAGE}$", done.stdout, re.M)) == 5
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1


def test_strict(claims: Path) -> None:
    """With --kgbench-strict, or in the ini file, what is undecided fails with the same message; a failure that is expected is one."""
    done = session(claims, "-o", "kgbench_strict=true")
    assert counts(done) == {"failed": 4, "passed": 3, "skipped": 1, "xfailed": 1, "error": 1}, done.stdout
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


MORE = ("--kgbench-limit", "12", "--kgbench-prompt", "headline")


def test_fixtures(repository: Path) -> None:
    """One pair serves all fixtures; paths in the ini file start where it lies, and the command line wins over it.

    With pytest-xdist each process loads the pair once, and one record of all is kept, and compared.
    """
    done = session(repository / "tests", *MORE, plugins=())
    assert (done.returncode, counts(done)) == (0, {"passed": 4}), done.stdout
    assert list(loads(repository).values()) == [2]
    (kept,) = records_in(repository / "saved")
    assert "mine on tiny-gpt2, tiny_movies, the first 12" in done.stdout and f"record   {kept}" in done.stdout

    others = ("--kgbench-save", "../others", "--kgbench-compare-fail", "../saved")
    done = session(repository / "tests", *MORE, "-n", "2", *others, plugins=SPREAD)
    assert (done.returncode, counts(done)) == (0, {"passed": 4}), done.stdout
    assert list(loads(repository).values()) == [2, 2]
    assert [path.name for path in records_in(repository / "others")] == [kept.name]
    assert done.stdout.count("mine on tiny-gpt2") == done.stdout.count("none of 9 figures moved") == 1


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
    """What a user gave wrong is told in a line for each test, without a traceback."""
    folder = write(tmp_path, test_mine="def test_one(evaluation): pass\ndef test_two(model_pair): pass\n")
    done = session(folder, "--kgbench-model", "tiny-gemmo")
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


def saved(folder: Path, weights: str, rates: Mapping[str, float] = fake_runs.RATES, n: int = 150, **changes: Any) -> StoredRecord:
    """A record of a donor's weights in a folder of records."""
    rows = fake_runs.rows(n, rates)
    what = fake_runs.identity(weights={"recipient": "r", "donors": {"sft": weights}}, **changes)
    store = RecordStore(folder)
    return next(found for found in [store.find(store_record(store, rows, what).id)] if found is not None)


def store_record(store: RecordStore, rows: Any, what: Any) -> Record:
    record = fake_runs.record(rows, what=what)
    store.write(record, rows)
    return record


WORSE = {**fake_runs.RATES, "FE+LT": 0.6}


def test_comparison(tmp_path: Path) -> None:
    """Paired over the facts that both have: what moved, from what to what, with interval and number of facts."""
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "new", "t", WORSE, n=120)
    assert compare(saved(tmp_path / "same", "u"), saved_records(tmp_path / "old")).moved == ()
    found = compare(new, saved_records(old.path))
    assert found.figures == 18 and len(found.moved) == 2
    pattern = r"(headline|qa), FE\+LT: top5 from \.9\d to \.60, by -\.3\d \[-\.\d\d, -\.\d\d\] over 120 facts"
    assert all(re.fullmatch(pattern, line) for line in found.moved)
    assert found.lines()[0] == f"compared with {old.path}: 2 of 18 figures moved"
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    assert compare(saved(tmp_path / "less", "v", fewer), [old]).left_out == ("headline, FE^C", "qa, FE^C")


def test_comparison_never_takes_another_question(tmp_path: Path) -> None:
    """Other facts, prompts or another method are told as such; several records to choose from are, too; nothing to compare is an error."""
    new = saved(tmp_path / "new", "t")
    other = saved(tmp_path / "old", "s", prompts={"headline": "h", "qa": "another wording"})
    with pytest.raises(InputError, match=f"no saved record answers .* {other.path.name} has other prompts"):
        compare(new, saved_records(tmp_path / "old"))
    first, second = saved(tmp_path / "two", "a"), saved(tmp_path / "two", "b")
    with pytest.raises(InputError, match="several saved records"):
        compare(new, [first, second])
    assert compare(first, [first, second]).saved == str(second.path)
    with pytest.raises(InputError, match="no record in"):
        saved_records(tmp_path / "nowhere")
    (second.path / "facts.parquet").unlink()
    with pytest.raises(InputError, match="a damaged record is left out"):
        saved_records(tmp_path / "two")
    with pytest.raises(DataError):
        saved_records(second.path)


def test_a_session_that_fails_by_comparison(tmp_path: Path) -> None:
    """Records that assertions looked at are compared as well: found by their id, and where they cannot be found, told of."""
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "now", "t", WORSE)
    conftest = f"""
import pytest
from kgbench.records import load_record

@pytest.fixture
def record():
    return load_record({str(new.path)!r}, "").record
"""
    test = "from kgbench.testing import assert_localized\ndef test_mine(record): assert_localized(record, top5__ge=.4)\n"
    folder = write(tmp_path, conftest=conftest, test_mine=test)
    done = session(folder, "--kgbench-compare-fail", "old", "--kgbench-save", "now")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert f"compared with {old.path}: 2 of 18 figures moved" in done.stdout
    assert re.search(r"^  qa, FE\+LT: top5 from \.97 to \.60, by -\.37 \[.*\] over 150 facts$", done.stdout, re.M)
    done = session(folder, "--kgbench-compare-fail", "old")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert "was not compared: its per-fact rows are not known here" in done.stdout


def test_a_comparison_of_nothing(tmp_path: Path) -> None:
    """A session that was asked to compare and evaluated nothing fails, and says so; one whose ini file asks is let be."""
    folder = write(tmp_path, test_other="def test_one(): pass\n")
    done = session(folder, "--kgbench-compare-fail", "old")
    assert done.returncode == 1 and "no test of this session evaluated anything" in done.stdout
    done = session(folder, "-o", "kgbench_compare_fail=old")
    assert done.returncode == 0 and "evaluated" not in done.stdout
