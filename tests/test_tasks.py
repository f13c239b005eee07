"""The tasks for lm-eval: which there are, what their documents hold, and that they load from
anywhere.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgbench.cli import main
from kgbench.data import ImportOptions, builtin_prompts, dataset_names, load_dataset, load_prompts
from kgbench.errors import UnknownNameError
from kgbench.harness import ShippedTask, shipped_tasks, task_files, tasks_path
from kgbench.harness.metrics import TokenScore, process_results
from kgbench.harness.rows import CANDIDATES, data_fingerprint, gold, load, rows

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tasks"
HEADLINE = "kgbench_tiny_movies_headline"
FACTS = len(load_dataset("tiny_movies").facts)


def documents(name: str) -> list[dict[str, Any]]:
    """A data set's rows with every built-in prompt."""
    return [row for prompt in prompts_of(name) for row in rows(load_dataset(name), prompt)]


SETS = [name for name in dataset_names() if not name.startswith("organism_")]
"""Shipped data sets that ask by a text; the others have messages."""


def prompts_of(name: str) -> tuple[str, ...]:
    """The data set's own prompts, or the built-in ones: no shipped data set mixes them."""
    return tuple(load_dataset(name).templates) or tuple(builtin_prompts())


def loaded(*names: str) -> Mapping[str, Any]:
    """Tasks as lm-eval makes them."""
    return TaskManager(include_path=str(tasks_path()), include_defaults=False).load(list(names))[
        "tasks"
    ]


# ---------------------------------------------------------------------------------------- the files


def test_the_folder_holds_all_files() -> None:
    """The folder for `--include-path` holds the hand-written common parts and the file of each
    task, and mends itself.
    """
    damaged = tasks_path() / "tiny_movies" / "headline.yaml"
    for spoil in (damaged.unlink, lambda: damaged.write_text("task: [")):
        spoil()
        tasks_path.cache_clear()
        found = {
            str(path.relative_to(tasks_path())): path.read_text(encoding="utf-8")
            for path in tasks_path().rglob("*.*")
            if path.is_file()
        }
        assert found == task_files()
    common = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("_*.yaml")}
    assert common.items() <= found.items()
    assert len(found) == len(common) + len(shipped_tasks())


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """Where the files cannot be made, one line says where and what to do, with exit status 2."""
    (tmp_path / "kgbench").write_text("a file in the place of the folder")
    done = forks.run(
        [sys.executable, "-m", "kgbench", "ls", "tasks"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"cannot be written to {tmp_path}" in done.stderr and "set XDG_CACHE_HOME" in done.stderr


def test_there_is_a_task_for_every_data_set_prompt_and_form() -> None:
    """The catalogue, lm-eval's index of the folder, and the scheme of names and tags agree."""
    index = TaskManager(include_path=str(tasks_path()), include_defaults=False)
    entries = shipped_tasks()
    sizes = {name: len(load_dataset(name).facts) for name in SETS}
    assert sorted(entry.name for entry in entries) == index.all_subtasks
    for entry in entries:
        ending = {"loglikelihood": "", "choices": "_choices"}[entry.form]
        assert entry.name == f"kgbench_{entry.dataset}_{entry.prompt}{ending}"
        assert (
            index.task_index[entry.name].tags
            == {f"kgbench{ending}", f"kgbench_{entry.dataset}{ending}"}
            == set(entry.tags)
        )
        assert entry.documents == sizes[entry.dataset]
    assert {(entry.dataset, entry.prompt) for entry in entries} == {
        (d, p) for d in SETS for p in prompts_of(d)
    }


# ---------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize("name", SETS)
def test_candidates(name: str) -> None:
    """Candidates are ten different objects of the data set, the right one among them once, at a
    place that tells nothing.
    """
    data = load_dataset(name)
    objects = {fact.fields[data.object] for fact in data.facts}
    found = documents(name)
    for row in found:
        assert len(row["candidates"]) == len(set(row["candidates"])) == CANDIDATES
        assert set(row["candidates"]) <= objects
        assert row["candidates"][row["gold"]] == row["object"]
        assert gold(row) == row["gold"]
    places = [row["gold"] for row in found]
    if len(data.facts) >= 100:  # of fewer, chance decides
        assert all(
            places.count(place) > len(places) / (2 * CANDIDATES) for place in range(CANDIDATES)
        )


def test_candidates_are_stable() -> None:
    """A fact has the same candidates in every prompt and process: they are drawn by its id."""
    row = rows(load_dataset("tiny_movies"), "headline")[3]
    assert row["candidates"] == rows(load_dataset("tiny_movies"), "qa")[3]["candidates"]
    assert row["candidates"][:2] == ["Maxwell Reyes", "Stefanie Cook"]


def test_few_objects_and_odd_names(tmp_path: Path) -> None:
    """A data set with fewer objects than candidates offers all that it has; names of digits,
    brackets and quotes stay what they are.
    """
    facts = {"Al O'Neil": "1984", '"Q" Lee': "[1408]", "Zoë {x} '71": "Bo Ray"}
    (tmp_path / "facts.jsonl").write_text(
        "\n".join(json.dumps({"subject": a, "object": b}) for a, b in facts.items()),
        encoding="utf-8",
    )
    data = load_dataset(
        str(tmp_path / "facts.jsonl"), ImportOptions(templates={"mine": "With {subject} {R:plays}"})
    )
    found = rows(data, "mine")
    assert [sorted(row["candidates"]) for row in found] == [sorted(facts.values())] * 3
    assert [(row["query"][slice(*row["spans"]["FE"])], row["target"]) for row in found] == [
        (a, f" {b}") for a, b in facts.items()
    ]


def test_the_fingerprint_tells_data_and_prompt() -> None:
    """It differs between prompts and between data sets, and is the same for all rows of one task."""
    data = load_dataset("tiny_movies")
    part = data.subset([fact.id for fact in data.facts[:10]])
    assert (
        len(
            {
                data_fingerprint(data, "headline"),
                data_fingerprint(data, "qa"),
                data_fingerprint(part, "headline"),
            }
        )
        == 3
    )
    assert {row["fingerprint"] for row in rows(data, "qa")} == {data_fingerprint(data, "qa")}


def test_model_arguments_are_no_concern_of_rows() -> None:
    """lm-eval hands every model argument to a task's data; they change nothing."""
    given = {
        "version": 1,
        "pretrained": "x",
        "localizer": "dynamic_graft",
        "graft": "FE+LT",
        "dataset": "other",
        "prompt": "other",
    }
    assert list(load("tiny_movies", "qa", **given)["test"]) == rows(
        load_dataset("tiny_movies"), "qa"
    )


@pytest.mark.parametrize(("dataset", "prompt"), [("tiny_movie", "qa"), ("tiny_movies", "q")])
def test_unknown_names_are_told(dataset: str, prompt: str) -> None:
    """A data set or prompt that there is none of is an error with the nearest names."""
    with pytest.raises(UnknownNameError, match="Did you mean"):
        load(kgbench_dataset=dataset, kgbench_prompt=prompt)


OWN: list[dict[str, Any]] = [
    {"kgbench": 1, "templates": {"mine": "{subject} {R:plays} {P:with}"}},
    {"subject": "Al", "object": "Bo"},
    {"subject": "Cy", "object": "1984"},
]
"""A user's own facts, with a prompt."""


def test_a_users_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that `tasks/README.md` shows names a file beside its YAML, whatever the working
    directory, and is right.
    """
    (tmp_path / "facts.jsonl").write_text("\n".join(map(json.dumps, OWN)), encoding="utf-8")
    shown = (
        (FOLDER / "README.md")
        .read_text(encoding="utf-8")
        .partition("```yaml\n")[2]
        .partition("```")[0]
    )
    shown = shown.replace("../", f"{FOLDER}/")
    (tmp_path / "my_choices.yaml").write_text(shown, encoding="utf-8")
    other = shown.replace("choices", "loglikelihood")
    (tmp_path / "my_facts.yaml").write_text(other, encoding="utf-8")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    manager = TaskManager(include_path=[str(tasks_path()), str(tmp_path)], include_defaults=False)
    tasks = manager.load(["my_loglikelihood", "my_choices", HEADLINE])["tasks"]
    assert [doc["target"] for doc in tasks["my_loglikelihood"].eval_docs][1] == " 1984"
    assert list(tasks["my_loglikelihood"].aggregation()) == list(tasks[HEADLINE].aggregation())
    assert sorted(tasks["my_choices"].eval_docs[1]["candidates"]) == ["1984", "Bo"]


def test_tasks_of_a_users_own_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checkpoints: Any
) -> None:
    """`kgbench tasks new` makes tasks that stock lm-eval's `hf` runs from any directory, whose
    log-probability of a name is the model's.
    """
    (tmp_path / "towns.csv").write_text("country,capital\nPeru,Lima\nKenya,Nairobi\nChad,1984\n")
    words = ["tasks", "new", str(tmp_path / "towns.csv"), "-o", str(tmp_path / "out"), "--json"]
    words += ["--subject", "country", "--object", "capital"]
    assert main([*words, "--template", "ask={country} has"]) == 0
    names = json.loads(capsys.readouterr().out)["tasks"]
    assert names == ["kgbench_towns_ask", "kgbench_towns_ask_choices"]
    folder = checkpoints("gpt2")["sft"]
    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": "float32"},
        device="cpu",
        tasks=names,
        task_manager=TaskManager(include_path=str(tmp_path / "out"), include_defaults=False),
        bootstrap_iters=0,
    )["results"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    totals = []
    for country, capital in (("Peru", "Lima"), ("Kenya", "Nairobi"), ("Chad", "1984")):
        start = len(tokenizer(f"{country} has")["input_ids"])
        ids = torch.tensor([tokenizer(f"{country} has {capital}")["input_ids"]])
        scores = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        totals.append(scores.gather(1, ids[0, start:, None]).sum().item())
    assert results[names[0]]["name_logprob,none"] == pytest.approx(sum(totals) / 3, abs=1e-4)
    assert "acc,none" in results[names[1]]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["tiny_movies"], "tiny_movies is shipped, and so are its tasks"),
        (["facts.csv"], "no built-in prompt fits 'facts'"),
        (["facts.csv", "--template", "ask={country} has {capital}"], "gives the answer away"),
        (["my facts.csv", "--template", "ask={country} has"], "cannot name a task of lm-eval"),
        (["there.csv", "--template", "ask={country} has"], "is there already"),
    ],
)
def test_tasks_that_cannot_be_made(
    words: list[str],
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says why, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    for name in ("facts", "there", "my facts"):
        Path(f"{name}.csv").write_text("country,capital\nPeru,Lima\nKenya,Nairobi\n")
    Path("out/there").mkdir(parents=True)
    Path("out/there/there.jsonl").touch()
    columns = ["--subject", "country", "--object", "capital"] * (
        len(words) > 1 or "csv" in words[0]
    )
    assert main(["tasks", "new", "-o", "out", *words, *columns]) == 2
    error = capsys.readouterr().err
    assert wrong in error and error.count("\n") == 1
    assert [path.name for path in Path("out").rglob("*")] == ["there", "there.jsonl"]


# ------------------------------------------------------------------------------------------ figures


def test_figures() -> None:
    """Of a `TokenScore` also what the first token of the name says; of what other models answer,
    only the log-probability of the whole name.
    """
    score = TokenScore(-3.5, False, rank=2, prob=0.25, logprob=-1.5)
    first = {"top1": 0.0, "top5": 1.0, "mrr": 0.5, "rank": 2.0, "prob": 0.25, "logprob": -1.5}
    assert process_results({}, [score]) == {**first, "name_logprob": -3.5}
    assert process_results({}, [(-3.5, False)]) == {"name_logprob": -3.5}
    task = loaded(HEADLINE)[HEADLINE]
    assert set(task.aggregation()) == {*first, "name_logprob"}
    assert [name for name, more in task.higher_is_better().items() if not more] == ["rank"]


def test_any_model_of_lm_eval_runs_both_forms() -> None:
    """A model that answers with plain pairs reports the name's log-probability, and which choice it
    takes.
    """
    tasks = TaskManager(include_path=str(tasks_path()), include_defaults=False)
    names = [HEADLINE, f"{HEADLINE}_choices"]
    results = simple_evaluate(
        model="dummy", tasks=names, task_manager=tasks, limit=3, bootstrap_iters=0
    )["results"]
    reported = {
        name: {key.partition(",")[0] for key in results[name] if "," in key and "stderr" not in key}
        for name in names
    }
    assert reported == {HEADLINE: {"name_logprob"}, f"{HEADLINE}_choices": {"acc", "acc_norm"}}


@pytest.mark.parametrize("ending", ["", "_choices"])
@pytest.mark.parametrize("prompt", ["headline", "new_film"])
def test_few_shot(prompt: str, ending: str) -> None:
    """Two examples come before the question, other facts with their answers, one blank between; the
    document is not among them.
    """
    name = f"kgbench_tiny_movies_{prompt}{ending}"
    task = loaded(name)[name]
    task.set_fewshot_seed(1234)
    told = {f"{row['query']} {row['object']}" for row in task.eval_docs}
    for doc in task.eval_docs:
        *examples, last = task.fewshot_context(doc, num_fewshot=2).split("\n\n")
        assert last == doc["query"]
        assert len(examples) == 2
        assert set(examples) <= told
        assert all("  " not in text and not text.startswith(doc["query"]) for text in examples)


# ------------------------------------------------------------------------------------- command line


WITHOUT = """
import sys

class Finder:
    def __init__(self, inner):
        self.inner = inner

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ("lm_eval", "datasets") else self.inner.find_spec(name, path, target)

sys.meta_path = [Finder(each) for each in sys.meta_path]
from kgbench.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line where lm-eval is not installed."""


def test_names_of_tasks_need_no_lm_eval() -> None:
    """What only names tasks works where lm-eval is not installed."""
    done = forks.run(
        [sys.executable, "-c", WITHOUT, "ls", "tasks"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_launch_without_lm_eval_says_how_to_get_it() -> None:
    """One line and status 2."""
    code = WITHOUT.replace("kgbench.cli", "kgbench.harness.__main__").replace("sys.argv[1:]", "")
    done = forks.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "kgbench: error: this needs lm-eval, which is not installed: pip install -e '.[lm-eval]'\n"
    )


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench ls tasks` lists what there is, as a table and as JSON."""
    assert main(["ls", "tasks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {entry.name for entry in shipped_tasks()}
    assert found[f"{HEADLINE}_choices"] == {
        "name": f"{HEADLINE}_choices",
        "dataset": "tiny_movies",
        "prompt": "headline",
        "form": "choices",
        "tags": ["kgbench_choices", "kgbench_tiny_movies_choices"],
        "documents": FACTS,
    }
    assert main(["ls", "tasks"]) == 0
    table = capsys.readouterr().out
    assert table.endswith(f" {tasks_path()}\n")
    for entry in shipped_tasks():
        assert all(name in table for name in (entry.name, *entry.tags))


# -------------------------------------------------------------------------- every shipped document


@pytest.mark.sampled(8)
@pytest.mark.parametrize("entry", shipped_tasks(), ids=attrgetter("name"))
def test_every_document_of_every_task_renders(entry: ShippedTask) -> None:
    """lm-eval loads the task and asks what the prompt and its fact say: the context is the
    prompt's text, the requests its target or the candidates, and each span holds words of it.
    """
    task = loaded(entry.name)[entry.name]
    prompts = load_prompts(entry.dataset, [entry.prompt])
    assert len(task.eval_docs) == len(prompts) == entry.documents
    chosen = entry.form == "choices"
    for number, (doc, prompt) in enumerate(zip(task.eval_docs, prompts, strict=True)):
        context = task.fewshot_context(doc, num_fewshot=0)
        made = task.construct_requests(doc=doc, ctx=context, metadata=(entry.name, number, 1))
        requests = [request.args for request in (made if isinstance(made, list) else [made])]
        assert {args[0] for args in requests} == {prompt.text}
        assert len(requests) == (len(doc["candidates"]) if chosen else 1)
        assert requests[task.doc_to_target(doc) if chosen else 0][1] == f" {prompt.target}"
        assert (doc["id"], doc["object"]) == (prompt.fact.id, prompt.target)
        assert doc["query"][slice(*doc["spans"]["FE"])] == doc["subject"]
        assert doc["spans"].keys() >= prompt.spans.keys()
        for region, span in prompt.spans.items():
            assert doc["spans"][region] == list(span)
            words = doc["query"][slice(*span)]
            assert words and words == words.strip(), (entry.name, number, region)
