"""Laws of what a localizer says of itself."""

from __future__ import annotations

import json
from dataclasses import replace

from kgbench.localizers import COSTS, FLOORS, NEEDS, InterventionLocalizer, ScoringLocalizer
from kgbench.testing.trial import Trial, expect

__all__ = ["DECLARATIONS"]

BASES = {"intervention": InterventionLocalizer, "scoring": ScoringLocalizer}


def says_what_it_is(trial: Trial) -> None:
    """Name, version and description are text, the description on one line; the kind is that of the class."""
    made = trial.localizer
    for what in ("name", "version", "about", "paper"):
        expect(
            isinstance(getattr(made, what), str),
            f'{what} is no text: set {what} = "..." in the class',
        )
    expect(
        made.name.isidentifier(),
        f"name is {made.name!r}: expected letters, digits and underscores, as in a Python name",
    )
    expect(
        bool(made.version.strip()),
        'version is empty: set version = "1", and raise it whenever the answers change',
    )
    expect(
        bool(made.about.strip()) and "\n" not in made.about,
        f"about is {made.about!r}: expected one line that says what the method does",
    )
    base = BASES.get(made.kind)
    expect(base is not None, f"kind is {made.kind!r}: expected one of {', '.join(BASES)}")
    expect(
        base is not None and isinstance(made, base),
        f"kind is {made.kind!r}, but the class does not derive from {base and base.__name__}",
    )


def declares_in_known_words(trial: Trial) -> None:
    """Needs, floor and cost are among the words that kgbench knows."""
    made = trial.localizer
    unknown = sorted(set(made.needs) - set(NEEDS))
    expect(
        not unknown,
        f"needs holds {', '.join(map(repr, unknown))}: expected some of {', '.join(NEEDS)}",
    )
    expect(made.floor in FLOORS, f"floor is {made.floor!r}: expected one of {', '.join(FLOORS)}")
    expect(made.cost in COSTS, f"cost is {made.cost!r}: expected one of {', '.join(COSTS)}")


def parameters_can_be_recorded(trial: Trial) -> None:
    """The parameters are the fields of a frozen dataclass, and JSON: they are part of a result's identity."""
    made = trial.localizer
    declared = vars(type(made)).get("__dataclass_params__")
    expect(
        declared is not None and declared.frozen,
        "the class is no frozen dataclass: write @dataclass(frozen=True) above it",
    )
    expect(replace(made) == made, "two of the same parameters are not equal")
    try:
        json.dumps(made.parameters(), allow_nan=False)
    except (TypeError, ValueError) as error:
        expect(
            False,
            f"parameters cannot be written as JSON ({error}): expected numbers, texts, truth values, None, or lists of these",
        )


DECLARATIONS = (says_what_it_is, declares_in_known_words, parameters_can_be_recorded)
