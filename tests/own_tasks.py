"""Tasks for lm-eval as a user writes them, right but for what a test makes wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kgbench.harness.task_validation import validate_tasks

ROW: Mapping[str, Any] = {
    "id": "mine/1",
    "subject": "Ann Lee",
    "object": "Bo Ray",
    "query": "Ann Lee stars in a film with",
    "target": " Bo Ray",
    "spans": {"FE": [0, 7], "R": [8, 13], "P": [24, 28]},
    "candidates": ["Cy Fox", "Bo Ray"],
    "gold": 1,
}
"""A row in which nothing is wrong."""

METRIC = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
TASK: Mapping[str, Any] = {
    "task": "mine",
    "test_split": "test",
    "output_type": "loglikelihood",
    "doc_to_text": "query",
    "doc_to_target": "target",
    "target_delimiter": "",
    "metric_list": [METRIC],
}
"""A task, but for its data, in which nothing is wrong."""

CHOICES: Mapping[str, Any] = {
    **TASK,
    "output_type": "multiple_choice",
    "doc_to_choice": "candidates",
    "doc_to_target": "gold",
    "target_delimiter": " ",
}

DATA = """
import json
from pathlib import Path
from datasets import Dataset

def load(**_):
    return {"test": Dataset.from_list(json.loads((Path(__file__).parent / "rows.json").read_text()))}
"""


def write(
    folder: Path, config: Mapping[str, Any], *documents: Mapping[str, Any], name: str = "mine.yaml"
) -> Path:
    """A folder with one task and its rows."""
    (folder / "data.py").write_text(DATA, encoding="utf-8")
    (folder / "rows.json").write_text(json.dumps(list(documents) or [ROW]), encoding="utf-8")
    data = "custom_dataset: !function data.load\n"
    (folder / name).write_text(data + yaml.safe_dump(dict(config)), encoding="utf-8")
    return folder / name


def findings(folder: Path, *names: str) -> list[str]:
    """What is wrong, as lines, tried with one tokenizer."""
    return [str(found) for found in validate_tasks(names, folder, ["tiny-gpt2"]).findings]


def only(folder: Path) -> str:
    """The one line that says what is wrong."""
    (line,) = findings(folder)
    assert "\n" not in line
    return line


def place(path: Path, field: str, document: str = "0 (mine/1)") -> str:
    """How a line begins."""
    return f"{path}: task mine, document {document}, field {field}: "
