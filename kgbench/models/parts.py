"""Parts of donors: a share of what finetuning changed, or some singular directions of an adapter."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy

from transformers import PreTrainedModel

from kgbench.errors import InputError
from kgbench.models.lora import LowRank
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import put_weight, same_bits, shared_copy
from kgbench.sites import DonorPart, named_donor, part_of


def with_parts(pair: ModelPair, names: Collection[str]) -> ModelPair:
    """A pair with the parts of its donors that some grafts name, such as `0.5*sft` or `sft[0-3]`.

    Args:
        pair: The models, which stay as they are.
        names: Names of donors and of parts of donors.

    Returns:
        The pair itself where it has them all.

    Raises:
        UnknownNameError: There is no such donor.
        InputError: The donor has no such directions.
    """
    donors = dict(pair.donors)
    for name in (named_donor(name, pair.donors) for name in names):
        if name not in donors and (part := part_of(name)).donor in donors:
            donors[name] = _part(pair, part)
    if len(donors) == len(pair.donors):
        return pair
    more = copy(pair)
    more.donors = donors
    if pair.reading is not None:
        more.reading = (pair.reading, *donors)
    return more


def _part(pair: ModelPair, part: DonorPart) -> PreTrainedModel:
    """The base with a part of what a donor changes; nothing of it is a copy but what differs."""
    model = shared_copy(pair.donors[part.donor])
    rows = {path: each for path, each in model.named_modules() if isinstance(each, LowRank)}
    if part.directions is not None:
        _check_directions(part, rows.values())
    for path, module in rows.items():
        which = part.directions
        a, b = (module.a, module.b) if which is None else module.directions(which)
        model.set_submodule(path, LowRank(module.base, a, part.share * b))
    for name, ours in pair.recipient.named_parameters():
        owner = name.rpartition(".")[0]
        if owner in rows:
            continue
        theirs = model.get_parameter(name)
        if same_bits(ours, theirs):
            continue
        if part.directions is not None:
            raise InputError(
                f"the donor {part.donor!r} changes {name}, which is no low-rank change, and "
                f"'{part}' asks for singular directions, which a LoRA adapter alone has"
            )
        put_weight(model, name, ours + part.share * (theirs - ours))
    return model


def _check_directions(part: DonorPart, rows: Collection[LowRank]) -> None:
    assert part.directions is not None
    if not rows:
        raise InputError(
            f"'{part}' asks for singular directions, which a LoRA adapter alone has, and the donor "
            f"{part.donor!r} is none; a share of its change can be had, such as =0.5*{part.donor}"
        )
    rank = max(len(each.a) for each in rows)
    if part.directions.stop > rank:
        raise InputError(
            f"'{part}' asks for direction {part.directions.stop - 1}, and the adapter "
            f"{part.donor!r} has rank {rank}: directions 0-{rank - 1}"
        )
