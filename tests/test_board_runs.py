"""The project's own entries follow from methods, pairs and plants, and are made in as many goes as
it takes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from commands import Call
from submissions import entries_of, identity, put, result, sent

from kgbench import localizers
from kgbench.leaderboard.boards.organisms import NULL
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.leaderboard.folders import ENTRIES
from kgbench.leaderboard.known import known
from kgbench.leaderboard.limits import FACTS
from kgbench.localizers import describe
from kgbench.models.catalog import plants, plants_in_shipped_pairs, shipped, with_fetched_base
from kgbench.paper.board_runs import COSTLY, Campaign, board_runs, pairs_of
from kgbench.records import LocalizerRef
from kgbench.runner import Settings

PLANT = "tiny-gemma.one-0"
PAIRS = (*shipped(), *with_fetched_base())


def test_the_table() -> None:
    """Every built-in method is on every plant, a costly one on those in tiny pairs; what intervenes
    has pathways, also of a language model, and what needs the truth no budget. A scan has the
    entries of its method: the same map ranks the same sites, and boards show one line of it.
    """
    runs = board_runs()
    assert len(set(runs)) == len(runs)
    names = {path.stem for path in Path(localizers.__file__).parent.glob("[a-z]*.py")}
    scans = {name for name in names if known().localizers[name].scan_of}
    assert scans == {"graft_scan"} == names - {run.method for run in runs}
    for name in names - scans:
        on = defaultdict[str, set[str]](set)
        for run in runs:
            if run.method == name:
                on[run.board].add(run.pair)
        assert on["planted"] == set(plants_in_shipped_pairs() if name in COSTLY else plants())
        intervenes = describe()[name]["kind"] == "intervention"
        assert on["pathways"] == set(PAIRS * intervenes)
        needs_truth = "truth" in describe()[name]["needs"]
        assert on["organisms"] <= {NULL} and not (needs_truth and on["organisms"])
        assert on["budget"] <= set(PAIRS) and bool(on["budget"]) == (not needs_truth)
    assert not any(localizers.is_foreign(run.method) for run in runs)


def test_runs_on_one_pair_follow_each_other() -> None:
    """So that each pair is loaded once."""
    pairs = [pair for pair, _ in groupby(board_runs(), key=lambda run: run.pair)]
    assert len(pairs) == len(set(pairs)) == len(PAIRS) + len(plants()) + 1


def test_parts_of_the_table() -> None:
    """By board, method and pair; a pair has its plants with it."""
    runs = board_runs(["planted", "budget"], ["random", "oracle"], ["tiny-gemma"])
    assert {(run.board, run.spec.limit) for run in runs} == {("planted", None), ("budget", 100)}
    assert {(run.board, run.method) for run in runs} == {
        ("planted", "random"),
        ("planted", "oracle"),
        ("budget", "random"),
    }
    inside = [name for name in plants() if name.startswith("tiny-gemma.")]
    assert {run.pair for run in runs} == {"tiny-gemma", *inside}
    assert [run.pair for run in board_runs(["planted"], ["snip"], [PLANT])] == [PLANT]
    assert set(board_runs(methods=["snip"])) == {
        run for run in board_runs() if run.method == "snip"
    }


WRONG = {
    "--board": ("plantd", "Did you mean 'planted'"),
    "--method": ("rando", "Did you mean 'random'"),
    "--model": ("tiny-gpt", "Did you mean 'tiny-gpt2'"),
}


@pytest.mark.parametrize("option", WRONG)
def test_unknown_names(option: str, run: Call, tmp_path: Path) -> None:
    """A wrong name is wrong input, told before anything is loaded."""
    name, words = WRONG[option]
    status, out, err = run("reproduce", "board", option, name, "--root", tmp_path)
    assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_no_entry_of_this_kind(run: Call, tmp_path: Path) -> None:
    """What the table has no entry of is wrong input too."""
    asked = ("--board", "budget", "--method", "oracle")
    status, _, err = run("reproduce", "board", *asked, "--root", tmp_path)
    assert status == 2 and "no entry is of these boards" in err


@pytest.mark.nightly
def test_it_goes_on(run: Call, tmp_path: Path) -> None:
    """What was computed before a stop is not computed again; at the end all entries are on the
    board, and stay as they are.
    """
    root, results = tmp_path / "board", tmp_path / "runs"
    stopped = Campaign(
        board_runs(["planted"], ["random"], [PLANT], limit=4),
        root,
        Settings(output_dir=results, device="cpu"),
    )
    stopped.compute(lambda line: None)
    words = ["reproduce", "board", "--board", "planted", "--method", "random,oracle"]
    words += ["--limit", "4", "--model", PLANT, "--device", "cpu", "--root", str(root)]
    forecast = json.loads(run(*words, "--results", results, "--dry-run", "--json")[1])
    assert (forecast["entries"], forecast["to_run"]) == (2, 1)
    status, out, _ = run(*words, "--results", results, "--json")
    made = json.loads(out)
    assert (status, made["computed"], made["failed"]) == (0, 1, [])
    folders = [root / "results" / "planted" / name for name in ("random", "oracle")]
    assert sorted(made["folders"]) == sorted(map(str, folders))
    entries = list(read_entries(root / "results"))
    assert {(entry.method, entry.pair) for entry in entries} == {
        ("random", PLANT),
        ("oracle", PLANT),
    }
    assert all(entry.contract is not None and not entry.contract.broken for entry in entries)
    assert run("validate", root)[0] == 0
    files = [folder / name for folder in folders for name in (ENTRIES, FACTS)]
    before = [path.read_bytes() for path in files]
    again = json.loads(run(*words, "--results", tmp_path / "elsewhere", "--json")[1])
    assert again["computed"] == 0 and again["folders"] == []
    assert [path.read_bytes() for path in files] == before


def cell(entry: Entry) -> tuple[str, int | None]:
    return entry.pair, entry.record.identity.limit


@pytest.mark.nightly
def test_entries_of_before_are_replaced(tmp_path: Path) -> None:
    """Of the pairs that were run; those of other pairs of the table stay, and those of pairs that
    it does not have go.
    """
    method, results = LocalizerRef(name="none", version="0"), tmp_path / "results"
    cells = [("tiny-gpt2", 4), ("tiny-gpt2", 9), ("tiny-llama", 4), ("tiny-pythia", 4)]
    for pair, n in cells:
        model = "gone" if pair == "tiny-pythia" else pair
        record, facts = result(identity(pair, method, n), model=pair)
        put(results, sent((record.model_copy(update={"model": model}), facts)))
    path = results / "pathways" / "none"
    before = {entry.name: entry.documents for entry in entries_of(results)}
    settings = Settings(output_dir=tmp_path / "runs", device="cpu")
    campaign = Campaign(
        board_runs(["pathways"], ["none"], ["tiny-gpt2"], limit=4), tmp_path, settings
    )
    lines: list[str] = []
    campaign.compute(lines.append)
    assert len(lines) == 1 and lines[0].startswith("[1/1] pathways: none on tiny-gpt2: ")
    assert campaign.publish(lines.append) == [path] and "2 taken away" in lines[-1]
    after = {entry.folder.name: entry for entry in read_entries(results)}
    assert sorted(map(cell, after.values())) == [
        ("tiny-gpt2", 4),
        ("tiny-gpt2", 9),
        ("tiny-llama", 4),
    ]
    assert all(after[name].documents == own for name, own in before.items() if name in after)
    (new,) = after.keys() - before.keys()
    assert (
        cell(after[new]) == ("tiny-gpt2", 4) and after[new].record.identity.localizer.version != "0"
    )


def test_a_run_that_fails_takes_nothing_away(tmp_path: Path) -> None:
    """It is told with its reason, and the entry that there was stays."""
    made = result(
        identity("tiny-gpt2", LocalizerRef(name="none", version="0"), 4), model="tiny-gpt2"
    )
    results = put(tmp_path / "results", sent(made))
    settings = Settings(output_dir=tmp_path / "runs", device="no-such-device")
    campaign = Campaign(
        board_runs(["pathways"], ["none"], ["tiny-gpt2"], limit=4), tmp_path, settings
    )
    campaign.compute(print)
    assert campaign.publish(print) == [] and len(entries_of(results)) == 1
    assert ["no-such-device" in reason for reason in campaign.failures.values()] == [True]


def test_the_costliest_method_has_fewer_pairs() -> None:
    """A ranking by hundreds of evaluations in turn would take as long as all others together."""
    assert pairs_of("budget", "greedy_graft") == shipped()
    assert with_fetched_base() == ("smollm2-135m",)
