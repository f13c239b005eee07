"""Records found again without loading their models: what a note of an identity depends on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kgbench.runner import Run, Settings, Spec, known_run, run_job
from kgbench.runner.earlier_runs import files_state
from kgbench.runner.sources import Sources

ROOT = Path(__file__).parent.parent
LATER_NS = 10_000_000_000


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of tests are new; here they count as settled. Notes have a folder of their own."""
    monkeypatch.setattr("kgbench.runner.earlier_runs.FRESH_NS", -LATER_NS)
    cache = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *of, **options: cache)


@pytest.fixture
def spec(folders: Mapping[str, Path], tmp_path: Path) -> Spec:
    """A small job on checkpoints of its own, which may be changed."""
    for part in ("recipient", "sft"):
        shutil.copytree(folders[part], tmp_path / part)
    return Spec(
        recipient=str(tmp_path / "recipient"),
        donors={"sft": str(tmp_path / "sft")},
        dataset="fake_movies_fake_actors",
        prompts=("headline",),
        limit=4,
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(output_dir=tmp_path / "runs", device="cpu")


@pytest.fixture
def run(spec: Spec, settings: Settings) -> Run:
    """The job's first run."""
    return run_job(spec, settings)


def in_place(path: Path) -> None:
    """Other bytes of the same number, the time of the last change put back."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file of the same size and time in its place."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1] + b"?")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" ")


def beside(path: Path) -> None:
    path.with_name("tokenizer.model").write_bytes(b"")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("part", ["recipient", "sft"])
@pytest.mark.parametrize("change", [in_place, replaced, longer, beside, Path.touch, Path.unlink])
def test_every_change_of_a_file_counts(
    spec: Spec, tmp_path: Path, change: Callable[[Path], None], part: str, name: str
) -> None:
    """Files as they were have one state, and no changed file is taken for the old one."""
    before = files_state(Sources.of(spec))
    assert before is not None and before == files_state(Sources.of(spec))
    path = tmp_path / part / name
    if path.exists():
        change(path)
        assert files_state(Sources.of(spec)) not in (None, before)


def test_fresh_files_have_no_state(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has just changed may change again without a sign of it."""
    monkeypatch.undo()
    assert files_state(Sources.of(spec)) is None
    assert files_state(Sources.of(spec), time.time_ns() + LATER_NS) is not None


def test_a_run_is_known_by_what_its_identity_follows_from(
    run: Run, spec: Spec, settings: Settings
) -> None:
    """The same job is known, on another metric too; another one is not."""
    known = known_run(spec, settings)
    assert known is not None and known.reused
    assert (known.record, known.path) == (run.record, run.path)
    other = known_run(replace(spec, metric="mrr"), settings)
    assert other is not None and (other.record.id, other.record.metric) == (run.record.id, "mrr")
    for changes in ({"limit": 3}, {"seed": 1}, {"dtype": "float64"}, {"prompts": ("qa",)}):
        assert known_run(replace(spec, **changes), settings) is None
    shutil.rmtree(run.path)
    assert known_run(spec, settings) is None


def test_changed_weights_are_computed_anew(run: Run, spec: Spec, settings: Settings) -> None:
    """A run on weights that changed is another one, and is known itself from then on."""
    weights = Path(spec.donors["sft"]) / "model.safetensors"
    in_place(weights)
    assert known_run(spec, settings) is None
    second = run_job(spec, settings)
    assert not second.reused and second.record.id != run.record.id
    known = known_run(spec, settings)
    assert known is not None and known.record.id == second.record.id


def test_a_damaged_note_is_none(run: Run, spec: Spec, settings: Settings, tmp_path: Path) -> None:
    """What cannot be read is computed, or found by loading the models."""
    (note,) = (tmp_path / "cache" / "known").iterdir()
    for text in ("", "one two three", note.read_text().replace(" ", "0 ")):
        note.write_text(text)
        assert known_run(spec, settings) is None
    assert run_job(spec, settings).reused and known_run(spec, settings) is not None


def test_a_known_run_loads_no_torch(
    run: Run, spec: Spec, settings: Settings, tmp_path: Path
) -> None:
    """`kgbench eval` of a known run shows its table without the libraries that compute."""
    line = [
        *("eval", "--recipient", str(spec.recipient), "--donor", f"sft={spec.donors['sft']}"),
        *("--dataset", str(spec.dataset), "--prompt", "headline", "--limit", "4"),
        *("--device", "cpu", "--output-dir", str(settings.output_dir)),
    ]
    code = (
        "import sys, pathlib, platformdirs\nfrom kgbench.cli import main\n"
        "from kgbench.runner import earlier_runs\n"
        f"earlier_runs.FRESH_NS = {-LATER_NS}\ncache = pathlib.Path({str(tmp_path / 'cache')!r})\n"
        "platformdirs.user_cache_path = lambda *of, **options: cache\nmain(sys.argv[1:])\n"
        "print('loaded:', *{'torch', 'transformers', 'scipy.stats'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "computed before: this run computed nothing" in done.stdout
    assert done.stdout.endswith("loaded:\n")
