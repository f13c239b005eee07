"""Checks of results for the board: all that need no model; submitted code is never run."""

from __future__ import annotations

from kgbench.leaderboard.validate.entry_files import Finding
from kgbench.leaderboard.validate.validation import CheckedEntry, validate, validate_folders

__all__ = ["CheckedEntry", "Finding", "validate", "validate_folders"]
