"""The likeliest next tokens: they are the engine's, and agree with what a record says of the same
facts.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kgbench import evaluate
from kgbench.analyses.tokens import likeliest
from kgbench.cli import main
from kgbench.engine import grafted_logits, load_pair
from kgbench.runner import Settings, Spec, load_prompts

SPEC = Spec(model="tiny-gpt2", prompts=("headline", "qa"), grafts=("LT", "FE+LT"), limit=20)


def test_they_are_the_engine_s() -> None:
    """Tokens, probabilities and ranks are those of the softmax over the grafted logits; PRE and SFT
    come first.
    """
    found = likeliest(SPEC, Settings(device="cpu"), 2, top=7)
    assert [one.graft for one in found] == ["PRE", "SFT", "LT", "FE+LT"] * 4
    pair = load_pair("tiny-gpt2")
    prompts = {
        (p.fact.id, p.name): p for p in load_prompts("tiny-gpt2", ["headline", "qa"], limit=20)
    }
    for one in found:
        prompt = prompts[one.fact, one.prompt]
        row = torch.softmax(grafted_logits(pair, [prompt], [one.graft])[0, 0].double(), 0)
        target = pair.encoded(prompt).target
        assert one.rank == int((row >= row[target]).sum())
        assert one.target.probability == pytest.approx(float(row[target]), rel=1e-4)
        assert [likely.probability for likely in one.tokens] == pytest.approx(
            row.topk(7).values.tolist(), rel=1e-4
        )
        assert [likely.token for likely in one.tokens] == [
            pair.tokenizer.decode([i]) for i in row.topk(7).indices.tolist()
        ]
        assert (one.rank <= 7) == (one.target.token in [likely.token for likely in one.tokens])


def test_the_seed_chooses() -> None:
    """The same seed shows the same facts, another one others, and never more than there are."""
    facts = [
        [
            one.fact
            for one in likeliest(
                Spec(model="tiny-gpt2", limit=20, seed=seed), Settings(device="cpu"), 3
            )
        ]
        for seed in (0, 0, 1)
    ]
    assert facts[0] == facts[1] != facts[2]
    every = likeliest(Spec(model="tiny-gpt2", prompts=("qa",), limit=4), Settings(device="cpu"), 99)
    assert len({one.fact for one in every}) == 4


def test_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table per fact with the answer marked, or JSON; nothing is written but the run."""
    monkeypatch.chdir(tmp_path)
    run = evaluate("tiny-gpt2", prompts="headline", limit=4, output_dir="runs", progress=False)
    asked = ["tokens", str(run.path), "--graft", "FE+LT", "--facts", "1", "--top", "3"]
    assert main(asked) == 0
    table = capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["graft"] for row in rows] == ["PRE", "SFT", "FE+LT"]
    assert all(len(row["tokens"]) == 3 for row in rows)
    assert f"→{rows[0]['target']['token']}" in table and f"rank {rows[0]['rank']}" in table
    assert ("*" in table) == any(row["rank"] <= 3 for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
