"""Load a model pair and verify it before use."""

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
        **options: Options of `kgbench.models.pair.load_pair`: `recipient`, `donors`, `dtype`,
            `device`, `revision`, `chat_template`, `attention`, `share`, `stream_donors`,
            `device_map`. `share` is on by default: parameters of a donor that equal the recipient's
            are stored once.

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
    except Exception as error:  # with a wrong map, a model may raise anything
        raise ModelError(
            f"the family map of {loaded.family.model_type!r} cannot be tried: "
            f"{type(error).__name__}: {error}"
        ) from error
    _, sources = pairs.pair_sources(name, options.get("recipient"), options.get("donors"))
    for donor in loaded.donors:
        folder = zoo_path(sources[donor]) or Path(sources[donor]).expanduser()
        if is_plant(folder):
            _check_plant(loaded, donor, read_plant(folder))
    return loaded


def _check_plant(pair: ModelPair, donor: str, card: Mapping[str, Any]) -> None:
    """Check that a plant's weights differ from the recipient's exactly at the sites of its card.

    Raises:
        ModelError: They differ elsewhere too, or not at all at the plant or at the decoy.
    """
    at = {text: _sites(pair, text) for text in (card["plant"], card.get("decoy")) if text}
    known = Slots(pair.family, pair.n_layers).sites
    moved = {known[slot] for slot in changed(pair, donor)}
    elsewhere = sorted(moved - set().union(*at.values()), key=known.index)
    if not elsewhere and all(moved & sites for sites in at.values()):
        return
    expected = " and ".join(at)
    where = ", ".join(
        component if layer is None else f"{component}@{layer}" for layer, component in elsewhere[:3]
    )
    difference = (
        f"its weights differ from the recipient's at {where} too"
        if elsewhere
        else "its weights do not differ from the recipient's there"
    )
    raise ModelError(
        f"donor {donor!r} ({pair.origins[donor]}): its card says that it was planted at "
        f"{expected}, and {difference}"
    )


def _sites(pair: ModelPair, text: str) -> set[tuple[int | None, str]]:
    sites: set[tuple[int | None, str]] = set()
    for term in parse_graft(text).terms:
        sites.update(term.sites(pair.n_layers))
    return sites
