"""What a run adds to the engine's own work: loading, planning, scoring, journal, intervals, record."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns

import kgbench
from kgbench.data import load_prompts
from kgbench.engine import Engine
from kgbench.models.pair import ModelPair
from kgbench.runner import Settings, Spec, run_job
from kgbench.sites import CONFIGURATIONS

FACTS = 150


@group("kgbench eval")
def test_run(
    tiny: ModelPair, tmp_path: Path, benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A whole run in a process that has its imports takes little more than the engine alone."""
    engine, count = Engine(tiny, "packed"), itertools.count()
    prompts = [load_prompts("tiny_movies", [name], limit=FACTS) for name in ("headline", "qa")]

    def alone() -> None:
        for some in prompts:
            for _ in engine.run(engine.plan(some, CONFIGURATIONS)):
                pass

    def whole() -> None:
        run_job(
            Spec(model="tiny-gemma", limit=FACTS), Settings(output_dir=tmp_path / str(next(count)))
        )

    ratio = in_turns(benchmark, whole, {"alone": alone}, 10)["alone"]
    claim(
        "tiny: a run (load, plan, score, record) ÷ engine alone", ratio, "≤ 2.5", ratio.value <= 2.5
    )


def test_command(tmp_path: Path, claim: Callable[..., None]) -> None:
    """The main job from the shell, imports and picture included; processor seconds, so that a busy
    machine changes little.
    """
    root = Path(kgbench.__file__).parent.parent
    before = os.times()
    command = [
        sys.executable,
        "-m",
        "kgbench",
        "eval",
        "--model",
        "tiny-gemma",
        "--output-dir",
        str(tmp_path),
    ]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    after = os.times()
    seconds = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    claim(
        "kgbench eval --model tiny-gemma: processor seconds",
        f"{seconds:.1f}",
        "≤ 20",
        seconds <= 20,
    )
