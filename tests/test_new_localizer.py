"""`kgbench new-localizer`: what it writes works as it stands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forks
import pytest

from kgbench.cli import main

ROOT = Path(__file__).parent.parent
KINDS = ("scoring", "intervention")


@pytest.fixture(params=KINDS)
def written(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A folder with a new localizer of each kind."""
    assert (
        main(
            ["new-localizer", "my_method_2", "--kind", request.param, "--output-dir", str(tmp_path)]
        )
        == 0
    )
    capsys.readouterr()
    return tmp_path


def ran(folder: Path, *command: str) -> str:
    """What a command says that must succeed in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forks.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.sampled(1)
def test_it_keeps_the_contract(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file passes `kgbench check-localizer`; on all families it is tried by its own test."""
    line = ["check", f"{written / 'my_method_2.py'}:MyMethod2", "--family", "gpt2"]
    assert main(line) == 0
    assert "laws hold" in capsys.readouterr().out


@pytest.mark.sampled(1)
def test_its_test_passes(written: Path) -> None:
    """The test that comes with it is found by pytest and passes, with warnings as errors."""
    assert " passed" in ran(
        written, "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_my_method_2.py"
    )


UNTYPED = "\n".join(
    f"[mypy-{library}.*]\nfollow_imports = skip"
    for library in ("torch", "transformers", "numpy", "pyarrow", "pydantic")
)
"""Libraries whose types take mypy a minute to read; `make lint` has them."""


@pytest.mark.nightly
def test_they_are_in_good_style(tmp_path: Path) -> None:
    """All files satisfy ruff as it comes, the methods ours too, and mypy against kgbench's types."""
    for kind in KINDS:
        assert (
            main(["new-localizer", f"my_{kind}", "--kind", kind, "--output-dir", str(tmp_path)])
            == 0
        )
    ran(tmp_path, "ruff", "check", "--isolated", "--no-cache", ".")
    ran(tmp_path, "ruff", "format", "--isolated", "--no-cache", "--check", ".")
    ran(
        tmp_path,
        "ruff",
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
        "--no-cache",
        *(f"my_{kind}.py" for kind in KINDS),
    )
    options = "strict = true\nwarn_unreachable = true\nfollow_imports = silent"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{options}\n{UNTYPED}\n", "utf-8")
    ran(tmp_path, "mypy", "--config-file", "mypy.ini", "--cache-dir", os.devnull, ".")


@pytest.mark.sampled(1)
def test_it_runs(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench eval` takes it."""
    where = ["--output-dir", str(written / "results")]
    assert (
        main(
            [
                "eval",
                "--localizer",
                f"{written / 'my_method_2.py'}:MyMethod2",
                "--model",
                "tiny-gpt2",
                "--limit",
                "4",
                *where,
            ]
        )
        == 0
    )
    assert "computed in" in capsys.readouterr().out


def test_a_point_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameter of the method that scores is checked, in a line, before anything runs."""
    assert main(["new-localizer", "my_method", "--output-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    named = [
        "--localizer",
        f"{tmp_path / 'my_method.py'}:MyMethod",
        "--localizer-arg",
        "point=mlp_ot",
    ]
    assert main(["eval", *named, "--model", "tiny-gpt2", "--output-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "Did you mean 'mlp_out'" in told and told.count("\n") == 1


def test_it_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that it prints name the files that it wrote; by default they lie in the working
    directory.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["new-localizer", "my_method"]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "my_method.py",
        "test_my_method.py",
    ]
    first, *commands = capsys.readouterr().out.splitlines()
    assert first == "wrote my_method.py and test_my_method.py; next:"
    assert [command.strip() for command in commands] == [
        "kgbench check-localizer my_method.py:MyMethod",
        "python -m pytest test_my_method.py",
        "kgbench eval --localizer my_method.py:MyMethod --model tiny-gemma --limit 20",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dynamic_graft"], "there is a localizer 'dynamic_graft' already"),
        (["direct_logit"], "there is a localizer 'direct_logit' already"),
        (["My-Method"], "expected small letters, digits and underscores"),
        (["2nd"], "expected small letters"),
        (["class"], "expected small letters"),
        (["methöde"], "expected small letters"),
        (["../up"], "expected small letters"),
        (["json"], "would hide it"),
        (["torch"], "would hide it"),
        (["here"], "here.py is there already"),
        (["there"], "test_there.py is there already"),
        (["mine", "--kind", "guessing"], "guessing"),
        (["mine", "--output-dir", "here.py"], "here.py"),
        (["mine", "--output-dir", "here.py/below"], "cannot be written"),
    ],
)
def test_wrong_input_writes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    """A name that cannot be one, or is taken, and a file that is there end with status 2 and one
    line, and change nothing.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("here.py", "test_there.py"):
        (tmp_path / name).write_text("mine")
    assert main(["new-localizer", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "here.py": "mine",
        "test_there.py": "mine",
    }
