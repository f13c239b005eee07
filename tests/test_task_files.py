"""`kgbench tasks validate`: files of a folder that lm-eval would leave out without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_tasks import TASK, findings, only, write

from kgbench.harness.validate import validate


def test_a_broken_yaml(tmp_path: Path) -> None:
    """A file that is no YAML, which lm-eval leaves out without a word."""
    path = write(tmp_path, TASK)
    path.write_text(
        "task: mine\ndoc_to_text: [query\noutput_type: loglikelihood\n", encoding="utf-8"
    )
    line = only(tmp_path)
    assert line.startswith(f"{path}: task mine: is not YAML: ")
    assert " at line 3, column " in line
    assert findings(tmp_path, "mine") == [line]
    assert [
        (task.name, task.documents) for task in validate((), tmp_path, ["tiny-gpt2"]).tasks
    ] == [("mine", 0)]


def test_a_missing_include(tmp_path: Path) -> None:
    """A file that includes one which is not there."""
    path = write(tmp_path, {**TASK, "include": "_common.yaml"})
    assert only(tmp_path).startswith(
        f"{path}: task mine: includes _common.yaml, which is not there"
    )


def test_a_broken_include(tmp_path: Path) -> None:
    """A file that includes a broken one: both are named."""
    path = write(tmp_path, {**TASK, "include": "_common.yaml"})
    (tmp_path / "_common.yaml").write_text("a: {b\n", encoding="utf-8")
    inner, outer = findings(tmp_path)
    assert inner.startswith(f"{tmp_path / '_common.yaml'}: is not YAML")
    assert outer.startswith(f"{path}: task mine: includes _common.yaml, which is not YAML")


@pytest.mark.parametrize(
    ("dotted", "reason"),
    [
        ("data.laod", "has no attribute 'laod'"),
        ("kgbench.harness.rows.laod", "has no attribute 'laod'"),
        ("nowhere.load", "No module named 'nowhere'"),
        ("load", "no module path"),
    ],
)
def test_a_missing_function(dotted: str, reason: str, tmp_path: Path) -> None:
    """A `!function` that is not in its module, or whose module is not there; the key is named, also within lists."""
    path = write(tmp_path, TASK)
    path.write_text(
        path.read_text()
        + f"filter_list:\n  - name: own\n    filter: [{{function: !function {dotted}}}]\n",
        encoding="utf-8",
    )
    line = only(tmp_path)
    assert line.startswith(
        f"{path}: task mine, field filter_list[0].filter[0].function: !function {dotted} is not to be had: "
    )
    assert reason in line


def test_a_missing_function_in_an_include(tmp_path: Path) -> None:
    """It is told of the file that holds it, and of each task that includes it."""
    path = write(tmp_path, {**TASK, "include": "_common.yaml"})
    (tmp_path / "_common.yaml").write_text(
        "process_results: !function data.none\n", encoding="utf-8"
    )
    inner, outer = findings(tmp_path)
    assert inner.startswith(
        f"{tmp_path / '_common.yaml'}: field process_results: !function data.none"
    )
    assert outer.startswith(f"{path}: task mine: does not load: AttributeError: ")


def test_a_duplicate_name(tmp_path: Path) -> None:
    """Two files with a task of one name, of which lm-eval takes the first."""
    first, second = write(tmp_path, TASK, name="a.yaml"), write(tmp_path, TASK, name="b.yaml")
    assert only(tmp_path).startswith(
        f"{second}: task mine, field task: {first} has a task of this name already"
    )


def test_a_nameless_task(tmp_path: Path) -> None:
    """A file that looks like a task but has no name; other YAML files are none of our business."""
    path = write(tmp_path, TASK)
    write(
        tmp_path, {key: value for key, value in TASK.items() if key != "task"}, name="nameless.yaml"
    )
    (tmp_path / "compose.yaml").write_text("services: {web: {image: x}}\n", encoding="utf-8")
    (tmp_path / "_part.yaml").write_text("output_type: loglikelihood\n", encoding="utf-8")
    assert only(tmp_path).startswith(
        f"{path.with_name('nameless.yaml')}: field task: has no key 'task'"
    )


def test_only_what_is_asked_for_is_run(tmp_path: Path) -> None:
    """With names, no module of another task is imported; without, all are, and what they raise is told."""
    write(tmp_path, TASK)
    path = write(tmp_path, {**TASK, "task": "other"}, name="other.yaml")
    path.write_text(path.read_text() + "process_docs: !function loud.run\n", encoding="utf-8")
    (tmp_path / "loud.py").write_text(
        "open(__file__ + '.ran', 'w').close()\nraise ValueError('loud')\n", encoding="utf-8"
    )
    assert findings(tmp_path, "mine") == []
    assert not (tmp_path / "loud.py.ran").exists()
    assert (
        only(tmp_path)
        == f"{path}: task other, field process_docs: !function loud.run is not to be had: ValueError: loud"
    )
    assert findings(tmp_path, "other") == [only(tmp_path)]
    assert (tmp_path / "loud.py.ran").exists()
