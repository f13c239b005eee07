"""YAML that users write: what is doubled, no JSON, or without bounds is refused in a line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgbench.cli import main
from kgbench.errors import InputError, OutputError, without_password
from kgbench.records.mirror import Mirror, folder_of
from kgbench.runner.sweeps.study import MOST_UNITS, read_study, study_of
from kgbench.runner.yaml_files import check_plain, read_yaml

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
)


class WrittenOut(yaml.SafeDumper):
    """Makes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@given(plain)
def test_json_is_read_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    """Every value of JSON is read as it was written."""
    file = tmp_path_factory.getbasetemp() / "value.yaml"
    file.write_text(yaml.dump(value, Dumper=WrittenOut, allow_unicode=True), encoding="utf-8")
    assert read_yaml(file) == value


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
REFUSED = {
    "model: a\nlimit: 3\nmodel: b\n": "line 3: 'model' is given twice",
    "matrix: {seed: [0, 1, 2]}\nmodel: a\nmatrix: {seed: [0]}\n": "line 3: 'matrix' is given twice",
    "matrix: {limit: [1], limit: [2]}\n": "'limit' is given twice",
    "batch-size: 1\nbatch_size: 2\n": "'batch-size' is given twice",
    "matrix: {seed: [.nan]}\n": "expected texts, numbers",
    "limit: -.inf\n": "expected texts, numbers",
    "engines: {slurm: {gpu_memory: .inf}}\n": "expected texts, numbers",
    "dataset: 2020-01-01\n": "a date in quotes",
    "dataset: 2020-13-45\n": "is not YAML",
    "dataset: !!binary aGk=\n": "expected texts, numbers",
    "prompt: !!set {a, b}\n": "expected texts, numbers",
    f"seed: {'9' * 5000}\n": "is not YAML",
    f"seed: {'9' * 500}\n": "seed: expected a whole number",
    "prompt: &a [*a]\n": "line 1: an alias",
    f"prompt: {'[' * 20000}{']' * 20000}\n": "nested too deep",
    f"prompt: {'[' * 200}{']' * 200}\n": "prompt: expected a text",
    LAUGHS: "an alias",
    'dataset: "\\ud800"\n': "surrogates not allowed",
    "model: !!python/name:os.system\n": "could not determine a constructor",
    "a: b: c\n": "line 1: mapping values are not allowed here",
    "\x00": "is not YAML",
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a study, in a line that names the file and the place."""
    file = tmp_path / "file.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_study(file)
    said = str(error.value)
    assert REFUSED[text] in said and str(file) in said and "\n" not in said
    assert main(["sweep", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": {"b": b"x"}}, {1, 2}, "\ud800"])
def test_what_python_gives_is_refused_alike(value: object) -> None:
    """Values that no file could hold."""
    with pytest.raises(InputError, match="expected texts"):
        check_plain({"dataset": value})
    with pytest.raises(InputError, match="expected texts"):
        study_of({"dataset": value})


def test_a_study_has_a_bound() -> None:
    """A matrix of more units than anybody computes is refused before any is made."""
    many = list(range(1, 1001))
    with pytest.raises(InputError, match=f"1,000,000,000 units, expected at most {MOST_UNITS:,}"):
        study_of({"matrix": {"seed": many, "limit": many, "batch-size": many}})


# ------------------------------------------------------------------------------ places


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """A name too long, with a NUL, or of a link to itself is refused before anything is computed."""
    (tmp_path / "self").symlink_to(tmp_path / "self")
    for wrong in ("x" * 300, "a\0b", "y" * 5000, str(tmp_path / "self")):
        with pytest.raises(InputError, match="cannot be a folder of records") as error:
            folder_of(wrong)
        assert "\n" not in str(error.value) and len(str(error.value)) < 200
    for url in ("reference://x", "zip://x::file://y", "nonsense://x"):
        with pytest.raises(InputError, match="cannot be read"):
            folder_of(url)


def test_a_file_url_makes_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records reach a `file://` URL whose folders are not there yet."""
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    there = tmp_path / "some" / "where"
    mirror = Mirror(f"file://{there}", folder_of(f"file://{there}"))
    mirror.write("units/a.json", json.dumps({}).encode())
    assert (there / "units" / "a.json").read_bytes() == b"{}"
    assert mirror.read(["units/a.json"]) == {"units/a.json": b"{}"}


def test_passwords_are_not_repeated(tmp_path: Path) -> None:
    """No error shows the user and the password of a URL."""
    url = "https://user:secret@host.invalid/x"
    for error in (InputError(f"{url!r} does not read"), OutputError(f"{url} does not answer")):
        assert "secret" not in str(error) and "https://***@host.invalid/x" in str(error)
    assert (
        without_password("https://host/x@abc s3://bucket/a") == "https://host/x@abc s3://bucket/a"
    )
    with pytest.raises(InputError) as raised:
        folder_of("nonsense://user:secret@host/x")
    assert "secret" not in str(raised.value)
