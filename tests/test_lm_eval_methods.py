"""`--model kgbench` takes any method that intervenes, and says of it what `kgbench eval` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval_runs import answers, ours, samples

import kgbench
from kgbench import localizers
from kgbench.errors import NotApplicableError
from kgbench.harness.encoded_requests import TaskDocument
from kgbench.harness.model import KgbenchLM
from kgbench.records import Record

GRAFTS = ("FE", "LT", "FE+LT", "FE^C", "ALL")
ARGUMENTS: dict[str, dict[str, str]] = {
    "causal_trace": {"draws": "2"},
    "directional_patch": {"directions": "pca", "k": "2"},
}
METHODS = [name for name, said in localizers.describe().items() if said["kind"] == "intervention"]
FITTED = ("ablation", "directional_patch")


def model(folders: dict[str, Path], localizer: str, **arguments: Any) -> KgbenchLM:
    return ours(
        folders, localizer=localizer, localizer_args=ARGUMENTS.get(localizer, {}), **arguments
    )


def evaluated(folders: dict[str, Path], tasks: Path, localizer: str) -> Record:
    """What `kgbench eval` says."""
    return kgbench.evaluate(
        recipient=str(folders["recipient"]),
        donors={"sft": str(folders["sft"])},
        dataset=str(tasks / "odd.jsonl"),
        localizer=localizer,
        localizer_args=ARGUMENTS.get(localizer, {}),
        prompts=["mine"],
        grafts=GRAFTS,
        dtype="float32",
        output_dir=tasks / "records",
        device="cpu",
    ).record


@pytest.mark.sampled(2)
@pytest.mark.parametrize("localizer", METHODS)
def test_a_method_answers_as_in_kgbench_eval(
    localizer: str, folders: dict[str, Path], tasks: Path
) -> None:
    """Under every graft the same mean log-probability of the first token; what the one cannot
    express the other cannot.
    """
    rows = {row.graft: row for row in evaluated(folders, tasks, localizer).rows}
    for graft in GRAFTS:
        lm = model(folders, localizer, graft=graft)
        if not rows[graft].applicable:
            with pytest.raises(NotApplicableError):
                samples(lm, ["mine"], tasks)
            continue
        found = answers(lm, ["mine"], tasks)["results"]["mine"]
        assert found["logprob,none"] == pytest.approx(rows[graft].logprob.value, abs=1e-4), graft


@pytest.mark.sampled(3)
@pytest.mark.parametrize("localizer", [name for name in METHODS if name != "path_patch"])
@pytest.mark.parametrize("continuation", ["lt", "none", "all"])
def test_one_run_answers_at_every_token(
    localizer: str,
    continuation: str,
    folders: dict[str, Path],
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that says that what follows a token does not matter gives every name what it gives
    it token by token.
    """
    lm = model(
        folders,
        localizer,
        graft="LT" if localizer != "static_graft" else "ALL",
        continuation=continuation,
        dtype="float64",
    )
    assert lm.localizer.reads_any_token
    at_once = [
        document["name_logprob"] for document in samples(lm, ["mine"], tasks, limit=3)["mine"]
    ]
    monkeypatch.setattr(type(lm.localizer), "reads_any_token", False)
    assert [
        d["name_logprob"] for d in samples(lm, ["mine"], tasks, limit=3)["mine"]
    ] == pytest.approx(at_once, abs=1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("continuation", ["lt", "none", "all"])
@pytest.mark.parametrize("graft", ["LT", "LT^C", "FE+LT"])
def test_reading_token_by_token_changes_nothing(
    continuation: str,
    graft: str,
    folders: dict[str, Path],
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blanks at the end of a context, which are scored before LT, included."""
    lm = model(folders, "dynamic_graft", graft=graft, continuation=continuation, dtype="float64")
    rows = [d["doc"] for d in samples(lm, ["mine"], tasks)["mine"]]
    contexts = [row["query"] + blank for row in rows for blank in ("", " \n", "  ")]
    passages = [
        lm.reader.passage(
            c, f"{'' if c[-1].isspace() else ' '}Bo Chen", TaskDocument("mine", rows[i // 3])
        )
        for i, c in enumerate(contexts)
    ]
    at_once = [score[0] for score in lm.answering.scores(passages, graft)]
    monkeypatch.setattr(type(lm.localizer), "reads_any_token", False)
    assert [score[0] for score in lm.answering.scores(passages, graft)] == pytest.approx(
        at_once, abs=1e-6
    )


@pytest.mark.parametrize("continuation", ["none", "all"])
def test_a_method_that_looks_at_the_last_token_follows_the_rule(
    continuation: str, folders: dict[str, Path], tasks: Path
) -> None:
    """Where it can do nothing at later tokens, they are as where nothing, or everything, is
    grafted: here the recipient or its own all.
    """
    found = samples(
        model(folders, "path_patch", graft="LT", continuation=continuation), ["mine"], tasks
    )["mine"]
    rest = samples(
        model(folders, "path_patch", graft="NONE" if continuation == "none" else "ALL"),
        ["mine"],
        tasks,
    )["mine"]
    first = samples(model(folders, "path_patch", graft="LT"), ["mine"], tasks)["mine"]
    for one, other, lead in zip(found, rest, first, strict=True):
        assert one["logprob"] == pytest.approx(lead["logprob"], abs=1e-4)
        assert one["name_logprob"] - one["logprob"] == pytest.approx(
            other["name_logprob"] - other["logprob"], abs=1e-3
        )


@pytest.mark.parametrize("localizer", FITTED)
def test_what_a_method_learns_does_not_depend_on_other_tasks(
    localizer: str, folders: dict[str, Path], tasks: Path
) -> None:
    """Alone or beside a task on the same prompt, on facts of the same names or others, a task's
    answers are the same.
    """
    lm = model(folders, localizer, graft="LT")
    task = "kgbench_tiny_movies_headline"
    alone = [d["logprob"] for d in samples(lm, [task], limit=6)[task]]
    beside = samples(
        lm, ["kgbench_fake_movies_fake_actors_headline", f"{task}_choices", task], limit=6
    )[task]
    assert [d["logprob"] for d in beside] == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize("localizer", FITTED)
def test_empty_contexts_teach_nothing(
    localizer: str, folders: dict[str, Path], tasks: Path
) -> None:
    """Unconditional scores, which tasks of mutual information ask for beside the others, change no
    other answer.
    """
    from lm_eval.api.instance import Instance

    lm = model(folders, localizer, graft="LT")
    documents = samples(lm, ["mine"], tasks)["mine"]
    requests = [
        Instance("loglikelihood", d["doc"], d["arguments"][0], 0, metadata=("mine", i, 1))
        for i, d in enumerate(documents)
    ]
    empty = [
        Instance("loglikelihood", d["doc"], ("", d["doc"]["target"]), 1, metadata=("mine", i, 1))
        for i, d in enumerate(documents)
    ]
    first = lm.loglikelihood(requests, disable_tqdm=True)
    passages = [
        lm.reader.passage(*r.args, TaskDocument("mine", r.doc, r.doc_id))
        for r in [*requests, *empty]
    ]
    found = lm.answering.fitted(passages).scores(passages[: len(requests)], "LT")
    assert [score[0] for score in found] == pytest.approx([score[0] for score in first], abs=1e-6)
