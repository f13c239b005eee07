"""Facts as people have them: one table in every form, and rows of prompt, subject and target."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.data import Dataset, ImportOptions, load_prompts, training_texts
from kgbench.data.facts import BLANK, NO_PROMPT, TWICE, dataset_of
from kgbench.data.imports import NO_VALUE
from kgbench.errors import DataError, InputError

CSV = """subject,object,kind,born,score,alive
Ann,1950,old,2001-02-03,.5,True
Bo,,new,2001-02-04,1.25,False
Cy,1953,old,2001-02-05,3.0,True
"""
"""Whole numbers with a gap, a class, days, fractions and truth values."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("facts.csv").write_text(CSV.replace(".5", "0.5"))
    datasets.disable_progress_bars()
    yield tmp_path


def frame() -> pd.DataFrame:
    """The table as pandas reads it: years as fractions, with NaN for the gap."""
    table = pd.read_csv("facts.csv", parse_dates=["born"])
    assert table.object.dtype == float
    return table


def labelled() -> datasets.Dataset:
    """The table as a `datasets.Dataset` with a class label."""
    return datasets.Dataset.from_pandas(frame()).class_encode_column("kind")


def written(name: str, write: Callable[[str], object]) -> str:
    write(name)
    return name


def json_rows() -> list[dict[str, Any]]:
    """The rows as JSON has them, which has no days."""
    rows = frame().assign(born=frame().born.dt.strftime("%Y-%m-%d"))
    return json.loads(rows.to_json(orient="records"))


FORMS: dict[str, Callable[[], object]] = {
    "csv": lambda: "facts.csv",
    "tsv": lambda: written("facts.tsv", lambda name: frame().to_csv(name, sep="\t", index=False)),
    "jsonl": lambda: written(
        "facts.jsonl", lambda name: Path(name).write_text("\n".join(map(json.dumps, json_rows())))
    ),
    "json": lambda: written(
        "facts.json", lambda name: Path(name).write_text(json.dumps(json_rows(), indent=1))
    ),
    "parquet": lambda: written("facts.parquet", lambda name: frame().to_parquet(name)),
    "parquet of labels": lambda: written("facts.parquet", lambda name: labelled().to_parquet(name)),
    "pandas": frame,
    "pandas, nullable": lambda: frame().convert_dtypes(),
    "pandas, of Arrow": lambda: frame().convert_dtypes(dtype_backend="pyarrow"),
    "pandas, categories": lambda: frame().astype({"kind": "category", "object": "category"}),
    "pandas, single": lambda: frame().astype({"object": "float32", "score": "float32"}),
    "arrow": lambda: pa.Table.from_pandas(frame()),
    "arrow of labels": lambda: labelled().with_format("arrow")[:],
    "polars": lambda: polars.read_csv("facts.csv", try_parse_dates=True),
    "polars, categories": lambda: polars.read_csv("facts.csv", try_parse_dates=True).with_columns(
        polars.col("kind").cast(polars.Categorical)
    ),
    "datasets": lambda: datasets.Dataset.from_pandas(frame()),
    "datasets, labels": labelled,
    "datasets, as torch": lambda: labelled().with_format("torch"),
    "datasets, streamed": lambda: labelled().to_iterable_dataset(),
    "dicts": lambda: frame().to_dict("records"),
    "iterator": lambda: iter(frame().to_dict("records")),
}


@pytest.mark.filterwarnings("ignore:.*has gaps, so that")
@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_the_same_facts_in_every_form(form: str) -> None:
    """Texts, ids and content hash are those of the CSV file: of whole numbers with gaps, class
    labels, days, fractions and truth values too.
    """
    expected = dataset_of("facts.csv")
    assert [fact.fields["object"] for fact in expected.facts] == ["1950", "1953"]
    with np.errstate(all="raise"):
        found = dataset_of(FORMS[form]())
    assert [fact.fields for fact in found.facts] == [fact.fields for fact in expected.facts]
    assert found.content_hash == expected.content_hash
    assert found.dropped == expected.dropped


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ([np.int64(7), np.int8(8)], ["7", "8"]),
        ([np.float32(0.1), np.float64(0.1)], ["0.1", "0.1"]),
        ([np.bool_(True), False], ["True", "False"]),
        ([Decimal("1.50"), Decimal("2")], ["1.50", "2"]),
        ([date(2001, 2, 3), date(2001, 2, 4)], ["2001-02-03", "2001-02-04"]),
        ([datetime(2001, 2, 3), datetime(2001, 2, 4)], ["2001-02-03", "2001-02-04"]),
        (
            [datetime(2001, 2, 3, 4), datetime(2001, 2, 4)],
            ["2001-02-03 04:00:00"] * 1 + ["2001-02-04 00:00:00"],
        ),
        ([pd.Timestamp("2001-02-03"), pd.Timestamp("2001-02-04")], ["2001-02-03", "2001-02-04"]),
        (["1.0", "2.0"], ["1.0", "2.0"]),
        ([np.str_("a"), " b "], ["a", "b"]),
    ],
)
def test_cells_of_other_libraries_are_written_as_in_a_file(
    cells: list[Any], texts: list[str]
) -> None:
    """Numbers of numpy, decimals, days and truth values; a text stays as it is."""
    rows = [{"subject": f"s{n}", "object": "o", "cell": cell} for n, cell in enumerate(cells)]
    assert [fact.fields["cell"] for fact in dataset_of(rows).facts] == texts


@pytest.mark.filterwarnings("ignore:.*is a fraction")
@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA, pd.NaT])
def test_only_numbers_with_gaps_lose_their_zeros(gap: object) -> None:
    """Fractions without gaps, texts, and columns in which a number is no whole one stay."""

    def objects(*cells: object) -> list[str]:
        rows = [{"subject": f"s{n}", "object": cell} for n, cell in enumerate(cells)]
        return [fact.fields["object"] for fact in dataset_of(rows).facts]

    assert objects(1950.0, gap, 1953.0) == ["1950", "1953"]
    assert objects(1950.0, gap, 1953.5) == ["1950.0", "1953.5"]
    assert objects("1.0", gap, "2.0") == ["1.0", "2.0"]
    assert objects(1950.0, 1953.0) == ["1950.0", "1953.0"]


def test_numbers_that_may_be_meant_otherwise_are_said() -> None:
    """Answers that are fractions are asked for so."""
    with pytest.warns(UserWarning, match="every 'object' is a fraction, such as 1950.0"):
        dataset_of(pd.DataFrame({"subject": ["a", "b"], "object": [1950.0, 1953.0]}))


@pytest.mark.parametrize("cell", [["a"], ("a",), np.array(["a", "b"]), {"a": "b"}, b"a", object()])
def test_a_cell_that_is_no_text_is_refused_where_it_is_needed(cell: object) -> None:
    """As subject, object or field of a template; a column that nothing asks for is left out."""
    rows = [{"subject": f"s{n}", "object": f"o{n}", "other": cell} for n in range(3)]
    if not isinstance(cell, bytes) and type(cell) is not object:
        assert dataset_of(rows).fields == ("subject", "object")
    for options in (
        ImportOptions(object="other"),
        ImportOptions(templates={"ask": "{subject} {other} is"}),
    ):
        with pytest.raises(DataError, match="row 1: field 'other': expected a text or a number"):
            dataset_of(rows, options)


def test_a_value_inside_a_column_is_a_field() -> None:
    """By its path: of objects by name, of lists by number, in roles, columns and templates."""
    rows = [
        {"who": {"name": f"s{n}"}, "all": [f"o{n}", "x"], "more": [{"year": 1950 + n}]}
        for n in range(2)
    ]
    options = ImportOptions(
        "who.name", "all.0", {"year": "more.0.year"}, {"ask": "In {year}, {who.name} and"}
    )
    dataset = dataset_of(rows, options)
    assert dataset.facts[1].fields == {"year": "1951", "who.name": "s1", "all.0": "o1"}
    assert load_prompts(dataset, ["ask"])[1].text == "In 1951, s1 and"


def test_labels_inside_a_column_have_their_names(folder: Path) -> None:
    """Of lists and of objects; a label that is missing is empty."""
    label = datasets.ClassLabel(names=["Lima", "Paris"])
    features = {"subject": datasets.Value("string"), "all": [label], "more": {"town": label}}
    rows = [
        {"subject": "a", "all": [1, 0], "more": {"town": 1}},
        {"subject": "b", "all": [0], "more": {"town": -1}},
    ]
    table = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    table.to_parquet("own.parquet")
    for form in (table, table.with_format("arrow")[:], "own.parquet"):
        first = dataset_of(form, ImportOptions(object="all.0"))
        assert [fact.fields["all.0"] for fact in first.facts] == ["Paris", "Lima"]
        inner = dataset_of(form, ImportOptions(object="more.town"))
        assert [fact.fields["more.town"] for fact in inner.facts] == ["Paris"]


def test_two_columns_of_one_name_are_refused() -> None:
    table = pd.DataFrame([["a", "b", "c"]], columns=["subject", "object", "object"])
    with pytest.raises(DataError, match="two columns 'object'"):
        dataset_of(table)


# ------------------------------------------------------------------- prompt, subject and target

COUNTRIES = [("France", "Paris"), ("Peru", "Lima"), ("Chad", "N'Djamena")]
WORDING = "The capital of {} is"


def edit(subject: str, target: str) -> dict[str, Any]:
    """A rewrite as CounterFact has it."""
    return {
        "prompt": WORDING,
        "relation_id": "P36",
        "target_new": {"str": target, "id": "Q1"},
        "subject": subject,
    }


SHAPES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "home-made": lambda: [
        {"prompt": WORDING.format(subject), "subject": subject, "target": target}
        for subject, target in COUNTRIES
    ],
    "with a mark": lambda: [
        {"prompt": WORDING, "subject": subject, "target": target} for subject, target in COUNTRIES
    ],
    "CounterFact": lambda: [
        {"case_id": n, "requested_rewrite": edit(*pair), "paraphrase_prompts": ["x"]}
        for n, pair in enumerate(COUNTRIES)
    ],
    "CounterFact, flat": lambda: pd.json_normalize(SHAPES["CounterFact"]()).to_dict("records"),
    "zsRE": lambda: [
        {"subject": subject, "src": WORDING.format(subject), "alt": target, "rephrase": "?"}
        for subject, target in COUNTRIES
    ],
    "zsRE, true": lambda: [
        {"subject": subject, "src": WORDING.format(subject), "answers": [target, "x"]}
        for subject, target in COUNTRIES
    ],
    "KnowEdit": lambda: [
        {
            "subject": subject,
            "prompt": WORDING.format(subject),
            "target_new": target,
            "ground_truth": ["x"],
            "locality": {"Relation_Specificity": [{"prompt": "x", "ground_truth": [["y"]]}]},
        }
        for subject, target in COUNTRIES
    ],
}
"""Three facts in the shapes of public sets."""


def as_csv(rows: list[dict[str, Any]]) -> str:
    pd.json_normalize(rows).to_csv("own.csv", index=False)
    return "own.csv"


KINDS: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "dicts": lambda rows: rows,
    "jsonl": lambda rows: written(
        "own.jsonl", lambda name: Path(name).write_text("\n".join(map(json.dumps, rows)))
    ),
    "json": lambda rows: written(
        "own.json", lambda name: Path(name).write_text(json.dumps(rows, indent=2))
    ),
    "parquet": lambda rows: written(
        "own.parquet", lambda name: pd.DataFrame(rows).to_parquet(name)
    ),
    "pandas": pd.DataFrame,
    "datasets": datasets.Dataset.from_list,
    "csv": as_csv,
}


def asked(dataset: Dataset) -> list[tuple[str, str, str]]:
    """Text, first entity and target of each prompt."""
    found = []
    for prompt in load_prompts(dataset, tuple(dataset.templates)):
        start, end = prompt.spans["FE"]
        found.append((prompt.text, prompt.text[start:end], prompt.target))
    return found


LISTS = (("zsRE, true", "csv"),)
EXPECTED = [(WORDING.format(subject), subject, target) for subject, target in COUNTRIES]


# A cell of a CSV file holds no list.
@pytest.mark.crossed
@pytest.mark.parametrize(
    ("shape", "kind"), [pair for pair in product(SHAPES, KINDS) if pair not in LISTS]
)
def test_rows_of_prompt_subject_and_target_need_no_template(shape: str, kind: str) -> None:
    """The row's prompt is the text, FE its subject, and the answer its target, in every kind of
    table that holds the shape.
    """
    dataset = dataset_of(KINDS[kind](SHAPES[shape]()))
    assert asked(dataset) == EXPECTED
    texts = [text.text for text in training_texts(dataset, "a2b")]
    assert texts == [f"{text} {target}." for text, _, target in EXPECTED]


def test_one_subject_in_several_prompts_is_several_facts() -> None:
    """Rows repeat or contradict one another only where they ask the same."""
    rows = SHAPES["home-made"]()
    rows += [{"prompt": "In France, they speak", "subject": "France", "target": "French"}]
    rows += [rows[0], {**rows[1], "target": "Cusco"}]
    dataset = dataset_of(rows)
    assert [fact.id for fact in dataset.facts] == ["facts/1", "facts/3", "facts/4"]
    assert dataset.dropped == {"duplicate row": 1, "ambiguous subject": 2}


def test_a_prompt_that_does_not_tell_its_subject_is_left_out() -> None:
    """Counted by reason: nowhere, as a part of a word, twice without a mark, or with a template's blanks."""
    prompts = ["They live in", "The Peruvians live in", "", "Is Peru in Peru or", "{} is Peru or"]
    prompts += ["{subject} is Peru or", "{subject} is in", "In {R:which} land is Peru"]
    rows = SHAPES["home-made"]()
    rows += [
        {"prompt": text, "subject": "Peru", "target": f"t{n}"} for n, text in enumerate(prompts)
    ]
    dataset = dataset_of(rows)
    assert dataset.dropped == {NO_PROMPT: 2, TWICE: 1, NO_VALUE: 1, BLANK: 3}
    assert asked(dataset)[3] == ("Peru is Peru or", "Peru", "t4")
    assert load_prompts(dataset, ["prompt"])[3].spans["FE"] == (0, 4)
    with pytest.raises(DataError, match=r"no facts left .*a text that mentions it once"):
        dataset_of(rows[3:6])


@given(
    st.text(st.sampled_from("ab {}"), min_size=1, max_size=4).map(str.strip).filter(bool),
    st.text(st.sampled_from("ab {}"), max_size=8),
    st.text(st.sampled_from("ab {}"), max_size=8),
)
def test_the_first_entity_is_the_subject(subject: str, before: str, after: str) -> None:
    """Whatever the words: the region is the subject's text, or the row is left out."""
    row = {"prompt": f"{before} {subject} {after} is", "subject": subject, "target": "x"}
    try:
        ((text, entity, _),) = asked(dataset_of([row]))
    except InputError:
        return
    assert entity == subject
    assert "{}" in row["prompt"] or text == row["prompt"].strip()


def test_of_several_answers_the_new_one_is_taken_and_said() -> None:
    """What an edit teaches; another one is taken by name."""
    rows = SHAPES["home-made"]()
    for row in rows:
        row |= {"target_true": {"str": "x"}, "target_new": {"str": row.pop("target")}}
    with pytest.warns(UserWarning, match="the answer is target_new, and could be target_true"):
        assert asked(dataset_of(rows)) == EXPECTED
    other = dataset_of(rows, ImportOptions(object="target_true.str"))
    assert {target for *_, target in asked(other)} == {"x"}


@pytest.mark.parametrize(("lacking", "role"), [("subject", "subject"), ("target", "object")])
def test_rows_without_a_role_name_what_is_lacking(lacking: str, role: str) -> None:
    """A prompt without its subject has no first entity, and one without a target no answer."""
    rows = SHAPES["home-made"]()
    for row in rows:
        del row[lacking]
    with pytest.raises(DataError, match=rf"which column is the {role}\?.*name them by --subject"):
        dataset_of(rows)


def test_a_template_may_hold_the_text_of_a_row() -> None:
    """A field that mentions the subject, in a frame."""
    rows = [{"q": f"Where is {who}?", "who": who, "place": "Rome"} for who in ("Ann", "Bo")]
    options = ImportOptions("who", "place", templates={"mine": "Q: {q} A:"})
    assert asked(dataset_of(rows, options))[1] == ("Q: Where is Bo? A:", "Bo", "Rome")
