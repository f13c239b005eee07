"""`kgbench show`: pictures of runs, anew."""

from __future__ import annotations

import json
from pathlib import Path

import fake_runs
import numpy as np
import pytest
from commands import Call
from stored_runs import OTHER, folder, stored
from test_rank_pictures import BUDGETS, clipped, ranked

from kgbench.localizers import create, describe, score_meaning
from kgbench.records import Record, load_record
from kgbench.report.bars import MOST, draw_chart, picture_bytes
from kgbench.report.export import distinct_names
from kgbench.report.site_maps import draw_curves, draw_maps, drawing
from kgbench.sites import SCORED_REGIONS

SIGNS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def test_one_run(tmp_path: Path, run: Call) -> None:
    """Each format is what its name says, drawing twice gives the same bytes, and the bars are those
    of `kgbench eval`.
    """
    kinds = [suffix[1:] for suffix in SIGNS]
    place, files = folder(tmp_path), picture_bytes(draw_chart, [stored()[0]], *kinds)
    for (suffix, sign), file in zip(SIGNS.items(), files, strict=True):
        assert run("show", place, "-o", tmp_path / f"a{suffix}")[0] == 0
        drawn = (tmp_path / f"a{suffix}").read_bytes()
        assert drawn.startswith(sign)
        assert drawn == file


def test_default_place_and_metric(
    tmp_path: Path, run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name it stands in the working directory, named by kind and metric; never in the
    run's own folder.
    """
    place = folder(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    answer = json.loads(run("show", place, "--format", "chart", "--metric", "mrr", "--json")[1])
    assert answer["path"] == "chart-mrr.png"
    assert answer["metric"] == "mrr"
    assert (tmp_path / "chart-mrr.png").is_file()
    assert sorted(path.name for path in place.iterdir()) == [
        "facts.parquet",
        "record.json",
        "seal.json",
    ]


def test_several_runs_stand_side_by_side() -> None:
    """Each configuration has a bar per run that has it, at that run's figure, with its interval;
    each run a colour and a hatch.
    """
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    records = [stored()[0], stored({**fewer, "LT": 0.5}, **OTHER)[0]]
    figure = draw_chart(records)
    assert len(figure.axes) == 2
    for axis, prompt in zip(figure.axes, ("headline", "qa"), strict=True):
        heights = sorted(round(bar.get_width(), 4) for bar in axis.patches)
        expected = sorted(
            round(row.top5.value, 4)
            for record in records
            for row in record.rows
            if row.prompt == prompt
        )
        assert heights == expected and len(heights) == 9 + 8
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in axis.patches}) == 2
        assert len(axis.containers) == 17 * 2
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0].startswith("dynamic_graft (") and legend[0] != legend[1]


def method(name: str, **parameters: object) -> dict[str, object]:
    return {"localizer": {"name": name, "version": "1", "parameters": parameters}}


def test_several_curves_share_their_axes() -> None:
    """A panel per prompt has every run's name and area, and a point at every budget of each, in a
    colour and marker of its own.
    """
    records = [
        ranked(**method("graft_scan")),
        ranked(**method("weight_delta")),
        ranked(undefined=True, **method("mask_graft")),
    ]
    figure = draw_curves(records)
    assert [axis.get_title("left") for axis in figure.axes] == ["headline", "qa"]
    for axis, prompt in zip(figure.axes, ("headline", "qa"), strict=True):
        lines = [line for line in axis.lines if line.get_marker() not in ("", "None")]
        assert len(lines) == 2 * len(records)
        for i in range(2):
            line, zero = lines[2 * i : 2 * i + 2]
            np.testing.assert_allclose(line.get_xydata(), [[b, b / 100] for b in BUDGETS[1:]])
            assert zero.get_xydata().shape == (1, 2)
            assert zero.get_xdata()[0] < 0.05
            assert zero.get_ydata()[0] == 0
            assert zero.get_color() == line.get_color()
            band = axis.collections[2 * i].get_paths()[0].vertices
            for budget in BUDGETS[1:]:
                ends = sorted({round(float(y), 6) for x, y in band if x == budget})
                assert ends == pytest.approx([budget / 200, 0.5 + budget / 200])
        assert (
            len({line.get_color() for line in lines})
            == len({line.get_marker() for line in lines})
            == len(records)
        )
        assert [text.get_text() for text in axis.get_legend().get_texts()] == [
            "graft_scan: area .10 [.05, .55]",
            "weight_delta: area .10 [.05, .55]",
            "mask_graft: area undefined",
        ], prompt
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()][1:3] == [".2", ".4"]
    assert clipped(figure) == []
    assert clipped(draw_curves([ranked(seeds=(seed,)) for seed in range(MOST)])) == []


def test_several_maps_share_their_axes() -> None:
    """A line of panels per run holds all of its scores on the axes of all runs; its bar says what a
    score is and its unit.
    """
    records = [ranked(**method("graft_scan")), ranked(0.0, 5, seed=1, **method("weight_delta"))]
    figure = draw_maps(records, score_meaning)
    panels = [axis for axis in figure.axes if axis.images]
    bars = [axis for axis in figure.axes if axis.get_ylabel() not in ("layer", "")]
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in panels}) == 1
    for i, record in enumerate(records):
        line = panels[i * len(SCORED_REGIONS) : (i + 1) * len(SCORED_REGIONS)]
        assert [text.get_text() for text in line[0].texts] == [record.identity.localizer.name]
        assert len({axis.images[0].get_clim() for axis in line}) == 1
        for axis in line:
            drawn = axis.images[0].get_array().compressed()
            own = [score.score for score in record.scores or () if score.region == axis.get_title()]
            np.testing.assert_allclose(sorted(drawn), sorted(own))
    assert [axis.get_ylabel().replace("\n", " ") for axis in bars] == [
        "log-probability gained by grafting the site (nats)",
        "norm of the change as a share of the weights' norm",
    ]
    assert "−.5" in [text.get_text() for text in bars[0].get_yticklabels()]
    assert clipped(figure) == []


def test_every_score_has_a_meaning() -> None:
    """Each built-in localizer says what its scores are; of another name or version the bar says
    whose score it is.
    """
    meanings = {
        name: score_meaning(name, "1")
        for name in ("graft_drop", "static_graft", "ablation", "nonsuch")
    }
    assert meanings == {
        "graft_drop": "log-probability lost by leaving the site out (nats)",
        "static_graft": "log-probability gained by the site alone (nats)",
        "ablation": "log-probability lost without the site (nats)",
        "nonsuch": "score of nonsuch (its own unit)",
    }
    assert score_meaning("graft_drop", "0") == "score of graft_drop (its own unit)"
    ours = [name for name, about in describe().items() if about["from"] == "kgbench"]
    versions = {name: create(name, {}, seed=0).version for name in ours}
    assert [name for name in ours if "its own unit" in score_meaning(name, versions[name])] == []


def test_names_of_several_runs_tell_them_apart() -> None:
    """A name is the method, with what differs of model, parameters and number of facts; else the
    start of the id.
    """
    scan = method("graft_scan")
    for records, expected in (
        ([ranked(**scan), ranked(**method("snip"))], ["graft_scan", "snip"]),
        (
            [
                ranked(**method("snip", at="sft", steps=1)),
                ranked(**method("snip", at="recipient", steps=1)),
                ranked(**scan),
            ],
            ["snip, at=sft", "snip, at=recipient", "graft_scan"],
        ),
        (
            [ranked(**scan), ranked(model="tiny-llama", **scan, **OTHER)],
            ["graft_scan, tiny-gemma", "graft_scan, tiny-llama"],
        ),
        (
            [ranked(**scan), ranked(limit=40, **scan)],
            ["graft_scan, all facts", "graft_scan, first 40 facts"],
        ),
        (
            [one := ranked(**scan), two := ranked(seeds=(1,), **scan)],
            [f"graft_scan ({run.id[:8]})" for run in (one, two)],
        ),
        (
            [one := ranked(**scan), two := ranked(**method("snip"), **OTHER)],
            [f"graft_scan ({one.id[:8]})", f"snip ({two.id[:8]})"],
        ),
    ):
        assert distinct_names(records) == expected


def kept(root: Path, record: Record) -> Path:
    return folder(root, record, fake_runs.rows())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["curve", "map"])
def test_command_on_several_rankings(kind: str, tmp_path: Path, run: Call) -> None:
    """Several runs give one picture, and one run the picture that `kgbench eval` wrote."""
    place, other = (
        kept(tmp_path, ranked(**method("graft_scan"))),
        kept(tmp_path, ranked(**method("snip"))),
    )
    output, record = tmp_path / "picture.png", load_record(str(place), tmp_path).record
    draw = drawing([record], kind, score_meaning)
    assert run("show", "--format", kind, place, "-o", output)[0] == 0
    assert [output.read_bytes()] == picture_bytes(draw, [record], "png")
    output = tmp_path / "several.svg"
    answer = json.loads(run("show", "--format", kind, place, other, "-o", output, "--json")[1])
    assert len(answer["runs"]) == 2 and b"<svg" in output.read_bytes()
