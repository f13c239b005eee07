"""Which prompts hold their answer, and how."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kgbench.data import ImportOptions, load_dataset, load_prompts
from kgbench.data.prompts import Giveaways, find_giveaways


def found(tmp_path: Path, template: str, row: tuple[str, str, str]) -> Giveaways:
    """The groups of one fact, which has subject, object and hint."""
    path = tmp_path / "own.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("subject", "object", "hint"), row])
    dataset = load_dataset(str(path), ImportOptions(templates={"ask": template}))
    return find_giveaways(dataset, load_prompts(dataset, ["ask"]))


@pytest.mark.parametrize(
    ("text", "target", "leaks_it"),
    [
        ("Paris Hilton lives in", "Paris", True),
        ("PARIS is in", "paris", True),
        ("Parisians live in", "Paris", False),
        ("He writes C++ in", "C++", True),
        ("He writes C in", "C++", False),
        ("東京都の首都は", "東京", True),
        ("In 2007 and", "007", False),
        ("the_one is", "one", True),
        ("Zoë's is", "Zoë", True),
        ("a (b", "(", True),
    ],
)
def test_a_leak_is_the_answer_as_words_of_its_own(
    tmp_path: Path, text: str, target: str, leaks_it: bool
) -> None:
    """Capitals do not matter; letters that go on do, in scripts with blanks between words."""
    assert bool(found(tmp_path, "{subject}", (text, target, "x")).by_field) == leaks_it


@pytest.mark.parametrize(
    ("text", "subject", "target", "kind"),
    [
        ("The capital of {subject} is", "Guatemala", "Guatemala City", "first_word"),
        ("The capital of {subject} is", "GUATEMALA", "Guatemala-City", "first_word"),
        ("{subject} is in", "Washington", "Washington, D.C.", "first_word"),
        ("The capital of {subject} is", "Guatemalans", "Guatemala City", None),
        ("{subject} is", "東京", "東京 City", "first_word"),
        ("Is {subject} a mammal, yes or no? Answer:", "a cat", "yes", "in_wording"),
        ("Is {subject} a mammal, yes or no? Answer:", "a yes man", "yes", "by_field"),
        ("Choose A, B, C or D. {subject}:", "Ein Maß", "c", "in_wording"),
        ("New {subject}, new", "York", "New York", "by_field"),
        ("New York, {subject}", "x", "New York", "in_wording"),
        ("Straße {subject} {hint}", "ßß", "x", "by_field"),
        ("{subject}s in", "Panama", "Panama City", None),
        ("{subject} -", "x", "-5", None),
    ],
)
def test_each_giveaway_is_of_one_kind(
    tmp_path: Path, text: str, subject: str, target: str, kind: str | None
) -> None:
    """The whole answer from a field, or in the template's own words, or else its first word,
    wherever that stands.
    """
    groups = vars(found(tmp_path, text, (subject, target, "x")))
    assert [name for name, some in groups.items() if some] == ([kind] if kind else [])
