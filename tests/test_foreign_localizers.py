"""Localizers that are not kgbench's own: whatever they do, one line says so, and no record holds what they spoilt."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from kgbench.cli import main
from kgbench.errors import InputError
from kgbench.runner import Pairs, Settings, Spec, run_job

HEADS = {
    "treat": "def treat(self, pair, prompts, sites):",
    "fitted": "def fitted(self, pair, prompts):",
    "variants": "def variants(self):",
    "units": "def units(self, pair, prompts):",
    "scores": "def scores(self, pair, prompts):",
}


def written(folder: Path, method: str, body: str) -> str:
    """A localizer one of whose methods does as it is told; gives what to name it by."""
    base = "random.Random" if method == "scores" else "dynamic_graft.DynamicGraft"
    head = f"import sys\nimport torch\nfrom kgbench.localizers.{base.partition('.')[0]} import {base.partition('.')[2]} as Base\n"
    text = f'{head}class Mine(Base):\n    name = "mine"\n    about = "mine"\n    {HEADS[method]}\n'
    (folder / "mine.py").write_text(text + "".join(f"        {line}\n" for line in dedent(body).strip().splitlines()))
    return f"{folder / 'mine.py'}:Mine"


def refused(capsys: pytest.CaptureFixture[str], name: str, folder: Path, *options: str) -> str:
    """The one line with which `kgbench eval` ends, with status 2 and no record."""
    where = ("--model", "tiny-gpt2", "--limit", "4", "--prompt", "headline", "--output-dir", str(folder / "runs"), "-q")
    assert main(["eval", "--localizer", name, *where, *options]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1, told.err
    assert not list(folder.glob("runs/*/record.json"))
    return told.err.removeprefix("kgbench: error: ").rstrip("\n")


@pytest.mark.parametrize("raised", ["raise KeyError('boom')", "sys.exit('boom')", "helped = lambda: 1 / 0\nhelped()"])
@pytest.mark.parametrize("method", HEADS)
def test_what_it_raises_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, raised: str) -> None:
    """Which method raised what in which line of the author's file, and the command that says more."""
    name = written(tmp_path, method, raised)
    what = {"r": "KeyError: 'boom'", "s": "SystemExit: boom", "h": "ZeroDivisionError: division by zero"}[raised[0]]
    told = refused(capsys, name, tmp_path, *(("--suite", "budget") if method == "units" else ()))
    assert told == f"localizer 'mine': {method} raised {what} (mine.py:8); run `kgbench check {name}`"


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("treat", "None", "treat must give one treatment per token"),
        ("treat", "3", "treat must give one treatment per token"),
        ("treat", "[None for _ in prompts]", "treat must give one treatment per token"),
        ("treat", "[['PRE' for _ in pair.encoded(p).ids] for p in prompts]", "treat must give one treatment per token"),
        ("fitted", "None", "fitted must give an intervention"),
        ("variants", "None", "variants a list of such"),
        ("variants", "()", "variants a list of such"),
        ("scores", "None", "scores must give a number for each site"),
    ],
)
def test_what_it_returns_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, given: str, told: str) -> None:
    """Something of another type is said to be so."""
    assert told in refused(capsys, written(tmp_path, method, f"return {given}"), tmp_path)


def test_a_dry_run_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run calls the same methods."""
    assert "treat raised KeyError: 'boom'" in refused(capsys, written(tmp_path, "treat", "raise KeyError('boom')"), tmp_path, "--dry-run")


def test_check_does_not_end_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method that ends the program is no success."""
    assert main(["check", written(tmp_path, "treat", "sys.exit(0)"), "--family", "gpt2", "-q"]) in (1, 2)
    told = capsys.readouterr()
    assert "SystemExit: 0" in told.out + told.err


SPOILING = "with torch.no_grad(): next(pair.{model}.parameters()).data.add_(1.0)\n{then}"


@pytest.mark.parametrize(
    ("method", "model", "then", "told"),
    [
        ("treat", "recipient", "return super().treat(pair, prompts, sites)", "changed the weights of the recipient,"),
        ("scores", "donors['sft']", "return super().scores(pair, prompts)", "changed the weights of the sft,"),
        ("treat", "recipient", "raise KeyError('boom')", "treat raised KeyError: 'boom'"),
    ],
)
def test_changed_weights_are_noticed(tmp_path: Path, method: str, model: str, then: str, told: str) -> None:
    """No record is written, nothing is kept for a run that resumes, and the pair is loaded anew for the next one."""
    name, settings, pairs = written(tmp_path, method, SPOILING.format(model=model, then=then)), Settings(output_dir=tmp_path), Pairs()
    spec = Spec(model="tiny-gpt2", localizer=name, prompts=("headline",), limit=4)
    before = pairs.load(spec, settings)
    with pytest.raises(InputError) as caught:
        run_job(spec, settings, pairs=pairs)
    assert told in str(caught.value) and f"run `kgbench check {name}`" in str(caught.value)
    assert not list(tmp_path.glob("*/record.json")) and not list(tmp_path.glob(".partial/*"))
    assert pairs.load(spec, settings) is not before
    assert pairs.load(spec, settings).changed() == ()
