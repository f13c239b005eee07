"""`--model kgbench` and `kgbench eval` say the same, and what would be wrong without a word is
refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forks
import pytest
from lm_eval.evaluator import simple_evaluate
from lm_eval_runs import answers, ours, request, samples, stock, write_tasks
from whole_donors import part_of

import kgbench
from kgbench.errors import GraftSyntaxError, InputError, KgbenchError, RegionError, UnknownNameError
from kgbench.harness import tasks_path
from kgbench.harness.encoded_requests import TaskDocument
from kgbench.harness.model import KgbenchLM
from kgbench.records import Record

LIMIT = 20
GRAFTS = ("PRE", "SFT", "FE+LT")
RECIPIENT = part_of("tiny-gpt2", "recipient")


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Record, dict[tuple[str, str, str], dict[str, Any]]]:
    """A record of `kgbench eval` on tiny-gemma, and its rows by prompt, graft and fact."""
    folder = tmp_path_factory.mktemp("record")
    run = kgbench.evaluate(
        "tiny-gemma", prompts=["headline", "qa"], limit=LIMIT, dtype="float32", output_dir=folder
    )
    rows = run.facts.to_pylist()
    return run.record, {(row["prompt"], row["graft"], row["fact"]): row for row in rows}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("graft", GRAFTS)
@pytest.mark.parametrize("batch_size", [1, 16])
def test_answers_are_those_of_kgbench_eval(
    graft: str, batch_size: int, evaluated: tuple[Record, Mapping[Any, Any]]
) -> None:
    """Fact by fact the same rank, and so the same top-1 and top-5, and log-probabilities to 1e-4."""
    tasks = {prompt: f"kgbench_tiny_movies_{prompt}" for prompt in ("headline", "qa")}
    lm = KgbenchLM(
        pair="tiny-gemma", graft=graft, dtype="float32", batch_size=batch_size, device="cpu"
    )
    found = answers(lm, list(tasks.values()), limit=LIMIT)
    for prompt, task in tasks.items():
        assert len(found["samples"][task]) == LIMIT
        for document in found["samples"][task]:
            row = evaluated[1][prompt, graft, document["doc"]["id"]]
            assert document["rank"] == row["rank"]
            assert document["logprob"] == pytest.approx(row["logprob"], abs=1e-4)
            assert document["prob"] == pytest.approx(row["prob"], abs=1e-4)
        whole = next(row for row in evaluated[0].rows if (row.prompt, row.graft) == (prompt, graft))
        for name in ("top1", "top5", "mrr", "rank"):
            assert found["results"][task][f"{name},none"] == pytest.approx(
                getattr(whole, name).value, rel=1e-5, abs=1e-9
            )


def test_results_say_what_was_run(folders: dict[str, Path], tasks: Path) -> None:
    """lm-eval's results carry localizer, graft and the pair's fingerprint, which is another for
    other weights.
    """
    info = ours(folders, graft="FE+LT", continuation="none").get_model_info()
    json.dumps(info)
    assert (info["localizer"], info["graft"], info["continuation"], info["model_dtype"]) == (
        "dynamic_graft",
        "FE+LT",
        "none",
        "float32",
    )
    other = KgbenchLM(
        pretrained=str(folders["sft"]), donor=str(folders["recipient"]), graft="FE+LT", device="cpu"
    ).get_model_info()
    assert (
        len(info["pair_fingerprint"]) == 64
        and info["pair_fingerprint"] != other["pair_fingerprint"]
    )
    assert str(folders["sft"].parent) not in json.dumps(info)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"grafft": "FE"}, UnknownNameError, "Did you mean 'graft'"),
        ({"graft": "FE+"}, GraftSyntaxError, "FE"),
        ({"graft": "FE", "continuation": "last"}, UnknownNameError, "lt"),
        ({"localizer": "dynamic_graf"}, UnknownNameError, "dynamic_graft"),
        ({"localizer": "random"}, InputError, "ranks sites"),
        ({"pair": "tiny-gemma"}, InputError, "either pair=NAME"),
        ({"batch_size": "many"}, InputError, "whole number"),
        ({"trust_remote_code": True}, InputError, "stays off"),
        ({"localizer": "causal_trace", "localizer_args": "draws"}, InputError, "semicolons"),
        ({"continuation": None}, InputError, "as a mapping"),
        ({"localizer": None}, InputError, "as a mapping"),
        ({"graft": None}, InputError, "as a mapping"),
        ({"revision": 1e5}, InputError, "as JSON"),
        ({"max_length": 5000}, InputError, "at most 128"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], error: type[KgbenchError], says: str, folders: dict[str, Path]
) -> None:
    """One line that says what was wrong."""
    with pytest.raises(error, match=says):
        ours(folders, **arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "which model"),
        ({"pretrained": "before"}, "donor=PATH"),
        ({"pretrained": "nowhere", "donor": "x"}, "nowhere"),
    ],
)
def test_missing_models_are_told_in_lm_eval_s_words(arguments: dict[str, Any], says: str) -> None:
    """By the names that model arguments have."""
    with pytest.raises(InputError, match=says) as caught:
        KgbenchLM(graft="LT", **arguments)
    assert "--recipient" not in str(caught.value)


def test_a_word_that_lm_eval_reads_as_nothing_is_no_default() -> None:
    """Where model arguments are one text, lm-eval makes nothing of the word none; that is told, and
    not replaced.
    """
    for text in ("continuation=none", "localizer=none", "graft=NONE"):
        with pytest.raises(InputError, match="turns the word none"):
            KgbenchLM.create_from_arg_string(f"pair=tiny-gpt2,{text}")


def test_a_region_that_a_task_does_not_have_is_refused(
    folders: dict[str, Path], tasks: Path
) -> None:
    """Where rows say nothing of spans, only LT, ALL and NONE can be grafted, whatever the method
    makes of the others.
    """
    asked = request(("Ana Lee is", " Bo"))
    for graft in ("LT", "ALL", "NONE", "LT^C", "PRE"):
        ours(folders, graft=graft).loglikelihood([asked], disable_tqdm=True)
    for localizer in ("dynamic_graft", "all", "none", "static_graft"):
        for graft in ("FE", "FE^C", "(LT+M)^C", "LT; R:ffn"):
            with pytest.raises(RegionError, match="names"):
                ours(folders, graft=graft, localizer=localizer).loglikelihood(
                    [asked], disable_tqdm=True
                )
    with pytest.raises(RegionError, match="names M"):
        samples(ours(folders, graft="M"), ["mine"], tasks)


def test_a_region_that_was_cut_off_is_refused(folders: dict[str, Path], tasks: Path) -> None:
    """A context that is too long loses its beginning; a graft of what is gone is no graft of
    nothing.
    """
    document = samples(ours(folders, graft="FE"), ["mine"], tasks, limit=1)["mine"][0]
    context, target = document["arguments"][0]
    lm = ours(
        folders,
        graft="FE",
        max_length=len(ours(folders, graft="FE").tok_encode(context + target)) - 3,
    )
    with pytest.raises(RegionError, match="cut off"):
        lm.loglikelihood([request((context, target), document["doc"])], disable_tqdm=True)


def test_a_query_that_is_not_in_the_context_is_refused(folders: dict[str, Path]) -> None:
    """Spans mean nothing without their query."""
    with pytest.raises(InputError, match="not in the context"):
        ours(folders, graft="LT").loglikelihood(
            [request(("Ana", " Bo"), {"query": "Bea is", "spans": {"FE": [0, 3]}})],
            disable_tqdm=True,
        )


def test_no_graft_and_no_continuation_are_refused(folders: dict[str, Path]) -> None:
    """Nothing is guessed."""
    with pytest.raises(InputError, match="which graft"):
        ours(folders).loglikelihood([request(("Ana", " Bo"))], disable_tqdm=True)
    with pytest.raises(InputError, match="no tokens"):
        ours(folders, graft="LT").loglikelihood([request(("Ana", ""))], disable_tqdm=True)


@pytest.mark.parametrize(
    "asked", [{"do_sample": True}, {"temperature": 0.7}, {"num_beams": 3}, {"max_gen_toks": 1000}]
)
def test_generation_that_is_not_greedy_or_too_long_is_refused(
    asked: dict[str, Any], folders: dict[str, Path]
) -> None:
    """What cannot be done under a graft is told, not done otherwise."""
    with pytest.raises(InputError):
        ours(folders, graft="LT").generate_until(
            [request(("Ana", {"until": ["."], **asked}))], disable_tqdm=True
        )


def test_lm_eval_s_cache_of_answers_is_refused(
    folders: dict[str, Path], tasks: Path, tmp_path: Path
) -> None:
    """It would give the answers of one graft as another's."""
    with pytest.raises(InputError, match="--use_cache"):
        simple_evaluate(
            model=ours(folders, graft="LT"), tasks=["mine"], use_cache=str(tmp_path / "cache")
        )


@pytest.mark.parametrize("name", ["facts.jsonl", "tiny_movies.jsonl"])
def test_kept_requests_of_other_rows_are_refused(
    name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lm-eval's --cache_requests kept is taken as long as the rows are the same, and refused
    once they are not, a user's own too.
    """
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "kept"))
    facts, lm = tmp_path / name, ours(folders, graft="LT")
    facts.write_text(
        (write_tasks(tmp_path) / "odd.jsonl").read_text().replace("Ana Lee", f"Ana of {name}")
    )
    task = tmp_path / "kept.yaml"
    kwargs = json.dumps({"kgbench_dataset": name, "kgbench_prompt": "mine"})
    task.write_text(
        f"include: {tasks_path()}/_loglikelihood.yaml\ntask:"
        f" {Path(name).stem}_kept\ndataset_kwargs: {kwargs}\n"
    )
    first, again = (
        samples(lm, [f"{Path(name).stem}_kept"], tmp_path, cache_requests=True) for _ in range(2)
    )
    assert [d["logprob"] for t in first.values() for d in t] == [
        d["logprob"] for t in again.values() for d in t
    ]
    facts.write_text(facts.read_text().replace("Bo Chen", "Bob Chen"))
    with pytest.raises(InputError, match="cache_requests refresh"):
        samples(lm, [f"{Path(name).stem}_kept"], tmp_path, cache_requests=True)


def test_rows_that_nobody_loaded_are_taken_as_they_are(folders: dict[str, Path]) -> None:
    """A foreign column `fingerprint`, or our rows brought along by another task, are nothing that
    lm-eval has kept.
    """
    lm = ours(folders, graft="LT")
    rows = [
        {"fingerprint": "x"},
        {
            "fingerprint": "x",
            "id": "a/1",
            "dataset": "a",
            "prompt": "b",
            "query": "Ana",
            "spans": {"FE": [0, 3]},
        },
    ]
    lm.loglikelihood([request(("Ana", " Bo"), row) for row in rows], disable_tqdm=True)


def test_a_chat_template_is_no_trouble(folders: dict[str, Path], tasks: Path) -> None:
    """Within a template, with blanks after the query and examples before it, regions are those of
    the query and scores lm-eval's own.
    """
    lm, theirs = ours(folders, graft="SFT"), stock(folders["sft"])
    template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if"
        " add_generation_prompt %}[model]\n{% endif %}"
    )
    lm.tokenizer.chat_template = theirs.tokenizer.chat_template = template
    chat = {"shots": 1, "apply_chat_template": True, "fewshot_as_multiturn": True}
    own, other = (samples(each, ["mine"], tasks, **chat)["mine"] for each in (lm, theirs))
    assert [d["name_logprob"] for d in own] == pytest.approx(
        [d["name_logprob"] for d in other], abs=1e-4
    )
    context, target = own[0]["arguments"][0]
    assert context.endswith("[model]\n")
    passage = lm.reader.passage(context, target, TaskDocument("mine", own[0]["doc"]))
    assert (
        lm.tokenizer.decode([passage.encoded.ids[i] for i in passage.encoded.regions["FE"]]).strip()
        == own[0]["doc"]["subject"]
    )
    assert lm.tokenizer.decode(passage.encoded.ids[passage.lead]).isspace()
    name = lm.tokenizer.decode([*passage.before, *passage.targets])
    # lm-eval scores the blanks at the context's end with the answer.
    assert name == f"\n{target}"


# --------------------------------------------------------------------------------- the command line


def test_registration_hides_no_other_model() -> None:
    """Registering ours first leaves lm-eval's own models where they are, and can be done twice."""
    code = (
        "from kgbench.harness import register; register(); register()\n"
        "from lm_eval.api.registry import get_model\n"
        "print(get_model('hf').__name__, get_model('kgbench').__name__)"
    )
    done = forks.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["HFLM", "KgbenchLM"]


@pytest.mark.nightly
def test_lm_eval_s_own_command_line_knows_the_model(tasks: Path, tmp_path: Path) -> None:
    """`python -m kgbench.harness` is lm-eval's command line with `--model kgbench`, without
    `--device` on any machine; a mistake in the model's arguments is one line and status 2.
    """
    run = [sys.executable, "-m", "kgbench.harness", "run", "--model", "kgbench"]
    run += ["--tasks", "mine", "--include_path", str(tasks), "--limit", "3"]
    run += ["--output_path", str(tmp_path / "out.json"), "--model_args"]
    done = forks.run(
        [*run, "pair=tiny-gpt2,graft=FE+LT,continuation=none"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("out_*.json")
    results = json.loads(path.read_text())
    config = results["config"]
    assert (config["pair"], config["graft"], config["continuation"]) == (
        "tiny-gpt2",
        "FE+LT",
        "none",
    )
    assert "top5,none" in results["results"]["mine"]
    wrong = forks.run([*run, "pair=tiny-gpt3,graft=LT"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("kgbench: error: ")
