"""Laws of the picture: all bars there, nothing clipped, equal bytes for equal records."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from fake_runs import RATES, record, rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from kgbench.report.bars import draw_chart, picture_bytes
from kgbench.sites import CONFIGURATIONS
from kgbench.stats.summary import summarize

HYBRID = "FE:attn=task; LT:attn@1/2-1=task; LT:o+ffn@1/2-1=relation"
WORLDS = {
    "pathways": RATES,
    "hybrid": {"PRE": 0.0, "SFT": 1.0, HYBRID: 0.5},
    "layers": {"PRE": 0.0, "SFT": 1.0, **{f"LT:o+ffn@{i}": i / 20 for i in range(18)}},
}


def test_files() -> None:
    """A PNG of a fair size and an SVG, the same bytes each time, without a date."""
    made = record()
    png, svg = files = picture_bytes(draw_chart, [made], "png", "svg")
    assert files == picture_bytes(draw_chart, [made], "png", "svg")
    with Image.open(BytesIO(png)) as image:
        assert min(image.size) > 700 and not {"Software", "Creation Time"} & set(image.info)
    assert ElementTree.fromstring(svg).tag.endswith("svg") and b"dc:date" not in svg


def test_bars_are_the_means() -> None:
    """One panel per prompt; bars from the top in the paper's order, as long as the means of the
    metric.
    """
    made = record()
    figure = draw_chart([made])
    assert len(figure.axes) == 2
    for axis, prompt in zip(figure.axes, ("headline", "qa"), strict=True):
        assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(
            CONFIGURATIONS
        )
        bars = [bar.get_width() for bar in axis.patches]
        assert axis.get_ylim()[0] > axis.get_ylim()[1]
        assert bars == [row.top5.value for row in made.rows if row.prompt == prompt]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("metric", ["top5", "log_rank", "logprob"])
@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_clipped(world: str, metric: str) -> None:
    """Every text lies within the picture, and no two names beside a panel overlap."""
    figure = draw_chart([record(rows(rates=WORLDS[world]), metric=metric)])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, whole = canvas.get_renderer(), figure.bbox
    texts = [
        t
        for t in figure.findobj(lambda a: hasattr(a, "get_text"))
        if t.get_text().strip() and t.get_visible()
    ]
    assert len(texts) > 10
    for text in texts:
        box = text.get_window_extent(renderer)
        assert (
            box.x0 >= whole.x0 - 1
            and box.x1 <= whole.x1 + 1
            and box.y0 >= whole.y0 - 1
            and box.y1 <= whole.y1 + 1
        ), text.get_text()
    for axis in figure.axes:
        boxes = [t.get_window_extent(renderer) for t in axis.get_yticklabels() if t.get_text()]
        assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))


def test_colours_are_by_role() -> None:
    """A complement that kgbench writes itself has the colour and the name of one; no name is cut
    within a word.
    """
    graft = "LT:o+ffn@second_half"
    rest = f"ALL; {graft}=recipient"
    rates = {"PRE": 0.0, "SFT": 1.0, graft: 0.5, rest: 0.4}
    table = rows(rates=rates, prompts=["qa"])
    found = summarize(table, complements={graft: rest, rest: graft})
    figure = draw_chart([record(table).model_copy(update={"rows": found.rows})])
    (axis,) = figure.axes
    names = [label.get_text().replace("\n", " ") for label in axis.get_yticklabels()]
    colours = dict(zip(names, (bar.get_facecolor() for bar in axis.patches), strict=True))
    assert names[-2:] == [graft, f"all but {graft}"]
    assert colours["PRE"] == colours["SFT"] and len(set(colours.values())) == 3
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert ticks == ["0", ".25", ".5", ".75", "1"]


def test_undefined_means_are_said() -> None:
    """A mean that is undefined has a word in place of a bar."""
    figure: Figure = draw_chart([record(rows(n=1, prompts=["qa"]), metric="log_rank")])
    assert [t.get_text() for t in figure.axes[0].texts] == ["undefined"] * len(CONFIGURATIONS)
