"""`kgbench tasks validate`: every shipped task is right, and whatever is wrong with a document is
told in a line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from own_tasks import CHOICES, ROW, TASK, findings, only, place, write
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kgbench.cli import main
from kgbench.data import dataset_names, load_dataset
from kgbench.harness import shipped_tasks
from kgbench.harness.task_validation import validate_tasks


@pytest.mark.parametrize("dataset", dataset_names())
def test_every_shipped_row_is_right(dataset: str) -> None:
    """Nothing is wrong with any row: with its target in every prompt under the four tiny
    tokenizers, and in the other forms of one prompt. Candidates are targets of other rows.
    """
    own = [entry for entry in shipped_tasks() if entry.dataset == dataset]
    targets = [entry for entry in own if entry.form == "loglikelihood"]
    others = [entry for entry in own if entry.prompt == own[0].prompt and entry not in targets]
    tiny = ("tiny-gemma", "tiny-llama", "tiny-gpt2", "tiny-pythia")
    for chosen, tokenizers in ((targets, tiny), (others, tiny[:1])):
        report = validate_tasks([entry.name for entry in chosen], tokenizers=tokenizers)
        assert [str(found) for found in report.findings] == []
        assert {task.name: task.documents for task in report.tasks} == {
            entry.name: entry.documents for entry in chosen
        }


@pytest.mark.parametrize("config", [TASK, CHOICES], ids=["loglikelihood", "choices"])
def test_a_users_task_that_is_right(config: Mapping[str, Any], tmp_path: Path) -> None:
    """A task of a user's own, with spans or without, has no findings."""
    bare = {key: value for key, value in ROW.items() if key not in ("spans", "subject")}
    write(tmp_path, config)
    assert findings(tmp_path) == []
    write(tmp_path, config, bare)
    assert findings(tmp_path) == []


def test_other_kinds_of_tasks_are_rendered(tmp_path: Path) -> None:
    """A task that generates, one that scores a whole text, and a group of tasks are loaded and
    rendered.
    """
    plain = {key: value for key, value in ROW.items() if key != "spans"}
    write(tmp_path, {**TASK, "output_type": "generate_until", "task": "b"}, plain, name="b.yaml")
    rolling = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "query",
        "metric_list": None,
    }
    write(tmp_path, {**TASK, **rolling, "task": "c"}, plain, name="c.yaml")
    (tmp_path / "d.yaml").write_text(
        "group: both\ntask: [b, kgbench_tiny_movies_qa]\n", encoding="utf-8"
    )
    report = validate_tasks(["c", "both"], tmp_path, ["tiny-gpt2"])
    assert report.findings == ()
    assert {task.name: task.documents for task in report.tasks} == {
        "b": 1,
        "c": 1,
        "kgbench_tiny_movies_qa": len(load_dataset("tiny_movies").facts),
    }


def test_a_group_that_brings_its_own(tmp_path: Path) -> None:
    """A group's inline task is looked at like any other, in the group's file; what is wrong with it
    is told.
    """
    write(tmp_path, TASK)
    path = tmp_path / "d.yaml"
    inline = {**TASK, "task": "inline", "doc_to_target": "gold"}
    del inline["metric_list"]
    members = ", ".join(f'{key}: "{value}"' for key, value in inline.items())
    path.write_text(
        f"group: both\ntask:\n  - mine\n  - {{{members}, custom_dataset: !function data.load}}\n",
        encoding="utf-8",
    )
    report = validate_tasks((), tmp_path, ["tiny-gpt2"])
    assert [(task.name, Path(task.file).name, task.documents) for task in report.tasks] == [
        ("mine", "mine.yaml", 1),
        ("both::inline", "d.yaml", 1),
    ]
    (found,) = report.findings
    assert str(found).startswith(
        f"{path}: task both::inline, document 0 (mine/1), field doc_to_target: expected a text,"
        " found the int 1"
    )
    assert validate_tasks(["both"], tmp_path, ["tiny-gpt2"]).findings == report.findings


def test_a_group_that_changes_a_member(tmp_path: Path) -> None:
    """A member is looked at as the group sets it, beside the task by itself; one that is as it was,
    is looked at once.
    """
    path = write(tmp_path, TASK)
    (tmp_path / "d.yaml").write_text(
        "group: changed\ntask: [{task: mine, doc_to_target: gold}]\n", encoding="utf-8"
    )
    (tmp_path / "e.yaml").write_text("group: unchanged\ntask: [mine]\n", encoding="utf-8")
    assert only(tmp_path).startswith(
        f"{path}: task changed::mine, document 0 (mine/1), field doc_to_target: "
    )
    assert [task.name for task in validate_tasks((), tmp_path, ["tiny-gpt2"]).tasks] == [
        "mine",
        "changed::mine",
    ]
    (line,) = findings(tmp_path, "changed")
    assert line.startswith(f"{path}: task mine, document 0 (mine/1), field doc_to_target: ")
    assert findings(tmp_path, "unchanged") == []


def test_a_group_that_does_not_load(tmp_path: Path) -> None:
    """A group with a member that there is none of."""
    write(tmp_path, TASK)
    (tmp_path / "d.yaml").write_text("group: both\ntask: [mine, yours]\n", encoding="utf-8")
    line = only(tmp_path)
    assert line.startswith(f"{tmp_path / 'd.yaml'}: task both: does not load: ")
    assert findings(tmp_path, "both") == [line]


# ------------------------------------------------------------------------------------ the documents


@pytest.mark.parametrize("target", ["", " ", "\n"])
def test_an_empty_target(target: str, tmp_path: Path) -> None:
    """A target without a character to score."""
    path = write(tmp_path, TASK, ROW, {**ROW, "target": target})
    assert (
        only(tmp_path)
        == place(path, "doc_to_target", "1 (mine/1)")
        + f"the target {target!r} is empty, so that there is nothing to score"
    )


def test_an_empty_choice(tmp_path: Path) -> None:
    """A choice without a character."""
    path = write(tmp_path, CHOICES, ROW, {**ROW, "candidates": ["", "Bo Ray"]})
    assert only(tmp_path).startswith(
        place(path, "doc_to_choice[0]", "1 (mine/1)") + "the target ' ' is empty"
    )


@pytest.mark.parametrize(
    ("column", "template", "found"),
    [
        (1984, "target", "int 1984"),
        ("[1408]", "{{target}}", "list [1408]"),
        (["a", "b"], "target", "list ['a', 'b']"),
    ],
)
def test_a_target_that_is_no_text(column: Any, template: str, found: str, tmp_path: Path) -> None:
    """A column of numbers, and a text in brackets that a template turns into a list."""
    path = write(tmp_path, {**TASK, "doc_to_target": template}, {**ROW, "target": column})
    assert only(tmp_path).startswith(
        place(path, "doc_to_target") + f"expected a text, found the {found}; "
    )


def test_a_target_without_its_blank(tmp_path: Path) -> None:
    """A target that runs into the last word, since lm-eval adds no blank to it."""
    path = write(tmp_path, TASK, {**ROW, "target": "Bo Ray"})
    assert only(tmp_path).startswith(
        place(path, "doc_to_target") + "the target 'Bo Ray' runs into the last word 'with'"
    )


def test_a_target_in_a_script_without_blanks(tmp_path: Path) -> None:
    """Thai, Lao, Khmer and Burmese targets follow the context's last word at once."""
    rows = [
        ("เมืองหลวงของไทยคือ", "กรุงเทพ"),
        ("ນະຄອນຫຼວງຂອງລາວ", "ວຽງຈັນ"),
        ("រាជធានីនៃកម្ពុជា", "ភ្នំពេញ"),
        ("မြန်မာ", "ရန်ကုန်"),
    ]
    write(tmp_path, TASK, *[{"query": query, "target": target} for query, target in rows])
    assert findings(tmp_path) == []


def test_a_query_within_the_context(tmp_path: Path) -> None:
    """A context may go on after the query, but must hold it."""
    path = write(tmp_path, {**TASK, "doc_to_text": "Question: {{query}} whom?\nAnswer:"})
    assert findings(tmp_path) == []
    write(tmp_path, {**TASK, "doc_to_text": "{{subject}} and"})
    assert only(tmp_path).startswith(
        place(path, "query")
        + "'Ann Lee stars in a film with' is not in the rendered context 'Ann Lee and'"
    )


def test_what_comes_before_the_query_is_no_fault(tmp_path: Path) -> None:
    """A description and examples before the query, which name the subject as well, move the spans
    with it.
    """
    spans = {"FE": [0, 7], "R": [8, 13]}
    others = [
        {**ROW, "id": f"mine/{n}", "query": f"Ann Lee stars in film {n} with", "spans": spans}
        for n in range(4)
    ]
    write(
        tmp_path,
        {
            **TASK,
            "description": "Ann Lee stars in films.\n",
            "fewshot_split": "test",
            "num_fewshot": 2,
        },
        *others,
    )
    assert findings(tmp_path) == []


def test_a_template_that_fails(tmp_path: Path) -> None:
    """A document that cannot be rendered."""
    path = write(
        tmp_path,
        {**CHOICES, "doc_to_choice": "{{candidates[0]}}"},
        {**ROW, "candidates": ["['x', 'Bo Ray']"]},
        ROW,
    )
    assert only(tmp_path).startswith(
        f"{path}: task mine, document 1 (mine/1): cannot be rendered: SyntaxError: "
    )


def test_data_that_do_not_load(tmp_path: Path) -> None:
    """A task whose data cannot be had: the error is told."""
    path = write(tmp_path, {**TASK, "test_split": "validation"})
    assert only(tmp_path) == f"{path}: task mine: does not load: KeyError: 'validation'"


# --------------------------------------------------------------------------------------- the tokens


@pytest.fixture
def words(tmp_path: Path, folders: Mapping[str, Path]) -> Path:
    """A checkpoint whose tokenizer splits at blanks only, knows few words, and drops characters of
    no width.
    """
    inner = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["<unk>", *str(ROW["query"]).split()])}, "<unk>"
        )
    )
    inner.normalizer = normalizers.Replace("\u200b", "")
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    shutil.copytree(folders["sft"], tmp_path / "words")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(
        tmp_path / "words"
    )
    return tmp_path / "words"


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (
            {"target": "-Bo Ray"},
            "doc_to_target",
            "the tokens of context and target '-Bo Ray' do not begin with the context's",
        ),
        ({"target": " \u200b"}, "doc_to_target", "the target ' \\u200b' has no token"),
        (
            {"query": "Ann Lee stars-in a film with", "spans": {"R": [8, 13]}},
            "spans",
            "region R, 'stars', cannot be located in ",
        ),
    ],
)
def test_what_is_wrong_as_tokens(
    change: Mapping[str, Any], field: str, message: str, tmp_path: Path, words: Path
) -> None:
    """A target that changes its context's tokens or adds none, a span that shares a token; the
    tokenizers that find so are named.
    """
    (tmp_path / "tasks").mkdir()
    path = write(tmp_path / "tasks", TASK, ROW, {**ROW, **change})
    (found,) = validate_tasks((), tmp_path / "tasks", ["tiny-gpt2", str(words)]).findings
    assert str(found).startswith(place(path, field, "1 (mine/1)") + message)
    assert str(found).endswith(f" (tokenizer {words})")


def test_what_several_tokenizers_find_is_told_once(tmp_path: Path, words: Path) -> None:
    """One line names all tokenizers that find the same."""
    (tmp_path / "tasks").mkdir()
    write(tmp_path / "tasks", TASK, {**ROW, "target": " \u200b"})
    again = shutil.copytree(words, tmp_path / "again")
    (found,) = validate_tasks((), tmp_path / "tasks", [str(words), str(again)]).findings
    assert found.tokenizers == (str(words), str(again))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines on what is wrong, a table of all tasks, a last line; exit status 1. The same as JSON.
    Without findings 0.
    """
    path = write(tmp_path, TASK, *[{**ROW, "target": ""}] * 12)
    arguments = [
        "tasks",
        "validate",
        "--include-path",
        str(tmp_path),
        "--tokenizer",
        "tiny-gpt2,tiny-llama",
    ]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [
        line.startswith(f"{path}: task mine, document {n} (mine/1), field doc_to_target: ")
        for n, line in enumerate(lines[:10])
    ] == [True] * 10
    assert lines[10] == "… and 2 more in task mine; --json has them all"
    assert lines[-3].split() == ["mine", "12", "2", "12"]
    assert (
        lines[-1]
        == "1 task, 12 documents, with the tokenizers of tiny-gpt2, tiny-llama: 12 findings"
    )
    assert main([*arguments, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["holds"], len(told["findings"]), told["tokenizers"]) == (
        False,
        12,
        ["tiny-gpt2", "tiny-llama"],
    )
    assert told["tasks"] == [{"name": "mine", "file": str(path), "documents": 12, "findings": 12}]
    assert main(["tasks", "validate", "kgbench_tiny_movies_qa", "--tokenizer", "tiny-gpt2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("all is well")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["kgbench_tiny_movies_headlin"],
            (
                "unknown task 'kgbench_tiny_movies_headlin'. Did you mean"
                " 'kgbench_tiny_movies_headline'"
            ),
        ),
        (["--tokenizer", "tiny-gema"], "unknown tokenizer 'tiny-gema'. Did you mean 'tiny-gemma'"),
        (["--tokenizer", "./nowhere"], "no checkpoint at './nowhere'"),
        (["--include-path", "./nowhere"], "does not exist"),
        (["--include-path", "."], "no tasks; expected files that end with .yaml"),
    ],
)
def test_wrong_input(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the user can mend is one line, exit status 2."""
    monkeypatch.chdir(tmp_path)
    assert main(["tasks", "validate", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
