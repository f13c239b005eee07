"""`kgbench data import`: a file of one's own becomes a data set that says all about itself."""

from __future__ import annotations

import csv
import json
import shutil
import string
from pathlib import Path

import pytest
from commands import Call, caller
from hypothesis import given
from hypothesis import strategies as st

from kgbench.data import Dataset, ImportOptions, load_dataset, load_prompts
from kgbench.data.facts import to_jsonl, write_dataset
from kgbench.errors import OutputError

FILES = Path(__file__).parent / "golden" / "folder"
ROLES = ("--subject", "actor", "--object", "costar")
STARS = "stars={actor} {R:stars} {RP:in} {M:a movie} {P:alongside}"


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """`kgbench data import` in a folder with the files of tests/golden/folder."""
    monkeypatch.chdir(shutil.copytree(FILES, tmp_path / "here"))
    return caller(capsys, "data", "import")


def same(one: Dataset, other: Dataset) -> bool:
    """Whether two data sets hold the same, but for their names and what was dropped on the way."""
    ours, theirs = (
        (d.facts, d.subject, d.object, dict(d.templates), d.content_hash) for d in (one, other)
    )
    return ours == theirs


# ----------------------------------------------------------------------------------- the round trip

NUMBERS = st.sampled_from(["007", "1e5", "2.50", "-0", "1_000", "٣", "NaN", "null", "true"])
ODD = st.sampled_from(
    [
        '"',
        "'",
        ",",
        "{",
        "}",
        "\\",
        *"\u2028\u2029\x85\n\t\ufeffé東🎬\x1c",
        "{{a}}",
        "{0!r}",
        "\r\n",
    ]
)
PIECES = (
    ODD
    | NUMBERS
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
)
TEXTS = (
    st.lists(PIECES, min_size=1, max_size=5).map(lambda parts: "".join(parts).strip()).filter(bool)
)
WORDS = (
    st.text(st.sampled_from(string.ascii_letters + "é東\u2028'\","), min_size=1, max_size=8)
    .map(str.strip)
    .filter(bool)
)
TEMPLATES = st.dictionaries(
    st.from_regex(r"own[\w.-]{0,5}", fullmatch=True),
    st.tuples(WORDS, WORDS).map(
        lambda words: f"{words[0]} {{{{}}}} {{a b}} {{P:{words[1]}}} {{year}} end"
    ),
    max_size=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@given(
    st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6, unique_by=lambda row: row[0]),
    TEMPLATES,
    st.booleans(),
)
def test_what_is_written_reads_as_it_was(
    folder: Path, rows: list[tuple[str, str, str]], templates: dict[str, str], as_csv: bool
) -> None:
    """Facts, ids, roles, templates and content hash survive, whatever the texts and from either
    format; each fact is one line.
    """
    names = ("a b", "city, state", "year")
    path = folder / ("own.csv" if as_csv else "own.jsonl")
    if as_csv:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    else:
        path.write_text(
            "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows),
            encoding="utf-8",
        )
    options = ImportOptions("a b", "answer", {"answer": "city, state"}, templates)
    imported = load_dataset(str(path), options)
    write_dataset(imported, folder / "out.jsonl", force=True)
    again = load_dataset(str(folder / "out.jsonl"))
    assert same(again, imported) and again.dropped == {} and again.name == imported.name
    assert len(to_jsonl(imported).splitlines()) == 1 + len(imported.facts)
    assert len(imported.facts) + sum(imported.dropped.values()) == len(rows)
    prompts = (
        [load_prompts(one, tuple(templates)) for one in (again, imported)]
        if templates
        else [[], []]
    )
    assert [(p.text, p.spans, p.target) for p in prompts[0]] == [
        (p.text, p.spans, p.target) for p in prompts[1]
    ]


@pytest.mark.parametrize(
    "options",
    [
        (*ROLES, "--template", STARS),
        (*ROLES, "--template", STARS, "--template", "year=In {film}, {subject} plays with"),
        (*ROLES, "--template", STARS, "--limit", "2", "--name", "my cast"),
        ("--column", "first_actor=actor", "--column", "second_actor=costar"),
        (*ROLES, "--column", "first_actor=actor", "--column", "movie_title=film"),
        (*ROLES, "--column", "id=film", "--template", STARS),
    ],
)
def test_the_command_keeps_what_an_evaluation_of_the_file_would_see(
    run: Call, options: tuple[str, ...]
) -> None:
    """With the same options, `--dataset FILE` and `--dataset OUT` are the same facts in the same
    prompts, so that records are shared.
    """
    if "id=film" in options:
        Path("cast.csv").write_text("actor,costar,film\nA,B,007\nC,D,1e5\n", encoding="utf-8")
    given = list(zip(options[::2], options[1::2], strict=True))
    columns, templates = (
        dict(v.split("=", 1) for o, v in given if o == option)
        for option in ("--column", "--template")
    )
    single = dict(given)
    whole = load_dataset(
        "cast.csv",
        ImportOptions(single.get("--subject"), single.get("--object"), columns, templates),
    )
    limit = int(single["--limit"]) if "--limit" in single else None
    assert run("cast.csv", *options, "-o", "out.jsonl").status == 0
    written = load_dataset("out.jsonl")
    assert same(written, whole.subset(fact.id for fact in whole.facts[:limit]))
    assert written.name == single.get("--name", "cast")


def test_json_tells_the_same(run: Call) -> None:
    """Counts agree with those of the loader; spans are those of the prompt's text; prompts that hold
    the first word of an answer are named with the facts.
    """
    giving = run("capitals.csv --template 'ask=The capital of {subject} is' --json").out
    (warning, *_) = json.loads(giving)["warnings"]
    assert "'ask' holds the first word of the answer" in warning
    assert "(capitals/1, capitals/2)" in warning
    told = json.loads(run("cast.csv", *ROLES, "--template", STARS, "--limit", "2", "--json").out)
    dataset = load_dataset("cast.csv", ImportOptions("actor", "costar", {}, {}))
    assert dataset.dropped == {name: len(lines) for name, lines in told["dropped_lines"].items()}
    assert (told["facts"], told["beyond_limit"], told["path"]) == (2, 1, "cast.jsonl")
    first = told["first"]["stars"]
    assert {region: first["text"][slice(*span)] for region, span in first["spans"].items()} == {
        "FE": "Alan Collins",
        "R": "stars",
        "RP": "in",
        "M": "a movie",
        "P": "alongside",
    }


def test_what_would_not_read_again_is_not_written(tmp_path: Path) -> None:
    """A data set that the format cannot hold is refused before it takes a name."""
    (tmp_path / "own.csv").write_text("subject,object\na,b\n")
    dataset = load_dataset(str(tmp_path / "own.csv"))
    for fault in (" ", "\ud800"):
        broken = Dataset(**{**vars(dataset), "name": fault})
        with pytest.raises(OutputError, match="cannot be written so that it reads again"):
            write_dataset(broken, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]
