"""A user's own repository: facts in a CSV, two checkpoints, and the test file of the documentation."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from adapters import quiet
from pages import DOCS, PAGES, block, code
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from whole_donors import part_of, whole_donor

from kgbench.data import load_dataset

PAGE = PAGES[DOCS / "guides" / "test-a-finetune.md"]
FACTS = "tiny_movies:first150"


class Project:
    """A folder of the user's, and an interpreter that has kgbench from the wheel alone."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.wheel = folder, wheel
        # With -S no .pth file is read, so that an editable install leads nowhere; what others
        # installed is found all the same.
        third_party = [
            path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")
        ]
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTEST", "COV", "PYTHON", "CI"))
        }
        path = os.pathsep.join([str(wheel), *third_party])
        self.environment = kept | {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "100",
        }

    def ran(self, *arguments: str) -> tuple[int, str]:
        """Exit status and stdout of `python -m …` in the folder; warnings of ours are errors."""
        return self._done(subprocess.run, [sys.executable, "-S", "-m", *arguments])

    def _done(self, run: Callable[..., Any], command: list[str]) -> tuple[int, str]:
        done = run(command, cwd=self.folder, capture_output=True, text=True, env=self.environment)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    def tested(self, *options: str) -> tuple[int, str]:
        """Exit status and stdout of pytest there, which says itself from where it has the plug-in."""
        words = ["-p", "no:cacheprovider", "-W", "error", "--traceconfig", *options]
        status, told = self._done(forks.run, [sys.executable, "-m", "pytest", *words])
        found = re.findall(
            r"^PLUGIN registered: <module 'kgbench\S* from '(.*)'>$", told, re.MULTILINE
        )
        assert found == [str(self.wheel / "kgbench" / "pytest_plugin.py")]
        return status, told


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Project:
    """The project of the guide, with the two checkpoints of tiny-gemma and some of its facts; only
    the import is still to be done.
    """
    folder = tmp_path_factory.mktemp("my-finetune")
    with (folder / "facts.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["actor", "costar", "film"])
        table.writerows(
            [fact.fields[name] for name in ("first_actor", "second_actor", "movie_title")]
            for fact in load_dataset(FACTS).facts
        )
    shutil.copytree(part_of("tiny-gemma", "recipient"), folder / "before")
    whole_donor("tiny-gemma", folder / "after")
    nudge(folder / "before", folder / "edited")
    adapt(folder / "before", folder / "adapter")
    for name in ("pytest.ini", "test_my_finetune.py", "test_my_models.py"):
        (folder / name).write_text(code(name), encoding="utf-8")
    return Project(folder, wheel)


def nudge(base: Path, folder: Path) -> None:
    """A checkpoint that differs from its base by a thousandth of one matrix."""
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.5.mlp.down_proj.weight"] *= 1.001
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def adapt(base: Path, folder: Path) -> None:
    """An adapter of the last two of eight layers, whose matrices are drawn."""
    adapter = LoraConfig(
        r=2,
        target_modules=["q_proj", "down_proj"],
        layers_to_transform=[6, 7],
        init_lora_weights=False,
    )
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with quiet():
        get_peft_model(model, adapter).save_pretrained(str(folder))


@pytest.fixture(scope="module")
def imported(project: Project) -> str:
    """What the guide's import prints."""
    found = re.search(r"^kgbench (data import (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    assert found is not None
    status, told = project.ran("kgbench", *shlex.split(found[1].replace("\\\n", "")))
    assert status == 0
    return told


def test_the_wheel_is_what_runs(project: Project) -> None:
    """Module and tasks come from it, and the sources cannot be imported."""
    status, told = project.ran(
        "timeit",
        "-n1",
        "-r1",
        "-s",
        "import kgbench, sys; print(kgbench.__file__, *sys.path, sep='\\n')",
    )
    module, *path = told.splitlines()[:-1]
    assert status == 0 and Path(module) == project.wheel / "kgbench" / "__init__.py"
    assert not any(
        (Path(project.folder, place) / "kgbench" / "__init__.py").exists()
        for place in path
        if place != str(project.wheel)
    )
    status, listed = project.ran("kgbench", "ls", "tasks")
    folder = listed.splitlines()[-1].rpartition(": ")[2]
    written = project.wheel / "kgbench" / "tasks" / "_kgbench.yaml"
    copy = Path(folder.strip()) / written.name
    assert status == 0 and copy.read_bytes() == written.read_bytes()
    assert any(copy.parent.glob("*/headline.yaml"))


def test_the_import_prints_what_the_guide_shows(imported: str, project: Project) -> None:
    """All rows are kept, with both templates."""
    assert imported.startswith(code("output of kgbench data import"))
    assert len(load_dataset(str(project.folder / "facts.jsonl")).facts) == len(
        load_dataset(FACTS).facts
    )


@pytest.mark.nightly
def test_the_three_assertions_of_the_guide(imported: str, project: Project) -> None:
    """They pass on a finetune, an edit and an adapter that do what is claimed, as the guide shows,
    and fail on those that do not: nothing learned, much moved, every layer touched.
    """
    file, asked = "test_my_models.py", ("--kgbench-prompt", "stars", "--kgbench-limit", "100")
    status, told = project.tested(file, *asked)
    assert status == 0, told
    assert code("output of the three assertions").split()[:2] == [file, "..."]
    assert re.search(r"=+ 3 passed in", told)
    wrong = code(file).replace('"edited"', '"after"').replace('"adapter"', '"after"')
    (project.folder / "wrong.py").write_text(wrong, encoding="utf-8")
    status, told = project.tested("wrong.py", *asked, "--kgbench-donor", "sft=before")
    assert status == 1 and re.search(r"=+ 3 failed in", told), told


@pytest.mark.nightly
def test_the_claims_of_the_guide_pass(imported: str, project: Project) -> None:
    """The finetuned checkpoint keeps its facts where the test file says, also where undecided
    claims fail.
    """
    status, told = project.tested("test_my_finetune.py", "--kgbench-undecided", "fail")
    assert status == 0, told
    shown = block("output of the test")
    assert "4 passed" in shown and re.search(r"=+ 4 passed in", told)
    rows = [line for line in shown.splitlines() if re.match(r"(PRE|SFT|FE|LT|\(FE)", line)]
    assert len(rows) > 3
    assert all(row.split()[:3] in [line.split()[:3] for line in told.splitlines()] for row in rows)


@pytest.mark.nightly
def test_nothing_learned_nothing_passes(imported: str, project: Project) -> None:
    """With the same checkpoint before and after, one test fails and the others are undecided."""
    nothing = ("--kgbench-donor", "sft=before", "--kgbench-limit", "20")
    status, told = project.tested("test_my_finetune.py", *nothing)
    assert status == 1
    assert "1 failed, 3 undecided" in told and "passed" not in told
    assert "FAILED test_my_finetune.py::test_it_learned_them" in told


def test_the_project_is_as_short_as_it_is_said_to_be() -> None:
    """About fifteen lines of code."""
    assert len([line for line in code("test_my_finetune.py").splitlines() if line.strip()]) <= 15
