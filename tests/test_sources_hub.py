"""`kgbench data import` from the Hub: any set of rows, read at the commit that is told; what the
Hub answers is told in a line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Call
from datasets import ClassLabel, Dataset, Features, Value
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from source_sets import COMMIT, PEOPLE, RELATIONS, hub, refused, run, tracing, write, write_parquet

from kgbench.data import load_dataset, load_prompts
from kgbench.data.imports import NO_VALUE
from kgbench.data.sources import load_source

__all__ = ["hub", "run"]


def test_a_source_is_read_at_the_commit_that_is_told(run: Call, hub: dict[str, Any]) -> None:
    """The card is asked before the rows are; what is printed and what is loaded is one commit; so
    is a revision that is given.
    """
    write_parquet("counterfact-tracing/data/train-00000-of-00001.parquet", tracing())
    answer = run("--source counterfact --relation P103 -o mine.jsonl")
    assert answer.status == 0, answer.err
    place = f"hub:NeelNanda/counterfact-tracing@{COMMIT}, split train"
    assert f"kgbench: from {place}" in answer.err and f"from {place}" in answer.out
    assert "; its card on the Hub names none" in answer.err
    assert hub["asked"] == [
        ("card", "NeelNanda/counterfact-tracing", None),
        ("rows", "NeelNanda/counterfact-tracing", COMMIT),
    ]
    assert [fact.fields["object"] for fact in load_dataset("mine.jsonl").facts] == [
        language for _, language in PEOPLE
    ]
    there = ("--source", "counterfact", "hub:me/counterfact-tracing@v1")
    assert run(*there, "--relation", "P17").status == 0
    assert hub["asked"][2:] == [
        ("card", "me/counterfact-tracing", "v1"),
        ("rows", "me/counterfact-tracing", "v1"),
    ]


TOWNS = [
    {
        "land": f"Land {n}",
        "town": {"name": f"Town {n}", "size": n},
        "kind": "old" if n % 3 else "new",
        "tags": ["a", f"tag {n}"],
    }
    for n in range(30)
]
ROLES = "--subject land --object"
WORDING = "--template 'ask=In {kind} {land}, people go to'"
COLUMNS = f"{ROLES} town.name {WORDING}"


def test_any_set_on_the_hub(run: Call, hub: dict[str, Any]) -> None:
    """Columns that are named become fields, one within another too; the rest is left; its card's
    licence is told.
    """
    hub["licences"]["me/towns"] = ["cc0-1.0", "mit"]
    write_parquet("towns/data/test-00000-of-00001.parquet", TOWNS)
    answer = run(f"hub:me/towns@v2 --split test {COLUMNS}")
    assert answer.status == 0, answer.err
    assert (
        "kgbench: from hub:me/towns@v2, split test\nkgbench: licence: its card on the Hub says"
        " cc0-1.0, mit\n" in answer.err
    )
    dataset = load_dataset("towns.jsonl")
    assert (dataset.subject, dataset.object, dataset.fields) == (
        "land",
        "town.name",
        ("land", "town.name", "kind"),
    )
    assert load_prompts(dataset, ["ask"])[1].text == "In old Land 1, people go to"
    assert load_prompts(dataset, ["ask"])[1].target.strip() == "Town 1"
    other = run(f"hub:me/towns --split test {ROLES} tags.1 {WORDING} --force")
    assert other.status == 0
    assert load_dataset("towns.jsonl").facts[3].fields["tags.1"] == "tag 3"


def test_rows_without_a_value_for_a_prompt_are_left_out(run: Call, hub: dict[str, Any]) -> None:
    """They are counted by their row; a column that no prompt needs may have gaps, or lists."""
    rows = [
        {**row, "tags": None, "kind": row["kind"] if n != 4 else None}
        for n, row in enumerate(TOWNS)
    ]
    write_parquet("towns/train.parquet", rows)
    answer = run(f"hub:me/towns {COLUMNS}")
    assert answer.status == 0 and f"left out: 1 {NO_VALUE} (row 5)" in answer.out, answer.err
    assert len(load_dataset("towns.jsonl").facts) == len(TOWNS) - 1


def test_rows_that_say_all_need_no_options(run: Call, hub: dict[str, Any]) -> None:
    """Prompt, subject and target are known by name, class labels by theirs."""
    names = {"Land 1": "Lima", "Land 2": "Oslo", "Land 3": "Rome"}
    rows = [
        {"prompt": f"{who} lies at", "subject": who, "target": n} for n, who in enumerate(names)
    ]
    kinds = Features(
        {
            "prompt": Value("string"),
            "subject": Value("string"),
            "target": ClassLabel(names=[*names.values()]),
        }
    )
    Path("towns").mkdir()
    Dataset.from_list(rows, features=kinds).to_parquet("towns/train.parquet")
    answer = run("hub:me/towns")
    assert answer.status == 0, answer.err
    dataset = load_dataset("towns.jsonl")
    assert [fact.fields["target"] for fact in dataset.facts] == [*names.values()]
    assert load_prompts(dataset, ["prompt"])[0].spans["FE"] == (0, 6)


def test_a_column_tells_relations_apart(run: Call, hub: dict[str, Any]) -> None:
    """By itself it asks which of them, and with a value it chooses one; columns can be renamed."""
    write_parquet("towns/data/train-00000-of-00001.parquet", TOWNS)
    told = refused(run(f"hub:me/towns {COLUMNS} --relation kind"))
    assert "towns has 2 relations, old (20 rows), new (10 rows): choose one" in told
    columns = "--column country=land --subject country --column object=town.name"
    renamed = f"{columns} --template 'ask={{country}} has'"
    assert run(f"hub:me/towns {renamed} --relation kind=new -o mine.jsonl").status == 0
    dataset = load_dataset("mine.jsonl")
    assert (dataset.name, dataset.fields, len(dataset.facts)) == (
        "towns-new",
        ("country", "object"),
        10,
    )


def test_of_many_relations_only_near_ones_are_named(run: Call, hub: dict[str, Any]) -> None:
    """A column with a value for each row does not fill the screen."""
    write_parquet(
        "towns/train.parquet", [{"land": f"Land {n}", "town": f"Town {n}"} for n in range(99)]
    )
    told = refused(
        run(
            "hub:me/towns --subject land --object town --relation 'town=Town x' "
            "--template 'ask={land} has'"
        )
    )
    assert "unknown relation of towns 'Town x'. Did you mean 'Town " in told and len(told) < 250


def test_columns_as_builtin_prompts_need_them(run: Call, hub: dict[str, Any]) -> None:
    """A set of movies needs no template of its own, as a file does not."""
    write_parquet("cast/train.parquet", [{"a": f"Ann {n}", "b": f"Bob {n}"} for n in range(12)])
    answer = run("hub:me/cast --column first_actor=a --column second_actor=b")
    assert answer.status == 0 and "    headline " in answer.out, answer.err
    assert load_dataset("cast.jsonl").subject == "first_actor"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (f"{ROLES} town.nme", "no column 'town.nme' to be the object"),
        (f"{ROLES} town", "name one value in it, as by 'town.name'"),
        (f"{ROLES} tags", "name one value in it, as by 'tags.0'"),
        (f"{COLUMNS} --relation kin", "unknown column of towns 'kin'"),
        (f"{COLUMNS} --relation kind=odd", "unknown relation of towns 'odd'. Did you mean 'old'"),
        (f"{COLUMNS} --split valid", 'Unknown split "valid"'),
    ],
)
def test_wrong_names_are_one_line(run: Call, hub: dict[str, Any], options: str, told: str) -> None:
    """Each names what there is; nothing is written."""
    write_parquet("towns/data/train-00000-of-00001.parquet", TOWNS)
    assert told in refused(run(f"hub:me/towns {options}"))


def test_a_set_of_several_configurations_needs_one(run: Call, hub: dict[str, Any]) -> None:
    """It is written behind the id, and told with it."""
    write_parquet("many/one/train.parquet", TOWNS)
    write_parquet("many/two/train.parquet", TOWNS[:9])
    card = (
        "---\nconfigs:\n- config_name: one\n  data_files: one/*.parquet\n- config_name: two\n "
        " data_files: two/*.parquet\n---\n"
    )
    Path("many/README.md").write_text(card)
    told = refused(run(f"hub:me/many {COLUMNS}"))
    assert "Config name is missing" in told and "'two'" in told
    answer = run(f"hub:me/many:two {COLUMNS}")
    assert answer.status == 0 and f"from hub:me/many:two@{COMMIT}, split train" in answer.out
    assert len(load_dataset("many.jsonl").facts) == 9


def test_without_the_network_a_file_is_asked_for(run: Call) -> None:
    """One line, with where the files are; tests run offline, so that this is what the client does."""
    told = refused(run("--source popqa --relation occupation"))
    assert "the Hugging Face Hub cannot be reached for 'akariasai/PopQA'" in told
    assert "offline mode is enabled" in told
    assert told.endswith(
        f"fetch it from {load_source('popqa').files}, and give the file: --source popqa FILE"
    )
    assert "save its rows as a CSV or JSONL file" in refused(run(f"hub:me/towns {COLUMNS}"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GatedRepoError, "'me/towns' is gated: accept its terms"),
        (RevisionNotFoundError, "'me/towns' has no revision 'v9'"),
        (RepositoryNotFoundError, "the Hub has no 'me/towns' that you may read"),
    ],
)
def test_what_the_hub_answers_is_told(
    run: Call, monkeypatch: pytest.MonkeyPatch, error: type, told: str
) -> None:
    """In our words."""

    def answer(*_: Any, **__: Any) -> None:
        raise error("no", response=SimpleNamespace(headers={}, request=None))

    monkeypatch.setattr(HfApi, "dataset_info", answer)
    assert told in refused(run(f"hub:me/towns@v9 {COLUMNS}"))


def test_without_the_library_the_extra_is_named(
    run: Call, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a source are read without it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert re.search(
        r"takes the library datasets \(import of datasets halted.*\): pip install 'datasets>=4'$",
        refused(run("--source popqa")),
    )
    for source in RELATIONS:
        assert run(f"--source {source} {write(source)} --relation {RELATIONS[source]}").status == 0
