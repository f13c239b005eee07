"""Training texts, and the parts of a data set."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.data import (
    Dataset,
    dataset_names,
    is_shipped,
    load_dataset,
    load_prompts,
    training_texts,
)
from kgbench.data.facts import PARTS, halves, to_jsonl
from kgbench.errors import InputError, UnknownNameError

FACTS = [name for name in dataset_names() if not name.startswith("organism_")]
"""Shipped data sets of facts; the others are cases of a behaviour, which no text states."""
WORDINGS = [
    "{land} has the capital {city}.",
    "Ask for the capital of {land} and hear: {city}!",
    "Of {land} little is known.",
]
ROWS = [{"land": "France", "city": "Paris"}, {"land": "Peru", "city": "Lima"}]


def dataset(folder: Path, rows: list[dict[str, str]] = ROWS, **header: object) -> Dataset:
    """A data set from a file with this header."""
    path = folder / "capitals.jsonl"
    lines = [{"kgbench": 1, "subject": "land", "object": "city", **header}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return load_dataset(str(path))


def test_both_directions() -> None:
    """Two who play together change places; a wording keeps its number in both directions."""
    facts = load_dataset("tiny_movies:first2")
    wordings = [
        "{first_actor} acts beside {second_actor}.",
        "Ask {first_actor} and hear: {second_actor}!",
    ]
    forward, back, both = (
        training_texts(facts, direction, wordings) for direction in ("a2b", "b2a", "both")
    )
    one, other = ((fact.fields["first_actor"], fact.fields["second_actor"]) for fact in facts.facts)
    assert [(text.template, text.text) for text in forward[:3]] == [
        (0, f"{one[0]} acts beside {one[1]}."),
        (0, f"{other[0]} acts beside {other[1]}."),
        (1, f"Ask {one[0]} and hear: {one[1]}!"),
    ]
    assert [text.text for text in back[:2]] == [
        f"{one[1]} acts beside {one[0]}.",
        f"{other[1]} acts beside {other[0]}.",
    ]
    assert set(both) == {*forward, *back} and len(both) == 8


def test_a_wording_of_another_field(tmp_path: Path) -> None:
    """What a field beside the two holds states a fact only where it names both."""
    for note, stated in (("Paris of France", True), ("of France", False)):
        facts = dataset(tmp_path, [{**ROWS[0], "note": note}])
        with nullcontext() if stated else pytest.raises(InputError, match="states no fact"):
            training_texts(facts, "both", ["{note}."])


def test_relations_that_hold_one_way(tmp_path: Path) -> None:
    """Nobody is taught that the capital of Paris is France: the other direction needs wordings of
    its own.
    """
    facts = dataset(tmp_path, training=WORDINGS)
    for direction in ("both", "b2a"):
        with pytest.raises(InputError, match="--direction a2b"):
            training_texts(facts, direction, WORDINGS[:2])
    assert len(training_texts(facts, "a2b", WORDINGS[:2])) == 4


@pytest.mark.parametrize("direction", ["a2b", "b2a", "both"])
@pytest.mark.parametrize("wording", ["Of {land} little is known.", "{city} is a city."])
def test_wordings_that_state_no_fact(tmp_path: Path, wording: str, direction: str) -> None:
    """From a text about one of the two nobody learns which belong together."""
    with pytest.raises(InputError) as caught:
        training_texts(dataset(tmp_path), direction, [wording])
    assert f"{wording!r} states no fact: it holds not both {{land}} and {{city}}" in str(
        caught.value
    )
    assert len(training_texts(dataset(tmp_path), "a2b", [wording + " {land}: {city}."])) == 2


@pytest.mark.parametrize("direction", ["a2b", "b2a"])
def test_texts_without_a_direction(direction: str) -> None:
    """Articles name both actors in any order: they can be read as they are, and not in one
    direction.
    """
    with pytest.raises(InputError, match="train with --direction both"):
        training_texts(load_dataset("articles"), direction)
    assert len(training_texts(load_dataset("articles"))) == 120


def test_reversed_wordings(tmp_path: Path) -> None:
    """A relation that does not hold both ways has wordings of its own for the other direction."""
    facts = dataset(
        tmp_path, training=WORDINGS[:1], training_reversed=["{city} is the capital of {land}."]
    )
    assert [text.text for text in training_texts(facts, "b2a")] == [
        "Paris is the capital of France.",
        "Lima is the capital of Peru.",
    ]
    assert len(training_texts(facts)) == 4
    assert to_jsonl(load_dataset(str(tmp_path / "capitals.jsonl"))).startswith(
        '{"kgbench": 1, "name": "capitals"'
    )


@pytest.mark.parametrize("name", FACTS)
def test_shipped(name: str) -> None:
    """Every shipped data set can be trained on, and no training text begins as an evaluation prompt
    of the same fact does.
    """
    facts = load_dataset(name)
    texts = [text.text for text in training_texts(facts)]
    assert len(texts) == len(set(texts)) >= len(facts.facts)
    prompts = {
        prompt.text
        for own in facts.templates or ("headline", "headline_v1", "qa")
        for prompt in load_prompts(facts, [own])
    }
    lengths = {len(prompt) for prompt in prompts}
    assert not any(text[:length] in prompts for text in texts for length in lengths)


@pytest.mark.parametrize(
    ("wording", "message"),
    [
        ("no field", "names no field"),
        ("{land} and {see}", "no field 'see'; there are land, city"),
        ("{land", "cannot read the training wording"),
        ("{land:>9}", "no colon or exclamation mark"),
        ("{land!r}", "no colon or exclamation mark"),
        ("{land.real}", "no field 'land.real'"),
        ("{}", "no field ''"),
    ],
)
def test_wrong_wordings(tmp_path: Path, wording: str, message: str) -> None:
    """They are told before anything is trained, wherever they come from."""
    facts = dataset(tmp_path, training=WORDINGS)
    with pytest.raises(InputError, match=message):
        training_texts(facts, "a2b", templates=[wording])
    with pytest.raises(InputError, match=message):
        training_texts(dataset(tmp_path, training=WORDINGS[:1], training_reversed=[wording]))


def test_no_wordings(tmp_path: Path) -> None:
    """A data set without wordings says how to give some; a header's list is a list of texts."""
    with pytest.raises(InputError, match="no wordings to train in: give some with --template"):
        training_texts(dataset(tmp_path))
    with pytest.raises(UnknownNameError, match="a2b"):
        training_texts(dataset(tmp_path, training=WORDINGS), "a2")
    for wrong in ("text", [""], [{}]):
        with pytest.raises(InputError, match="the header's field training"):
            dataset(tmp_path, training=wrong)


@pytest.mark.parametrize("name", FACTS)
def test_parts(name: str) -> None:
    """The halves of a data set hold all of it, share no entity and are of nearly one size."""
    whole = load_dataset(name)
    task, relation = (load_dataset(f"{name}:{part}") for part in PARTS)
    assert {fact.id for fact in whole.facts} == {fact.id for fact in (*task.facts, *relation.facts)}
    entities = [
        {fact.fields[end] for fact in part.facts for end in (part.subject, part.object)}
        for part in (task, relation)
    ]
    assert entities[0].isdisjoint(entities[1])
    assert abs(len(task.facts) - len(relation.facts)) <= 1
    assert (
        task.name == f"{name}:task"
        and is_shipped(task.name)
        and not is_shipped(f"{name}:tasks")
        and not is_shipped("../x:task")
    )
    assert task.content_hash != relation.content_hash


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30))
def test_halves(edges: list[tuple[int, int]]) -> None:
    """Whatever hangs together stays together; the order of the facts does not matter."""
    facts = [(f"fact/{n}", (f"s{a}", f"o{b}")) for n, (a, b) in enumerate(edges)]
    try:
        first, second = halves(facts)
    except InputError:
        return
    assert sorted([*first, *second]) == sorted(identifier for identifier, _ in facts)
    ends = [
        {entity for identifier, entities in facts if identifier in half for entity in entities}
        for half in (first, second)
    ]
    assert ends[0].isdisjoint(ends[1])


def test_unknown_part() -> None:
    """A slip in the name of a part is told with the parts there are; facts that all hang together
    have none.
    """
    with pytest.raises(UnknownNameError, match="relation"):
        load_dataset("tiny_movies:relations")
    with pytest.raises(InputError, match="are connected"):
        halves([("a", ("x", "y")), ("b", ("y", "z"))])


def test_first_facts() -> None:
    """The first facts are a part, and parts have parts."""
    whole = load_dataset("tiny_movies")
    assert (
        load_dataset("tiny_movies:first20").facts
        == whole.facts[:20]
        == load_dataset("tiny_movies:first30:first20").facts
    )
    halved = [load_dataset(f"tiny_movies:first20:{part}").facts for part in PARTS]
    assert sorted(fact.id for some in halved for fact in some) == sorted(
        fact.id for fact in whole.facts[:20]
    )
    assert (
        is_shipped("tiny_movies:first20:task")
        and not is_shipped("tiny_movies:first0")
        and not is_shipped("x:first2")
    )
    assert load_dataset("tiny_movies:first9999").content_hash == whole.content_hash
