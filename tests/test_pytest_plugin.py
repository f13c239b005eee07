"""The pytest plug-in, in sessions of their own as a user would start them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sessions import HERE, SPREAD, STRICT, counts, session, write
from test_package import HEAVY

from kgbench.errors import InputError
from kgbench.records import DamagedRecordWarning
from kgbench.runner import Settings, Spec, run_job
from kgbench.testing.session import MANY, ONE, OPTIONS, Options, Session, in_a_line, in_pytest_words


def test_it_is_installed() -> None:
    """Pytest finds it by its entry point, which loads it in every session."""
    assert [point.value for point in entry_points(group="pytest11", name="kgbench")] == [
        "kgbench.pytest_plugin"
    ]


def test_no_cost_where_it_is_not_used(tmp_path: Path) -> None:
    """It loads nothing heavy for tests of others, prints nothing, and does not change what they
    come to.
    """
    tell = (
        f"import sys\ndef pytest_unconfigure():\n    print('loaded:', *(set({HEAVY}) &"
        " set(sys.modules)))\n"
    )
    folder = write(
        tmp_path, conftest=tell, test_other="def test_one(): pass\ndef test_two(): assert 0\n"
    )
    done = session(folder, run=subprocess.run)
    assert counts(done) == {"failed": 1, "passed": 1} and done.returncode == 1
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert "kgbench" not in done.stdout and "undecided" not in done.stdout


def test_the_help_of_pytest_shows_every_option(tmp_path: Path) -> None:
    """`pytest --help` works where kgbench is installed, and shows the help of each option as it is
    written.
    """
    done = session(write(tmp_path), "--help")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    for name, (value, about) in {**ONE, **MANY}.items():
        assert f"--kgbench-{name}={value} {about}" in shown, name


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
    """How many checkpoints each process loaded since this was asked last: one for a shipped pair,
    whose donor is its recipient with changes.
    """
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
    """One pair serves all fixtures of a process; paths in the ini file start where it lies, and the
    command line wins over it.

    With pytest-xdist each process loads the pair once, and one record of all is kept.
    """
    spec = Spec(
        model="tiny-gpt2",
        localizer=f"{repository / 'method.py'}:Mine",
        dataset=str(repository / "facts.jsonl"),
        limit=12,
        prompts=("headline",),
    )
    before = run_job(spec, Settings(output_dir=repository / "before"))
    options = "-n 2 --kgbench-limit 12 --kgbench-prompt headline"
    done = session(repository / "tests", *options.split(), plugins=SPREAD)
    assert (done.returncode, counts(done)) == (0, {"passed": 4}), done.stdout
    assert list(loads(repository).values()) == [1, 1]
    (kept,) = records_in(repository / "saved")
    assert kept.name == before.path.name and f"record   {kept}" in done.stdout
    assert done.stdout.count("mine on tiny-gpt2, tiny_movies, the first 12") == 1


def test_a_record_that_is_kept_is_used(tmp_path: Path) -> None:
    """Nothing is computed anew; a damaged record is no record, which a warning says."""
    options = {"model": "tiny-gpt2", "limit": "2", "prompt": ["qa"], "save": "kept"}
    line = {f"kgbench_{name}": value for name, value in options.items()}
    mine = Session(config_of(tmp_path, line, {}))
    record = mine.evaluate(tmp_path / "temporary")
    (path,) = records_in(tmp_path / "called" / "kept")
    before = (path / "record.json").stat().st_mtime_ns
    assert mine.evaluate(tmp_path / "temporary") == record
    assert mine.folders[record.id] == path and (path / "record.json").stat().st_mtime_ns == before
    assert not (tmp_path / "temporary").exists()
    (path / "facts.parquet").unlink()
    with pytest.warns(DamagedRecordWarning, match=r"facts\.parquet is missing"):
        assert mine.evaluate(tmp_path / "temporary").rows == record.rows
    assert mine.folders[record.id].name == f"{path.name}-2"


TIMED = """
import pytest

@pytest.mark.parametrize("prompt", ["headline", "qa"])
def test_cost(time_localizer, prompt):
    time_localizer(prompt)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("localizer", "kind"), [("dynamic_graft", "intervention"), ("weight_delta", "scoring")]
)
def test_a_localizer_is_timed(tmp_path: Path, localizer: str, kind: str) -> None:
    """One group per prompt, the same names for every localizer, and in `extra_info` what was timed
    and its ratio to a plain forward.
    """
    what = ("--kgbench-model", "tiny-gemma", "--kgbench-localizer", localizer)
    few = ("--kgbench-limit", "4", "--kgbench-prompt", "headline,qa", "--benchmark-min-rounds", "2")
    folder = write(tmp_path, test_cost=TIMED)
    options = (*what, *few, "--benchmark-disable-gc", "--benchmark-json", "times.json")
    done = session(folder, *options, plugins=())
    assert (done.returncode, counts(done)) == (0, {"passed": 2}), done.stdout
    found = json.loads((tmp_path / "times.json").read_text("utf-8"))["benchmarks"]
    assert {each["name"]: each["group"] for each in found} == {
        f"test_cost[{prompt}]": prompt for prompt in ("headline", "qa")
    }
    for about in (each["extra_info"] for each in found):
        assert (about["localizer"], about["version"], about["kind"]) == (localizer, "1", kind)
        assert (about["model"], about["prompts"]) == ("tiny-gemma", 4)
        assert about["ratio_to_plain_forward"] > 0 and about["token_rows"] >= 0


def test_timing_needs_pytest_benchmark(tmp_path: Path) -> None:
    """Where it is not there, one line says what to install, before anything is loaded."""
    done = session(write(tmp_path, test_cost=TIMED), "-p", "no:benchmark", plugins=())
    assert done.returncode == 1 and "pip install pytest-benchmark" in done.stdout
    assert "Traceback" not in done.stdout


def test_fixtures_that_are_overridden(tmp_path: Path) -> None:
    """The evaluation is of what the options say, and refuses in a line others in the place of the
    fixtures that tell it.
    """
    own = "".join(f"@pytest.fixture(scope='session')\ndef {name}(): return 0\n" for name in OPTIONS)
    folder = write(
        tmp_path, conftest=f"import pytest\n{own}", test_mine="def test_one(evaluation): pass\n"
    )
    done = session(folder, "--kgbench-model", "tiny-gpt2")
    assert counts(done) == {"error": 1}, done.stdout
    assert "kgbench: the fixture 'model_pair' is overridden" in done.stdout
    assert "give --kgbench-model instead" in done.stdout
    assert "Traceback" not in done.stdout


def test_errors_are_one_line(tmp_path: Path) -> None:
    """What a user gave wrong is told in a line for each test, without a traceback; pytest finds the
    plug-in by itself.
    """
    folder = write(
        tmp_path, test_mine="def test_one(evaluation): pass\ndef test_two(model_pair): pass\n"
    )
    done = session(folder, "--kgbench-model", "tiny-gemmo", plugins=())
    assert counts(done) == {"errors": 2}, done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("kgbench: ")]
    assert len(told) == 2
    assert all(
        line.startswith("kgbench: unknown model 'tiny-gemmo'. Did you mean 'tiny-gemma'")
        for line in told
    )
    assert "Traceback" not in done.stdout
    assert ".py:" not in done.stdout.replace("test_mine.py::", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({}, "which model? Give --kgbench-model NAME"),
        (
            {"kgbench_recipient": "before"},
            "which facts did the donor learn? Give --kgbench-dataset NAME",
        ),
        (
            {"kgbench_model": "tiny-gpt2", "kgbench_localizer": "dynamic_graf"},
            "Did you mean 'dynamic_graft'",
        ),
        ({"kgbench_donor": ["sft="]}, "--kgbench-donor 'sft=': expected NAME=PATH"),
        ({"kgbench_donor": ["a", "sft=b"]}, "--kgbench-donor: 'sft' is given twice"),
        ({"kgbench_prompt": [","]}, "--kgbench-prompt: names no prompt"),
        ({"kgbench_limit": "0"}, "--kgbench-limit '0': expected how many facts"),
    ],
)
def test_mistakes_are_found_before_models_load(
    tmp_path: Path, line: Mapping[str, Any], said: str
) -> None:
    """With what was expected, what would do, and what to do."""
    mine = Session(config_of(tmp_path, line, {}))
    with pytest.raises(pytest.fail.Exception, match=re.escape(said)), in_a_line():
        _ = mine.model_pair
    assert "pairs" not in vars(mine)


def test_names_of_options() -> None:
    """An error that names an option of the command line names the plug-in's."""
    error = InputError(
        "give --donor sft=PATH or --dataset FILE; give another one by --output-dir; --donors are no"
        " option"
    )
    expected = (
        "give --kgbench-donor sft=PATH or --kgbench-dataset FILE; give another one by"
        " --kgbench-save; --donors are no option"
    )
    assert in_pytest_words(error) == f"kgbench: {expected}"
    told = (
        "shipped pairs alone have --model; see `kgbench ls models --limit 3` or run 'kgbench train"
        " --model tiny-gpt2'"
    )
    spoken = told.replace("have --model", "have --kgbench-model")
    assert in_pytest_words(InputError(told)) == f"kgbench: {spoken}"


def config_of(folder: Path, line: Mapping[str, Any], ini: Mapping[str, Any]) -> Any:
    """What pytest has if it is called in one folder with its ini file in another."""
    return SimpleNamespace(
        getoption=lambda name: line.get(name),
        getini=lambda name: ini.get(name, ""),
        invocation_params=SimpleNamespace(dir=folder / "called"),
        inipath=folder / "ini" / "pytest.ini",
        option=SimpleNamespace(collectonly=False),
        stash=pytest.Stash(),
    )


def given_from(folder: Path, line: Mapping[str, Any], ini: Mapping[str, Any]) -> Options:
    return Options(config_of(folder, line, ini))


def test_places(tmp_path: Path) -> None:
    """Relative paths start where pytest was called, or where the ini file is; names and ids
    elsewhere stay as they are.
    """
    for place in ("called/after", "ini/before", "called/tiny-gemma", "ini/tiny_movies"):
        (tmp_path / place).mkdir(parents=True)
    line = {
        "kgbench_donor": ["after", "other=owner/name"],
        "kgbench_model": "tiny-gemma",
        "kgbench_save": "out",
    }
    ini = {
        "kgbench_recipient": "before",
        "kgbench_donor": ["no=where"],
        "kgbench_dataset": "tiny_movies",
        "kgbench_save": "kept",
    }
    given = given_from(tmp_path, line, ini)
    spec = given.spec()
    assert spec.donors == {"sft": str(tmp_path / "called/after"), "other": "owner/name"}
    assert (spec.recipient, spec.dataset, spec.model) == (
        str(tmp_path / "ini/before"),
        "tiny_movies",
        "tiny-gemma",
    )
    assert given.save == tmp_path / "called/out"
    assert given_from(tmp_path, {}, ini).save == tmp_path / "ini/kept"


def test_lists(tmp_path: Path) -> None:
    """Prompts with commas, by repetition, or both; a donor's path may hold an equals sign."""
    spec = given_from(
        tmp_path,
        {"kgbench_prompt": ["qa,headline", "qa", " new_film "]},
        {"kgbench_donor": ["./a=b"]},
    ).spec()
    assert spec.prompts == ("qa", "headline", "new_film") and spec.donors == {"sft": "./a=b"}
