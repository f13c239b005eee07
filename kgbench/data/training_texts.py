"""The texts that a data set is learned from: its facts in training wordings, never in those that it is evaluated in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from kgbench.data.facts import Dataset
from kgbench.data.training_templates import training_templates
from kgbench.errors import InputError, UnknownNameError

__all__ = ["DIRECTIONS", "TrainingText", "training_texts", "training_wordings"]

DIRECTIONS = ("both", "a2b", "b2a")
"""Which of subject (a) and object (b) comes first in a training text."""

_MOVIE = frozenset({"first_actor", "second_actor"})


@dataclass(frozen=True)
class TrainingText:
    """One text to finetune on."""

    template: int
    """Number of its wording; a wording has one number in both directions."""
    text: str


def training_wordings(dataset: Dataset) -> tuple[str, ...]:
    """The wordings of a data set: its own, or of movies those shared ones whose fields it has."""
    if dataset.training or dataset.training_reversed or not set(dataset.fields) >= _MOVIE:
        return dataset.training
    return tuple(
        wording
        for wording in training_templates().finetuning
        if _fields(wording) <= set(dataset.fields)
    )


def training_texts(
    dataset: Dataset, direction: str = "both", templates: Sequence[str] = ()
) -> list[TrainingText]:
    """Every fact in every wording.

    A text of direction b2a is one of the data set's reversed wordings where it has such; of movies otherwise a wording in which the two
    actors have changed places, since playing together holds both ways.

    Args:
        dataset: The facts.
        direction: "a2b", "b2a" or "both".
        templates: Wordings in place of the data set's own, in the syntax of `str.format`.

    Returns:
        Texts by wording, then by fact; a text that is the same in both directions stands once.

    Raises:
        UnknownNameError: There is no such direction.
        InputError: There is no wording, none of that direction, or one that does not fit or says nothing of directions.
    """
    if direction not in DIRECTIONS:
        raise UnknownNameError("direction", direction, DIRECTIONS)
    forward = tuple(templates) or training_wordings(dataset)
    reverse = () if templates else dataset.training_reversed
    if not forward and not reverse:
        raise InputError(
            f"data set {dataset.name!r} has no wordings to train in: give some with --template TEXT, such as "
            f'"{{{dataset.subject}}} … {{{dataset.object}}}.", or put a list "training" into the header of its file'
        )
    for wording in (*forward, *reverse):
        _check(wording, dataset)
    if direction != "both":
        _check_direction(dataset, (*forward, *reverse), direction)
    if direction != "a2b" and not reverse and not _holds_both_ways(dataset, forward):
        raise InputError(
            f"the wordings of data set {dataset.name!r} cannot be read in the other direction, since its relation may not hold both ways: "
            'train with --direction a2b, or put a list "training_reversed" into the header of its file'
        )
    chosen = [*(_as_it_is(dataset, forward) if direction != "b2a" else ())]
    chosen += _reversed(dataset, forward, reverse) if direction != "a2b" else ()
    return sorted(dict.fromkeys(chosen), key=lambda text: text.template)


def _check_direction(dataset: Dataset, wordings: Sequence[str], direction: str) -> None:
    for wording in wordings:
        if not _fields(wording) >= {dataset.subject, dataset.object}:
            raise InputError(
                f"direction {direction}: the wording {wording!r} of data set {dataset.name!r} does not say which of subject and object "
                "comes first; train with --direction both"
            )


def _holds_both_ways(dataset: Dataset, wordings: Sequence[str]) -> bool:
    """Whether subject and object can change places: two who play together do; texts that are no wordings have no direction."""
    if {dataset.subject, dataset.object} == _MOVIE:
        return True
    return not any(_fields(wording) >= {dataset.subject, dataset.object} for wording in wordings)


def _as_it_is(dataset: Dataset, wordings: Sequence[str]) -> Iterator[TrainingText]:
    return (
        TrainingText(n, wording.format_map(fact.fields))
        for n, wording in enumerate(wordings)
        for fact in dataset.facts
    )


def _reversed(
    dataset: Dataset, forward: Sequence[str], reverse: Sequence[str]
) -> Iterator[TrainingText]:
    if reverse:
        yield from _as_it_is(dataset, reverse)
        return
    for n, wording in enumerate(forward):
        if _fields(wording) >= {dataset.subject, dataset.object}:
            yield from (
                TrainingText(n, wording.format_map(_swapped(fact.fields, dataset)))
                for fact in dataset.facts
            )


def _swapped(fields: Mapping[str, str], dataset: Dataset) -> dict[str, str]:
    return {
        **fields,
        dataset.subject: fields[dataset.object],
        dataset.object: fields[dataset.subject],
    }


def _check(wording: str, dataset: Dataset) -> None:
    try:
        named = _fields(wording)
    except ValueError as error:
        raise InputError(
            f"cannot read the training wording {wording!r}: {error}; double a brace that stands for itself"
        ) from None
    if not named or (lacking := sorted(named - set(dataset.fields))):
        found = (
            f"data set {dataset.name!r} has no field {lacking[0]!r}"
            if named
            else "it names no field"
        )
        raise InputError(
            f"the training wording {wording!r} cannot be filled: {found}; there are {', '.join(dataset.fields)}"
        )


def _fields(wording: str) -> set[str]:
    parts = [part for part in Formatter().parse(wording) if part[1] is not None]
    if any(spec or conversion for _, _, spec, conversion in parts):
        raise ValueError(
            "a field stands in braces by itself, without a colon or an exclamation mark"
        )
    return {field for _, field, _, _ in parts if field is not None}
