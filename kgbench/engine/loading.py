"""Loading a pair and checking it before its figures are believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgbench.engine.selftest import verify
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.errors import KgbenchError, ModelError
from kgbench.models import pair as pairs
from kgbench.models.catalog import is_plant, read_plant, zoo_path
from kgbench.models.pair import ModelPair
from kgbench.sites import parse_graft

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
        raise ModelError(
            f"the family map of {loaded.family.model_type!r} cannot be tried: {type(error).__name__}: {error}"
        ) from error
    _, sources = pairs.pair_sources(name, options.get("recipient"), options.get("donors"))
    for donor in loaded.donors:
        folder = zoo_path(sources[donor]) or Path(sources[donor]).expanduser()
        if is_plant(folder):
            _check_plant(loaded, donor, read_plant(folder))
    return loaded


def _check_plant(pair: ModelPair, donor: str, card: Mapping[str, Any]) -> None:
    """Refuse a plant whose weights differ from the recipient's elsewhere than its card says, or nowhere there."""
    at = {text: _sites(pair, text) for text in (card["plant"], card.get("decoy")) if text}
    known = Slots(pair.family, pair.n_layers).sites
    moved = {known[slot] for slot in changed(pair, donor)}
    elsewhere = sorted(moved - set().union(*at.values()), key=known.index)
    if not elsewhere and all(moved & sites for sites in at.values()):
        return
    told = " and ".join(at)
    where = ", ".join(
        component if layer is None else f"{component}@{layer}" for layer, component in elsewhere[:3]
    )
    found = (
        f"its weights differ from the recipient's at {where} too"
        if elsewhere
        else "its weights do not differ from the recipient's there"
    )
    raise ModelError(
        f"donor {donor!r} ({pair.origins[donor]}): its card says that it was planted at {told}, and {found}"
    )


def _sites(pair: ModelPair, text: str) -> set[tuple[int | None, str]]:
    return {site for term in parse_graft(text).terms for site in term.sites(pair.n_layers)}
