"""What reaches a terminal: it shows text of files, and obeys none of it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from fake_runs import record, rows
from hypothesis import given
from hypothesis import strategies as st

from kgbench.cli import main
from kgbench.cli.output import TerminalText, terminal_text
from kgbench.records import RecordStore


@given(st.text())
def test_a_terminal_obeys_no_text(text: str) -> None:
    """What is printed holds no control characters but tabs and line ends, and other text as it is."""
    written = terminal_text(text)
    left = written.replace("\r\n", "").replace("\n", "").replace("\t", "")
    assert not [c for c in left if unicodedata.category(c) in ("Cc", "Cs") or c in "\u202e\u2066"]
    assert written == text or any(unicodedata.category(c) in ("Cc", "Cs", "Cf") for c in text)


def test_no_command_prints_the_control_characters_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record's verdict that would name the terminal's window is shown, as are an error's words,
    and JSON stays JSON.
    """
    hostile = "\x1b]0;owned\x07 \x9b2J carried"
    facts = rows()
    made = record(facts).model_copy(update={"verdict": hostile})
    path = RecordStore(tmp_path).write(made, facts)
    assert main(["show", str(path)]) == 0
    assert main(["show", str(path), "--json"]) == 0
    assert main(["validate", f"{tmp_path}/{hostile}"]) == 2
    told = capsys.readouterr()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", told.out + told.err)
    assert r"\u001b]0;owned\u0007 \u009b2J carried" in told.out and "owned" in told.err
    assert json.loads(told.out[told.out.index("\n{") :])["verdict"] == hostile


def _started(redirected: str) -> subprocess.CompletedProcess[str]:
    """A command of a shell that redirects its streams."""
    command = f"exec {sys.executable} -m kgbench ls suites {redirected}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


@pytest.mark.posix
def test_streams_that_are_closed() -> None:
    """A process that is started without a stream does its work, and says so in a line."""
    ended = _started(">&-")
    assert ended.returncode == 0 and ended.stderr.count("\n") == 1
    assert "stdout is closed" in ended.stderr
    assert _started("2>&-").stdout.startswith("suite")
    assert _started(">&- 2>&-").returncode == 0


@pytest.mark.linux
def test_a_stream_that_takes_nothing() -> None:
    """A full disk behind stdout is a line, and no success."""
    ended = _started("> /dev/full")
    assert ended.returncode == 2
    assert ended.stderr == "kgbench: error: cannot write to stdout: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "utf-8"])
def test_a_table_reaches_a_stream_of_any_encoding(encoding: str) -> None:
    """Signs that the encoding lacks are written plainly, and all others as they are."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    TerminalText(stream).write("FE – [−1, 2] ü\n")
    stream.flush()
    written = stream.buffer.getvalue().decode(encoding)
    if encoding == "utf-8":
        assert written == "FE – [−1, 2] ü\n"
    else:
        umlaut = "\\xfc" if encoding == "ascii" else "ü"
        assert written == f"FE - [-1, 2] {umlaut}\n"
