"""Laws of a store that several processes share, whose files are damaged, and whose disk is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forks
import numpy as np
import pyarrow as pa
import pytest
from fake_runs import identity, record, rows

from kgbench.errors import DataError, OutputError
from kgbench.records import (
    DamagedRecordWarning,
    Journal,
    Record,
    RecordStore,
    load_record,
    renew_seal,
)
from kgbench.records.fact_rows import facts_bytes
from kgbench.records.provenance import other_versions, sources_hash

ROOT = Path(__file__).parents[1]
ID = "f" * 64
CODE = "kgbench 1 (sources 0123), torch 2"


@pytest.fixture(scope="module")
def facts() -> pa.Table:
    return rows(20)


@pytest.fixture(scope="module")
def made(facts: pa.Table) -> Record:
    return record(facts)


def chunks(facts: pa.Table, size: int = 5) -> list[pa.Table]:
    """All rows of a few facts at a time, as a run finishes them."""
    names = sorted(set(facts["fact"].to_pylist()))
    starts = range(0, len(names), size)
    return [
        facts.filter(pa.compute.is_in(facts["fact"], pa.array(names[at : at + size])))
        for at in starts
    ]


# -------------------------------------------------------------------------------- several processes

SHARER = """
import sys, warnings
from pathlib import Path
from kgbench.records import Record, RecordStore, read_facts

warnings.simplefilter("error")
store, parts, *records = sys.argv[1:]
store, parts = RecordStore(store), [read_facts(path) for path in sorted(Path(parts).iterdir())]
print("ready", flush=True)
sys.stdin.readline()
for path in records:
    made = Record.model_validate_json(Path(path).read_bytes())
    if store.find(made.id) is not None:
        continue
    journal = store.journal(made.id, "code")
    for part in parts:
        if part["fact"][0].as_py() not in {fact for _, fact in journal.finished()}:
            journal.append(part, {"forwards": 1})
    store.write(made, journal.table())
    journal.discard()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("n", [2, 8])
def test_processes_share_a_store(tmp_path: Path, n: int, same: bool) -> None:
    """Two and eight processes in one store, same and different jobs: each ends with 0, every record
    is whole, none is lost.
    """
    few, jobs = rows(6), 10 if same else 3
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(chunks(few, 2)):
        (tmp_path / "parts" / str(number)).write_bytes(facts_bytes(part))
    made, files = record(few), []
    for seed in range(jobs if same else jobs * n):
        what = identity(seeds=(seed,))
        files.append(tmp_path / f"{seed}.json")
        files[-1].write_text(
            made.model_copy(update={"identity": what, "id": what.digest()}).to_json()
        )
    line = [sys.executable, "-c", SHARER, str(tmp_path / "results"), str(tmp_path / "parts")]
    piped = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes: list[subprocess.Popen[str]] = []
    for number in range(n):
        own = files if same else files[number * jobs : (number + 1) * jobs]
        processes.append(forks.Popen([*line, *map(str, own)], env=environment, **piped))  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # all begin together
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ends = [process.communicate() for process in processes]
    assert [
        (process.returncode, err) for process, (_, err) in zip(processes, ends, strict=True)
    ] == [(0, "")] * n
    store = RecordStore(tmp_path / "results")
    found = list(store.scan())
    assert len(found) == len({each.record.id for each in found}) == len(files)
    assert all(each.facts().equals(few) for each in found)
    assert {path.name for path in store.root.iterdir()} == {each.path.name for each in found}


def test_parts_of_two_machines(
    tmp_path: Path, facts: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines of one process id that compute one job at a time keep the parts of both."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    here, there = Journal(tmp_path / ID, CODE), Journal(tmp_path / ID, CODE)
    for journal, part in zip((here, there, here, there), chunks(facts), strict=True):
        journal.append(part)
    assert Journal(tmp_path / ID, CODE).table().equals(facts)


def test_a_run_goes_on_where_another_ended(tmp_path: Path, facts: pa.Table) -> None:
    """A run whose journal another run of the same job deletes, since it is done, ends with all of
    its rows.
    """
    ours, theirs = (
        Journal(tmp_path / ".partial" / ID, CODE),
        Journal(tmp_path / ".partial" / ID, CODE),
    )
    first, *rest = chunks(facts)
    ours.append(first)
    theirs.discard()
    for part in rest:
        ours.append(part)
    assert ours.table().equals(facts)
    ours.discard()
    assert list(tmp_path.iterdir()) == []


def test_clocks_that_differ(
    tmp_path: Path, made: Record, facts: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is ahead takes nobody's folder for a dead run's; and a folder that was
    taken is written again.
    """
    other = tmp_path / ".writing-other"
    other.mkdir()
    os.utime(other, (os.stat(other).st_mtime - 7200,) * 2)
    RecordStore(tmp_path).write(made, facts)
    assert other.exists()
    sync, taken = os.fsync, []

    def swept(file: int) -> None:
        if not taken:
            taken.extend(
                path.rename(tmp_path / "taken") for path in (tmp_path / "b").glob(".writing-*")
            )
        sync(file)

    monkeypatch.setattr(os, "fsync", swept)
    path = RecordStore(tmp_path / "b").write(made, facts)
    assert taken and load_record(str(path), tmp_path).record == made
    assert list((tmp_path / "b").iterdir()) == [path]


# ------------------------------------------------------------------------------------------- damage


def flips(path: Path, n: int) -> Iterator[None]:
    """The file with one bit turned over, at one place after the other."""
    content = path.read_bytes()
    rng = np.random.default_rng(len(content))
    for at in rng.choice(len(content), min(n, len(content)), replace=False):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        yield
    path.write_bytes(content)


def test_a_damaged_journal_is_never_used(tmp_path: Path, facts: pa.Table) -> None:
    """A bit that turns over in any part, in the code or in scores: that part is left out with a
    warning, the others are taken; a killed run's temporary file is ignored.
    """
    folder = tmp_path / ID
    journal = Journal(folder, CODE)
    for part in chunks(facts):
        journal.append(part, {"seconds": 1.5})
    journal.keep("scores-0", {"scores": [[0, "up", "FE", 0.25]]})
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    for path in sorted(whole):
        for _ in flips(path, 25):
            with pytest.warns(UserWarning, match="computed again"):
                found = Journal(folder, CODE)
                scores = found.kept("scores-0")
            assert scores is None or path.suffix == ".parquet"
            left = {(row["prompt"], row["fact"]) for row in found.table().to_pylist()}
            assert found.finished() == left and len(left) in (0, 30, 40)
            again = {tuple(row.items()) for row in found.table().to_pylist()}
            assert again <= {tuple(row.items()) for row in facts.to_pylist()}
            folder.mkdir(parents=True, exist_ok=True)
            for each, content in whole.items():
                each.write_bytes(content)
    (folder / "000002-1.tmp").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Journal(folder, CODE).table().equals(facts)


def test_a_journal_of_other_code(tmp_path: Path, facts: pa.Table) -> None:
    """What other code computed is left out with a line; single parts too, where two states of the
    code ran at one time.
    """
    first, second, *_ = chunks(facts)
    Journal(tmp_path / ID, CODE).append(first)
    with pytest.warns(
        UserWarning,
        match=(
            r"an unfinished run of kgbench 1 \(sources 0123\), torch 2 is left out.*this is"
            r" kgbench 2"
        ),
    ):
        now = Journal(tmp_path / ID, "kgbench 2")
    assert not now.finished() and not now.folder.exists()
    before = Journal(tmp_path / ID, CODE)
    now.append(second)
    before.append(first)
    now.append(second)
    with pytest.warns(UserWarning, match="of other code"):
        assert Journal(tmp_path / ID, "kgbench 2").table().equals(second)


def test_the_state_of_the_code(tmp_path: Path) -> None:
    """Any change of the package's own modules, data and settings is another state; what is not its
    own is not.
    """
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "inner/b.json", "c.toml", "picture.png"):
        (tmp_path / name).write_text("1")
    states = [sources_hash.__wrapped__(tmp_path)]
    for name in ("a.py", "inner/b.json", "c.toml"):
        (tmp_path / name).write_text("2")
        states.append(sources_hash.__wrapped__(tmp_path))
    assert len({*states}) == 4
    (tmp_path / "picture.png").write_text("2")
    assert sources_hash.__wrapped__(tmp_path) == states[-1]


def test_versions_of_a_finished_record(made: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that computed a record are told where they are others than those here."""
    provenance = made.provenance
    assert other_versions(provenance) is None
    older = provenance.model_copy(update={"packages": {**provenance.packages, "numpy": "1.0"}})
    told = (
        f"computed before by kgbench {older.kgbench}, numpy 1.0 (here: kgbench 99, numpy"
        f" {np.__version__})"
    )
    monkeypatch.setattr("kgbench.records.provenance.__version__", "99")
    assert other_versions(older) == told


def test_a_damaged_record_is_never_used(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """A bit that turns over in a record, its rows or its seal, or rows that are gone: the folder is
    named, nothing reads the record, and it is not overwritten.
    """
    store = RecordStore(tmp_path)
    path = store.write(made, facts)
    for name in ("record.json", "facts.parquet", "seal.json"):
        for _ in flips(path / name, 25):
            with pytest.warns(DamagedRecordWarning, match=path.name):
                assert store.find(made.id) is None
            with pytest.raises(
                DataError,
                match=(
                    rf"{path.name}.*restore its folder from a copy, or delete it and compute it"
                    r" again"
                ),
            ):
                load_record(str(path), tmp_path)
    assert store.find(made.id) is not None
    (path / "facts.parquet").unlink()
    with pytest.warns(DamagedRecordWarning, match=path.name):
        assert list(store.scan()) == []
    with warnings.catch_warnings():  # it was told when it was searched for
        warnings.simplefilter("error")
        assert store.write(made, facts, searched=True).name == f"{path.name}-2"


def test_an_edited_record(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """A verdict that was edited is told; a record that kgbench wrote anew is sealed anew; one
    without a seal is read as before.
    """
    path = RecordStore(tmp_path).write(made, facts)
    edited = made.model_copy(update={"verdict": "Nothing is carried."}).to_json()
    (path / "record.json").write_text(edited)
    with pytest.raises(
        DataError, match=r"record\.json: damaged or edited: its hash is not the one in seal\.json"
    ):
        load_record(str(path), tmp_path)
    renew_seal(path)
    assert load_record(str(path), tmp_path).record.verdict == "Nothing is carried."
    (path / "record.json").write_text(made.to_json())
    (path / "seal.json").unlink()
    renew_seal(path)
    assert load_record(str(path), tmp_path).record == made and not (path / "seal.json").exists()


# -------------------------------------------------------------------------------------- a full disk


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can become larger."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_room_is_no_remedy_where_there_is_room() -> None:
    """Only where the system says that there is none."""
    for number, is_full in ((errno.ENOSPC, True), (errno.EACCES, False)):
        error = OutputError.of("the record", Path("x"), OSError(number, os.strerror(number)))
        assert ("make room" in str(error)) == ("MB free" in str(error)) == is_full


@pytest.mark.posix
def test_a_full_disk(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """What cannot be written is named with what is free; what was finished stays, and the same
    steps then go on.
    """
    store = RecordStore(tmp_path)
    first, *rest = chunks(facts)
    journal = store.journal(made.id, CODE)
    journal.append(first)
    size = max(path.stat().st_size for path in journal.folder.iterdir())
    with (
        largest_file(size // 2),
        pytest.raises(
            OutputError, match=r"cannot write a finished part .*File too large \([\d,.]+ MB free\)"
        ),
    ):
        journal.append(rest[0])
    with largest_file(size // 2), pytest.raises(OutputError, match="the same command goes on"):
        journal.keep("scores-0", list(range(size)))
    resumed = store.journal(made.id, CODE)
    assert resumed.table().equals(first)
    for part in rest:
        resumed.append(part)
    with (
        largest_file(size),
        pytest.raises(OutputError, match=r"cannot write the record .*File too large"),
    ):
        store.write(made, resumed.table())
    assert list(store.scan()) == [] and [path.name for path in tmp_path.iterdir()] == [".partial"]
    assert store.journal(made.id, CODE).table().equals(facts)
    store.write(made, facts)
    assert [each.record for each in store.scan()] == [made]
