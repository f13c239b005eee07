"""Files, folders and archives that would lead elsewhere, hold too much or hold something else are refused, and nothing is unpacked."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from submissions import result, write_entry

from kgbench.cli import main
from kgbench.errors import DataError, InputError
from kgbench.leaderboard.entries import FILES
from kgbench.leaderboard.validate import limits, validate
from kgbench.leaderboard.validate.footer import check_footer
from kgbench.leaderboard.validate.tables import read_table
from kgbench.leaderboard.validate.texts import bad_text, read_json
from kgbench.leaderboard.validate.thrift import read_struct
from kgbench.records import SEAL

RECORD, FACTS, SUBMISSION, VERIFICATION = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry that is in order."""
    return write_entry(tmp_path_factory.mktemp("results") / "entry", result())


@pytest.fixture
def entry(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "results" / "entry"))


def refused(path: Path, strict: bool = True) -> list[str]:
    return [str(finding) for checked in validate(path, strict) for finding in checked.findings if finding.refuses]


# ------------------------------------------------------------------------------------------------ folders


def symbolic_link(entry: Path) -> None:
    (entry / FACTS).rename(entry.parent.parent / "elsewhere")
    (entry / FACTS).symlink_to(entry.parent.parent / "elsewhere")


def hard_link(entry: Path) -> None:
    os.link(entry / RECORD, entry.parent.parent / "elsewhere")


def pipe(entry: Path) -> None:
    (entry / SUBMISSION).unlink()
    os.mkfifo(entry / SUBMISSION)


def directory(entry: Path) -> None:
    (entry / SUBMISSION).unlink()
    (entry / SUBMISSION).mkdir()


def grown(name: str) -> Callable[[Path], None]:
    def grow(entry: Path) -> None:
        with open(entry / name, "ab") as file:
            file.truncate(limits.FILE[name] + 1)

    return grow


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a symbolic link": (symbolic_link, f"entry/{FACTS}: file: it is a symbolic link"),
    "a hard link": (hard_link, f"entry/{RECORD}: file: it is a hard link"),
    "a pipe": (pipe, f"entry/{SUBMISSION}: file: it is no regular file"),
    "a folder for a file": (directory, f"entry/{SUBMISSION}: file: it is no regular file"),
    "a record that is too large": (grown(RECORD), f"entry/{RECORD}: size: it is too large"),
    "rows that are too many": (grown(FACTS), f"entry/{FACTS}: size: it is too large"),
    "a submission that is too large": (grown(SUBMISSION), f"entry/{SUBMISSION}: size: it is too large"),
    "code": (lambda entry: (entry / "method.py").write_text("import os"), "entry/method.py: file: it is none of an entry's files"),
    "a pickle": (lambda entry: (entry / "model.pkl").write_bytes(b"\x80"), "entry/model.pkl: file: it is none of an entry's files"),
    "a picture": (lambda entry: (entry / "chart.png").write_bytes(b"\x89PNG"), "entry/chart.png: file: it is none of an entry's files"),
    "a hidden file": (lambda entry: (entry / ".hook").write_bytes(b""), "entry/.hook: file: it is none of an entry's files"),
    "another spelling": (lambda entry: (entry / "Record.json").write_bytes(b"{}"), "entry/Record.json: file: it is none"),
    "a folder within": (lambda entry: (entry / "more").mkdir(), "entry/more: file: it is none of an entry's files"),
    "no record": (lambda entry: (entry / RECORD).unlink(), f"entry/{RECORD}: file: it is missing"),
    "no rows": (lambda entry: (entry / FACTS).unlink(), f"entry/{FACTS}: file: it is missing"),
    "a file beside the entries": (lambda entry: (entry.parent / "setup.py").write_text(""), "setup.py: kind: it is a file"),
    "a link beside the entries": (lambda entry: (entry.parent / "x").symlink_to("/"), "x: kind: it is a symbolic link"),
    "a folder of an odd name": (lambda entry: (entry.parent / "-rf; x").mkdir(), "'-rf; x': name: it is not fit for a folder"),
    "a name that writes on the terminal": (lambda entry: (entry.parent / "a\x1b[2Jb").mkdir(), r"'a\x1b[2Jb': name: it is not fit"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(what: str, entry: Path) -> None:
    """Only regular files of the known names and sizes are read, each of its own."""
    change, expected = FOLDERS[what]
    change(entry)
    found = refused(entry.parent)
    assert any(text.startswith(expected) for text in found), found


def test_a_leaderboard_stands_for_its_results(entry: Path) -> None:
    """So do pages and tables beside them not count as entries."""
    (entry.parent.parent / "README.md").write_text("how to submit")
    assert refused(entry.parent.parent) == []


def test_a_run_s_own_pictures_and_seal_are_no_finding(entry: Path) -> None:
    """What kgbench wrote beside a run is no finding, in an archive neither; with --strict each is refused."""
    own = ["chart-top5.png", "chart-top5.svg", "curve-rr.png", "curve-rr.svg", "map.png", "map.svg", SEAL]
    for name in own:
        (entry / name).write_bytes(b"as kgbench wrote it")
    packed = zipped(entry.parent.parent / "run.zip", members(entry))
    for place in (entry, entry.parent, packed):
        assert [finding for checked in validate(place, strict=False) for finding in checked.findings] == []
        assert [text.split(":")[0] for text in refused(place)] == [f"entry/{name}" for name in own]


def test_a_picture_is_only_remarked_upon_in_a_run(entry: Path) -> None:
    """Another picture in a run's own folder is a note, for it is not submitted; anything else is refused there too."""
    (entry / "photo.png").write_bytes(b"\x89PNG")
    (checked,) = validate(entry, strict=False)
    assert checked.accepted
    assert [str(finding) for finding in checked.findings] == [
        f"note: entry/photo.png: file: a picture, which is not submitted; expected {', '.join(FILES)} and nothing else"
    ]
    (entry / "run.sh").write_bytes(b"#!")
    assert refused(entry, strict=False) == [
        "entry/run.sh: file: it is none of an entry's files; expected " + f"{', '.join(FILES)} and nothing else"
    ]


def test_the_line_that_counts_comes_first(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then what is refused, then notes; the exit status says whether all is in order."""
    (entry / "photo.png").write_bytes(b"\x89PNG")
    (entry / "run.sh").write_bytes(b"#!")
    assert main(["validate", str(entry.parent)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["0 of 1 entry is in order (not --strict)", "entry/run.sh", "note"]


# ------------------------------------------------------------------------------------------------ archives


Members = list[tuple[str, bytes]]


def members(entry: Path, prefix: str = "entry/") -> Members:
    return [(f"{prefix}{path.name}", path.read_bytes()) for path in sorted(entry.iterdir())]


def tarred(path: Path, files: Members, *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in others:
            archive.addfile(info)
    return path


def zipped(path: Path, files: Members, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["sent.tar.gz", "sent.tgz", "sent.tar", "sent.zip"])
@pytest.mark.parametrize("prefix", ["entry/", "leaderboard/results/entry/", "./entry/", ""])
def test_archives_are_read_as_folders_are(name: str, prefix: str, entry: Path, tmp_path: Path) -> None:
    """An entry in an archive is checked as it would be in a folder, wherever it lies within."""
    make = zipped if name.endswith(".zip") else tarred
    path = make(tmp_path / name, members(entry, prefix))
    assert refused(path) == []
    (entry / RECORD).write_text("{}")
    path = make(tmp_path / name, members(entry, prefix))
    where = "entry" if prefix else name
    assert refused(path)[0].startswith(f"{where}/{RECORD}: schema_version: None is not known here")


NAMES = [
    "../entry/record.json",
    "/etc/record.json",
    "entry/../../record.json",
    "C:\\record.json",
    "entry\\record.json",
    "a//record.json",
    ".x/y",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [tarred, zipped])
def test_names_that_lead_elsewhere(name: str, make: Callable[..., Path], entry: Path, tmp_path: Path) -> None:
    """A name in an archive is made of plain parts; nothing is ever written by it."""
    path = make(tmp_path / ("sent.zip" if make is zipped else "sent.tar.gz"), [*members(entry), (name, b"{}")])
    before = sorted(tmp_path.rglob("*"))
    assert [("such a name could lead elsewhere" in text) for text in refused(path)] == [True]
    assert sorted(tmp_path.rglob("*")) == before


KINDS = {
    "a symbolic link": special("entry/record.json", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": special("entry/record.json", tarfile.LNKTYPE, "entry/facts.parquet"),
    "a device": special("entry/record.json", tarfile.CHRTYPE),
    "a pipe": special("entry/record.json", tarfile.FIFOTYPE),
    "a folder elsewhere": special("../../x", tarfile.DIRTYPE),
}


@pytest.mark.parametrize("what", KINDS)
def test_archives_hold_files_only(what: str, entry: Path, tmp_path: Path) -> None:
    """No links, devices or pipes."""
    path = tarred(tmp_path / "sent.tar.gz", members(entry)[:1], KINDS[what])
    assert any(("it is a" in text or "lead elsewhere" in text) and text.startswith("sent.tar.gz: ") for text in refused(path)), refused(
        path
    )


def test_a_link_in_a_zip(entry: Path, tmp_path: Path) -> None:
    """Zip archives have links too."""
    path = zipped(tmp_path / "sent.zip", [("entry/record.json", b"/etc/passwd")], stat.S_IFLNK | 0o777)
    assert any("it is a link" in text for text in refused(path))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_stand_twice(entry: Path, tmp_path: Path) -> None:
    """Which of two files of one name counts would depend on who unpacks."""
    for files in (
        [*members(entry), members(entry)[0]],
        [*members(entry), ("ENTRY/record.json", b"{}")],
        [*members(entry), ("entry/RECORD.json", b"{}")],
    ):
        for make, name in ((tarred, "sent.tar"), (zipped, "sent.zip")):
            assert any("holds it twice, or in another spelling" in text for text in refused(make(tmp_path / name, files)))


def test_bombs(entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to more than is allowed is refused before it is unpacked."""
    huge = b"\0" * (limits.FILE[RECORD] + 1000)
    for make, name in ((tarred, "sent.tar.gz"), (zipped, "sent.zip")):
        assert any("size: it is too large" in text for text in refused(make(tmp_path / name, [("entry/record.json", huge)])))
    monkeypatch.setattr(limits, "UNPACKED", 1_000_000)
    other = tarred(tmp_path / "sent.tar.gz", [("entry/zeros", huge), ("entry/record.json", b"{}")])
    assert any("more than 1000000 bytes, unpacked" in text for text in refused(other))
    monkeypatch.setattr(limits, "FILES_IN_ARCHIVE", 5)
    many = [(f"entry{i}/record.json", b"{}") for i in range(6)]
    for make, name in ((tarred, "sent.tar"), (zipped, "sent.zip")):
        assert any("more than 5 files" in text for text in refused(make(tmp_path / name, many)))
    monkeypatch.setattr(limits, "ARCHIVE", 100)
    assert any("sent.tar: size: it is too large" in text for text in refused(tmp_path / "sent.tar"))


def test_archives_that_do_not_read(tmp_path: Path) -> None:
    """Broken, empty and encrypted ones."""
    for name, content in (
        ("a.zip", b"PK\x03\x04 and more"),
        ("a.tar.gz", gzip.compress(b"no tar")),
        ("a.tgz", b"\x1f\x8b\x08"),
        ("a.tar", b""),
    ):
        (tmp_path / name).write_bytes(content)
        assert any(text.startswith(f"{name}: archive: ") for text in refused(tmp_path / name))
    assert "it holds no entry" in refused(zipped(tmp_path / "b.zip", []))[0]
    content = bytearray(zipped(tmp_path / "c.zip", [("entry/record.json", b"{}")]).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + offset] |= 1
    (tmp_path / "c.zip").write_bytes(content)
    assert "is encrypted" in refused(tmp_path / "c.zip")[0]
    with pytest.raises(InputError, match="no folder"):
        list(validate(tmp_path / "none.zip"))


# ------------------------------------------------------------------------------------------------ JSON and texts


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b'{"a": {"b": 1, "b": 1}}', "stands twice"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "no number that JSON has"),
        (b'{"a": 1e400}', "out of range"),
        (b'{"a": 1' + b"0" * 30 + b"}", "out of range"),
        (b"\xff\xfe{}", "no UTF-8"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"a": "\x01"}', "no JSON"),
        (b'{"a":' * 30 + b"1" + b"}" * 30, "nests deeper"),
        (b"[" * 100_000, "nests too deep|no JSON"),
        (b"", "no JSON"),
    ],
)
def test_json_is_strict(content: bytes, words: str) -> None:
    """What some readers let pass and others do not is refused."""
    with pytest.raises(DataError, match=words):
        read_json(content)


@pytest.mark.parametrize(
    "text",
    ["a\nb", "\x00", "\x7f", "\u202eevil", "\u200bhidden", "\u2028", "\ud800", "<script>", "</b>", "&#x3c;", "JavaScript:x", "x" * 5000],
)
def test_texts_that_could_do_harm(text: str) -> None:
    """Marks that are not seen, and what a browser takes for more than text."""
    assert bad_text(text) is not None


@pytest.mark.parametrize("text", ["FE+LT carries 97 % [92, 99]", "a < b and c > d", "m(SFT) − m(PRE)", "Zoë, 日本, Ω", "R&D", "1 < 2"])
def test_texts_that_do_none(text: str) -> None:
    """Ordinary words in any script."""
    assert bad_text(text) is None


# ------------------------------------------------------------------------------------------------ Parquet


def test_a_page_that_unpacks_to_much(entry: Path) -> None:
    """A library would set aside what the header of a page asks for; the check does not let it."""
    data = (entry / FACTS).read_bytes()
    assert read_table(data).num_rows > 0
    header, taken = read_struct(data[4:])  # of the first page
    place = 4 + taken
    size = header[2]
    assert isinstance(size, int)
    old, new = varint(2 * size), varint(2 * 2_000_000_000)
    assert data[4:place].count(old) >= 1
    at = data.index(old, 4)
    # The number takes more bytes: the header is made longer, and the column with it is not whole any more.
    with pytest.raises(DataError, match=r"unpacks to more|pages of a column|column lies"):
        read_table(data[:at] + new + data[at + len(old) :])


def varint(number: int) -> bytes:
    found = b""
    while number >= 128:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def test_a_footer_is_read_before_any_library_sees_it() -> None:
    """A description that nests, repeats or runs out is told in words."""
    for footer in (b"\x1c" * 100, b"\x19\xfc\xff\xff\xff\xff\x0f", b"\x18\xff\xff\xff\xff\x0f", b"\x15" + b"\xff" * 12, b""):
        with pytest.raises(DataError, match=r"description|columns"):
            check_footer(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1", [[("a", 1)]])
    with pytest.raises(DataError, match="longer than the file"):
        check_footer(b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", [[("a", 1)]])
