"""Several threads of one process: each gets what it gets by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from laws import distance, pair_of, pool

import kgbench
from kgbench.engine import grafted_logits
from kgbench.engine.gradients import graft_effects
from kgbench.runner import job

THREADS = 4


def at_once(work: Callable[[int], object], n: int = 3 * THREADS) -> list[object]:
    """Results of some calls from several threads, which start together."""
    start = threading.Barrier(THREADS)

    def begun(number: int) -> object:
        if number < THREADS:
            start.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(begun, range(n)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["packed", "rows", "sequential"])
def test_logits(executor: str) -> None:
    """One pair answers several threads as it answers one, whatever each of them grafts."""
    pair, some = pair_of("gemma"), pool("headline")[:2]
    grafts = [["FE", "LT"], ["SFT", "PRE"], ["ALL", "FE:attn"]]
    expected = [grafted_logits(pair, some, each, executor) for each in grafts]
    found = at_once(lambda i: grafted_logits(pair, some, grafts[i % 3], executor))
    for number, logits in enumerate(found):
        assert isinstance(logits, torch.Tensor)
        assert distance(logits, expected[number % 3]) <= 1e-9


def test_hooks_of_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are looked for while no other thread computes, whose forwards have hooks of their own."""
    pair, free = kgbench.load_pair("tiny-gemma"), list[bool]()

    def enter() -> None:
        if pair.lock.acquire(blocking=False):
            free.append(True)
            pair.lock.release()
        else:
            free.append(False)

    def look(*models: object) -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(enter).result()

    monkeypatch.setattr(job, "refuse_hooks", look)
    kgbench.evaluate(pair, prompts="headline", limit=1, output_dir=tmp_path, progress=False)
    assert free == [False]


def test_derivatives_beside_logits() -> None:
    """So it does where some take derivatives."""
    pair, some = pair_of("llama"), pool("qa")[:2]
    effects, logits = graft_effects(pair, some), grafted_logits(pair, some, ["FE", "SFT"])

    def work(number: int) -> float:
        if number % 2:
            return distance(grafted_logits(pair, some, ["FE", "SFT"]), logits)
        pairs = zip(graft_effects(pair, some), effects, strict=True)
        return max(float(abs(one - other).max()) for one, other in pairs)

    assert max(map(float, at_once(work))) <= 1e-9  # type: ignore[arg-type]


def test_prompts_that_are_read_otherwise() -> None:
    """While one thread reads a prompt otherwise, another one reads it as it is."""
    pair, prompt = pair_of("gpt2"), pool("headline")[0]
    encoded = pair.encoded(prompt)
    entered, left = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with pair.read_as({prompt: replace(encoded, first=0)}):
            entered.set()
            left.wait(timeout=0.2)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert entered.wait(timeout=60)
    assert pair.encoded(prompt) == encoded
    thread.join()


def test_a_thread_uses_what_it_holds() -> None:
    """Uses within uses of one thread do not wait, and a copy of a pair takes turns with it."""
    pair = pair_of("llama")
    with pair.lock, copy(pair).lock, pair.read_as({}):
        assert grafted_logits(pair, pool("headline")[:1], ["FE"]).isfinite().all()
    assert replace(pair, name="other").lock is pair.lock


def test_evaluations(tmp_path: Path) -> None:
    """Evaluations of pairs that are loaded at the same time, and of one pair, give the records of a
    single thread.
    """
    asked = {"limit": 2, "prompts": "headline", "progress": False}
    alone = kgbench.evaluate("tiny-gemma", output_dir=tmp_path / "alone", **asked)
    loaded = kgbench.load_pair("tiny-gemma")

    def work(number: int) -> object:
        folder, seed = tmp_path / str(number), number // THREADS
        given = loaded if number % 2 else "tiny-gemma"
        run = kgbench.evaluate(given, output_dir=folder, seed=seed, **asked)
        return run.to_pandas().drop(columns=["seconds"], errors="ignore")

    for frame in at_once(work, THREADS):
        assert frame.equals(alone.to_pandas().drop(columns=["seconds"], errors="ignore"))  # type: ignore[attr-defined]
