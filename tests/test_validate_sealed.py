"""An entry's bytes: any that is changed after submission is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from submissions import refused, result, seal, write_entry


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return write_entry(tmp_path / "entry", result())


@pytest.mark.parametrize("file", ["record.json", "facts.parquet", "submission.json"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_byte_is_told(entry: Path, file: str, share: float) -> None:
    """A flipped bit anywhere, also where it changes no figure, is refused, and the file is named."""
    content = bytearray((entry / file).read_bytes())
    content[int(share * len(content))] ^= 1
    (entry / file).write_bytes(bytes(content))
    assert any(file in line for line in refused(entry))


def test_hashes_of_other_files_and_missing_ones(entry: Path) -> None:
    """A submission without a hash, or with one of a file that no result has, is refused."""
    path = entry / "submission.json"
    whole = path.read_text()
    assert not refused(entry)
    path.write_text(whole.replace('"record.json":', '"other.json":'))
    told = refused(entry)
    assert any("files.record.json: its hash is missing" in line for line in told) and any(
        "other.json" in line for line in told
    )
    path.write_text(whole)
    seal(entry)
    assert not refused(entry)
