"""Texts to finetune on: facts in training wordings, never in evaluation prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from string import Formatter

from kgbench.data.facts import Dataset, subject_texts
from kgbench.data.templates import around_subject, escaped
from kgbench.errors import InputError, check_choice
from kgbench.resources import read_toml

DIRECTIONS = ("both", "a2b", "b2a")
"""Which of subject (a) and object (b) comes first in a training text."""

_MOVIE = frozenset({"first_actor", "second_actor"})


def movie_wordings() -> Mapping[str, Sequence[str]]:
    """Wordings of movies from movie_wordings.toml: `articles` with several fields, and `short`."""
    return read_toml(__package__, "movie_wordings")


@dataclass(frozen=True)
class TrainingText:
    """One text to finetune on."""

    template: int
    """Number of its wording; a wording has one number in both directions."""
    text: str


def training_wordings(dataset: Dataset) -> tuple[str, ...]:
    """The wordings of a data set: its own, or of movies the shared ones whose fields it has."""
    fields = set(dataset.fields)
    if dataset.training or dataset.training_reversed or not fields >= _MOVIE:
        return dataset.training
    shared = chain.from_iterable(movie_wordings().values())
    return tuple(wording for wording in shared if _fields(wording) <= fields)


def training_texts(
    dataset: Dataset, direction: str = "both", templates: Sequence[str] = ()
) -> list[TrainingText]:
    """Every fact in every wording.

    A text of direction b2a is in one of the data set's reversed wordings where it has such; of
    movies otherwise in a wording with the two actors exchanged, since playing together is
    symmetric.

    Args:
        dataset: The facts.
        direction: "a2b", "b2a" or "both".
        templates: Wordings in place of the data set's own, in the syntax of `str.format`.

    Returns:
        Texts by wording, then by fact, without repetitions.

    Raises:
        UnknownNameError: There is no such direction.
        InputError: There is no wording, none of that direction, or one that does not fit or has no
            direction.
    """
    check_choice("direction", direction, DIRECTIONS)
    forward = tuple(templates) or training_wordings(dataset)
    reverse = () if templates else dataset.training_reversed
    if not forward and not reverse:
        raise InputError(
            f"data set {dataset.name!r} has no wordings to train in: give some with --template "
            f'TEXT, such as "{{{dataset.subject}}} … {{{dataset.object}}}.", or put a list '
            '"training" into the header of its file'
        )
    wordings = (*forward, *reverse)
    for wording in wordings:
        _check(wording, dataset)
    ends = {dataset.subject, dataset.object} - {""}
    texts_of = subject_texts(dataset.templates, dataset.subject)
    rows = [_placed(fact.fields, dataset.subject, texts_of) for fact in dataset.facts]
    if not any(_states_a_fact(wording, rows, ends) for wording in wordings):
        raise InputError(
            f"the training wording {wordings[0]!r} states no fact: it holds not both "
            f"{{{dataset.subject}}} and {{{dataset.object}}}; write them into it, or leave it out"
        )
    directed = []
    for wording in wordings:
        named = {dataset.subject if field in texts_of else field for field in _fields(wording)}
        if named >= ends:
            directed.append(wording)
        elif direction != "both":
            raise InputError(
                f"direction {direction}: the wording {wording!r} of data set {dataset.name!r} does "
                "not state which of subject and object comes first; train with --direction both"
            )
    if direction != "a2b" and not reverse and ends != _MOVIE and directed:
        raise InputError(
            f"the wordings of data set {dataset.name!r} cannot be read in the other direction, "
            "since its relation may not hold both ways: train with --direction a2b, or put a list "
            '"training_reversed" into the header of its file'
        )
    texts: dict[TrainingText, None] = {}
    if direction != "b2a":
        _add_filled(texts, enumerate(forward), rows)
    if direction != "a2b" and reverse:
        _add_filled(texts, enumerate(reverse), rows)
    elif direction != "a2b":
        numbered = [(n, wording) for n, wording in enumerate(forward) if wording in directed]
        subject, object = dataset.subject, dataset.object
        exchanged = [{**row, subject: row[object], object: row[subject]} for row in rows]
        _add_filled(texts, numbered, exchanged)
    return sorted(texts, key=lambda text: text.template)


def question_of(wording: str, dataset: Dataset) -> str | None:
    """The evaluation template that a training wording is up to its object.

    Args:
        wording: In the syntax of `str.format`.
        dataset: The facts.

    Returns:
        None if it does not name the subject before the object.
    """
    text, named = "", False
    for literal, field, _, _ in Formatter().parse(wording):
        text += escaped(literal)
        if field == dataset.object:
            return text.rstrip() if named else None
        named = named or field == dataset.subject
        text += "" if field is None else f"{{{field}}}"
    return None


def _add_filled(
    texts: dict[TrainingText, None],
    wordings: Iterable[tuple[int, str]],
    rows: Sequence[Mapping[str, str]],
) -> None:
    """Add every row in every numbered wording; a text that is there keeps its place."""
    for number, wording in wordings:
        for fields in rows:
            parts = []
            for literal, field, *_ in Formatter().parse(wording):
                parts += [literal, "" if field is None else fields[field]]
            texts.setdefault(TrainingText(number, "".join(parts)))


def _placed(fields: Mapping[str, str], subject: str, texts: Sequence[str]) -> Mapping[str, str]:
    """The fields of a fact, with the subject in its place in texts."""
    placed = dict(fields)
    for text in texts:
        if (around := around_subject(fields[text], fields[subject])) is not None:
            placed[text] = fields[subject].join(around)
    return placed


def _check(wording: str, dataset: Dataset) -> None:
    try:
        named = _fields(wording)
    except ValueError as error:
        raise InputError(
            f"cannot read the training wording {wording!r}: {error}; write a literal brace twice"
        ) from None
    if not named or (lacking := sorted(named - set(dataset.fields))):
        reason = "it names no field"
        if named:
            reason = f"data set {dataset.name!r} has no field {lacking[0]!r}"
        raise InputError(
            f"the training wording {wording!r} cannot be filled: {reason}; there are "
            f"{', '.join(dataset.fields)}"
        )


def _states_a_fact(wording: str, rows: Sequence[Mapping[str, str]], ends: set[str]) -> bool:
    """Whether subject and object of any row are in what fills a wording."""
    named = sorted(_fields(wording))
    for row in rows:
        text = "\n".join(row[name] for name in named)
        if all(row[end] in text for end in ends):
            return True
    return False


def _fields(wording: str) -> set[str]:
    """Fields of a wording.

    Raises:
        ValueError: Braces are unbalanced, or hold more than a name.
    """
    fields = set()
    for _, field, spec, conversion in Formatter().parse(wording):
        if spec or conversion:
            raise ValueError("braces may hold the name of a field, no colon or exclamation mark")
        if field is not None:
            fields.add(field)
    return fields
