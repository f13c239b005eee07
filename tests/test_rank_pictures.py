"""Laws of the pictures of a ranking: every site and every budget is there, nothing is clipped,
equal bytes for equal records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runs import identity, record
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kgbench.cli.eval import write_pictures
from kgbench.estimate import Estimate
from kgbench.localizers import score_meaning
from kgbench.records import Curve, CurvePoint, Record, SiteScore
from kgbench.report.bars import picture_bytes
from kgbench.report.site_maps import drawing
from kgbench.sites import PER_LAYER, SCORED_REGIONS

BUDGETS = (0, 0.1, 1, 10, 100)


def ranked(
    low: float = -1.0,
    layers: int = 3,
    undefined: bool = False,
    seed: int = 0,
    model: str = "tiny-gemma",
    **changes: Any,
) -> Record:
    """A record with a map and a curve, with some parts of its identity changed."""
    rng = np.random.default_rng(seed)
    places = [
        (None, "emb"),
        (None, "pos"),
        *((layer, c) for layer in range(layers) for c in PER_LAYER[:8]),
    ]
    scores = [
        SiteScore(layer=layer, component=c, region=r, score=float(rng.uniform(low, 1)))
        for layer, c in places
        for r in SCORED_REGIONS
    ]
    figures = [Estimate(value=b / 100, low=b / 200, high=0.5 + b / 200, n=9) for b in BUDGETS]
    if undefined:
        figures = [Estimate(n=9, undefined="why")] * len(BUDGETS)
    points = tuple(CurvePoint(budget=b, recovery=e) for b, e in zip(BUDGETS, figures, strict=True))
    curves = {prompt: Curve(points=points, area=figures[3]) for prompt in ("headline", "qa")}
    return record(what=identity(**changes), model=model, scores=tuple(scores), curve=curves)


def clipped(figure: Figure) -> list[str]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, whole = canvas.get_renderer(), figure.bbox
    texts = [
        t
        for t in figure.findobj(lambda a: hasattr(a, "get_text"))
        if t.get_text().strip() and t.get_visible()
    ]
    ticks = [
        (axis.get_ylim(), tick) for axis in figure.axes for tick in axis.yaxis.get_major_ticks()
    ]
    unseen = [tick.label1 for (low, high), tick in ticks if not low <= tick.get_loc() <= high]
    texts = [t for t in texts if t not in unseen]
    boxes = {
        t.get_text(): t.get_window_extent(renderer)
        for t in texts
        if t.axes is None or t.axes.get_visible()
    }
    return [
        t
        for t, b in boxes.items()
        if b.x0 < whole.x0 - 1 or b.x1 > whole.x1 + 1 or b.y0 < whole.y0 - 1 or b.y1 > whole.y1 + 1
    ]


@pytest.mark.nightly
def test_files(tmp_path: Path) -> None:
    """PNG and SVG, the same bytes each time; none where nothing was ranked."""
    made = ranked()
    for kind in ("curve", "map"):
        draw = drawing([made], kind, score_meaning)
        files = picture_bytes(draw, [made], "png", "svg")
        assert files == picture_bytes(draw, [made], "png", "svg")
    names = [path.name for path in write_pictures(made, tmp_path)]
    assert names[2:] == ["curve-top5.png", "curve-top5.svg", "map.png", "map.svg"]
    names = [path.name for path in write_pictures(record(), tmp_path)]
    assert names == ["chart-top5.png", "chart-top5.svg"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("layers", [2, 24])
def test_the_map_holds_every_site(low: float, layers: int) -> None:
    """A panel per region, a row per layer and one below for what lies outside, every score in its
    place; white is 0 for both signs.
    """
    made = ranked(low, layers)
    figure = drawing([made], "map", score_meaning)([made])
    panels = [
        axis for axis in figure.axes if axis.get_visible() and axis.images and axis.get_title()
    ]
    assert [axis.get_title() for axis in panels] == list(SCORED_REGIONS)
    assert panels[0].get_yticklabels()[0].get_text() == "embed"
    for axis in panels:
        assert [text.get_text() for text in axis.get_xticklabels()] == [
            "emb",
            "pos",
            *PER_LAYER[:8],
        ]
        grid = axis.images[0].get_array()
        own = {
            (s.layer, s.component): s.score
            for s in made.scores or ()
            if s.region == axis.get_title()
        }
        names = ["emb", "pos", *PER_LAYER[:8]]
        for (layer, component), score in own.items():
            assert grid[0 if layer is None else 1 + layer, names.index(component)] == pytest.approx(
                score
            )
        assert grid.count() == len(own)
        bottom, top = axis.images[0].get_clim()
        assert bottom == -top if low < 0 else 0 <= bottom < top <= 1
    assert clipped(figure) == []
