"""Singular directions of LoRA donors as donors of their own: `sft[0]`, `sft[0-3]`.

The change B A of a matrix is decomposed through its rows alone (QR of B and of Aᵀ, and the singular
values of a matrix of the adapter's rank), so that no matrix of full size is made. The largest is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from kgbench.errors import InputError
from kgbench.models.lora import LowRank, plain_names
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import same_bits, shared_copy
from kgbench.sites import Graft, directions_of, named_donor, parse_graft


def with_directions(pair: ModelPair, grafts: Iterable[str | Graft]) -> ModelPair:
    """The pair with a donor for all directions that some grafts name; itself where none does.

    Args:
        pair: The models, with which the new pair shares all weights.
        grafts: Configurations; `PRE`, `SFT` and what is no graft name none.

    Raises:
        UnknownNameError: There is no donor of such a name.
        InputError: A donor is more than an adapter's rows, or has not so many directions.
    """
    made: dict[str, PreTrainedModel] = {}
    for graft in grafts:
        if isinstance(graft, str):
            if "[" not in graft:
                continue
            graft = parse_graft(graft)
        for name in graft.donors():
            donor, ends = directions_of(name)
            if ends is not None and name not in pair.donors:
                made[name] = _restricted(pair, named_donor(donor, pair.donors), *ends)
    if not made:
        return pair
    whole = replace(pair, donors={**pair.donors, **made})
    whole._encoded, whole._read = pair._encoded, pair._read
    whole.reading = None if pair.reading is None else (pair.reading, *made)
    return whole


def _restricted(pair: ModelPair, name: str, first: int, last: int) -> PreTrainedModel:
    """A donor whose change of each matrix has some of its directions."""
    donor = shared_copy(pair.donor(name))
    ranks, rows = [0], set[str]()
    for path, module in list(donor.named_modules()):
        if isinstance(module, LowRank):
            rows.update(f"{path}.{leaf}" for leaf in plain_names(module))
            ranks.append(len(module.a))
            a, b = restricted_rows(module.a, module.b, first, last)
            donor.set_submodule(path, LowRank(module.base, a, b))
    others = pair.donor(name)
    for leaf, weight in pair.recipient.named_parameters():
        if leaf not in rows and not same_bits(weight, others.get_parameter(leaf)):
            raise InputError(
                f"donor {name!r} changes {leaf} by more than the rows of a LoRA adapter, and "
                f"singular directions ({name}[{first}]) are of such rows: graft components or "
                "layers of it instead; kgbench diff shows the rank of its changes"
            )
    if last >= max(ranks):
        raise InputError(
            f"donor {name!r} has no direction {last}: its changes have at most {max(ranks)}, "
            f"0-{max(ranks) - 1}"
        )
    return donor


def restricted_rows(
    a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"], first: int, last: int
) -> tuple[Float[Tensor, "direction in"], Float[Tensor, "out direction"]]:
    """Rows A' and B' whose product is B A in its singular directions from `first` to `last`."""
    outward, inward, (left, values, right) = row_singular_values(a, b)
    some = slice(first, last + 1)
    return (right[some] @ inward.T).to(a), (outward @ (left[:, some] * values[some])).to(b)


def row_singular_values(
    a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Orthonormal columns of B and of Aᵀ, and the decomposition of B A in these, in float64."""
    outward, upper = torch.linalg.qr(b.detach().double())
    inward, lower = torch.linalg.qr(a.detach().double().T)
    return outward, inward, tuple(torch.linalg.svd(upper @ lower.T, full_matrices=False))
