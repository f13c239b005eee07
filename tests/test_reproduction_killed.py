"""Making a figure, killed twice: it goes on where it was, and ends with the figures of an unbroken
run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import forks
import pytest

from kgbench.models.catalog import HOME
from kgbench.paper.figure_claims import PaperFigure, figures_from
from kgbench.paper.figure_parts import make
from kgbench.paper.figure_specs import Page, page
from kgbench.paper.ingredients import Ingredients
from kgbench.paper.pair_rows import PairRows
from kgbench.paper.paper_report import write_report

MODEL, FIGURE = "tiny-gpt2", "figure-2"
SAVED, KILLED = 50, 52
"""The step of the training's checkpoint, and that after which it is killed."""


def small() -> Page:
    """The page with a dozen facts, trained in a few steps more than there are to the first
    checkpoint.
    """
    trainings = dict(page().trainings)
    few = {"facts": 12, "changes": {"epochs": 1, "batch_size": 4}}
    trainings["actors"] = trainings["actors"].model_copy(
        update={"tiny": trainings["actors"].tiny.model_copy(update=few)}
    )
    return page().model_copy(update={"trainings": trainings})


SCRIPT = """
import json, os, pathlib, signal, sys
from kgbench.paper.ingredients import Ingredients
from kgbench.paper.figure_parts import make
from kgbench.paper.figure_specs import Page
page, model, figure, results, kind, last = sys.argv[1:]

def told(done, total, what):
    print(json.dumps([done, what]), flush=True)
    if what.startswith(kind) and done >= int(last):
        os.kill(os.getpid(), signal.SIGKILL)

make([figure], [Ingredients(Page.model_validate_json(page), model)], pathlib.Path(results), "cpu", told)
"""


def killed(results: Path, part: int, done: int) -> list[tuple[int, str]]:
    """Make the figure in a process of its own, killed in the first or second part when so much of
    it is done; gives what it told.
    """
    given = [small().model_dump_json(), MODEL, FIGURE, str(results), f"{part} of 2", str(done)]
    child = forks.run(
        [sys.executable, "-c", SCRIPT, *given], capture_output=True, text=True, check=False
    )
    assert child.returncode == -9, child.stderr
    return [(done, what) for done, what in map(json.loads, child.stdout.splitlines())]


def made(
    results: Path, told: Callable[[int, int, str], None] | None = None
) -> tuple[PairRows, PaperFigure]:
    """Its rows and the figure, in this process."""
    measured = make([FIGURE], [Ingredients(small(), MODEL)], results, "cpu", told)
    (found,) = figures_from([FIGURE], measured, small())
    return measured, found


@pytest.mark.nightly
@pytest.mark.posix
def test_killed_twice_it_ends_as_if_unbroken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it trains and again while it evaluates; what was done is not done again, and
    figures and pictures are the same.
    """
    monkeypatch.setenv(HOME, str(tmp_path / "broken"))
    results = tmp_path / "broken" / "results"
    donor = Ingredients(small(), MODEL).place("actors")
    assert killed(results, 1, KILLED)[-1][0] == KILLED
    assert not donor.exists() and not results.exists()

    steps, prompts = (
        [done for done, what in killed(results, 2, 1) if what.startswith(part)]
        for part in ("1 of 2", "2 of 2")
    )
    assert steps[1] == SAVED + 1 and donor.is_dir()
    assert prompts[-1] > 0 and not list(results.glob("*/record.json"))

    told: list[tuple[int, str]] = []
    rows, broken = made(results, lambda done, _, what: told.append((done, what)))
    assert all(what.startswith("2 of 2") for _, what in told), "the donor is not trained again"
    assert min(done for done, _ in told) == prompts[-1], "nor is a prompt asked again"

    monkeypatch.setenv(HOME, str(tmp_path / "unbroken"))
    other_rows, unbroken = made(tmp_path / "unbroken" / "results")
    records = [
        [run.record for run in one.about.evaluations[0].values()] for one in (broken, unbroken)
    ]
    assert records[0] == records[1], "the same weights"
    assert rows.table.equals(other_rows.table)
    assert broken.claims == unbroken.claims
    for found in (broken, unbroken):
        write_report([found], tmp_path / ("first" if found is broken else "second"))
    assert (tmp_path / "first" / f"{FIGURE}.webp").read_bytes() == (
        tmp_path / "second" / f"{FIGURE}.webp"
    ).read_bytes()
