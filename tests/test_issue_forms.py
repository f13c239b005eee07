"""Issue forms are what GitHub reads, and ask in kgbench's own words."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_leaderboard_readme import found

from kgbench.leaderboard.entries import BOARDS
from kgbench.runner.lookup import load_suite

FOLDER = Path(__file__).parents[1] / ".github" / "ISSUE_TEMPLATE"
FORMS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FOLDER.glob("*.yml")}
KEYS = {"markdown": {"value"}, "checkboxes": {"label", "options"}, "dropdown": {"label", "options"}}
TOP = {"name", "description", "title", "labels", "body"}
LABELLED = {"label", "description", "placeholder", "render", "options", "value"}


def test_there_is_a_form_of_each() -> None:
    """For a method, a request for an evaluation, and a pair."""
    assert set(FORMS) == {"method", "evaluation", "pair"}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_have_the_keys_that_github_requires(form: dict[str, Any]) -> None:
    """Texts at the top; fields of known types with what each requires, and ids given once."""
    assert {"name", "description", "body"} <= form.keys() <= TOP
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert fields and len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in {"markdown", "input", "textarea", "dropdown", "checkboxes"}
        assert KEYS.get(field["type"], {"label"}) <= set(field["attributes"]) <= LABELLED
        assert set(field.get("validations", {})) <= {"required"}
    assert all(re.fullmatch(r"[a-z_-]+", id) for id in ids)


def test_boards_and_commands_are_there() -> None:
    """Boards by the names that they have now; commands and their options."""
    fields = {field.get("id"): field["attributes"] for field in FORMS["method"]["body"]}
    names = [option["label"] for option in fields["boards"]["options"]]
    assert sorted(names) == sorted(load_suite(board).versioned for board in BOARDS)
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.yml")]
    told = list(chain.from_iterable(re.findall(r"`kgbench ([^`]+)`", text) for text in texts))
    assert told
    for words in map(str.split, told):
        options = {option for parameter in found(words).params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
