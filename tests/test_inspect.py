"""The task for Inspect, as its command line finds it: by the entry point of an installed package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # on import, of its own dependencies
    warnings.simplefilter("ignore")
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, get_model

from kgbench.data import load_dataset
from kgbench.harness.rows import rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("arguments", "answers"),
    [
        ({}, ["I think of {object}.", "nobody", "{object}"]),
        (
            {"choices": True, "prompt": "headline"},
            ["ANSWER: {letter}", "ANSWER: Z", "ANSWER: {letter}"],
        ),
    ],
)
def test_a_model_is_scored(tmp_path: Path, arguments: dict[str, Any], answers: list[str]) -> None:
    """Right answers count, in both forms, and a sample is the prompt's text."""
    documents = rows(load_dataset("tiny_movies"), arguments.get("prompt", "qa"))[:3]
    outputs = []
    for text, row in zip(answers, documents, strict=True):
        content = text.format(object=row["object"], letter="ABCDEFGHIJ"[row["gold"]])
        outputs.append(ModelOutput.from_content("mockllm", content))
    (log,) = evaluate(
        "kgbench/facts",
        model=get_model("mockllm/model", custom_outputs=outputs),
        task_args=arguments,
        limit=3,
        max_connections=1,
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success" and log.samples is not None and log.results is not None
    assert [sample.input for sample in log.samples] == [row["query"] for row in documents]
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(2 / 3)
