"""Studies: their grammar, their plan, what is done again and what is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pages import DOCS, PAGES

import kgbench
from kgbench.cli import main
from kgbench.errors import InputError, UnknownNameError
from kgbench.models import catalog
from kgbench.records import Journal
from kgbench.report import to_text
from kgbench.runner.sweeps.plan import StudyPlan
from kgbench.runner.sweeps.study import StudyFile, _shipped_hash, study_of

ROOT = Path(__file__).parent.parent
TINY = {"model": "tiny-gemma", "prompt": "headline", "limit": 2, "graft": "LT"}


def units(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Options of the units of a study."""
    return [dict(unit.options) for unit in study_of(content).units]


axes = st.dictionaries(
    st.sampled_from(["seed", "limit", "batch-size"]),
    st.lists(st.integers(1, 4), min_size=1, max_size=4, unique=True),
    min_size=1,
)


@given(axes)
def test_a_matrix_is_all_combinations_once(matrix: dict[str, list[int]]) -> None:
    """Excluding a value leaves what a matrix without it gives; including a unit twice changes
    nothing.
    """
    found = units({"matrix": matrix, "model": "tiny-gemma"})
    number = 1
    for values in matrix.values():
        number *= len(values)
    assert len(found) == number == len({json.dumps(unit) for unit in found})
    first = next(iter(matrix))
    if len(matrix[first]) > 1:
        without = {**matrix, first: matrix[first][1:]}
        excluded = [{first: matrix[first][0]}]
        assert units({"matrix": matrix, "exclude": excluded}) == units({"matrix": without})
    again = {"matrix": matrix, "model": "tiny-gemma", "include": found}
    assert units(again) == found


def test_options_read_as_on_the_command_line() -> None:
    """Lists, commas and mappings give the specification that `kgbench eval` has."""
    content = {
        "matrix": {"graft": ["FE,LT", ["FE", "FE+LT"]]},
        "recipient": "before",
        "donor": "after",
        "localizer_arg": {"draws": 16},
        "prompt": ["headline", "qa"],
        "chat-template": True,
        "layers": 3,
        "batch-size": 4,
    }
    one, two = (unit.spec for unit in study_of(content).units)
    assert one.grafts == ("FE", "LT") and two.grafts == ("FE", "FE+LT")
    assert one.donors == {"sft": "after"} and one.prompts == ("headline", "qa")
    assert one.localizer_args == {"draws": "16"} and one.chat_template and one.layers == "3"
    (unit, _) = study_of(content).units
    assert unit.settings(Path("x")).batch_size == 4


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "expected a mapping with 'matrix'"),
        ({"matrix": {"sed": [0]}}, "matrix: option 'sed'. Did you mean 'seed'"),
        ({"matrx": {}}, "Did you mean 'matrix'"),
        ({"matrix": {"seed": 0}}, "matrix.seed: Input should be a valid list"),
        ({"matrix": {"seed": ["a"]}}, "seed: expected a whole number from 0, not 'a'"),
        ({"seed": True}, "seed: expected a whole number"),
        ({"model": ["a", "b"]}, "several values stand under matrix: {model: ['a', 'b']}"),
        ({"chat-template": 1}, "chat-template: expected true or false, not 1"),
        ({"localizer_arg": "draws=2"}, "expected a mapping such as"),
        ({"matrix": {"seed": [0]}, "exclude": [{"seed": 0}]}, "there are no units"),
        ({"matrix": {"seed": []}, "include": [{"seed": 1}]}, "matrix.seed: List should have"),
        ({"exclude": {"seed": 0}}, "exclude: Input should be a valid list; expected keys such as"),
        ({"output_dir": 3}, "output_dir: Input should be a valid string"),
        ({"engines": {"slurm": 1}}, "engines.slurm: Input should be a"),
        ({"command": "zoo build"}, "option"),
        ({"seed": 0, "output-dir": 3}, "output_dir: Input should be a valid string"),
    ],
)
def test_mistakes_in_a_study(content: Any, told: str) -> None:
    """What was wrong is named, and the nearest name."""
    with pytest.raises(InputError) as error:
        study_of(content)
    assert told in str(error.value)


def test_mistakes_in_a_unit(tmp_path: Path) -> None:
    """They are told before anything is computed."""
    for wrong in ({"model": "tiny-gema"}, {"localizer": "dynamic_graf"}, {"prompt": "headlin"}):
        content = {**TINY, **wrong, "output_dir": str(tmp_path / "records")}
        with pytest.raises(InputError, match=r"unit \(.*Did you mean"):
            kgbench.sweep(content, progress=False)
    assert not (tmp_path / "records").exists()
    with pytest.raises(UnknownNameError, match=r"engine 'slrm'\. Did you mean 'slurm'"):
        kgbench.sweep({**TINY, "output_dir": str(tmp_path)}, "slrm", workers=2, progress=False)


def test_a_failed_unit_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its reason is told; it is computed again on demand alone."""
    study = tmp_path / "study.yaml"
    rows = [{"localizer": "causal_trace", "localizer-arg": {"noise": "loud"}}, {"seed": 1}]
    content = {**TINY, "include": rows, "output_dir": str(tmp_path / "records")}
    study.write_text(yaml.safe_dump(content))
    assert main(["sweep", str(study), "-q"]) == 1
    assert "1 of 2 units are done, 1 failed" in capsys.readouterr().out
    receipts = tmp_path / "records" / "units"
    (failed,) = (path for path in receipts.glob("*.json") if "error" in path.read_text())
    before = failed.stat().st_mtime_ns
    assert main(["sweep", str(study), "-q"]) == 1
    assert failed.stat().st_mtime_ns == before
    assert main(["sweep", str(study), "--retry-failed", "--json"]) == 1
    assert failed.stat().st_mtime_ns > before
    out = capsys.readouterr().out
    told = json.loads(out[out.index("{") :])
    assert told["counts"] == {"failed": 1, "done": 1}
    assert main(["sweep", str(study), "--status"]) == 0
    assert "loud" in capsys.readouterr().out


@pytest.fixture
def swept(tmp_path: Path) -> tuple[dict[str, Any], StudyFile]:
    """A study of one unit on checkpoints in folders, computed."""
    zoo = ROOT / "kgbench" / "models" / "zoo" / "tiny-gemma"
    for name in ("recipient", "sft"):
        shutil.copytree(zoo / name, tmp_path / name)
        (tmp_path / name / "README.md").write_text("the same name in both folders")
    content = {**TINY, "output_dir": str(tmp_path / "records")}
    content |= {"model": "tiny-gemma", "recipient": str(tmp_path / "recipient")}
    content["donor"] = str(tmp_path / "sft")
    kgbench.sweep(content, progress=False)
    return content, study_of(content)


def test_receipts_tell_a_change(swept: tuple[dict[str, Any], StudyFile]) -> None:
    """A receipt speaks of the files that were there, and a lost one costs nothing but a look."""
    content, study = swept
    root = Path(study.output_dir)
    (state,) = StudyPlan(study, root).states
    assert state.word == "done"
    record = next(root.glob("*/record.json"))
    before = record.stat().st_mtime_ns
    parts = ("recipient/model.safetensors", "recipient/README.md", "sft/delta.safetensors")
    for changed in (*parts, "sft/README.md"):
        (root.parent / changed).touch()
        (state,) = StudyPlan(study, root).states
        assert state.word == "check", changed
        found = kgbench.sweep(content, progress=False)
        assert found.done
    assert found.done and found.units[0]["record"] == next(found.runs()).record.id
    shutil.rmtree(root / "units")
    assert kgbench.sweep(content, progress=False).done
    assert record.stat().st_mtime_ns == before
    receipt = next((root / "units").glob("*.json"))
    receipt.write_text(receipt.read_text()[:20])
    (state,) = StudyPlan(study, root).states
    assert state.word == "left"


def test_other_shipped_weights_are_another_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit on a shipped pair is another one where a version ships that pair with other weights."""
    source = catalog.zoo_path(catalog.entry("tiny-gemma").donors["sft"])
    assert source is not None
    copied = Path(shutil.copytree(source, tmp_path / "sft"))

    def key() -> str:
        _shipped_hash.cache_clear()
        return study_of(TINY).units[0].key

    first, real = key(), catalog.zoo_path
    with monkeypatch.context() as patch:
        patch.setattr(
            catalog, "zoo_path", lambda place: copied if real(place) == source else real(place)
        )
        assert key() == first
        weights = next(copied.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
        assert key() != first
    assert key() == first


def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    """The paper's models, of which none is here, in groups of one pair; nothing is written."""
    study = tmp_path / "study.yaml"
    content = {
        "matrix": {"model": ["gemma-2b", "gpt2-xl"], "seed": [0, 1]},
        "output_dir": str(tmp_path / "records"),
        "engines": {"slurm": {"partition": "gpu"}},
    }
    study.write_text(yaml.safe_dump(content))
    program = (
        "import sys; from kgbench.cli import main; "
        f"status = main(['sweep', {str(study)!r}, '--dry-run', '--json']); "
        "sys.exit(status or int('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT
    )
    answer = json.loads(done.stdout)
    models = {unit["key"]: unit["options"]["model"] for unit in answer["units"]}
    groups = [[models[key] for key in group] for group in answer["groups"]]
    assert groups == [["gemma-2b"] * 2, ["gpt2-xl"] * 2]
    assert answer["counts"] == {"left": 4} and list(tmp_path.iterdir()) == [study]


def test_the_guide_s_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide shows what its study gives."""
    text = PAGES[DOCS / "guides" / "sweeps.md"]
    study = tmp_path / "study.yaml"
    study.write_text(text.split("```yaml\n")[1].split("```")[0])
    assert main(["sweep", str(study), "--workers", "2", "--dry-run"]) == 0
    shown = text.split("<!-- begin: plan -->\n```\n")[1].split("```")[0]
    assert capsys.readouterr().out == shown


def test_what_is_done_is_in_no_group(swept: tuple[dict[str, Any], StudyFile]) -> None:
    """A dry run lists units that are recorded, and does not group them."""
    content, _ = swept
    wider = study_of({**content, "matrix": {"seed": [0, 1]}})
    plan = StudyPlan(wider, Path(wider.output_dir))
    assert [state.word for state in plan.states] == ["done", "left"]
    (group,) = plan.groups(4)
    assert [unit.options["seed"] for unit in group] == [1]
    text = to_text(plan.report([group]))
    assert "2 units: 1 done, 1 to compute in 1 group" in text


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 5))
def test_groups_hold_each_unit_once(sizes: list[int], workers: int) -> None:
    """Units of one pair are together, no group has more units than a worker gets on average, and no
    pair is divided further than that.
    """
    models = ["tiny-gemma", "tiny-llama", "tiny-gpt2", "tiny-pythia"]
    rows = []
    for model, size in zip(models, sizes, strict=False):
        rows += [{"model": model, "seed": seed} for seed in range(size)]
    plan = StudyPlan(study_of({"include": rows, "prompt": "headline"}), Path("no-such-folder"))
    groups = plan.groups(workers)
    keys = [unit.key for group in groups for unit in group]
    assert sorted(keys) == sorted(unit.key for unit in plan.study.units)
    assert all(len({unit.pair for unit in group}) == 1 for group in groups)
    assert max(map(len, groups)) <= ceil(len(rows) / workers)
    assert len(groups) < len(sizes) + workers


def test_processes_divide_the_tasks_of_a_journal(tmp_path: Path) -> None:
    """Nobody has what another is at; what one leaves unfinished the next one gets."""
    names = ("a", "b", "c")
    finished: set[str] = set()
    one, two = (Journal(tmp_path / "journal", "code") for _ in range(2))
    first, second = (each.divide(names, finished.__contains__) for each in (one, two))
    assert (next(first), next(second)) == ("a", "b")
    finished.add("b")
    assert next(second) == "c"
    finished.add("c")
    first.close()  # killed
    assert next(second) == "a"
    finished.add("a")
    assert list(second) == []


@pytest.mark.parametrize("texts", ["{subject} lies at", ["{subject} lies at"], ["a={subject} is"]])
def test_a_template_of_a_study_needs_no_name(texts: Any, tmp_path: Path) -> None:
    """As on the command line, it has its own first words for one."""
    file = tmp_path / "facts.json"
    file.write_text('[{"subject": "a", "object": "b"}, {"subject": "c", "object": "d"}]')
    (unit,) = study_of({"model": "tiny-gemma", "dataset": str(file), "template": texts}).units
    name = "a" if "=" in str(texts) else "lies-at"
    assert list(unit.workload.prompts) == [name]
