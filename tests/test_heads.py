"""Effects of attention heads, grafted one at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kgbench import Evaluation, evaluate, load_pair
from kgbench.cli import main

GRAFT = "LT:v.h1@6"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """A run of the graft of one head."""
    asked = {"prompts": ["headline"], "limit": 12, "grafts": [GRAFT]}
    return evaluate(model="tiny-llama", **asked, output_dir=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def asked(run: Evaluation, tmp_path: Path) -> list[str]:
    return ["heads", str(run.path), "-q", "--output-dir", str(tmp_path)]


def test_a_head_has_the_figures_of_its_graft(
    run: Evaluation, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each cell is what the run of that graft has, and heads are as many as there are."""
    asked += ["--layers", "5-6", "--component", "v"]
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    places = {(row["layer"], row["head"]) for row in rows}
    (wanted,) = (row for row in run.record.rows if row.graft == GRAFT)
    (found,) = (row for row in rows if (row["layer"], row["head"]) == (6, 1))
    assert found["sufficiency"] == wanted.sufficiency.answer()
    assert found["necessity"] == wanted.necessity.answer()
    count = load_pair("tiny-llama").recipient.config.num_key_value_heads
    assert places == {(layer, head) for layer in (5, 6) for head in range(count)}
    assert main(asked) == 0
    table = capsys.readouterr().out
    shown = f"what finetuning added on {run.record.metric}, with 95 % intervals over facts"
    assert shown in " ".join(table.split())
    assert "headline: alone, 12 facts" in table
    assert "headline: lost without, 12 facts" in table
    assert "v.h1" in table


def test_positions_in_any_order(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Positions may be written in another order than a record has them."""
    asked += ["--layers", "7", "--positions", "LT+FE"]
    assert main(asked) == 0
    assert "o.h0" in capsys.readouterr().out
