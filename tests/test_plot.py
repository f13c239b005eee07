"""`kgbench plot`: pictures of runs, anew."""

from __future__ import annotations

import json
from pathlib import Path

import fake_runs
import pytest
from stored_runs import OTHER, WORSE, Call, caller, folder, stored

from kgbench.board.chart import chart_files, draw_chart
from kgbench.board.files import picture_bytes
from kgbench.board.grouped import MOST, draw_grouped

SIGNS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


def test_one_run(tmp_path: Path, run: Call) -> None:
    """Each format is what its name says, drawing twice gives the same bytes, and the bars are those of `kgbench eval`."""
    place, files = folder(tmp_path), chart_files(stored()[0])
    for suffix, sign in SIGNS.items():
        assert run("plot", place, "-o", tmp_path / f"a{suffix}")[0] == 0
        drawn = (tmp_path / f"a{suffix}").read_bytes()
        assert drawn.startswith(sign)
        if suffix == ".pdf":
            assert drawn == picture_bytes(draw_chart, stored()[0], "pdf")
        else:
            assert drawn == files[f"chart{suffix}"]


def test_default_place_and_metric(tmp_path: Path, run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name it stands in the working directory, named by kind and metric; never in the run's own folder."""
    place = folder(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    answer = json.loads(run("plot", place, "--metric", "mrr", "--json")[1])
    assert answer["path"] == "chart-rr.png" and answer["metric"] == "rr" and (tmp_path / "chart-rr.png").is_file()
    assert sorted(path.name for path in place.iterdir()) == ["facts.parquet", "record.json", "seal.json"]


def test_several_runs_stand_side_by_side() -> None:
    """Each configuration has a bar per run that has it, at that run's figure, with its interval; each run a colour and a hatch."""
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    records = [stored()[0], stored({**fewer, "LT": 0.5}, **OTHER)[0]]
    figure = draw_grouped(records)
    assert len(figure.axes) == 2
    for axis, prompt in zip(figure.axes, ("headline", "qa"), strict=True):
        heights = sorted(round(bar.get_height(), 4) for bar in axis.patches)
        expected = sorted(round(row.top5.value, 4) for record in records for row in record.rows if row.prompt == prompt)
        assert heights == expected and len(heights) == 9 + 8
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axis.patches}) == 2
        assert len(axis.containers) == 17 * 2
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0].startswith("dynamic_graft on tiny-gemma (") and legend[0] != legend[1]


def test_command_on_several(tmp_path: Path, run: Call) -> None:
    """Two runs give one picture."""
    places = folder(tmp_path), folder(tmp_path, *stored(WORSE, **OTHER))
    assert run("plot", *places, "-o", tmp_path / "both.svg")[0] == 0
    assert b"<svg" in (tmp_path / "both.svg").read_bytes()


def test_refusals(tmp_path: Path, run: Call) -> None:
    """What there is not, too many runs, and names of no picture: status 2 and what to do."""
    place = folder(tmp_path)
    for arguments, message in (
        ((place, "--kind", "curve"), "has no budget curve"),
        ((place, "--kind", "map"), "has no map"),
        ((place, place, "--kind", "map"), "draws one run, and 2 are given"),
        ((*[place] * (MOST + 1),), f"give at most {MOST}"),
        ((place, "-o", "x.gif"), "ends with .png, .svg, .pdf"),
        ((place, "--metric", "nonsuch"), "unknown metric"),
    ):
        status, out, err = run("plot", *arguments)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1
