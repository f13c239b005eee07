"""`kgbench data import` from sets by others: one relation becomes a data set; origin and licence are told first; nothing is bundled."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from huggingface_hub import DatasetCardData, HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kgbench.cli import main
from kgbench.data import ImportOptions, load_dataset, load_prompts, training_texts
from kgbench.data.facts import AMBIGUOUS, DUPLICATE
from kgbench.data.sources import NO_PROMPT, NO_VALUE, choose_fields, load_source, read_relations, source_names

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TONGUE = ("The mother tongue of {} is", "{} is a native speaker of", "{}, a native", "{}, a native speaker of")
PEOPLE = [
    ("Ada Roy", "French"),
    ("Bo {Li}", "Dutch"),
    ("Cy Orr", "Danish"),
    ("Di Ash", "French"),
    ("Ed Oak", "Welsh"),
    ("Flo Elm", "Irish"),
]


def tracing() -> list[dict[str, str]]:
    """Rows in the schema of counterfact-tracing: blanks before subject and target, the prompt filled in."""
    wordings = [TONGUE[0], TONGUE[1], TONGUE[0], TONGUE[2], TONGUE[0], TONGUE[1]]
    rows = [(who, wording, "P103", language) for (who, language), wording in zip(PEOPLE, wordings, strict=True)]
    rows += [("Lyon", "{} is located in", "P17", "France"), ("Lima", "{} is located in", "P17", "Peru")]
    return [
        {
            "relation": wording,
            "relation_prefix": wording.partition("{}")[0].rstrip(),
            "relation_suffix": wording.partition("{}")[2],
            "prompt": wording.replace("{}", subject),
            "relation_id": relation,
            "target_false_id": "Q1",
            "target_true_id": "Q2",
            "target_true": f" {target}",
            "target_false": " Klingon",
            "subject": f" {subject}",
        }
        for subject, wording, relation, target in rows
    ]


def rome() -> list[dict[str, Any]]:
    """The same facts in the schema of ROME's counterfact.json."""
    return [
        {
            "case_id": number,
            "pararel_idx": 7,
            "requested_rewrite": {
                "prompt": row["relation"],
                "relation_id": row["relation_id"],
                "target_new": {"str": row["target_false"].strip(), "id": "Q1"},
                "target_true": {"str": row["target_true"].strip(), "id": "Q2"},
                "subject": row["subject"].strip(),
            },
            "paraphrase_prompts": ["He slept. " + row["prompt"]],
            "neighborhood_prompts": ["Another is"],
        }
        for number, row in enumerate(tracing())
    ]


def popqa() -> list[dict[str, str]]:
    """Rows in the schema of PopQA."""
    jobs = [("Ann Lee", "politician"), ("Bob Fox", "painter"), ("What", "singer"), ("Cem Kaya", "poet")]
    rows = [(who, "occupation", job, f"What is {who}'s occupation?") for who, job in jobs]
    rows += [("Dee Poe", "occupation", "actor", "What does she do?"), ("Peru", "capital", "Lima", "What is the capital of Peru?")]
    return [
        {
            "id": str(4000 + number),
            "subj": subject,
            "prop": prop,
            "obj": answer,
            "prop_id": "22",
            "s_aliases": '["A, ""B"""]',
            "s_pop": str(10 * number),
            "o_pop": "7",
            "question": question,
            "possible_answers": json.dumps([answer, answer.title()]),
        }
        for number, (subject, prop, answer, question) in enumerate(rows)
    ]


def lre(
    name: str = "country language", asked: Sequence[str] = ("In {}, people speak the language of", "{}, where most people speak")
) -> dict:
    """A relation file of LRE."""
    return {
        "name": name,
        "prompt_templates": ["People in {} speak", "The language used in {} is"],
        "prompt_templates_zs": list(asked),
        "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "language", "symmetric": False},
        "samples": [{"subject": f"Land {number}", "object": f"Tongue {number}"} for number in range(12)],
    }


def write_json(name: str, value: Any) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(json.dumps(value), encoding="utf-8")
    return name


def write_table(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if name.endswith(".tsv") else ",")
        writer.writeheader()
        writer.writerows(rows)
    return name


def write_parquet(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), name)
    return name


class Answer:
    """Exit status, stdout and stderr of one command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`kgbench data import` in an empty folder, with a cache of its own for tables."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def call(*arguments: object) -> Answer:
        status = main(["data", "import", *map(str, arguments)])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Hub whose data sets are folders here: what it was asked, and by id the licence on the card. All behind the network is real."""
    import datasets

    told: dict[str, Any] = {"licences": {}, "asked": []}
    load = datasets.load_dataset

    def info(api: HfApi, name: str, *, revision: str | None, timeout: float) -> Any:
        told["asked"].append(("card", name, revision))
        return SimpleNamespace(sha=revision or COMMIT, card_data=DatasetCardData(license=told["licences"].get(name)))

    def loaded(name: str, config: str | None, *, revision: str | None, **options: Any) -> Any:
        told["asked"].append(("rows", name, revision))
        return load(name.partition("/")[2], config, **options)

    monkeypatch.setattr(HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", loaded)
    return told


def refused(answer: Answer) -> str:
    """The last line of a refusal; we say before it at most where the rows would have come from, and no file is there."""
    *before, last = (line for line in answer.err.splitlines() if line.startswith("kgbench: "))
    assert answer.status == 2 and answer.out == "" and last.startswith("kgbench: error: "), answer.err
    assert answer.err.endswith(f"{last}\n")
    assert all(line.startswith(("kgbench: from ", "kgbench: licence: ")) for line in before)
    assert not list(Path().glob("*.jsonl"))
    return last


def write(source: str) -> str:
    """A file in the schema of a source."""
    writers = {
        "counterfact": lambda: write_parquet("facts.parquet", tracing()),
        "counterfact-rome": lambda: write_json("facts.json", rome()),
        "lre": lambda: write_json("facts.json", lre()),
        "popqa": lambda: write_table("facts.tsv", popqa()),
    }
    return writers[source]()


RELATIONS = {"counterfact": "P103", "counterfact-rome": "P103", "lre": "country language", "popqa": "occupation"}

# ------------------------------------------------------------------------------------------------------------- every source


def test_every_source_is_tried_here_and_named_in_the_help(run: Run) -> None:
    """A row that is added to the catalogue is tested and told of."""
    assert set(RELATIONS) == set(source_names())
    told = " ".join(run("--help").out.split())
    assert ", ".join(source_names()) in told


@pytest.mark.parametrize("source", RELATIONS)
def test_the_region_of_every_prompt_is_its_subject(run: Run, source: str) -> None:
    """In the file that was written, whatever the source's schema; the answer is the object, and ids tell the row."""
    answer = run("--source", source, write(source), "--relation", RELATIONS[source], "-o", "mine.jsonl")
    assert answer.status == 0, answer.err
    dataset = load_dataset("mine.jsonl")
    prompts = load_prompts(dataset, tuple(dataset.templates))
    assert len(prompts) == len(dataset.facts) * len(dataset.templates) > 0
    for prompt in prompts:
        start, end = prompt.spans["FE"]
        assert prompt.text[start:end] == prompt.fact.fields["subject"]
        assert prompt.target.strip() == prompt.fact.fields["object"]
    assert set(dataset.fields) == {"subject", "object"} and dataset.dropped == {}
    assert all(fact.id.rpartition("/")[2].isdecimal() for fact in dataset.facts)


@pytest.mark.parametrize("source", RELATIONS)
def test_no_training_text_begins_as_a_prompt_does(run: Run, source: str) -> None:
    """Evaluation and training wordings are kept apart; a training text tells subject and object."""
    assert run("--source", source, write(source), "--relation", RELATIONS[source], "-o", "mine.jsonl").status == 0
    dataset = load_dataset("mine.jsonl")
    prompts = tuple(prompt.text for prompt in load_prompts(dataset, tuple(dataset.templates)))
    texts = [text.text for text in training_texts(dataset, "a2b")] if dataset.training else []
    assert bool(texts) == (source != "popqa")  # it has one wording a relation
    assert not any(text.startswith(prompts) for text in texts)
    values = {(fact.fields["subject"], fact.fields["object"]) for fact in dataset.facts}
    assert all(any(subject in text and text.endswith(f" {object_}.") for subject, object_ in values) for text in texts)


@pytest.mark.parametrize("source", RELATIONS)
def test_licence_and_origin_are_told_first_and_in_the_summary(run: Run, source: str) -> None:
    """Also where nothing can be written."""
    file, licence = write(source), load_source(source).licence
    answer = run("--source", source, file, "--relation", RELATIONS[source])
    first = answer.err.splitlines()[:2]
    assert first[0].startswith(f"kgbench: from {file}: ") and first[1] == f"kgbench: licence: {licence}"
    assert [f"kgbench: {line}" for line in answer.out.splitlines()[1:3]] == first
    Path(answer.out.split(":")[0].removeprefix("wrote ")).unlink()
    assert "unknown relation" in refused(run("--source", source, file, "--relation", "none such"))


@pytest.mark.parametrize("source", [name for name in RELATIONS if name != "lre"])
def test_without_a_relation_they_are_listed(run: Run, source: str) -> None:
    """With the number of facts and an example; nothing is written. In JSON too."""
    answer = run("--source", source, write(source))
    assert answer.status == 0 and not list(Path().glob("*.jsonl"))
    assert answer.out.splitlines()[0] == "choose one by --relation:"
    told = json.loads(run("--source", source, write(source), "--json").out)["relations"]
    assert [line.split()[:2] for line in answer.out.splitlines()[1:]] == [[one["relation"], str(one["facts"])] for one in told]
    assert [one["facts"] for one in told] == sorted((one["facts"] for one in told), reverse=True)
    assert all(one["example"] in answer.out and " → " in one["example"] for one in told)
    assert RELATIONS[source] in {one["relation"] for one in told}


# -------------------------------------------------------------------------------------------------------------- CounterFact


def test_both_forms_of_counterfact_give_the_same_facts(run: Run) -> None:
    """From the prompt with its subject and from the template; the most frequent wording is asked."""
    found = []
    for source in ("counterfact", "counterfact-rome"):
        assert run("--source", source, write(source), "--relation", "P103", "-o", f"{source}.jsonl").status == 0
        found.append(load_dataset(f"{source}.jsonl"))
    one, other = found
    assert [fact.fields for fact in one.facts] == [fact.fields for fact in other.facts] == [{"subject": s, "object": o} for s, o in PEOPLE]
    assert dict(one.templates) == dict(other.templates) == {"ask-1": "The mother tongue of {subject} is"}
    assert one.training == other.training == ("{subject} is a native speaker of {object}.", "{subject}, a native {object}.")


def test_other_columns_can_be_the_object_or_a_field(run: Run) -> None:
    """Such as the false target, which a finetune can be taught."""
    file = write("counterfact")
    options = ("--relation", "P103", "--object", "target_false", "--column", "truth=target_true", "-o", "mine.jsonl")
    assert run("--source", "counterfact", file, *options).status == 0
    assert [tuple(fact.fields.values()) for fact in load_dataset("mine.jsonl").facts] == [(who, "Klingon", truth) for who, truth in PEOPLE]


def test_own_templates_are_asked_instead_and_stay_out_of_training(run: Run) -> None:
    """With marks of regions or without; whatever begins as they do is not trained in."""
    marked = "own={subject}, {R:a native}"
    answer = run("--source", "counterfact", write("counterfact"), "--relation", "P103", "--template", marked, "-o", "mine.jsonl")
    assert answer.status == 0 and "wordings to train in: 2" in answer.out
    dataset = load_dataset("mine.jsonl")
    assert dict(dataset.templates) == {"own": "{subject}, {R:a native}"}
    assert dataset.training == ("The mother tongue of {subject} is {object}.", "{subject} is a native speaker of {object}.")


def test_a_file_in_another_schema_is_told(run: Run) -> None:
    """By the column that is lacking, and by the source that would read it."""
    told = refused(run("--source", "popqa", write("counterfact-rome")))
    assert "unknown column of popqa 'subj'" in told and "It reads as --source counterfact-rome." in told
    rows = [{"target" if key == "target_true" else key: text for key, text in row.items()} for row in tracing()]
    told = refused(run("--source", "counterfact", write_json("odd.json", rows)))
    assert "unknown column of counterfact 'target_true'. Did you mean 'target_true_id' or 'target'?" in told


# ---------------------------------------------------------------------------------------------------------------------- LRE


def test_lre_asks_its_zero_shot_wordings(run: Run) -> None:
    """One file has one relation, which need not be named; the other wordings are for training."""
    assert run("--source", "lre", write("lre")).status == 0
    dataset = load_dataset("lre-country-language.jsonl")
    assert list(dataset.templates.values()) == ["In {subject}, people speak the language of", "{subject}, where most people speak"]
    assert dataset.training == ("People in {subject} speak {object}.", "The language used in {subject} is {object}.")


def test_lre_without_zero_shot_wordings_divides_the_others(run: Run) -> None:
    """The first is asked, and the rest trained in."""
    assert run("--source", "lre", write_json("facts.json", lre(asked=())), "-o", "mine.jsonl").status == 0
    dataset = load_dataset("mine.jsonl")
    assert list(dataset.templates.values()) == ["People in {subject} speak"]
    assert dataset.training == ("The language used in {subject} is {object}.",)


def test_a_folder_of_lre_is_read_whole(run: Run) -> None:
    """As the repository has it, with folders in it; of two files of one name neither is taken for the other."""
    write_json("data/factual/a.json", lre("one relation"))
    write_json("data/bias/b.json", lre("other relation"))
    answer = run("--source", "lre", "data")
    assert {line.split("  ")[2] for line in answer.out.splitlines()[1:]} == {"one relation", "other relation"}
    assert run("--source", "lre", "data", "--relation", "one relation").status == 0
    Path("lre-one-relation.jsonl").unlink()
    assert "Did you mean 'one relation'" in refused(run("--source", "lre", "data", "--relation", "one relatoin"))
    write_json("data/factual/c.json", lre("one relation"))
    assert "two files hold the relation 'one relation'" in refused(run("--source", "lre", "data"))


# -------------------------------------------------------------------------------------------------------------------- PopQA


def test_popqa_asks_as_its_authors_do(run: Run) -> None:
    """The place of the subject is found even where it is a word of the question too; a row whose question lacks it is dropped."""
    answer = run("--source", "popqa", write("popqa"), "--relation", "occupation", "--column", "popularity=s_pop", "-o", "mine.jsonl")
    assert answer.status == 0 and f"left out: 1 {NO_PROMPT} (row 5)" in answer.out
    assert "wordings to train in: none, so give some by kgbench train --template" in answer.out
    dataset = load_dataset("mine.jsonl")
    assert dict(dataset.templates) == {"ask-1": "Q: What is {subject}'s occupation? A:"}
    assert load_prompts(dataset, ["ask-1"])[2].text == "Q: What is What's occupation? A:"
    assert load_prompts(dataset, ["ask-1"])[2].spans["FE"] == (11, 15)
    assert [fact.fields["popularity"] for fact in dataset.facts] == ["0", "10", "20", "30"]


def test_what_is_dropped_is_counted_by_its_row(run: Run) -> None:
    """A subject with two answers, a repeated row, an empty answer and a question without its subject; in JSON too."""
    rows = popqa()[:4]
    more = [{**rows[0], "obj": "poet"}, dict(rows[1]), {**rows[2], "subj": "Eve", "question": "What is Eve's occupation?", "obj": " "}]
    file = write_table("facts.csv", [*rows, *more, popqa()[4]])
    answer = run("--source", "popqa", file, "--relation", "occupation", "--column", "note=s_pop", "-o", "mine.jsonl", "--json")
    told = json.loads(answer.out)
    assert told["dropped_lines"] == {NO_VALUE: [7], NO_PROMPT: [8], DUPLICATE: [6], AMBIGUOUS: [1, 5]}
    assert told["facts"] == len(load_dataset("mine.jsonl").facts) == 3
    assert told["origin"][0] == f"from {file}: {load_source('popqa').about}"


SUBJECTS = st.text(st.sampled_from("abW{}' "), min_size=1, max_size=6).map(str.strip).filter(bool)


@given(st.lists(SUBJECTS, min_size=1, max_size=6, unique=True), st.sampled_from(["What is {}?", "{{b}} of {} a{{b}} is", "aW {}' b"]))
def test_a_wording_that_was_found_fills_to_the_prompt(subjects: list[str], wording: str) -> None:
    """Whatever the names: braces, and names that are words of the prompt."""
    source = load_source("popqa")
    rows = [
        {"prop": "p", "subj": who, "obj": "x", "question": wording.replace("{{", "{").replace("}}", "}").replace("{}", who, 1)}
        for who in subjects
    ]
    fields, needed = choose_fields(source, ImportOptions())
    relation = read_relations(source, rows, fields, needed)["p"]
    assert list(relation.facts) == list(range(1, 1 + len(rows))) and relation.dropped == {}
    wordings = (*relation.asked, *relation.trained)
    for row in rows:
        assert f"Q: {row['question']} A:" in {one.format(subject=row["subj"]) for one in wordings}


# ---------------------------------------------------------------------------------------------------------------------- Hub


def test_a_source_is_read_at_the_commit_that_is_told(run: Run, hub: dict[str, Any]) -> None:
    """The card is asked before the rows are; what is printed and what is loaded is one commit; so is a revision that is given."""
    write_parquet("counterfact-tracing/data/train-00000-of-00001.parquet", tracing())
    answer = run("--source", "counterfact", "--relation", "P103", "-o", "mine.jsonl")
    assert answer.status == 0, answer.err
    place = f"hub:NeelNanda/counterfact-tracing@{COMMIT}, split train"
    assert f"kgbench: from {place}" in answer.err and f"from {place}" in answer.out
    assert "; its card on the Hub names none" in answer.err
    assert hub["asked"] == [("card", "NeelNanda/counterfact-tracing", None), ("rows", "NeelNanda/counterfact-tracing", COMMIT)]
    assert [tuple(fact.fields.values()) for fact in load_dataset("mine.jsonl").facts] == PEOPLE
    assert run("--source", "counterfact", "hub:me/counterfact-tracing@v1").status == 0
    assert hub["asked"][2:] == [("card", "me/counterfact-tracing", "v1"), ("rows", "me/counterfact-tracing", "v1")]


def test_a_folder_is_read_as_the_hub_reads_it(run: Run) -> None:
    """Its splits are those of its files."""
    write_parquet("folder/data/train-00000-of-00001.parquet", rome()[:6])
    write_parquet("folder/data/test-00000-of-00001.parquet", rome()[6:])
    assert run("--source", "counterfact-rome", "folder", "-o", "a.jsonl").status == 0
    assert len(load_dataset("a.jsonl").facts) == 6
    assert run("--source", "counterfact-rome", "folder", "--split", "train+test", "--relation", "P17", "-o", "b.jsonl").status == 0
    assert len(load_dataset("b.jsonl").facts) == 2
    for file in Path().glob("*.jsonl"):
        file.unlink()
    answer = run("--source", "counterfact-rome", "folder", "--split", "none")
    assert 'Unknown split "none"' in refused(answer) and "kgbench: licence: " in answer.err
    assert "has no splits" in refused(run("--source", "lre", write("lre"), "--split", "train"))


TOWNS = [
    {"land": f"Land {n}", "town": {"name": f"Town {n}", "size": n}, "kind": "old" if n % 3 else "new", "tags": ["a", f"tag {n}"]}
    for n in range(30)
]
COLUMNS = ("--subject", "land", "--object", "town.name", "--template", "ask=In {kind} {land}, people go to")


def test_any_set_on_the_hub(run: Run, hub: dict[str, Any]) -> None:
    """Columns that are named become fields, one within another too; the rest is left; its card's licence is told."""
    hub["licences"]["me/towns"] = ["cc0-1.0", "mit"]
    write_parquet("towns/data/test-00000-of-00001.parquet", TOWNS)
    answer = run("hub:me/towns@v2", "--split", "test", *COLUMNS)
    assert answer.status == 0, answer.err
    assert "kgbench: from hub:me/towns@v2, split test\nkgbench: licence: its card on the Hub says cc0-1.0, mit\n" in answer.err
    dataset = load_dataset("towns.jsonl")
    assert (dataset.subject, dataset.object, dataset.fields) == ("land", "town.name", ("land", "town.name", "kind"))
    assert load_prompts(dataset, ["ask"])[1].text == "In old Land 1, people go to"
    assert load_prompts(dataset, ["ask"])[1].target.strip() == "Town 1"
    assert run("hub:me/towns", "--split", "test", "--subject", "land", "--object", "tags.1", *COLUMNS[4:], "--force").status == 0
    assert load_dataset("towns.jsonl").facts[3].fields["tags.1"] == "tag 3"


def test_a_column_tells_relations_apart(run: Run, hub: dict[str, Any]) -> None:
    """By itself it lists them, and with a value it chooses one; columns can be renamed."""
    write_parquet("towns/data/train-00000-of-00001.parquet", TOWNS)
    answer = run("hub:me/towns", *COLUMNS, "--relation", "kind")
    assert [line.split() for line in answer.out.splitlines()[1:]] == [
        ["old", "20", "Land", "1", "→", "Town", "1"],
        ["new", "10", "Land", "0", "→", "Town", "0"],
    ]
    renamed = ("--column", "country=land", "--subject", "country", "--column", "object=town.name", "--template", "ask={country} has")
    assert run("hub:me/towns", *renamed, "--relation", "kind=new", "-o", "mine.jsonl").status == 0
    dataset = load_dataset("mine.jsonl")
    assert (dataset.name, dataset.fields, len(dataset.facts)) == ("towns-new", ("country", "object"), 10)


def test_of_many_relations_only_near_ones_are_named(run: Run, hub: dict[str, Any]) -> None:
    """A column with a value for each row does not fill the screen."""
    write_parquet("towns/train.parquet", [{"land": f"Land {n}", "town": f"Town {n}"} for n in range(99)])
    told = refused(
        run("hub:me/towns", "--subject", "land", "--object", "town", "--relation", "town=Town x", "--template", "ask={land} has")
    )
    assert "unknown relation of towns 'Town x'. Did you mean 'Town " in told and len(told) < 200


def test_columns_as_builtin_prompts_need_them(run: Run, hub: dict[str, Any]) -> None:
    """A set of movies needs no template of its own, as a file does not."""
    write_parquet("cast/train.parquet", [{"a": f"Ann {n}", "b": f"Bob {n}"} for n in range(12)])
    answer = run("hub:me/cast", "--column", "first_actor=a", "--column", "second_actor=b")
    assert answer.status == 0 and "    headline " in answer.out, answer.err
    assert load_dataset("cast.jsonl").subject == "first_actor"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--subject", "lnd", "--object", "kind"), "unknown column of towns 'lnd'. Did you mean 'land'"),
        (("--subject", "land", "--object", "town.nme"), "Did you mean 'town.name'"),
        (("--subject", "land", "--object", "town"), "column 'town' holds an object; name one value in it, as by 'town.name'"),
        (("--subject", "land", "--object", "tags"), "column 'tags' holds a list; name one value in it, as by 'tags.0'"),
        (("--subject", "land", "--object", "land"), "subject and object are both the column 'land'"),
        (("--subject", "land", "--object", "kind", "--template", "ask={wher}"), "unknown column of towns 'wher'"),
        (("--subject", "land", "--object", "kind", "--template", "ask={land"), "cannot read the template"),
        (("--subject", "land", "--object", "kind"), "towns: no built-in prompt can be filled from the fields land, kind"),
        ((*COLUMNS, "--relation", "kin"), "unknown column of towns 'kin'"),
        ((*COLUMNS, "--relation", "kind=odd"), "unknown relation of towns 'odd'. Did you mean 'old'"),
        ((*COLUMNS, "--split", "valid"), 'Unknown split "valid"'),
    ],
)
def test_wrong_names_are_one_line(run: Run, hub: dict[str, Any], options: tuple[str, ...], told: str) -> None:
    """Each names what there is; nothing is written."""
    write_parquet("towns/data/train-00000-of-00001.parquet", TOWNS)
    assert told in refused(run("hub:me/towns", *options))


def test_a_set_of_several_configurations_needs_one(run: Run, hub: dict[str, Any]) -> None:
    """It is written behind the id, and told with it."""
    write_parquet("many/one/train.parquet", TOWNS)
    write_parquet("many/two/train.parquet", TOWNS[:9])
    card = "---\nconfigs:\n- config_name: one\n  data_files: one/*.parquet\n- config_name: two\n  data_files: two/*.parquet\n---\n"
    Path("many/README.md").write_text(card)
    told = refused(run("hub:me/many", *COLUMNS))
    assert "Config name is missing" in told and "'two'" in told
    answer = run("hub:me/many:two", *COLUMNS)
    assert answer.status == 0 and f"from hub:me/many:two@{COMMIT}, split train" in answer.out
    assert len(load_dataset("many.jsonl").facts) == 9


def test_without_the_network_a_file_is_asked_for(run: Run) -> None:
    """One line, with where the files are; tests run offline, so that this is what the client does."""
    told = refused(run("--source", "popqa", "--relation", "occupation"))
    assert "the Hugging Face Hub cannot be reached for 'akariasai/PopQA'" in told and "offline mode is enabled" in told
    assert told.endswith(f"fetch it from {load_source('popqa').files}, and give the file: --source popqa FILE")
    assert "save its rows as a CSV or JSONL file" in refused(run("hub:me/towns", *COLUMNS))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GatedRepoError, "data set 'me/towns' is gated: accept its terms"),
        (RevisionNotFoundError, "data set 'me/towns' has no revision 'v9'"),
        (RepositoryNotFoundError, "the Hub has no data set 'me/towns' that you may read"),
    ],
)
def test_what_the_hub_answers_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, error: type, told: str) -> None:
    """In our words."""

    def answer(*_: Any, **__: Any) -> None:
        raise error("no", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(HfApi, "dataset_info", answer)
    assert told in refused(run("hub:me/towns@v9", *COLUMNS))


def test_without_the_library_the_extra_is_named(run: Run, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a source are read without it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refused(run("--source", "popqa")).endswith("takes the library datasets: pip install 'kgbench[hub]'")
    for source in RELATIONS:
        assert run("--source", source, write(source), "--relation", RELATIONS[source]).status == 0


def test_data_needs_neither_torch_nor_datasets_at_import() -> None:
    """Nor does the catalogue of sources."""
    modules = "kgbench.data, kgbench.data.sources, kgbench.data.sources_origin"
    code = f"import sys, {modules}; kgbench.data.sources.source_names(); print({{'torch', 'datasets'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


# ------------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give a FILE of your own, or a set by others"),
        (("own.csv", "--relation", "x"), "--relation and --split are of one"),
        (("--source", "popqua"), "unknown source 'popqua'. Did you mean 'popqa'"),
        (("--source", "lre"), "source lre is not on the Hub: fetch it from https://github.com/evandez/relations"),
        (("--source", "lre", "none.json"), "none.json: there is no such file"),
        (("--source", "lre", "empty"), "lre: there are no facts in it; expected what is at"),
        (("--source", "lre", "notes.txt"), "expected a file that ends with .json, .jsonl, .csv, .tsv, .parquet"),
        (("--source", "popqa", "bad.json"), "bad.json: is not JSON"),
        (("--source", "popqa", "bad.jsonl.parquet"), "bad.jsonl.parquet: is not PARQUET"),
        (("--source", "popqa", "wide.csv"), "wide.csv: row 1 holds more cells than there are columns (subj, prop)"),
        (("--source", "popqa", "list.json"), "list.json: record 2 is no object of fields: 3"),
        (("--source", "popqa", "bare.json"), "popqa: there are no facts in it"),
        (("--source", "popqa", "lost.json"), f"popqa-p: no row is left (1 {NO_PROMPT})"),
        (("hub:a/b/c",), "names no data set on the Hub: expected hub:OWNER/NAME"),
    ],
)
def test_wrong_input_is_one_line(run: Run, options: tuple[str, ...], told: str) -> None:
    """What was wrong, what was expected, what to do."""
    Path("empty").mkdir()
    Path("notes.txt").write_text("x")
    Path("bad.json").write_text("{")
    Path("bad.jsonl.parquet").write_text("x")
    Path("wide.csv").write_text("subj,prop\na,b,c\n")
    write_json("list.json", [{"subj": "a"}, 3])
    write_json("bare.json", [])
    write_json("lost.json", [{"subj": "a", "prop": "p", "obj": "x", "question": "Who?"}])
    assert told in refused(run(*options))
