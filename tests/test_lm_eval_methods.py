"""`--model kgbench` takes any method that intervenes, those that learn from other documents included."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval_runs import answers, ours, write_checkpoints, write_tasks

import kgbench


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random checkpoints of GPT-2 type."""
    return write_checkpoints(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks on facts with difficult names."""
    return write_tasks(tmp_path_factory.mktemp("tasks"))


METHODS = (
    ("activation_patch", {}),
    ("ablation", {}),
    ("causal_trace", {"draws": "3"}),
    ("directional_patch", {"directions": "pca", "k": "2"}),
)


@pytest.mark.parametrize(("localizer", "arguments"), METHODS, ids=[name for name, _ in METHODS])
def test_a_method_answers_as_in_kgbench_eval(localizer: str, arguments: dict[str, str], places: dict[str, Path], folder: Path) -> None:
    """Methods that copy activations, that learn from other documents and that draw at random."""
    lm = ours(places, localizer=localizer, localizer_args=arguments, graft="FE+LT")
    record = kgbench.evaluate(
        recipient=str(places["recipient"]),
        donors={"sft": str(places["sft"])},
        dataset=str(folder / "odd.jsonl"),
        localizer=localizer,
        localizer_args=arguments,
        prompts=["mine"],
        dtype="float32",
        output_dir=folder / "records",
        device="cpu",
    )
    wanted = next(row for row in record.rows if row.graft == "FE+LT")
    found = answers(lm, ["mine"], folder)["results"]["mine"]
    assert found["logprob,none"] == pytest.approx(wanted.logprob.value, abs=1e-4)
