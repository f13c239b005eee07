"""`kgbench data import` from sets by others: one relation becomes a data set; origin and licence
are told first; nothing is bundled.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import Call
from source_sets import (
    PEOPLE,
    RELATIONS,
    popqa,
    refused,
    run,
    tracing,
    write,
    write_json,
    write_table,
)

from kgbench.data import load_dataset, load_prompts
from kgbench.data.facts import AMBIGUOUS, DUPLICATE, NO_PROMPT
from kgbench.data.imports import EMPTY
from kgbench.data.sources import load_source, source_names

__all__ = ["run"]

# ------------------------------------------------------------------------------------- every source


def test_every_source_is_tried_here_and_named_in_the_help(run: Call) -> None:
    """A row that is added to the catalogue is tested and told of."""
    assert set(RELATIONS) == set(source_names())
    told = " ".join(run("--help").out.split())
    assert ", ".join(source_names()) in told


@pytest.mark.parametrize("source", RELATIONS)
def test_the_region_of_every_prompt_is_its_subject(run: Call, source: str) -> None:
    """In the file that was written, whatever the source's schema; the answer is the object, and ids
    tell the row.
    """
    answer = run(f"--source {source} {write(source)} --relation {RELATIONS[source]} -o mine.jsonl")
    assert answer.status == 0, answer.err
    dataset = load_dataset("mine.jsonl")
    prompts = load_prompts(dataset, tuple(dataset.templates))
    assert len(prompts) == len(dataset.facts) * len(dataset.templates) > 0
    for prompt in prompts:
        start, end = prompt.spans["FE"]
        assert prompt.text[start:end] == prompt.fact.fields["subject"]
        assert prompt.target.strip() == prompt.fact.fields["object"]
    assert set(dataset.fields) == {"subject", "object", "prompt"} and not dataset.training
    assert dataset.dropped == {}
    assert all(fact.id.rpartition("/")[2].isdecimal() for fact in dataset.facts)


@pytest.mark.parametrize("source", RELATIONS)
def test_licence_and_origin_are_told_first_and_in_the_summary(run: Call, source: str) -> None:
    """Also where nothing can be written."""
    file, licence = write(source), load_source(source).licence
    answer = run(f"--source {source} {file} --relation {RELATIONS[source]}")
    first = answer.err.splitlines()[:2]
    assert first[0].startswith(f"kgbench: from {file}: ")
    assert first[1] == f"kgbench: licence: {licence}"
    assert [f"kgbench: {line}" for line in answer.out.splitlines()[1:3]] == first
    Path(answer.out.split(":")[0].removeprefix("wrote ")).unlink()
    assert "unknown relation" in refused(run(f"--source {source} {file} --relation 'none such'"))


@pytest.mark.parametrize("source", RELATIONS)
def test_a_relation_of_several_must_be_chosen(run: Call, source: str) -> None:
    """The error lists them with their sizes, the largest first; nothing is written."""
    told = refused(run(f"--source {source} {write(source)}"))
    assert f"{RELATIONS[source]} (" in told and told.endswith("choose one by --relation")
    sizes = [int(n) for n in re.findall(r"\((\d+) rows\)", told)]
    assert len(sizes) > 1 and sizes == sorted(sizes, reverse=True)


# -------------------------------------------------------------------------------------- CounterFact


def test_both_forms_of_counterfact_give_the_same_facts(run: Call) -> None:
    """From the prompt with its subject and from that with `{}` in its place; each fact is asked in
    its own prompt.
    """
    texts = []
    for source in ("counterfact", "counterfact-rome"):
        file = write(source)
        assert run(f"--source {source} {file} --relation P103 -o {source}.jsonl").status == 0
        dataset = load_dataset(f"{source}.jsonl")
        for fact, (subject, object_) in zip(dataset.facts, PEOPLE, strict=True):
            assert (fact.fields["subject"], fact.fields["object"]) == (subject, object_)
        texts.append([prompt.text for prompt in load_prompts(dataset, ["ask"])])
    assert texts[0] == texts[1] and texts[0][1] == "Bo {Li} is a native speaker of"


def test_other_columns_can_be_the_object_or_a_field(run: Call) -> None:
    """Such as the false target, which a finetune can be taught."""
    file = write("counterfact")
    options = "--relation P103 --object target_false --column truth=target_true -o mine.jsonl"
    assert run(f"--source counterfact {file} {options}").status == 0
    for fact, (_, truth) in zip(load_dataset("mine.jsonl").facts, PEOPLE, strict=True):
        assert (fact.fields["object"], fact.fields["truth"]) == ("Klingon", truth)


def test_own_templates_are_asked_instead(run: Call) -> None:
    """With marks of regions or without."""
    answer = run(
        f"--source counterfact {write('counterfact')} --relation P103 --template "
        "'own={subject}, {R:a native}' -o mine.jsonl"
    )
    assert answer.status == 0 and "wordings to train in: none" in answer.out
    dataset = load_dataset("mine.jsonl")
    assert dict(dataset.templates) == {"own": "{subject}, {R:a native}"}
    assert dataset.fields == ("subject", "object")


def test_a_file_in_another_schema_is_refused(run: Call) -> None:
    """By the column that is lacking."""
    message = refused(run(f"--source popqa {write('counterfact-rome')}"))
    assert "unknown column of popqa 'prop'" in message
    rows = [{**row, "target_true": ""} for row in tracing()]
    for row in rows:
        del row["target_true"]
    message = refused(run(f"--source counterfact {write_json('odd.json', rows)} --relation P103"))
    assert "no column 'target_true' to take 'object' from; there are" in message


# -------------------------------------------------------------------------------------------- PopQA


def test_popqa_asks_as_its_authors_do(run: Call) -> None:
    """A row whose question lacks its subject, or has it in two places, is dropped."""
    answer = run(
        f"--source popqa {write('popqa')} --relation occupation --column "
        "popularity=s_pop -o mine.jsonl"
    )
    assert answer.status == 0 and f"1 {NO_PROMPT} (row 5)" in answer.out
    assert "wordings to train in: none, so give some by kgbench train --template" in answer.out
    dataset = load_dataset("mine.jsonl")
    assert dict(dataset.templates) == {"ask": "Q: {prompt} A:"}
    assert load_prompts(dataset, ["ask"])[0].text == "Q: What is Ann Lee's occupation? A:"
    assert [fact.fields["popularity"] for fact in dataset.facts] == ["0", "10", "30"]


def test_what_is_dropped_is_counted_by_its_row(run: Call) -> None:
    """A subject with two answers, a repeated row, an empty answer and a question without its
    subject; in JSON too.
    """
    rows = [row for row in popqa()[:4] if row["subj"] != "What"]
    more = [
        {**rows[0], "obj": "poet"},
        dict(rows[1]),
        {**rows[0], "subj": "Eve", "question": "What is Eve's occupation?", "obj": " "},
    ]
    file = write_table("facts.csv", [*rows, *more, popqa()[4]])
    answer = run(
        f"--source popqa {file} --relation occupation --column note=s_pop -o mine.jsonl --json"
    )
    told = json.loads(answer.out)
    assert told["dropped_lines"] == {EMPTY: [6], NO_PROMPT: [7], DUPLICATE: [5], AMBIGUOUS: [1, 4]}
    assert told["facts"] == len(load_dataset("mine.jsonl").facts) == 2
    assert told["origin"][0] == f"from {file}: {load_source('popqa').about}"


# ----------------------------------------------------------------------------------------- refusals
