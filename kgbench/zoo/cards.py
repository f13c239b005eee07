"""Cards of tiny pairs and plants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kgbench.errors import DataError
from kgbench.models.catalog import CARD


def read_card(path: Path) -> dict[str, Any]:
    """A card as `kgbench.runner.training.builds.write_card` writes it.

    Args:
        path: The card, or the folder that it is in.

    Raises:
        DataError: The file is no card.
    """
    path = path / CARD if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["identity"], content["seed"], content["scores"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is no card of a tiny pair ({error})") from None
    return dict(content)
