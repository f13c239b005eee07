"""`kgbench verify`: a seeded sample of a run's facts, run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from again import edited, evaluated
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import Call, caller, submitted

from kgbench.leaderboard.entries import find_run, read_entries
from kgbench.leaderboard.folders import document_hash, rows_hash
from kgbench.records import StoredRecord
from kgbench.runner.rerun import Sample, sample_facts

SMALL = ("--facts", 4, "--seed", 0, "--device", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredRecord]:
    """Fresh tiny runs: of a method that intervenes, of one that ranks, of one that learns from all
    facts.
    """
    root = tmp_path_factory.mktemp("runs")
    return {name: evaluated(root, name) for name in ("intervenes", "scores", "planted", "draws")}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


IDS = [f"f/{i}" for i in range(60)]


@given(st.integers(0, 2**32), st.integers(1, 80), st.permutations(IDS))
def test_samples(seed: int, n: int, ids: list[str]) -> None:
    """The same seed draws the same facts whatever their order; as many as asked for or all; a
    larger sample holds a smaller one.
    """
    found = sample_facts(ids, Sample(n, seed))
    assert (
        found == sample_facts(IDS, Sample(n, seed))
        and len(found) == min(n, 60)
        and set(found) <= set(IDS)
    )
    assert set(found) <= set(sample_facts(IDS, Sample(n + 1, seed)))


def test_seeds_draw_different_facts() -> None:
    """Another seed draws other facts, so that nobody can know which are run again."""
    assert len({sample_facts(IDS, Sample(10, seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize("name", ["intervenes", "scores", "planted", "draws"])
def test_a_fresh_run_agrees(runs: dict[str, StoredRecord], run: Call, name: str) -> None:
    """All rows of the sampled facts, on every prompt and configuration; the map of a method that
    ranks; status 0.
    """
    status, out, _ = run("verify", runs[name].path, *SMALL, "--json")
    answer = json.loads(out)
    assert status == 0 and answer["agrees"] and len(answer["facts"]) == 4 and not answer["written"]
    assert answer["rows_compared"] == runs[name].facts().num_rows / 12 * 4
    assert (answer["scores"] is not None) == (runs[name].record.scores is not None)
    assert (
        json.loads(run("verify", runs[name].path, *SMALL, "--json")[1])["facts"] == answer["facts"]
    )


def test_an_edited_fact_is_told(runs: dict[str, StoredRecord], run: Call, tmp_path: Path) -> None:
    """A fact whose rows were edited is told where it is in the sample; status 1, and nothing is
    written.
    """
    first = runs["intervenes"]
    run_of = edited(first, tmp_path, {"fact": "tiny_movies/7", "graft": "FE"}, rank=1)
    place = submitted(run_of, tmp_path / "board" / "results")
    status, out, _ = run("verify", place, "--device", "cpu", "--write")
    assert (
        status == 1
        and "FE, tiny_movies/7: rank 1 stored" in out
        and "not written, since it differs" in out
    )
    assert find_run(place, tmp_path).verification is None


def test_an_edited_map_is_told(runs: dict[str, StoredRecord], run: Call, tmp_path: Path) -> None:
    """A map whose scores were edited is told."""
    place = shutil.copytree(runs["scores"].path, tmp_path / "run")
    record = json.loads((place / "record.json").read_text())
    region, component = next((r, c) for r, by in record["scores"].items() for c in by)
    layer = next(iter(record["scores"][region][component]))
    record["scores"][region][component][layer] += 5
    (place / "record.json").write_text(json.dumps(record))
    (place / "seal.json").unlink()
    status, out, _ = run("verify", place, *SMALL)
    assert status == 1 and "the map of scores differs" in " ".join(out.split())


def test_facts_of_no_data_set_are_told(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """Rows of facts that the data set does not have are told, whatever the sample."""
    place = edited(
        runs["intervenes"], tmp_path, {"fact": "tiny_movies/7"}, fact="tiny_movies/made up"
    )
    status, out, _ = run("verify", place, *SMALL)
    assert status == 1 and "tiny_movies/made up: in the record, and not measured now" in " ".join(
        out.split()
    )


def test_an_entry_becomes_verified(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """With --write, what was run stands beside an entry that agrees; a run that was not submitted
    is refused.
    """
    place = submitted(runs["intervenes"].path, tmp_path / "board" / "results")
    status, out, _ = run("verify", place, "--device", "cpu", "--write")
    assert status == 0 and str(place / "verification.json") in out
    entry = find_run(place, tmp_path)
    found = entry.verification
    assert found is not None and (found.n, found.rows, found.changed_hits) == (12, 216, 0)
    assert entry.verified and found.drawn
    assert found.record_hash == document_hash(entry.documents["record.json"])
    assert found.facts_hash == rows_hash(entry.rows())
    assert 0 <= found.largest_difference <= found.tolerance == 1e-3
    assert "verified: 12 facts (seed " in run("show", place)[1]
    status, out, err = run("verify", runs["intervenes"].path, *SMALL, "--write")
    assert (status, out) == (2, "") and "no submission.json" in err


def test_other_entries_stay_as_they_are(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """With --write the verification is beside the record that it is of; the others stay."""
    results = tmp_path / "board" / "results"
    for name in ("intervenes", "draws"):
        submitted(runs[name].path, results)
    before = {entry.record.id: entry for entry in read_entries(results)}
    place = before[runs["intervenes"].record.id].folder
    status, out, _ = run("verify", place, "--device", "cpu", "--write")
    assert status == 0 and str(place / "verification.json") in "".join(out.split("\n"))
    for entry in read_entries(results):
        old, new = before[entry.record.id].documents, entry.documents
        assert {**new, **old} == new
        assert entry.verified == (entry.folder == place)
        assert set(new) - set(old) == ({"verification.json"} if entry.verified else set())


def test_the_sample_is_not_known_beforehand(runs: dict[str, StoredRecord], run: Call) -> None:
    """Each verification draws a seed of its own, from the machine's randomness."""
    commands = [run("verify", runs["draws"].path, "--facts", 1, "--json") for _ in range(2)]
    first, second = (json.loads(out)["seed"] for _, out, _ in commands)
    assert first != second


@pytest.mark.parametrize(
    "weak", [("--seed", 5), ("--limit", 11), ("--tolerance", 0.1)], ids=lambda weak: weak[0]
)
def test_no_badge_for_a_weak_sample(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path, weak: tuple[object, ...]
) -> None:
    """A chosen seed, a part of few facts and a wide tolerance go without --write."""
    place = submitted(runs["intervenes"].path, tmp_path / "board" / "results")
    status, out, err = run("verify", place, *weak, "--write")
    assert (status, out) == (2, "") and weak[0] in str(err) and "--write" in err
    assert find_run(place, tmp_path).verification is None


def test_what_is_not_at_hand_is_no_difference(runs: dict[str, StoredRecord], run: Call) -> None:
    """Where code or weights are not those of the record, status is 2, not 1."""
    status, out, err = run("verify", runs["scores"].path, *SMALL, "--localizer", "random")
    assert (status, out) == (2, "") and "is not at hand" in err and err.count("\n") == 1
