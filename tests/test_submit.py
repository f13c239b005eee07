"""Runs are put on the board whole and checked, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_runs import RATES
from submissions import OTHERS, identity, result

from kgbench.cli import main
from kgbench.leaderboard.entries import read_entries
from kgbench.leaderboard.folders import ENTRIES
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION
from kgbench.leaderboard.validate import validate
from kgbench.records import LocalizerRef, RecordStore

ALL = LocalizerRef(name="all", version="1")
FLAT = {graft: 0.01 if graft == "PRE" else 0.99 if graft == "SFT" else 0.98 for graft in RATES}


class Place:
    """A folder of runs and a leaderboard, and the command on them."""

    def __init__(self, folder: Path) -> None:
        self.store, self.root = RecordStore(folder / "runs"), folder / "board"
        self.results = self.root / "results"

    def run(self, localizer: LocalizerRef | None = None, **options: object) -> str:
        """Record a run, and the start of its id."""
        rates = options.pop("rates", RATES)
        model = str(options.pop("model", "tiny-gemma"))
        made = result(
            identity(model, localizer, **options), rates, model=model, **options.pop("record", {})
        )  # type: ignore[arg-type]
        (self.store.write(*made) / "chart.png").write_bytes(b"a picture")
        return made[0].id[:12]

    def submit(self, *arguments: str) -> int:
        return main(
            ["submit", *arguments, "--output-dir", str(self.store.root), "--root", str(self.root)]
        )

    def entries(self) -> list[str]:
        return sorted(entry.folder.name for entry in read_entries(self.results))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_entry_holds_its_files_and_nothing_else(place: Place) -> None:
    """Record, rows and submission are in the folder of its method; pictures are not, and what is
    there passes the board's check.
    """
    run = place.run()
    assert place.submit(run) == 0
    (entry,) = read_entries(place.results)
    method = place.results / "pathways" / "dynamic_graft"
    assert entry.folder == method / f"dynamic_graft-tiny-gemma-headline-qa-{run}"
    assert set(entry.documents) == {RECORD, SUBMISSION}
    assert entry.submission is not None
    assert entry.submission.name == "dynamic_graft"
    assert entry.submission.code.startswith("kgbench==")
    assert all(checked.accepted for checked in validate(place.results, strict=True))
    assert {path for path in place.root.rglob("*") if path.is_file()} == {
        method / ENTRIES,
        method / FACTS,
        place.root / ".lock",
    }


@pytest.mark.nightly
def test_the_new_line_stands_among_those_to_compare_with(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables show the new method and the baselines, where none is ranked no other; then what
    the laws gave, and the next steps.
    """
    for method, rates in (
        (None, RATES),
        (ALL, FLAT),
        (LocalizerRef(name="path_patch", version="1", parameters={"receiver": "logits"}), FLAT),
    ):
        assert place.submit(place.run(method, rates=rates)) == 0
    capsys.readouterr()
    run = place.run(OTHERS, rates={**RATES, "FE+LT": 0.5})
    assert (
        place.submit(
            run,
            "--as",
            "my method",
            "--code",
            "https://github.com/ada/method@0123abcd",
            "--paper",
            "https://arxiv.org/abs/2506.20746",
        )
        == 0
    )
    text = capsys.readouterr().out
    first = text.split("\n\n")[0]
    assert first.startswith("Pathways: ")
    assert all(name in first for name in ("my method (new)", "all"))
    assert "path_patch" not in first and "dynamic_graft" not in first
    assert "contract      not run: the method 'my_method' is not installed here" in text
    steps = text[text.index("next steps") :]
    assert [
        word in steps
        for word in (
            "leaderboard build",
            "git switch -c results-my-method",
            "git add",
            "pull request",
        )
    ] == [True] * 4


def test_json_holds_the_same(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object, for an accepted run and for a refused one."""
    run = place.run()
    assert place.submit(run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["accepted"]
    assert [Path(path).name for path in told["copied"]] == place.entries()
    assert {table["board"] for table in told["tables"]} == {"pathways", "cost"}
    assert any(line["new"] for table in told["tables"] for line in table["lines"])
    assert place.submit(run, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["accepted"]
    assert told["findings"][0]["field"] == "id"


def test_all_runs_of_a_method_at_once(place: Place) -> None:
    """Several runs become several entries under one name; a run named twice becomes one."""
    runs = [
        place.run(OTHERS),
        place.run(OTHERS, model="tiny-llama"),
        place.run(OTHERS, model="tiny-gpt2"),
    ]
    assert place.submit(*runs, runs[0], "--as", "mine", "--code", "mine==1.0") == 0
    assert len(place.entries()) == 3
    assert {entry.method for entry in read_entries(place.results)} == {"mine"}


def test_a_dry_run_copies_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """It checks and shows."""
    assert place.submit(place.run(), "--dry-run") == 0
    assert "dynamic_graft (new)" in capsys.readouterr().out
    assert place.entries() == []
    assert not place.root.exists()


def test_a_result_is_submitted_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time it is refused, under whatever name, and told what to do."""
    run = place.run(OTHERS)
    assert place.submit(run, "--code", "mine==1.0") == 0
    for name in ("my_method", "another"):
        capsys.readouterr()
        assert place.submit(run, "--code", "mine==1.0", "--as", name) == 1
        text = capsys.readouterr().out
        assert "record.json: id: the same result is in my_method-tiny-gemma" in text
        assert "delete the old entry first" in text
    assert len(place.entries()) == 1


def test_a_refused_run_leaves_no_trace_and_takes_the_others_with_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one of several runs is refused, nothing is copied: a method is submitted whole."""
    good, bad = place.run(), place.run(seeds=(1,))
    assert place.submit(good, bad) == 1
    text = capsys.readouterr().out
    assert "record.json: identity.seeds: it is [1]; expected 0" in text
    assert "Refused, and nothing was copied.\n" in text
    assert place.entries() == []


def test_what_a_run_says_of_its_figures_is_not_used(place: Place) -> None:
    """An entry has the figures of its rows, whatever is written beside them."""
    run = place.run()
    (folder,) = place.store.root.glob(f"*{run}")
    (folder / "seal.json").unlink()
    content = json.loads((folder / RECORD).read_text("utf-8"))
    honest = content["rows"][5]["top5"]
    content["rows"][5].update(top5=[1.0, 0.9, 1.0, 30])
    (folder / RECORD).write_text(json.dumps(content), "utf-8")
    assert place.submit(run) == 0
    (entry,) = read_entries(place.results)
    assert "rows" not in entry.documents[RECORD]
    assert entry.record.rows[5].top5.stored() == honest


def test_an_entry_is_on_the_metric_of_the_boards(place: Place) -> None:
    """Whatever metric a run was made on."""
    run = place.run()
    (folder,) = place.store.root.glob(f"*{run}")
    (folder / "seal.json").unlink()
    content = json.loads((folder / RECORD).read_text("utf-8"))
    (folder / RECORD).write_text(json.dumps({**content, "metric": "mrr"}), "utf-8")
    assert place.submit(run) == 0
    (entry,) = read_entries(place.results)
    assert entry.result.metric == content["metric"] == "top5"
    assert entry.record.rows[5].sufficiency.stored() == content["rows"][5]["sufficiency"]


@pytest.mark.nightly
def test_baselines_keep_their_names(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """`all` by another name would be a method that beats `all` at its own game; and nobody takes a
    built-in method's name.
    """
    assert place.submit(place.run(ALL, rates=FLAT), "--as", "my breakthrough") == 1
    assert "a point of reference is called 'my breakthrough'" in capsys.readouterr().out
    assert place.submit(place.run(OTHERS), "--as", "dynamic_graft", "--code", "mine==1.0") == 1
    assert "'dynamic_graft' could be taken for the built-in" in capsys.readouterr().out


def test_a_name_stands_for_one_method(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of two methods do not go under one name, nor does a method under the name of one that is
    there.
    """
    first = place.run(OTHERS)
    second = place.run(
        LocalizerRef(
            name="my_method", version=OTHERS.version, parameters={"seed": 0, "strength": 3}
        )
    )
    assert place.submit(first, "--code", "mine==1.0") == 0
    assert place.submit(second, "--code", "mine==1.0") == 1
    assert "choose another name by --as" in capsys.readouterr().out
    assert place.submit(second, "--code", "mine==1.0", "--as", "my_method (strength=3)") == 1
    assert "all ranks are those of 'my_method'" in capsys.readouterr().out
    strong = LocalizerRef(name="my_method", version=OTHERS.version, parameters={"strength": 4})
    third = place.run(strong, rates={**RATES, "FE": 0.4})
    assert place.submit(third, "--code", "mine==1.0", "--as", "my_method (strength=4)") == 0


def test_code_is_asked_for_where_it_is_not_known(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method in a file needs its code published; that of an installed package is known."""
    assert place.submit(place.run(OTHERS)) == 2
    assert "where is the code of 'my_method'?" in capsys.readouterr().err
    installed = LocalizerRef(name="direct_logit", version="1 DirectLogit 0123456789abcdef")
    assert place.submit(place.run(installed)) == 0
    (entry,) = read_entries(place.results)
    assert entry.submission is not None
    assert entry.submission.code == "kgbench-direct-logit==1.0"
