"""`kgbench tasks validate`: spans that are not those of whole words, or that our model would not
understand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from own_tasks import ROW, TASK, findings, only, place, write

from kgbench.data import builtin_prompts, load_dataset
from kgbench.harness.rows import rows
from kgbench.harness.span_checks import span_faults


@pytest.mark.parametrize(
    ("region", "end", "step"),
    [(r, end, step) for r in ("FE", "R", "P") for end in (0, 1) for step in (-1, 1)],
)
def test_a_span_off_by_one(region: str, end: int, step: int, tmp_path: Path) -> None:
    """Either end of any span, one character to either side."""
    spans = {name: list(span) for name, span in ROW["spans"].items()}
    spans[region][end] += step
    path = write(tmp_path, TASK, ROW, {**ROW, "id": "mine/2", "spans": spans})
    assert only(tmp_path).startswith(place(path, f"spans.{region}", "1 (mine/2)"))


@pytest.mark.parametrize("prompt", builtin_prompts())
def test_no_shipped_span_can_be_off_by_one(prompt: str) -> None:
    """In every shipped row, every span with an end moved by one is a fault, and without it is none."""
    for row in rows(load_dataset("tiny_movies"), prompt):
        assert not list(span_faults(row))
        for region, (start, end) in row["spans"].items():
            for moved in ([start - 1, end], [start + 1, end], [start, end - 1], [start, end + 1]):
                fields = [
                    field
                    for field, _ in span_faults({**row, "spans": {**row["spans"], region: moved}})
                ]
                assert fields == [f"spans.{region}"]


@given(
    st.text(min_size=1, max_size=12).filter(lambda text: text == text.strip()),
    st.integers(-3, 3),
    st.integers(-3, 3),
)
def test_the_subject_alone_is_the_subject(subject: str, left: int, right: int) -> None:
    """Whatever its letters, a name between blanks is found where it stands and nowhere else."""
    query = f"with {subject} in"
    span = [5 + left, 5 + len(subject) + right]
    row = {"query": query, "subject": subject, "spans": {"FE": span, "M": None}}
    inside = 0 <= span[0] < span[1] <= len(query)
    assert (not list(span_faults(row))) == (inside and query[slice(*span)] == subject)


@pytest.mark.parametrize("span", [[0, 7, 9], [7, 0], ["0", "7"], [0, 99], [-7, 7], 3, [True, 7]])
def test_what_is_no_span(span: Any) -> None:
    """A span is two whole numbers within the query."""
    (fault,) = span_faults({**ROW, "spans": {"FE": span}})
    assert fault[0] == "spans.FE"


def test_an_unknown_region() -> None:
    """A row can place only the regions that do not follow from the tokens."""
    assert [field for field, _ in span_faults({**ROW, "spans": {"LT": [24, 28], "S": [0, 7]}})] == [
        "spans.LT",
        "spans.S",
    ]


@pytest.mark.parametrize(
    ("text", "word"), [("Ünal Ça", True), ("映画には千と千尋がある", False), ("Ann's film", False)]
)
def test_word_boundaries(text: str, word: bool) -> None:
    """Letters side by side are one word, but not in scripts that are written without blanks."""
    spans = {"Ünal Ça": [1, 4], "映画には千と千尋がある": [4, 8], "Ann's film": [0, 3]}
    assert bool(list(span_faults({"query": text, "spans": {"M": spans[text]}}))) == word


SENTENCE = (
    "'Up' is a movie, in which \"Mamma Mia!\" and Monsters, Inc. star Ann (the actor) in E.T. and"
    " by Jr. Go. The 'Salem's Lot film Rock 'n' Roll — by Ann's co-stars [2009]; 「千」 with"
)


def faults(query: str, region: str, text: str, **columns: str) -> list[str]:
    """What is wrong with a span that holds a text at its first place in a query."""
    start = query.index(text)
    return [
        message
        for _, message in span_faults(
            {"query": query, "spans": {region: [start, start + len(text)]}, **columns}
        )
    ]


@pytest.mark.parametrize(
    ("region", "text"),
    [
        *[
            ("M", name)
            for name in (
                "Up",
                "'Up'",
                "Mamma Mia!",
                "Monsters, Inc.",
                "E.T.",
                "Go",
                "'Salem's Lot",
                "Rock 'n' Roll",
                "千",
                "2009",
            )
        ],
        *[("FE", name) for name in ("Ann", "Jr.")],
        *[
            ("R", "movie"),
            ("R", "star"),
            ("R", "co-stars"),
            ("RP", "actor"),
            ("RP", "(the actor)"),
            ("RP", "by Jr."),
            ("P", "with"),
        ],
    ],
)
def test_marks_of_a_name(region: str, text: str) -> None:
    """A name keeps its marks, and marks that go together may both be in or both be out."""
    assert faults(SENTENCE, region, text) == []


@pytest.mark.parametrize(
    ("region", "text"),
    [
        *[
            ("M", name)
            for name in (
                "'Up",
                "Up'",
                '"Mamma Mia!',
                'Mamma Mia!"',
                "Go.",
                "Salem'",
                "'s Lot",
                "Rock 'n",
                "「千",
                "千」",
                "[2009",
            )
        ],
        *[
            ("R", "movie,"),
            ("R", "star Ann ("),
            ("RP", "actor)"),
            ("RP", "(the actor"),
            ("R", "co-"),
            ("R", "-stars"),
            ("P", "— by"),
        ],
        *[("M", "2009]"), ("M", "[2009];"), ("M", "Ann'")],
    ],
)
def test_a_span_off_by_a_mark(region: str, text: str) -> None:
    """A mark of the sentence in a span, or one of two that go together, is a fault."""
    (message,) = faults(SENTENCE, region, text)
    assert message.split("holds ")[1].startswith(repr(text))


@pytest.mark.parametrize(
    ("held", "title"),
    [("Mamma Mia", "Mamma Mia!"), ("Up'", "Up"), ("'Up'", "Up"), ("Go.", "Go"), ("Jr", "Jr.")],
)
def test_a_column_tells_the_name(held: str, title: str) -> None:
    """Where a column holds the name, the span must hold the same."""
    (message,) = faults(SENTENCE, "M", held, movie_title=title)
    assert message.endswith(f"expected {title!r}, the row's 'movie_title'")
    assert faults(SENTENCE, "M", title, movie_title=title) == []


def test_a_prompt_of_a_users_own_may_mark_anything(tmp_path: Path) -> None:
    """The spans of rows that were made of a file beside the task are those that its prompt marks."""
    facts: list[dict[str, Any]] = [
        {
            "kgbench": 1,
            "name": "own",
            "subject": "a",
            "object": "b",
            "templates": {"mine": "With {a} {R:plays,} as"},
        },
        {"id": "1", "a": "Ann", "b": "Bo"},
    ]
    (tmp_path / "facts.jsonl").write_text("\n".join(map(json.dumps, facts)), encoding="utf-8")
    data = (
        "custom_dataset: !function kgbench.harness.rows.load\ndataset_kwargs: {kgbench_dataset:"
        " facts.jsonl, kgbench_prompt: mine}\n"
    )
    (tmp_path / "mine.yaml").write_text(data + yaml.safe_dump(dict(TASK)), encoding="utf-8")
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"spans": json.dumps(ROW["spans"])},
        {"spans": str(ROW["spans"])},
        {"spans": [{"region": "FE", "start": 0, "end": 7}]},
        {"query": None},
    ],
)
def test_spans_that_our_model_would_not_see(change: Mapping[str, Any], tmp_path: Path) -> None:
    """Spans as a text or a list, or without a query: the row would be run as one without spans."""
    path = write(tmp_path, {**TASK, "doc_to_text": "subject"}, {**ROW, **change})
    line = only(tmp_path)
    assert line.startswith(place(path, "spans"))
    assert "the model would ignore them" in line


@pytest.mark.parametrize(
    "spans", [None, "some text", ["Ann", "Lee"], {"PER": [0, 3]}, {"FE": None}]
)
def test_spans_of_another_kind(spans: Any) -> None:
    """A column of that name in a task that has nothing to do with ours is no fault."""
    assert list(span_faults({"question": "Who?", "spans": spans})) == []
