"""A method that fails, and one that cannot be made."""

from dataclasses import dataclass

from kgbench.localizers import ScoringLocalizer


@dataclass(frozen=True)
class Crashing(ScoringLocalizer):
    """Fails."""

    name = "crashing"
    about = "fails"

    def scores(self, pair, prompts):
        """Print a word and fail."""
        print("on the way")
        raise ZeroDivisionError("no\nway")


@dataclass(frozen=True)
class Unmade(Crashing):
    """Cannot be made."""

    def __post_init__(self):
        raise ZeroDivisionError("never")
