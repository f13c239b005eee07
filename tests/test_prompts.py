"""Templates and prompts: text, spans, and what is refused."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.data import (
    Dataset,
    Fact,
    builtin_prompts,
    load_dataset,
    load_prompts,
    prompt_hash,
    prompt_names,
)
from kgbench.data.templates import parse_template
from kgbench.errors import InputError, UnknownNameError

PROTOCOL = {
    "headline": "{first_actor} stars in a movie alongside",
    "headline_v1": "{first_actor} stars in in a movie alongside",
    "qa": "Q: Who stars in a movie with {first_actor}? A: An actor named",
    "movie_title": "{first_actor} stars in {movie_title} alongside",
    "movie_title_v1": "{first_actor} stars in in {movie_title} alongside",
    "new_film": (
        "In a new film, {first_actor} appears in {movie_title} with the other lead actor, whose"
        " name is:"
    ),
    "control": "{movie_title} stars {first_actor} and",
}
REGIONS = {
    "headline": {"R": "stars", "RP": "in", "P": "alongside"},
    "headline_v1": {"R": "stars", "RP": "in in", "P": "alongside"},
    "qa": {"R": "stars", "RP": "in", "P": "with"},
    "movie_title": {"R": "stars", "RP": "in", "P": "alongside"},
    "movie_title_v1": {"R": "stars", "RP": "in in", "P": "alongside"},
    "new_film": {"R": "appears", "RP": "in", "P": "with"},
    "control": {"R": "stars"},
}
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip).filter(bool)


def dataset(templates: dict[str, str] | None = None, **fields: str) -> Dataset:
    facts = (
        Fact(
            "own/1",
            fields or {"first_actor": "Ana Lee", "second_actor": "Bob Ray", "movie_title": "In In"},
        ),
    )
    subject, object_ = list(facts[0].fields)[:2]
    return Dataset("own", facts, subject, object_, templates or {}, {}, "")


def only(template: str, **fields: str) -> tuple[str, dict[str, str]]:
    """Text and regions' texts of the one prompt of a template."""
    (prompt,) = load_prompts(dataset({"own": template}, **fields), ["own"])
    return prompt.text, {region: prompt.text[slice(*span)] for region, span in prompt.spans.items()}


def test_the_built_in_prompts_are_the_protocol() -> None:
    """No row more or less, each with its source."""
    assert set(prompt_names()) == set(PROTOCOL)
    assert all(row.source and "\n" not in row.source for row in builtin_prompts().values())


@pytest.mark.parametrize("name", PROTOCOL)
@given(first_actor=VALUES, second_actor=VALUES, movie_title=VALUES)
def test_text_and_spans_for_any_values(
    name: str, first_actor: str, second_actor: str, movie_title: str
) -> None:
    """The text is the protocol's to the letter, and each span holds its value, whatever braces or
    repetitions are in it.
    """
    (prompt,) = load_prompts(
        dataset(first_actor=first_actor, second_actor=second_actor, movie_title=movie_title), [name]
    )
    assert prompt.text == PROTOCOL[name].format(first_actor=first_actor, movie_title=movie_title)
    expected = {
        "FE": first_actor,
        **REGIONS[name],
        **({"M": movie_title} if "{movie_title}" in PROTOCOL[name] else {}),
    }
    assert {region: prompt.text[slice(*span)] for region, span in prompt.spans.items()} == expected
    assert prompt.target == second_actor


def test_spans_come_from_filling() -> None:
    """A name that holds the words around it does not draw their spans to itself."""
    (prompt,) = load_prompts(dataset(first_actor="stars in", second_actor="x"), ["headline"])
    assert prompt.text == "stars in stars in a movie alongside"
    assert prompt.spans == {"FE": (0, 8), "R": (9, 14), "RP": (15, 17), "P": (26, 35)}


def test_order_and_limit() -> None:
    """All facts of the first prompt, then of the second; the limit takes the first facts of each."""
    prompts = load_prompts("fake_movies_fake_actors", ["qa", "headline"], limit=2)
    assert [(prompt.name, prompt.fact.id[-2:]) for prompt in prompts] == [
        ("qa", "/1"),
        ("qa", "/2"),
        ("headline", "/1"),
        ("headline", "/2"),
    ]
    assert (
        len(load_prompts("fake_movies_fake_actors", ["qa"]))
        == len(load_prompts("fake_movies_fake_actors", ["qa"], 10**6))
        == 1000
    )


@pytest.mark.parametrize("limit", [0, -3, True, 2.5])
def test_limit_must_be_positive(limit: int) -> None:
    """A limit that is no positive whole number is refused."""
    with pytest.raises(InputError, match=r"limit must be a whole number of facts, 1 or more, got"):
        load_prompts("fake_movies_fake_actors", ["qa"], limit)


def test_unknown_prompts_name_the_data_sets_own_too() -> None:
    """The list of what is known holds built-in prompts and the data set's."""
    with pytest.raises(
        UnknownNameError, match=r"unknown prompt 'asks'\. Did you mean 'ask'\?.*headline"
    ):
        load_prompts(dataset({"ask": "{subject} asks"}), ["asks"])


def test_own_templates() -> None:
    """``{subject}`` is the subject; only its first mention is FE; a doubled brace is a brace; M can
    be marked by hand.
    """
    text, regions = only(
        "{{{subject}}} {land}: {M:big} land {P:of}", land="Pe{r}u", capital="Lima", movie_title="x"
    )
    assert text == "{Pe{r}u} Pe{r}u: big land of"
    assert regions == {"FE": "Pe{r}u", "M": "big", "P": "of"}
    (prompt,) = load_prompts(
        dataset({"own": "{land}, {subject}"}, land="Peru", capital="Lima"), ["own"]
    )
    assert prompt.spans == {"FE": (0, 4)}


def test_any_name_in_capitals_is_a_region() -> None:
    """Words and fields can be marked by names of one's own."""
    text, regions = only(
        "{subject} {ADVERB:often} {Q_2:{word}} {P:of}", land="Peru", capital="Lima", word="is"
    )
    assert text == "Peru often is of"
    assert regions == {"FE": "Peru", "ADVERB": "often", "Q_2": "is", "P": "of"}


def test_a_title_can_be_the_subject() -> None:
    """Regions may overlap: a subject that is the movie title is both."""
    assert only("{subject} is {P:by}", movie_title="It", director="X")[1] == {
        "FE": "It",
        "M": "It",
        "P": "by",
    }


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{subject", "cannot read the template"),
        ("subject} is", "cannot read the template"),
        ("{} {subject} is", "empty pair of braces"),
        ("{subject!r} is", "the conversion '!r'"),
        ("{subject} {R:}", "R must mark words"),
        ("{subject} {R:a {land}}", "R must mark words"),
        ("{subject} {q:stars}", "unknown region 'q'"),
        ("{subject} {REST:stars}", "unknown region 'REST'"),
        ("{subject} {Q:{stars}}", "needs the field 'stars'"),
        ("{FE:she} and {subject}", "unknown region 'FE'"),
        ("{subject:>9} is", "unknown region 'subject'"),
        ("{subject} {P:in} {P:of}", "marks region P 2 times"),
        ("{subject} is ", "ends with a blank"),
        ("nobody is", "does not mention the subject: write {land} or {subject}"),
        ("{subject} has {object} as", "mentions 'capital', the object of data set 'own'"),
        ("{subject} has {capital} as", "mentions 'capital', the object of data set 'own'"),
    ],
)
def test_faulty_templates(template: str, message: str) -> None:
    """What is wrong with a template is said in one line that names the prompt."""
    with pytest.raises(InputError) as caught:
        load_prompts(dataset({"own": template}, land="Peru", capital="Lima"), ["own"])
    assert message in str(caught.value)
    assert "'own'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "two words", "a,b"])
def test_names_of_prompts_fit_a_command_line(name: str) -> None:
    """Names are given in lists with commas."""
    with pytest.raises(InputError, match="cannot name a prompt"):
        parse_template(name, "{subject}")


@given(st.text(string.ascii_letters + " {}:!R", max_size=12))
def test_any_text_is_a_template_or_an_input_error(text: str) -> None:
    """Nothing but an InputError comes of reading a template."""
    try:
        only("{subject}" + text, x="1", y="2")
    except InputError as error:
        assert "\n" not in str(error)


def test_hash_is_of_the_template() -> None:
    """Another wording or another mark is another hash; the facts do not count."""
    hashes = {prompt_hash(name, "fake_movies_fake_actors") for name in prompt_names()}
    assert len(hashes) == len(prompt_names())
    assert prompt_hash("qa", "fake_movies_fake_actors") == prompt_hash("qa", dataset())
    marked, bare = dataset({"own": "{subject} {R:is}"}), dataset({"own": "{subject} is"})
    assert prompt_hash("own", marked) != prompt_hash("own", bare)
    with pytest.raises(UnknownNameError):
        prompt_hash("own", dataset())


def test_prompts_can_be_keys() -> None:
    """Equal prompts hash alike, so that they can stand in sets."""
    loaded = load_dataset("fake_movies_fake_actors")
    first, again = load_prompts(loaded, ["qa"], 1)[0], load_prompts(loaded, "qa", 1)[0]
    assert len({first, again, dataclasses.replace(first, name="other")}) == 2
