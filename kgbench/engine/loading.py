"""Loading a pair and checking it before its figures are believed."""

from __future__ import annotations

from typing import Any

from kgbench.engine.selftest import verify
from kgbench.errors import KgbenchError, ModelError
from kgbench.models import pair as pairs
from kgbench.models.pair import ModelPair

__all__ = ["load_pair"]


def load_pair(name: str | None = None, **options: Any) -> ModelPair:
    """Load a model pair and verify its family map on its own weights.

    Args:
        name: A name in the catalog.
        **options: As `kgbench.models.pair.load_pair` takes them: `recipient`, `donors`, `dtype`, `device`, `revision`, `chat_template`,
            `attention`, `share`, `stream_donors`, `device_map`; parameters of a donor that equal the recipient's are held once by default.

    Raises:
        UnknownNameError: There is no pair of this name.
        ModelError: A checkpoint is missing, or the checkpoints do not fit each other.
        LawError: The family map does not fit the models.
    """
    loaded = pairs.load_pair(name, **{"share": True, **options})
    try:
        verify(loaded)
    except KgbenchError:
        raise
    except Exception as error:  # a map of one's own can make a model do anything
        raise ModelError(f"the family map of {loaded.family.model_type!r} cannot be tried: {type(error).__name__}: {error}") from error
    return loaded
