"""The paper's figures, as the package's own data."""

from __future__ import annotations

from kgbench.leaderboard.published.figures import (
    Experiment,
    Paper,
    PublishedRow,
    experiments,
    paper,
    published,
)

__all__ = ["Experiment", "Paper", "PublishedRow", "experiments", "paper", "published"]
