"""Whether a result may stand on the board: every check that needs no model, and nothing that runs what was submitted."""

from __future__ import annotations

from kgbench.leaderboard.validate.findings import Finding
from kgbench.leaderboard.validate.validate import Checked, validate, validate_folders

__all__ = ["Checked", "Finding", "validate", "validate_folders"]
