"""`kgbench new-localizer`: what it writes works as it stands."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import forks
import pytest

from kgbench.cli import main

ROOT = Path(__file__).parent.parent
KINDS = ("scoring", "intervention")


def ran(folder: Path, *command: str) -> str:
    """What a command says that must succeed in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", *command]
    done = forks.run(line, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_works(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files lie in the working directory, and the commands that it prints (tests/golden) do as
    they are: the contract holds, also as pytest sees it with warnings as errors, and `kgbench eval`
    runs. A folder that is not there is made.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["new-localizer", "other", "--output-dir", str(tmp_path / "a" / "b")]) == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"other.py", "test_other.py"}
    shutil.rmtree(tmp_path / "a")
    assert main(["new-localizer", "my_method_2", "--kind", kind]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"my_method_2.py", "test_my_method_2.py"}
    assert main(["check-localizer", "my_method_2.py:MyMethod2", "--family", "gpt2"]) == 0
    assert "laws hold" in capsys.readouterr().out
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-k", "gemma")
    assert " passed" in ran(tmp_path, "pytest", *options, "test_my_method_2.py")
    named = ["--localizer", "my_method_2.py:MyMethod2", "--model", "tiny-gpt2", "--limit", "4"]
    assert main(["eval", *named]) == 0
    assert "computed in" in capsys.readouterr().out


UNTYPED = "\n".join(
    f"[mypy-{library}.*]\nfollow_imports = skip"
    for library in ("torch", "transformers", "numpy", "pyarrow", "pydantic")
)
"""Libraries whose types take mypy a minute to read; `make lint` has them."""


@pytest.mark.nightly
def test_they_are_in_good_style(tmp_path: Path) -> None:
    """All files satisfy ruff as it comes, the methods ours too, and mypy against kgbench's types."""
    for kind in KINDS:
        line = ["new-localizer", f"my_{kind}", "--kind", kind, "--output-dir", str(tmp_path)]
        assert main(line) == 0
    ran(tmp_path, "ruff", "check", "--isolated", "--no-cache", ".")
    ran(tmp_path, "ruff", "format", "--isolated", "--no-cache", "--check", ".")
    ours = ("--config", str(ROOT / "pyproject.toml"), *(f"my_{kind}.py" for kind in KINDS))
    ran(tmp_path, "ruff", "check", "--no-cache", *ours)
    options = "strict = true\nwarn_unreachable = true\nfollow_imports = silent"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{options}\n{UNTYPED}\n", "utf-8")
    ran(tmp_path, "mypy", "--config-file", "mypy.ini", "--cache-dir", os.devnull, ".")


def test_a_point_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameter of the method that scores is checked, in a line, before anything runs."""
    folder = ["--output-dir", str(tmp_path)]
    assert main(["new-localizer", "my_method", *folder]) == 0
    capsys.readouterr()
    named = ["--localizer", f"{tmp_path / 'my_method.py'}:MyMethod"]
    point = ["--localizer-arg", "point=mlp_ot", "--model", "tiny-gpt2"]
    assert main(["eval", *named, *point, *folder]) == 2
    told = capsys.readouterr().err
    assert "Did you mean 'mlp_out'" in told and told.count("\n") == 1
