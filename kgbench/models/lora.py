"""Low-rank donors: models that share all weights with the recipient and add to some of its linear modules what an adapter holds.

The sum of a base's weight and an adapter's rows (LoRA, arXiv 2106.09685, section 4.1) is never kept: a donor takes the memory of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError
from kgbench.models.adapter import Adapter
from kgbench.models.sharing import shared_copy

__all__ = ["LowRank", "adapted", "plain", "plain_names"]

Linear = nn.Linear | Conv1D


class LowRank(nn.Module):
    """A linear module W x + B A x, beside another's weight W and bias.

    Args:
        base: The module that holds W.
        a: The inward rows A.
        b: The outward rows B, the adapter's scale in them.
    """

    def __init__(
        self, base: Linear, a: Float[Tensor, "rank in"], b: Float[Tensor, "out rank"]
    ) -> None:
        super().__init__()
        self.base = base
        self.a, self.b = (nn.Parameter(rows, requires_grad=False) for rows in (a, b))

    def forward(self, x: Tensor) -> Tensor:
        """What the merged module would compute, but for rounding."""
        y: Tensor = self.base(x)
        return y + linear(linear(x, self.a), self.b)

    @property
    def weight(self) -> nn.Parameter:
        """The merged weight W + B A, in the base's layout and type: made anew each time, for what reads weights."""
        with torch.no_grad():
            change = self.b @ self.a
            return nn.Parameter(
                self.base.weight + (change.T if isinstance(self.base, Conv1D) else change),
                requires_grad=False,
            )

    @property
    def bias(self) -> nn.Parameter | None:
        """The base's bias."""
        return self.base.bias

    @property
    def out_features(self) -> int:
        """Number of output columns."""
        return len(self.b)


def plain(module: nn.Module) -> nn.Module:
    """The module itself, or that beside which a low-rank one stands: of one type and shape in all models of a pair."""
    return module.base if isinstance(module, LowRank) else module


def plain_names(module: nn.Module, plainly: str = "", here: str = "") -> dict[str, str]:
    """For each parameter that a module without adapters would have, what it is called in this one: a low-rank module's is its base's.

    The derivative by the base's weight is that by the merged one; `get_parameter` with the plain name gives the merged weight itself.

    Args:
        module: A module of any kind.
        plainly: What plain names begin with.
        here: What this module's own begin with.
    """
    if isinstance(module, LowRank):
        return plain_names(module.base, plainly, f"{here}base.")
    found = {
        f"{plainly}{name}": f"{here}{name}" for name, _ in module.named_parameters(recurse=False)
    }
    for name, child in module.named_children():
        found.update(plain_names(child, f"{plainly}{name}.", f"{here}{name}."))
    return found


def adapted(
    recipient: PreTrainedModel, adapter: Adapter, origin: str, note: str = ""
) -> PreTrainedModel:
    """The donor that an adapter makes of a recipient.

    Args:
        recipient: The model beside whose weights the rows stand; it is left as it is.
        adapter: The adapter.
        origin: What to call it in an error.
        note: What to add where it does not fit.

    Raises:
        ModelError: It does not fit the recipient.
    """
    donor = shared_copy(recipient)
    try:
        with torch.no_grad():
            for path, module in _low_rank(donor, adapter):
                owner, _, name = path.rpartition(".")
                setattr(donor.get_submodule(owner), name, module)
            for name, tensor in _replaced(recipient, adapter):
                owner, _, leaf = name.rpartition(".")
                setattr(donor.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
    except ModelError as error:
        raise ModelError(f"{origin} does not fit the recipient: {error}{note}") from None
    donor.eval()
    return donor


def _low_rank(donor: PreTrainedModel, adapter: Adapter) -> Iterator[tuple[str, LowRank]]:
    """The modules to put in the place of the donor's linear ones."""
    modules, rows, head = dict(donor.named_modules()), adapter.rows, donor.get_output_embeddings()
    targets = adapter.config.targets(
        modules,
        [p for p, module in modules.items() if isinstance(module, Linear) and module is not head],
    )
    for path in rows:
        if path not in modules:
            raise ModelError(f"it adapts {path!r}, which the recipient does not have")
        if path not in targets:
            raise ModelError(f"it holds rows of {path!r}, which its target_modules do not name")
    for path in sorted(targets):
        module = modules[path]
        if not isinstance(module, Linear):
            raise ModelError(
                f"its target_modules name {path!r}, of type {type(module).__name__}; only linear modules are grafted with rows"
            )
        if missing := {"A", "B"} - {*rows.get(path, ())}:
            raise ModelError(
                f"it lacks {path}.lora_{min(missing)}.weight, the rows of a module that its target_modules name"
            )
        yield path, _beside(module, path, adapter)


def _beside(module: Linear, path: str, adapter: Adapter) -> LowRank:
    inputs, outputs = (
        module.weight.shape if isinstance(module, Conv1D) else module.weight.shape[::-1]
    )
    rank = adapter.config.rank(path)
    a, b = (adapter.rows[path][which] for which in "AB")
    for which, tensor, expected in (("A", a, [rank, inputs]), ("B", b, [outputs, rank])):
        if list(tensor.shape) != expected:
            raise ModelError(
                f"{path}.lora_{which}.weight is {list(tensor.shape)}, expected {expected}"
            )
    return LowRank(
        module,
        _fitted(a, module.weight, path),
        _fitted(b.double() * adapter.config.scale(path), module.weight, path),
    )


def _replaced(recipient: nn.Module, adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """Names and values of the weights that are replaced as a whole."""
    ours = dict(recipient.named_parameters())
    for name, stored in adapter.whole.items():
        if name not in ours:
            raise ModelError(f"it holds {name!r}, which the recipient does not have")
        if stored.shape != ours[name].shape:
            raise ModelError(f"{name} is {list(stored.shape)}, expected {list(ours[name].shape)}")
        tensor = _fitted(stored, ours[name], name)
        if adapter.config.saves(name.rpartition(".")[0]):
            yield name, tensor
        elif not torch.equal(tensor, ours[name]):
            raise ModelError(
                f"it holds other weights for {name!r}, which its modules_to_save do not name"
            )
    if missing := [
        name
        for name in ours
        if adapter.config.saves(name.rpartition(".")[0]) and name not in adapter.whole
    ]:
        raise ModelError(f"it lacks {missing[0]!r}, which its modules_to_save name")


def _fitted(tensor: Tensor, like: Tensor, name: str) -> Tensor:
    """A tensor in the type and at the place of the base's."""
    found = tensor.to(like)
    if not found.isfinite().all():
        raise ModelError(
            f"{name} does not fit into {like.dtype}: some of it is too large; load the pair in another type"
        )
    return found
