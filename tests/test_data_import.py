"""`kgbench data import`: a file of one's own becomes a data set that says all about itself."""

from __future__ import annotations

import csv
import json
import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.cli import main
from kgbench.data import Dataset, ImportOptions, load_dataset, load_prompts
from kgbench.data.facts import AMBIGUOUS, DUPLICATE, to_jsonl, write_dataset
from kgbench.data.prompts import prompts_of_builtins
from kgbench.errors import OutputError

CAST = """actor,costar,film
Alan Collins,Joanne Moran,The New Walk
Donald Mckay,Cameron Moses,Ring
Donald Mckay,Cameron Moses,Ring
Eve Orr,Bob Ash,One
Eve Orr,Bill Oak,Two
"Zoë ""Z"" O'Brien",{Brace} Smith,007
"""
ROLES = ("--subject", "actor", "--object", "costar")
STARS = "stars={actor} {R:stars} {RP:in} {M:a movie} {P:alongside}"


class Answer:
    """Exit status, stdout and stderr of one command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`kgbench data import` in a folder that holds cast.csv; gives its `Answer`."""
    monkeypatch.chdir(tmp_path)
    Path("cast.csv").write_text(CAST, encoding="utf-8")

    def call(line: str = "", *more: object) -> Answer:
        status = main(["data", "import", *shlex.split(line), *map(str, more)])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


def refused(answer: Answer) -> str:
    """The one line of a refusal, after which no more files are there than before."""
    assert answer.status == 2, answer.err
    assert (
        answer.out == ""
        and answer.err.startswith("kgbench: error: ")
        and answer.err.count("\n") == 1
    )
    return answer.err


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
    run, options: tuple[str, ...]
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


# ------------------------------------------------------------------------------------ what it tells


def test_it_tells_what_it_kept_and_what_not(run) -> None:
    """Facts kept, rows dropped by reason with their lines, the first fact with its spans, and two
    commands.
    """
    answer = run("cast.csv", *ROLES, "--template", STARS)
    assert answer.status == 0
    wrote, left_out, *rest = answer.out.splitlines()
    assert wrote == "wrote cast.jsonl: 3 facts of cast.csv, subject actor, object costar"
    assert left_out == f"left out: 1 {DUPLICATE} (line 4), 2 {AMBIGUOUS} (lines 5, 6)"
    assert (
        "    stars  [FE: Alan Collins] [R: stars] [RP: in] [M: a movie] [P: alongside] → Joanne"
        " Moran" in rest
    )
    assert [line.split()[:3] for line in rest[-2:]] == [
        ["kgbench", "eval", "--recipient"],
        ["python", "-m", "pytest"],
    ]
    assert all(
        "--kgbench-dataset cast.jsonl" in line or "--dataset cast.jsonl" in line
        for line in rest[-2:]
    )
    assert "3 facts are too few" in answer.err


def test_a_column_with_gaps_is_told(run) -> None:
    """A column that nothing needs may have gaps; it is left out, and said so."""
    Path("own.csv").write_text("subject,object,note\na,b,x\nc,d,\n")
    answer = run("own.csv --template 'ask={subject} met'")
    assert answer.status == 0 and "left out: column note (empty at line 3)" in answer.out
    assert load_dataset("own.jsonl").fields == ("subject", "object")


def test_json_tells_the_same(run) -> None:
    """Counts agree with those of the loader; spans are those of the prompt's text."""
    told = json.loads(run("cast.csv", *ROLES, "--template", STARS, "--limit", "2", "--json").out)
    dataset = load_dataset("cast.csv", ImportOptions("actor", "costar", {}, {}))
    assert (
        told["dropped"]
        == dataset.dropped
        == {reason: len(lines) for reason, lines in told["dropped_lines"].items()}
    )
    assert (told["facts"], told["beyond_limit"], told["path"]) == (2, 1, "cast.jsonl")
    first = told["first"]["stars"]
    assert {region: first["text"][slice(*span)] for region, span in first["spans"].items()} == {
        "FE": "Alan Collins",
        "R": "stars",
        "RP": "in",
        "M": "a movie",
        "P": "alongside",
    }


def test_a_prompt_is_shown_in_one_line(run) -> None:
    """Line ends within a name are shown as escapes."""
    Path("odd.jsonl").write_text(
        json.dumps({"subject": "Line\nEnd\u2028er", "object": "b"}), encoding="utf-8"
    )
    answer = run("odd.jsonl --template 'ask={subject} met' -o out.jsonl")
    assert "    ask  [FE: Line\\nEnd\\u2028er] met → b" in answer.out.splitlines()


def test_builtin_prompts_are_used_where_they_fit(run) -> None:
    """With columns named as theirs, built-in prompts need no template; where the suite's do not
    fit, the commands name others.
    """
    answer = run("cast.csv --column first_actor=actor --column second_actor=costar")
    assert (
        answer.status == 0 and "    headline " in answer.out and " movie_title " not in answer.out
    )
    assert "--prompt" not in answer.out
    columns = "--column movie_title=film --column first_actor=actor"
    answer = run(f"cast.csv {columns} --subject film --object costar --force")
    shown = "    control         [FE+M: The New Walk] [R: stars] Alan Collins and → Joanne Moran"
    assert shown in answer.out
    assert (
        "--dataset cast.jsonl --prompt " in answer.out
        and "--kgbench-dataset cast.jsonl --kgbench-prompt " in answer.out
    )
    assert set(prompts_of_builtins(load_dataset("cast.jsonl"))) >= set(
        answer.out.splitlines()[-2].rpartition(" ")[2].split(",")
    )


def test_without_a_prompt_nothing_is_written(run) -> None:
    """Fields that no prompt can be filled from need a template; the example that is given works."""
    told = refused(run("cast.csv", *ROLES))
    assert "no built-in prompt can be filled from the fields actor, costar, film" in told
    example = told.partition("--template '")[2].partition("'")[0]
    assert run("cast.csv", *ROLES, "--template", example).status == 0
    assert (
        load_prompts("cast.jsonl", ["ask"])[0].text == "Q: What is the costar of Alan Collins? A:"
    )


def test_its_output_is_input(run) -> None:
    """What was written can be imported again, with another template; the file itself is never
    written over.
    """
    assert run("cast.csv", *ROLES, "--template", STARS).status == 0
    before = Path("cast.jsonl").read_bytes()
    assert "is the file that is read" in refused(
        run("cast.jsonl --template 'more={actor} met' --force")
    )
    assert Path("cast.jsonl").read_bytes() == before
    assert run("cast.jsonl --template 'more={actor} met' --name two").status == 0
    assert list(load_dataset("two.jsonl").templates) == ["stars", "more"]


# ------------------------------------------------------------------------------------------ answers


def facts(tmp_path: Path, *rows: tuple[str, str, str]) -> str:
    path = tmp_path / "own.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("subject", "object", "hint"), *rows])
    return str(path)


def test_the_first_word_of_the_answer_is_told(run) -> None:
    """It is most of what is measured; the facts are kept and named."""
    rows = "".join(f"s{i},o{i}\n" for i in range(10))
    Path("own.csv").write_text(
        f"subject,object\nGuatemala,Guatemala City\nPanama,Panama City\n{rows}"
    )
    answer = run("own.csv --template 'ask=The capital {P:of} {subject} is'")
    told = (
        "prompt 'ask' holds the first word of the answer in 2 of 12 facts (own/1, own/2); "
        "top1, top5 and mrr ask for the first token only"
    )
    assert (answer.status, answer.err) == (0, f"kgbench: warning: {told}\n")
    answer = run("own.csv --template 'ask=The capital {P:of} {subject} is' --force --json")
    assert json.loads(answer.out)["first_word"] == {"ask": ["own/1", "own/2"]}


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("Is {animal} a mammal, yes or no? Answer:", ["yes", "no"]),
        ("Choose A or B. {animal}:", ["A", "B"]),
    ],
)
def test_choices_in_the_wording_are_no_leak(run, text: str, answers: list[str]) -> None:
    """They are the same for every fact; a note says that they stand there."""
    Path("own.csv").write_text(
        "animal,answer\n" + "".join(f"animal{i},{answers[i % 2]}\n" for i in range(20))
    )
    answer = run(f"own.csv --subject animal --object answer --template 'ask={text}'")
    assert (answer.status, answer.err) == (0, "")
    assert (
        "the answer is among the words of prompt 'ask' itself in 20 of 20 facts (own/1, "
        in answer.out
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("{country} is", 1),
        ("In {country}, {subject} has", 2),
        ("{subject} {subject} {country} is", 3),
    ],
)
def test_a_subject_that_stands_twice_is_told(run, text: str, number: int) -> None:
    """By either of its names; the first mention alone is FE."""
    Path("own.csv").write_text("country,capital\n" + "".join(f"s{i},o{i}\n" for i in range(12)))
    answer = run(f"own.csv --subject country --object capital --template 'ask={text}'")
    assert answer.status == 0
    warning = (
        f"kgbench: warning: prompt 'ask' mentions the subject {number} times; only the first "
        "is FE, and the others count as other tokens\n"
    )
    assert answer.err == (warning if number > 1 else "")


def test_the_column_of_ids_can_be_asked_for_under_another_name(run) -> None:
    """A column id names the facts; the way round that is told works."""
    Path("own.csv").write_text("id,country\n7,a\n8,b\n")
    for role, other in (("object", "subject"), ("subject", "object")):
        told = refused(
            run(f"own.csv --{other} country --{role} id --template 'ask={{subject}} met'")
        )
        way = f"--column {role}=id"
        assert (
            f"column 'id' names the facts, so it cannot be the {role}; call it otherwise, as by"
            f" {way}" in told
        )
        line = f"own.csv --{other} country {way} --template 'ask={{subject}} met' --force"
        assert run(line).status == 0
    told = refused(run("own.csv --subject country --object town --template 'ask={subject} met'"))
    assert told.endswith("no column 'town' to be the object; there are id, country\n")


def test_a_template_that_gives_the_answer_away_is_refused(run) -> None:
    """Whether it names the object or a column that holds it; nothing is written."""
    assert "gives the answer away" in refused(
        run("cast.csv", *ROLES, "--template", "ask={actor} and {costar} are")
    )
    Path("own.csv").write_text(
        "subject,object,hint\n" + "".join(f"s{i},o{i},it is O{i}!\n" for i in range(12))
    )
    told = refused(run("own.csv --template 'ask={hint} So {subject} has'"))
    assert (
        "holds the answer already in 12 of 12 facts, such as 'o0' in 'it is O0! So s0 has'" in told
    )
    assert [path.name for path in Path().iterdir() if path.suffix == ".jsonl"] == []


def test_a_few_facts_that_give_the_answer_away_are_told(run) -> None:
    """They are kept, as they are with `kgbench eval`, and named."""
    Path("own.csv").write_text(
        "subject,object\n" + "".join(f"s{i},o{i}\n" for i in range(12)) + "New York,york\n"
    )
    answer = run("own.csv --template 'ask={subject} has'")
    assert answer.status == 0 and answer.out.startswith("wrote own.jsonl: 13 facts")
    assert answer.err.startswith(
        "kgbench: warning: prompt 'ask' holds the answer already in 1 of 13 facts (own/13)"
    )


# ----------------------------------------------------------------------------------------- refusals


def test_a_file_is_replaced_only_by_force(run) -> None:
    """What is there stays, until --force replaces it."""
    Path("cast.jsonl").write_text("mine")
    assert "cast.jsonl is there already" in refused(run("cast.csv", *ROLES, "--template", STARS))
    assert Path("cast.jsonl").read_text() == "mine"
    assert run("cast.csv", *ROLES, "--template", STARS, "--force").status == 0
    assert len(load_dataset("cast.jsonl").facts) == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nowhere.csv", "nowhere.csv: cannot be read"),
        ("tiny_movies", "expected a file that ends with .jsonl, .csv, .tsv, .json or .parquet"),
        ("cast.csv", "which column is the subject?"),
        (
            "cast.csv --subject acter --object costar",
            "no column 'acter' to be the subject; there are actor, costar, film",
        ),
        (
            "cast.csv --column subject=actor --object costar --template 'a=he has'",
            "does not mention the subject: write {subject} in its template",
        ),
        ("ROLES --template stars", "expected KEY=VALUE"),
        ("ROLES --column film", "expected KEY=VALUE"),
        ("ROLES --template 'a={actor'", "cannot read the template"),
        ("ROLES --template 'a={actr} met'", "needs the field 'actr'"),
        (
            "ROLES --template 'a={film} has'",
            "no facts left (6 without the subject in the prompt): every 'actor' needs one 'costar', "
            "and a template {actor}",
        ),
        ("ROLES --template 'a={actor} {x:met}'", "unknown region 'x'"),
        ("ROLES --template 'headline={actor} met'", "as a built-in prompt is"),
        ("FACTS -o out.json", "give a name that ends with .jsonl"),
        ("FACTS -o dir.jsonl --force", "dir.jsonl cannot be written: Is a directory"),
        ("FACTS -o cast.csv/out.jsonl", "cannot be written"),
        ("FACTS --name ' '", "expected a name that is not empty"),
        ("FACTS --name ../up", "cannot be that of a file here"),
        ("FACTS --limit 0", "0 is not in the range"),
    ],
)
def test_wrong_input_writes_nothing(run, line: str, told: str) -> None:
    """Every mistake is one line with status 2, and leaves no file, finished or half-written."""
    Path("dir.jsonl").mkdir()
    before = sorted(Path().iterdir())
    line = line.replace("FACTS", f"ROLES --template '{STARS}'")
    assert told in refused(run(line.replace("ROLES", "cast.csv --subject actor --object costar")))
    assert sorted(Path().iterdir()) == before


def test_what_would_not_read_again_is_not_written(tmp_path: Path) -> None:
    """A data set that the format cannot hold is refused before it takes a name."""
    dataset = load_dataset(facts(tmp_path, ("a", "b", "c")))
    for fault in (" ", "\ud800"):
        broken = Dataset(**{**vars(dataset), "name": fault})
        with pytest.raises(OutputError, match="cannot be written so that it reads again"):
            write_dataset(broken, tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]
