"""The cost behind every `--dry-run`."""

from __future__ import annotations

import json
from dataclasses import replace

from kgbench.runner.costs import Cost, cost_table

TRAINING = Cost(
    "a donor",
    60.0,
    "a step measured here",
    {"texts": 8, "steps": 1_200},
    {"weights": 1 << 30, "gradients": 1 << 30},
    free=1 << 30,
    device="cpu",
    savings=("--recipe lora",),
    disk=10,
    download=5,
)
RUN = Cost("a run", 2.0, memory={"weights": 1 << 20}, free=1 << 30, device="cpu", disk=7)


def test_costs_follow_each_other() -> None:
    """Times and disk add up, of memory and download the larger is needed; all is there if each is."""
    total = sum([TRAINING, RUN], Cost("in all"))
    assert (total.what, total.seconds, total.disk, total.download) == ("in all", 62.0, 17, 5)
    assert (total.memory, total.free, total.savings) == (TRAINING.memory, 1 << 30, TRAINING.savings)
    done = replace(RUN, done=True)
    assert (done + done).done and not (done + RUN).done


def test_memory_has_a_verdict() -> None:
    """What does not fit is said with what to try; the JSON holds the same."""
    assert RUN.fits and RUN.verdict == "fits: needs 1.0 MiB (weights 1.0 MiB), 1.0 GiB free on cpu"
    parts = "(weights 1.0 GiB, gradients 1.0 GiB)"
    assert TRAINING.verdict == (
        f"does not fit: needs 2.0 GiB {parts}, 1.0 GiB free on cpu; try --recipe lora"
    )
    answer = json.loads(json.dumps(TRAINING.to_json()))
    assert answer["counts"] == {"texts": 8, "steps": 1200} and not answer["fits"]
    assert (answer["needed"], answer["verdict"]) == (2 << 30, TRAINING.verdict)


def test_one_table() -> None:
    """One cost has a row for each field, several have the same fields as columns."""
    names = ["time", "memory", "disk", "download", "work"]
    headers, rows = cost_table([TRAINING])
    assert headers == ["what", "a donor"] and [name for name, _ in rows] == names
    assert rows[-1][1] == "8 texts, 1,200 steps; from a step measured here"
    headers, rows = cost_table([TRAINING, replace(RUN, done=True)])
    assert headers == ["what", *names]
    assert [row[:3] for row in rows] == [
        ["a donor", "about 60.0 s", "2.0 GiB"],
        ["a run", "none: it is there", "1.0 MiB"],
    ]
