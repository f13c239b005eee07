"""Files and folders that would lead elsewhere, hold too much or hold something else are refused."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from submissions import result, write_entry

from kgbench.cli import main
from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.limits import FILES
from kgbench.leaderboard.sandbox import SANDBOX, Sandbox
from kgbench.leaderboard.validate import validate
from kgbench.leaderboard.validate.files import bad_text, read_json
from kgbench.records import FACTS_SCHEMA, SEAL
from kgbench.records.fact_rows import STORED

RECORD, FACTS, SUBMISSION, VERIFICATION = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry that is in order."""
    return write_entry(tmp_path_factory.mktemp("results") / "entry", result())


@pytest.fixture
def entry(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "results" / "entry"))


def refused(path: Path, strict: bool = True) -> list[str]:
    return [
        str(finding)
        for checked in validate(path, strict)
        for finding in checked.findings
        if finding.refuses
    ]


# ------------------------------------------------------------------------------------------ folders


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
    "a submission that is too large": (
        grown(SUBMISSION),
        f"entry/{SUBMISSION}: size: it is too large",
    ),
    "code": (
        lambda entry: (entry / "method.py").write_text("import os"),
        "entry/method.py: file: it is none of an entry's files",
    ),
    "a pickle": (
        lambda entry: (entry / "model.pkl").write_bytes(b"\x80"),
        "entry/model.pkl: file: it is none of an entry's files",
    ),
    "a picture": (
        lambda entry: (entry / "chart.png").write_bytes(b"\x89PNG"),
        "entry/chart.png: file: it is none of an entry's files",
    ),
    "a hidden file": (
        lambda entry: (entry / ".hook").write_bytes(b""),
        "entry/.hook: file: it is none of an entry's files",
    ),
    "another spelling": (
        lambda entry: (entry / "Record.json").write_bytes(b"{}"),
        "entry/Record.json: file: it is none",
    ),
    "a folder within": (
        lambda entry: (entry / "more").mkdir(),
        "entry/more: file: it is none of an entry's files",
    ),
    "no record": (lambda entry: (entry / RECORD).unlink(), f"entry/{RECORD}: file: it is missing"),
    "no rows": (lambda entry: (entry / FACTS).unlink(), f"entry/{FACTS}: file: it is missing"),
    "a file beside the entries": (
        lambda entry: (entry.parent / "setup.py").write_text(""),
        "setup.py: kind: it is a file",
    ),
    "a link beside the entries": (
        lambda entry: (entry.parent / "x").symlink_to("/"),
        "x: kind: it is a symbolic link",
    ),
    "a folder of an odd name": (
        lambda entry: (entry.parent / "-rf; x").mkdir(),
        "'-rf; x': name: it is not fit for a folder",
    ),
    "a name that writes on the terminal": (
        lambda entry: (entry.parent / "a\x1b[2Jb").mkdir(),
        r"'a\x1b[2Jb': name: it is not fit",
    ),
}


POSIX = ("a pipe", "a name that writes on the terminal")
"""Changes that Windows cannot make."""


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.posix][: what in POSIX]) for what in FOLDERS],
)
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
    """What kgbench wrote beside a run is no finding; with --strict each is refused."""
    own = [
        "chart-top5.png",
        "chart-top5.svg",
        "curve-mrr.png",
        "curve-mrr.svg",
        "map.png",
        "map.svg",
        SEAL,
    ]
    for name in own:
        (entry / name).write_bytes(b"as kgbench wrote it")
    for place in (entry, entry.parent):
        assert [
            finding for checked in validate(place, strict=False) for finding in checked.findings
        ] == []
        assert [text.split(":")[0] for text in refused(place)] == [f"entry/{name}" for name in own]


def test_a_picture_is_only_remarked_upon_in_a_run(entry: Path) -> None:
    """Another picture in a run's own folder is a note, for it is not submitted; anything else is
    refused there too.
    """
    (entry / "photo.png").write_bytes(b"\x89PNG")
    (checked,) = validate(entry, strict=False)
    assert checked.accepted
    assert [str(finding) for finding in checked.findings] == [
        "note: entry/photo.png: file: a picture, which is not submitted; expected"
        f" {', '.join(FILES)} and nothing else"
    ]
    (entry / "run.sh").write_bytes(b"#!")
    assert refused(entry, strict=False) == [
        "entry/run.sh: file: it is none of an entry's files; expected "
        + f"{', '.join(FILES)} and nothing else"
    ]


def test_the_line_that_counts_comes_first(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then what is refused, then notes; the exit status says whether all is in order."""
    (entry / "photo.png").write_bytes(b"\x89PNG")
    (entry / "run.sh").write_bytes(b"#!")
    assert main(["validate", str(entry.parent)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "0 of 1 entry is in order (not --strict)",
        "entry/run.sh",
        "note",
    ]


# ----------------------------------------------------------------------------------- JSON and texts


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
    [
        "a\nb",
        "\x00",
        "\x7f",
        "\u202eevil",
        "\u200bhidden",
        "\u2028",
        "\ud800",
        "<script>",
        "</b>",
        "&#x3c;",
        "JavaScript:x",
        "x" * 5000,
    ],
)
def test_texts_that_could_do_harm(text: str) -> None:
    """Marks that are not seen, and what a browser takes for more than text."""
    assert bad_text(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "FE+LT carries 97 % [92, 99]",
        "a < b and c > d",
        "m(SFT) − m(PRE)",
        "Zoë, 日本, Ω",
        "R&D",
        "1 < 2",
    ],
)
def test_texts_that_do_none(text: str) -> None:
    """Ordinary words in any script."""
    assert bad_text(text) is None


# ------------------------------------------------------------------------------------------ Parquet


def parquet_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def repeated(rows: int, text: str) -> bytes:
    """A small file of many equal rows."""
    one = {"string": text, "int32": 1, "double": 0.5}
    columns = []
    for field in STORED:
        value = pa.array([one[str(field.type)]], field.type)
        columns.append(pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), value))
    table = pa.table(
        [column.cast(f.type) for column, f in zip(columns, STORED, strict=True)], STORED
    )
    return parquet_of(table, compression="zstd")


def nested(levels: int) -> bytes:
    """A column of lists of lists."""
    kind, value = pa.int32(), [1]
    for _ in range(levels):
        kind, value = pa.list_(kind), [value]
    return parquet_of(pa.table({"prompt": pa.array(value, kind)}))


def overstated(whole: bytes) -> bytes:
    """A file that states two thousand million rows, which its pages do not hold."""
    rows = pq.ParquetFile(io.BytesIO(whole)).metadata.num_rows
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    description = whole[footer:-8].replace(varint(2 * rows), varint(2 * 2_000_000_000))
    return whole[:footer] + description + len(description).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """A number in Thrift's compact protocol."""
    found = b""
    while number >= 128:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def read(content: bytes, sandbox: Sandbox = SANDBOX) -> pa.Table:
    return sandbox.read(content, (STORED, FACTS_SCHEMA))


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "too many rows": (lambda _: repeated(limits.ROWS + 1, "x"), "rows; 1 to"),
    "billions of rows": (overstated, "2000000000 rows; 1 to|no whole Parquet file"),
    "a column of lists": (lambda _: nested(3), "the columns are 'prompt"),
    "deep nesting": (lambda _: nested(60), "no whole Parquet file"),
    "cut short": (lambda whole: whole[: len(whole) // 2], "no whole Parquet file"),
    "a text of megabytes": (lambda _: repeated(1, "x" * 10**7), "at most"),
    "a footer of nested lists": (
        lambda _: b"PAR1" + b"\x1c" * 5000 + (5000).to_bytes(4, "little") + b"PAR1",
        "no whole Parquet file|breaks the reader",
    ),
    "a footer larger than the file": (
        lambda _: b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1",
        "no whole Parquet file",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_rows_are_one_line_of_error(what: str, entry: Path) -> None:
    """Whatever a file asks of its reader, the answer is a line, and the next file is read."""
    whole = (entry / FACTS).read_bytes()
    change, words = HOSTILE[what]
    with pytest.raises(DataError, match=words) as error:
        read(change(whole))
    assert "\n" not in str(error.value)
    assert read(whole).num_rows > 0


def test_rows_are_read_as_they_were_written(entry: Path) -> None:
    """The child returns the table that the file holds, of the columns that are stored."""
    assert read((entry / FACTS).read_bytes()).equals(pq.read_table(entry / FACTS))


@pytest.mark.linux
def test_memory_of_the_child_is_limited(entry: Path) -> None:
    """A small file that unfolds beyond the limit is refused, and the next one is read."""
    sandbox = Sandbox(memory=60_000_000)
    with pytest.raises(DataError, match="takes more than 60000000 bytes"):
        read(repeated(1_500_000, "x"), sandbox)
    assert read((entry / FACTS).read_bytes(), sandbox).num_rows > 0
    sandbox.close()


def test_time_of_the_child_is_limited(entry: Path) -> None:
    """A child that exceeds its time is killed, and another one reads the next file."""
    sandbox = Sandbox(seconds=0)
    with pytest.raises(DataError, match="takes more than 0 s"):
        read((entry / FACTS).read_bytes(), sandbox)
    sandbox.seconds = 600
    assert read((entry / FACTS).read_bytes(), sandbox).num_rows > 0
    sandbox.close()
