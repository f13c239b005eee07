"""`kgbench tasks validate`: tasks that do not load, and files that lm-eval leaves out silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_tasks import TASK, findings, only, write

from kgbench.harness.task_validation import validate_tasks


def test_a_broken_yaml(tmp_path: Path) -> None:
    """A file that is not YAML, and one that includes it: both are named, and other tasks are
    validated.
    """
    write(tmp_path, TASK)
    outer = write(tmp_path, {**TASK, "task": "outer", "include": "_common.yaml"}, name="outer.yaml")
    inner = tmp_path / "_common.yaml"
    inner.write_text("a: {b\n", encoding="utf-8")
    for path, line in zip((inner, outer), findings(tmp_path), strict=True):
        assert line.startswith(f"{path}: does not read, so that lm-eval leaves it out: ")
    assert [task.name for task in validate_tasks((), tmp_path, ["tiny-gpt2"]).tasks] == ["mine"]


def test_a_missing_include(tmp_path: Path) -> None:
    """A file that includes one which is not there."""
    path = write(tmp_path, {**TASK, "include": "_common.yaml"})
    assert only(tmp_path).startswith(f"{path}: does not read")
    assert "_common.yaml" in only(tmp_path)


@pytest.mark.parametrize(
    ("dotted", "reason"),
    [
        ("data.laod", "has no function 'laod'"),
        ("kgbench.harness.rows.laod", "has no function 'laod'"),
        ("nowhere.load", "import module 'nowhere'"),
    ],
)
def test_a_missing_function(dotted: str, reason: str, tmp_path: Path) -> None:
    """A `!function` that is not in its module, or whose module is not there."""
    path = write(tmp_path, TASK)
    path.write_text(path.read_text() + f"process_docs: !function {dotted}\n", encoding="utf-8")
    assert only(tmp_path).startswith(f"{path}: task mine: does not load: ")
    assert reason in only(tmp_path)


def test_only_what_is_asked_for_is_run(tmp_path: Path) -> None:
    """With names, no module of another task is imported; without, all are, and an error of one is a
    finding.
    """
    write(tmp_path, TASK)
    path = write(tmp_path, {**TASK, "task": "other"}, name="other.yaml")
    path.write_text(path.read_text() + "process_docs: !function loud.run\n", encoding="utf-8")
    (tmp_path / "loud.py").write_text(
        "open(__file__ + '.ran', 'w').close()\nraise ValueError('loud')\n", encoding="utf-8"
    )
    assert findings(tmp_path, "mine") == []
    assert not (tmp_path / "loud.py.ran").exists()
    assert only(tmp_path).startswith(f"{path}: task other: does not load: ")
    assert findings(tmp_path, "other") == [only(tmp_path)]
    assert (tmp_path / "loud.py.ran").exists()
