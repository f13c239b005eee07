"""Packs give back the files of entries byte for byte, and hold nothing else; others are refused."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runs import RATES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kgbench.leaderboard.packs import add, inside_pack, pack, read_pack, unpack
from stored_runs import Call, caller
from submissions import CODE, OTHERS, edit, identity, refused, result, unpack_all, write_entry

from kgbench.errors import DataError, InputError
from kgbench.leaderboard import limits
from kgbench.leaderboard.build import outputs
from kgbench.leaderboard.drafts import pack_loose
from kgbench.leaderboard.entries import entry_name, find_entry, pack_name, read_entries
from kgbench.leaderboard.limits import FACTS, FILES, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate import validate

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}", fullmatch=True)
entries = st.dictionaries(
    names, st.dictionaries(st.sampled_from(FILES), st.binary(max_size=600), min_size=1), min_size=1
)
some = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])

ONE = {"entry": {RECORD: b"{}", FACTS: b"PAR1" * 100, SUBMISSION: b"{}"}}


@some
@given(entries)
def test_a_pack_gives_back_what_was_packed(wanted: dict[str, dict[str, bytes]]) -> None:
    """Any bytes under any names of entries, whatever their order; equal entries, equal packs."""
    assert unpack(pack(wanted)) == wanted
    assert pack(dict(reversed(wanted.items()))) == pack(wanted)


@some
@given(entries, st.integers(0, 10**9), st.integers(1, 255))
def test_a_flipped_bit_is_no_pack(wanted: dict[str, dict[str, bytes]], at: int, mask: int) -> None:
    """A pack of other bytes is refused, or holds the same entries."""
    content = bytearray(pack(wanted))
    content[at % len(content)] ^= mask
    try:
        assert unpack(bytes(content)) == wanted
    except DataError:
        return


@some
@given(st.binary(max_size=1500))
def test_any_tar(tar: bytes) -> None:
    """Any bytes, compressed as a pack is, are refused: they are not what packing would give."""
    with pytest.raises(DataError):
        unpack(lzma.compress(tar))


def test_other_programs_unpack_it(tmp_path: Path) -> None:
    """It is a tar as any program reads it."""
    (tmp_path / "one.tar.xz").write_bytes(pack(ONE))
    with tarfile.open(tmp_path / "one.tar.xz") as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    assert found == {f"entry/{name}": content for name, content in ONE["entry"].items()}


# ---------------------------------------------------------------------------------- what is refused


def tarred(
    *members: tuple[str, bytes] | tarfile.TarInfo, kind: int = tarfile.USTAR_FORMAT
) -> bytes:
    """A tar of the library's, compressed."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:xz", format=kind) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return sink.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def owned(uid: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo("entry/record.json")
    info.uid = uid
    return info


HONEST = ("entry/record.json", b"{}")
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a name that leads up": (lambda: tarred(("../record.json", b"{}")), "no file of an entry"),
    "a name from the root": (lambda: tarred(("/etc/record.json", b"{}")), "no file of an entry"),
    "a name that leads up within": (
        lambda: tarred(("entry/../record.json", b"{}")),
        "no file of an entry",
    ),
    "a name with a backslash": (
        lambda: tarred(("entry\\record.json", b"{}")),
        "no file of an entry",
    ),
    "a name with a control character": (
        lambda: tarred(("a\x1b/record.json", b"{}")),
        "no file of an entry",
    ),
    "a file of no entry": (
        lambda: tarred(HONEST, ("entry/method.py", b"import os")),
        "no file of an entry",
    ),
    "another spelling": (
        lambda: tarred(HONEST, ("entry/RECORD.json", b"{}")),
        "no file of an entry",
    ),
    "a folder within": (lambda: tarred(("a/entry/record.json", b"{}")), "no file of an entry"),
    "a symbolic link": (
        lambda: tarred(special("entry/record.json", tarfile.SYMTYPE, "/etc")),
        "holds more than",
    ),
    "a hard link": (
        lambda: tarred(special("entry/record.json", tarfile.LNKTYPE, "entry/x")),
        "holds more than",
    ),
    "a device": (lambda: tarred(special("entry/record.json", tarfile.CHRTYPE)), "holds more than"),
    "a folder": (lambda: tarred(special("entry", tarfile.DIRTYPE)), "no file of an entry"),
    "a file twice": (lambda: tarred(HONEST, HONEST), "holds more than"),
    "files in another order": (
        lambda: tarred(("entry/facts.parquet", b""), HONEST),
        "holds more than",
    ),
    "an owner": (lambda: tarred(owned(1000)), "holds more than"),
    "other heads": (
        lambda: tarred((f"entry/{'x' * 200}", b""), kind=tarfile.PAX_FORMAT),
        "no file of an entry",
    ),
    "something after the end": (lambda: pack(ONE) + b"more", "goes on after its end"),
    "a second pack": (lambda: pack(ONE) + pack(ONE), "goes on after its end"),
    "something between": (
        lambda: lzma.compress(lzma.decompress(pack(ONE)) + b"more"),
        "holds more than",
    ),
    "half": (lambda: pack(ONE)[: len(pack(ONE)) // 2], "cut short"),
    "nothing": (lambda: b"", "cut short"),
    "an empty tar": (lambda: lzma.compress(bytes(1024)), "holds no entry"),
    "no tar": (lambda: lzma.compress(b"no tar at all" * 100), "does not read"),
    "no xz": (lambda: b"PK\x03\x04 and more", "does not unpack"),
    "a dictionary that takes much memory": (
        lambda: lzma.compress(b"{}", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**30}]),
        "does not unpack",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_pack(what: str) -> None:
    """Nothing but the files of entries, each once, in order and alone."""
    content, words = REFUSED[what]
    with pytest.raises(DataError, match=words):
        unpack(content())


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to more than is allowed is refused before it is unpacked further."""
    monkeypatch.setattr(limits, "UNPACKED", 10_000_000)
    bomb = lzma.compress(bytes(limits.UNPACKED + 1), preset=0)
    assert len(bomb) < 10_000
    with pytest.raises(DataError, match=f"more than {limits.UNPACKED} bytes"):
        unpack(bomb)
    monkeypatch.setattr(limits, "FILE", {name: most // 10 for name, most in limits.FILE.items()})
    for name, most in limits.FILE.items():
        with pytest.raises(DataError, match=f"entry/{name} is too large"):
            unpack(pack({"entry": {name: bytes(most + 1)}}))
    monkeypatch.setattr(limits, "FILES_IN_PACK", 3)
    assert len(unpack(pack(ONE))) == 1
    with pytest.raises(DataError, match="more than 3 files"):
        unpack(pack({**ONE, "other": {RECORD: b""}}))


# --------------------------------------------------------------------------------------- on a board


PLACE = "pathways/my-method.tar.xz"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a leaderboard: a pack of two entries, and one of a built-in method."""
    results = tmp_path_factory.mktemp("board") / "results"
    for pair, rate in (("tiny-gemma", 0.9), ("tiny-llama", 0.8)):
        rates = {**RATES, "FE+LT": rate}
        made = result(identity(pair, OTHERS), rates, model=pair)
        write_entry(results / entry_name(made[0], "my method"), made, "my method", CODE)
    made = result()
    write_entry(results / entry_name(made[0], "dynamic_graft"), made)
    pack_loose(results.parent)
    return results


@pytest.fixture
def board(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "board" / "results"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def test_entries_are_packed_by_method_and_board(tmp_path: Path, run: Call) -> None:
    """The command packs entries that are folders; the board and every file stay as they are."""
    root = tmp_path / "board"
    folders = {}
    for seed in range(3):
        made = result(identity(localizer=OTHERS, seeds=(seed,)), {**RATES, "FE": 0.3 + seed / 9})
        folder = write_entry(root / "results" / f"{seed}", made, "my method", CODE)
        name = entry_name(made[0], "my method")
        folders[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert pack_name(made[0], "my method") == PLACE
    before = dict(outputs(root))
    status, out, _ = run("leaderboard", "pack", "--root", root)
    assert (status, out.strip()) == (0, str(root / "results" / PLACE))
    assert [path.name for path in (root / "results").iterdir()] == ["pathways"]
    assert read_pack(root / "results" / PLACE) == folders
    assert refused(root / "results") == []
    after = dict(outputs(root))
    assert {name for name in before if before[name] != after[name]} == {
        f"site/runs/{entry.record.id[:12]}.html" for entry in read_entries(root / "results")
    }
    assert run("leaderboard", "pack", "--root", root)[:2] == (0, "no entry is a folder\n")


def test_more_entries_join_a_pack(board: Path) -> None:
    """A pack takes further entries, and no other content under the name of one that is there."""
    before = read_pack(board / PLACE)
    write_entry(
        board / "new", result(identity("tiny-gpt2", OTHERS), model="tiny-gpt2"), "my method", CODE
    )
    pack_loose(board.parent)
    after = read_pack(board / PLACE)
    assert len(after) == 3 and {name: after[name] for name in before} == before
    name = next(iter(before))
    with pytest.raises(InputError, match="never edited"):
        add(board / PLACE, {name: {RECORD: b"{}"}})
    add(board / PLACE, {name: {VERIFICATION: b"{}"}})
    assert read_pack(board / PLACE)[name] == {**before[name], VERIFICATION: b"{}"}


def test_one_entry_of_a_pack(board: Path, run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is named by the start of its id or name, or by the path of its pack and its name."""
    monkeypatch.chdir(board.parent)
    (board.parent / "leaderboard").mkdir()
    (board.parent / "leaderboard" / "results").symlink_to(board)
    name = next(name for name in read_pack(board / PLACE) if "llama" in name)
    entry = find_entry(name, board)
    assert entry.folder == board / PLACE / name and entry.pack == board / PLACE
    path = board / PLACE / name
    for one in (name[:20], entry.record.id[:8], entry.record.id, path, f"{path}/{RECORD}"):
        status, out, _ = run("show", one, "--json")
        assert status == 0 and json.loads(out)["id"] == entry.record.id
    assert json.loads(run("validate", "--strict", path, "--json")[1])["accepted"] == 1
    assert run("show", board / "pathways" / "dynamic_graft.tar.xz")[0] == 0
    status, _, err = run("show", board / PLACE)
    assert status == 2 and "holds 2 entries: give one as" in err
    for command in ("show", "validate"):
        status, _, err = run(command, board / PLACE / "no-such")
        assert status == 2 and "no-such" in err and err.count("\n") == 1
    status, _, err = run("rescore", path, "--in-place")
    assert status == 2 and "is a pack, whose entries are never edited" in err


def test_paths_into_packs(board: Path) -> None:
    """Only what is a pack is taken for one."""
    assert inside_pack(board / PLACE) == (board / PLACE, "")
    assert inside_pack(board / PLACE / "entry") == (board / PLACE, "entry")
    assert inside_pack(board / "pathways") is None
    assert inside_pack(board / "pathways" / "none.tar.xz" / "entry") is None


def repacked(board: Path, change: Callable[[Path], object]) -> None:
    """Unpack the entries of the method, change their folders, and pack them again by hand."""
    (loose := board.parent / "loose" / "pathways").mkdir(parents=True)
    shutil.copy(board / PLACE, loose)
    change(unpack_all(loose.parent))
    folders = [folder for folder in loose.parent.iterdir() if any(folder.iterdir())]
    entries = {f.name: {path.name: path.read_bytes() for path in f.iterdir()} for f in folders}
    (board / PLACE).write_bytes(pack(entries))


def gemma(loose: Path) -> Path:
    return next(loose.glob("*gemma*"))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "forged figures": (
        lambda loose: edit(
            gemma(loose), lambda record: record["rows"][5].update(top5=[1, 0.9, 1, 30])
        ),
        "record.json: file: it is another one than on the board",
    ),
    "other rows": (
        lambda loose: (gemma(loose) / FACTS).write_bytes(b"PAR1"),
        "facts.parquet: Parquet",
    ),
    "no rows": (
        lambda loose: (gemma(loose) / FACTS).unlink(),
        "facts.parquet: file: it is missing",
    ),
    "no submission": (lambda loose: (gemma(loose) / SUBMISSION).unlink(), "submission.json: file"),
    "another name": (
        lambda loose: gemma(loose).rename(loose / "x"),
        "x: name: it is not the entry's",
    ),
    "a copy": (
        lambda loose: shutil.copytree(gemma(loose), loose / "copy"),
        "copy: name: it is not the entry's",
    ),
    "a copy in capitals": (
        lambda loose: shutil.copytree(gemma(loose), loose / gemma(loose).name.upper()),
        "name: another entry has this name",
    ),
    "not all of them": (
        lambda loose: shutil.rmtree(gemma(loose)),
        "entry: it is on the board, and gone",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_packed_entry_is_checked_as_a_folder_is(board: Path, tmp_path: Path, what: str) -> None:
    """Whatever is refused of a folder is refused in a pack."""
    before = shutil.copytree(board, tmp_path / "before")
    assert refused(board, beside=before) == []
    change, words = CHANGES[what]
    repacked(board, change)
    found = refused(board, beside=before)
    assert any(words in text for text in found), found


def moved(board: Path) -> None:
    (board / PLACE).rename(board / "pathways" / "other.tar.xz")


def of_another_board(board: Path) -> None:
    (board / "planted").mkdir()
    (board / PLACE).rename(board / "planted" / "my-method.tar.xz")


def linked(board: Path) -> None:
    (board / PLACE).rename(board.parent / "elsewhere.tar.xz")
    (board / PLACE).symlink_to(board.parent / "elsewhere.tar.xz")


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "another method's pack": (
        moved,
        "pack: it is in 'pathways/other.tar.xz'; expected pathways/my-method",
    ),
    "another board's pack": (
        of_another_board,
        "pack: it is in 'planted/my-method.tar.xz'; expected",
    ),
    "no board's pack": (
        lambda b: (b / PLACE).rename(b / "my-method.tar.xz"),
        "expected pathways/my-method",
    ),
    "a link": (linked, "my-method.tar.xz: kind: it is a symbolic link"),
    "another file": (
        lambda b: (b / "pathways" / "x.py").write_text(""),
        "x.py: kind: it is no pack",
    ),
    "a folder": (lambda b: (b / "pathways" / "x").mkdir(), "x: kind: it is no pack"),
    "broken bytes": (
        lambda b: (b / PLACE).write_bytes(b"no xz" * 9),
        "my-method.tar.xz: pack: it does",
    ),
}


@pytest.mark.parametrize("what", PLACES)
def test_packs_are_in_their_places(board: Path, what: str) -> None:
    """One pack for a method and board, under the name of the method, and nothing beside the packs."""
    change, words = PLACES[what]
    change(board)
    found = refused(board)
    assert any(words in text for text in found), found


def test_a_pack_that_is_too_large(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are counted before they are unpacked."""
    monkeypatch.setattr(limits, "PACK", 100)
    assert "my-method.tar.xz: pack: it is too large" in " ".join(refused(board / PLACE))
    with pytest.raises(DataError, match="more than 100 bytes"):
        list(read_entries(board))


def test_a_folder_and_a_pack_hold_one_result(board: Path) -> None:
    """An entry that is packed is not taken again as a folder of its name."""
    name, files = next(iter(read_pack(board / PLACE).items()))
    (board / name).mkdir()
    for file, content in files.items():
        (board / name / file).write_bytes(content)
    assert any("another entry has this name" in text for text in refused(board))
    assert all(entry.accepted for entry in validate(board / PLACE, strict=True))
