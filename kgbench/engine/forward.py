"""The only file that touches a model: per-token choice between weight sets, undone when the block ends.

Nothing is written to any weight. For the time of a block, modules of the recipient compute each packed token with the module of the
weight set that the token's treatment names; fused projections are put together from slices of the modules' outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from kgbench.engine.edits import POINTS, Hook
from kgbench.engine.treatment import Slots
from kgbench.errors import ModelError
from kgbench.models.family import Place, module_at
from kgbench.models.pair import ModelPair

__all__ = ["Activity", "Forward", "Wiring", "installed", "one_treatment", "reading", "treated"]

Forward = Callable[..., Tensor]
Readout = Int[Tensor, " answer"] | Int[np.ndarray, " answer"]
"""Tokens of a flattened batch at which the head is computed; in numpy's memory, no device is waited for."""

SPARSE = 0.15
"""Below this share of rows, computing all rows and then some again is faster than dividing them; measured on a CPU."""


@dataclass(frozen=True)
class Socket:
    """One module of the recipient, the slots that it computes, and its counterparts in every weight set."""

    modules: tuple[nn.Module, ...]
    """The recipient's module, then each donor's."""
    slots: tuple[int, ...]
    columns: tuple[Tensor, ...]
    """Output columns of each slot where the module is fused; empty where it computes one slot alone."""
    is_head: bool
    width: int
    """Output columns of a fused module; 0 otherwise."""
    path: str
    place: Place
    """How the module is called; slots that share it agree on that."""
    device: torch.device
    """Where the module computes; those of all weight sets are on one device."""

    def rows(self, x: Tensor) -> Tensor:
        """The module's input, or its output, with one row per token; it may have come flat already."""
        if not x.is_floating_point():
            return x.reshape(-1)
        return x if x.ndim == 2 else x.movedim(self.place.tokens, 1).flatten(0, 1)

    def whole(self, y: Tensor, x: Tensor) -> Tensor:
        """Rows of the output in the shape that the input `x` had."""
        if not x.is_floating_point():
            return y.reshape(*x.shape, y.shape[-1])
        if x.ndim == 2:
            return y
        return y.reshape(x.shape[0], x.shape[self.place.tokens], *y.shape[1:]).movedim(
            1, self.place.tokens
        )


@dataclass(frozen=True)
class Activity:
    """What is done beside the choice of weights, for one batch."""

    edits: Mapping[Hook, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """What becomes of the activations [..., width] at a hook."""
    masks: Mapping[int, Tensor] = field(default_factory=dict)
    """Attention masks of the layers that have one of their own."""


class Blend(nn.Module):
    """A module of the weights W + scale (W' - W): every weight-bearing module is linear in its weights."""

    def __init__(self, recipient: nn.Module, donor: nn.Module, scale: float) -> None:
        super().__init__()
        # Bound now: while a graft is in force, the recipient's module computes something else.
        self.recipient, self.donor, self.scale = recipient.forward, donor.forward, scale

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """The blended output."""
        y: Tensor = self.recipient(*inputs, **options)
        difference: Tensor = self.donor(*inputs, **options) - y
        return y + self.scale * difference


class Wiring:
    """All sockets of a pair.

    Args:
        pair: The models; the recipient is weight set 0.
        donors: For each further weight set, the module that stands at a path; by default those of the pair's donors.
    """

    def __init__(
        self, pair: ModelPair, donors: Sequence[Callable[[str], nn.Module]] | None = None
    ) -> None:
        self.pair = pair
        self.model = pair.recipient
        self.donors = (
            donors
            if donors is not None
            else [partial(module_at, donor) for donor in pair.donors.values()]
        )
        self.slots = Slots(pair.family, pair.n_layers)

    def scaled(self, sets: Sequence[tuple[int, float]]) -> Wiring:
        """The same with further weight sets: for each, a donor's number and the scale of its difference from the recipient."""
        if not sets:
            return self
        models = (partial(module_at, self.model), *self.donors)

        def blend(donor: int, scale: float) -> Callable[[str], nn.Module]:
            return lambda path: Blend(models[0](path), models[donor](path), scale)

        return Wiring(self.pair, [*self.donors, *(blend(donor, scale) for donor, scale in sets)])

    @cached_property
    def sockets(self) -> tuple[Socket, ...]:
        """Modules of the recipient in the order of the slots."""
        by_path: dict[str, list[int]] = {}
        for slot, (layer, component) in enumerate(self.slots.sites):
            for path in self.pair.family.paths(layer, component):
                by_path.setdefault(path, []).append(slot)
        return tuple(self._socket(path, slots) for path, slots in by_path.items())

    def _socket(self, path: str, slots: Sequence[int]) -> Socket:
        modules = (module_at(self.model, path), *(donor(path) for donor in self.donors))
        places = [self.pair.family.place(self.slots.sites[slot][1]) for slot in slots]
        fused = places[0].fused
        width = _width(modules[0]) if fused else 0
        device = _device(modules[0], self.pair.device)
        columns = (
            tuple(p.columns(width, self.model.config).to(device) for p in places) if fused else ()
        )
        head = self.pair.family.outside.get("head")
        return Socket(
            modules,
            tuple(slots),
            columns,
            head is not None and path == head.module,
            width,
            path,
            places[0],
            device,
        )


def _device(module: nn.Module, otherwise: torch.device) -> torch.device:
    """Where a module's weights are; offloaded ones come to the device that the model's input is on."""
    found = next((weight.device for weight in module.parameters()), otherwise)
    return otherwise if found.type == "meta" else found


def _width(module: nn.Module) -> int:
    """Number of output columns of a projection."""
    bias, width = (
        getattr(module, "bias", None),
        getattr(module, "out_features", None) or getattr(module, "nf", None),
    )
    return int(width) if width is not None else len(bias)  # type: ignore[arg-type]  # nn.Linear, Conv1D


@dataclass(frozen=True)
class Split:
    """Which rows each weight set computes."""

    everywhere: int | None
    """The weight set that computes all rows first, if one does."""
    parts: tuple[tuple[int, Int[Tensor, " _rows"]], ...]
    """Weight sets and the rows they compute."""
    order: Int[Tensor, " row"] | None = None
    """Where each row is once the parts are laid end to end, if no weight set computes all rows first."""


def _split(sets: UInt8[np.ndarray, " row"], device: torch.device) -> Split:
    present, counts = np.unique(sets, return_counts=True)
    most = int(present[counts.argmax()])
    if len(present) == 1:
        return Split(most, ())
    rows = {int(s): np.flatnonzero(sets == s) for s in present}
    parts = tuple((s, torch.from_numpy(r).to(device)) for s, r in rows.items())
    if len(sets) - counts.max() <= SPARSE * len(sets):
        return Split(most, tuple(part for part in parts if part[0] != most))
    order = np.argsort(np.concatenate(list(rows.values())))
    return Split(None, parts, torch.from_numpy(order).to(device))


def _divided(forwards: Sequence[Forward], split: Split, x: Tensor) -> Tensor:
    """Each row of `x` [row, ...] through the forward of its weight set."""
    computed = [forwards[weight_set](x.index_select(0, rows)) for weight_set, rows in split.parts]
    if split.order is not None:
        # Gathering from the parts takes half the time of scattering them.
        return torch.cat(computed).index_select(0, split.order)
    assert split.everywhere is not None
    y = forwards[split.everywhere](x)
    if computed and y.data_ptr() == x.data_ptr():
        y = y.clone()
    for (_, rows), part in zip(split.parts, computed, strict=True):
        y.index_copy_(0, rows, part)
    return y


@dataclass(frozen=True)
class Fusion:
    """Which rows of each slice of a fused projection each weight set computes."""

    most: int
    """The weight set that computes all rows first."""
    others: tuple[tuple[int, Int[Tensor, " _rows"], tuple[Int[Tensor, " _rows"], ...]], ...]
    """Weight set, the rows it is needed for, and for each slice which of these rows take it."""


def _fuse(sets: UInt8[np.ndarray, "row slice"], device: torch.device) -> Fusion:
    present, counts = np.unique(sets, return_counts=True)
    most = int(present[counts.argmax()])
    others = []
    for weight_set in (int(s) for s in present if s != most):
        wanted = sets == weight_set
        rows = np.flatnonzero(wanted.any(axis=1))
        slices = tuple(
            torch.from_numpy(np.flatnonzero(column)).to(device) for column in wanted[rows].T
        )
        others.append((weight_set, torch.from_numpy(rows).to(device), slices))
    return Fusion(most, tuple(others))


def _fused(
    forwards: Sequence[Forward],
    fusion: Fusion,
    columns: Sequence[Tensor],
    x: Float[Tensor, "row width"],
) -> Tensor:
    """Slices of a fused projection, each row's from its weight set."""
    y = forwards[fusion.most](x)
    for weight_set, rows, slices in fusion.others:
        part = forwards[weight_set](x.index_select(0, rows))
        for which, column in zip(slices, columns, strict=True):
            y[rows[which][:, None], column] = part[which[:, None], column]
    return y


@contextmanager
def treated(
    wiring: Wiring,
    table: UInt8[np.ndarray, "treatment slot"],
    tokens: Int[np.ndarray, " row"],
    readout: Readout,
    activity: Activity | None = None,
) -> Iterator[nn.Module]:
    """The recipient with the treatments of a batch in force.

    Args:
        wiring: The pair's sockets.
        table: Weight set of each slot under each treatment.
        tokens: Treatment of each token of the batch, flattened over rows and positions.
        readout: Tokens of the flattened batch at which the head is computed; the model's logits are [answer, vocabulary].
        activity: What is done beside.

    Yields:
        The recipient; it takes a batch of exactly `len(tokens)` tokens.
    """
    splits: dict[tuple[bytes, torch.device], Split | Fusion] = {}
    n, read = len(tokens), readout.cpu().numpy() if isinstance(readout, Tensor) else readout

    def override(socket: Socket, forwards: Sequence[Forward]) -> Forward | None:
        rows = tokens[read] if socket.is_head else tokens
        sets = table[:, socket.slots]
        alike = bool((sets == sets[:, :1]).all())
        key = sets.tobytes() + bytes([len(socket.slots), socket.is_head]), socket.device
        if key not in splits:
            splits[key] = (
                _split(sets[rows, 0], socket.device) if alike else _fuse(sets[rows], socket.device)
            )
        return _override(socket, forwards, splits[key], readout, n)

    with installed(_plans(wiring, override, activity or Activity()).items()):
        yield wiring.model


def _override(
    socket: Socket,
    forwards: Sequence[Forward],
    split: Split | Fusion,
    readout: Readout,
    n: int | None = None,
) -> Forward | None:
    """The forward to put in a module's place, in a batch of `n` tokens; None where the module itself will do."""
    everywhere = split.everywhere if isinstance(split, Split) and not split.parts else None
    if everywhere == 0 and not socket.is_head:
        return None
    read = (
        (readout if isinstance(readout, Tensor) else torch.from_numpy(readout)).to(socket.device)
        if socket.is_head
        else None
    )

    def forward(*inputs: Any, **options: Any) -> Tensor:
        name = socket.place.input
        x: Tensor = options[name] if name else inputs[0]
        own = [partial(_called, f, inputs, options, name) for f in forwards] if name else forwards
        flat = socket.rows(x)
        if everywhere is None and len(flat) != n:
            raise ModelError(
                f"the family map does not fit this model: {socket.path!r} computes {len(flat)} rows for {n} tokens, so that its input, "
                f"of shape {tuple(x.shape)}, does not count tokens in dimension {socket.place.tokens}"
            )
        flat = flat if read is None else flat.index_select(0, read)
        y = (
            _divided(own, split, flat)
            if isinstance(split, Split)
            else _fused(own, split, socket.columns, flat)
        )
        return y if socket.is_head else socket.whole(y, x)

    return forward


def _called(
    forward: Callable[..., Tensor],
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    name: str,
    rows: Tensor,
) -> Tensor:
    """A module called as it was, but on some rows of the argument that holds its input."""
    return forward(*inputs, **{**options, name: rows})


@contextmanager
def one_treatment(
    wiring: Wiring, weights: UInt8[np.ndarray, " slot"], activity: Activity | None = None
) -> Iterator[nn.Module]:
    """The recipient with one treatment in force for all tokens: the plain way, for the sequential executor.

    Every weight set that a module needs computes its whole output; the slices are then laid side by side.
    """

    def override(socket: Socket, forwards: Sequence[Forward]) -> Forward:
        def forward(*inputs: Any, **options: Any) -> Tensor:
            first = forwards[int(weights[socket.slots[0]])](*inputs, **options)
            if not socket.columns:
                return first
            whole = first.clone()
            for slot, columns in zip(socket.slots, socket.columns, strict=True):
                whole[..., columns] = forwards[int(weights[slot])](*inputs, **options)[..., columns]
            return whole

        return forward

    with installed(_plans(wiring, override, activity or Activity()).items()):
        yield wiring.model


@contextmanager
def reading(wiring: Wiring, readout: Readout) -> Iterator[nn.Module]:
    """The recipient as it is, with the head computed at some tokens of the flattened batch only."""

    def override(socket: Socket, forwards: Sequence[Forward]) -> Forward | None:
        return _override(socket, forwards, Split(0, ()), readout) if socket.is_head else None

    with installed(_by_socket(wiring.sockets, override)):
        yield wiring.model


@contextmanager
def installed(forwards: Iterable[tuple[nn.Module, Callable[..., object] | None]]) -> Iterator[None]:
    """Put forwards in the place of modules' own, and take them out again whatever happens; None leaves a module as it is."""
    before: list[tuple[nn.Module, Mapping[str, object]]] = []
    plans = list(
        forwards
    )  # all are made before any is installed, since a pair may hold one model in two roles
    try:
        for module, forward in plans:
            if forward is not None:
                before.append(
                    (
                        module,
                        {"forward": module.__dict__["forward"]}
                        if "forward" in module.__dict__
                        else {},
                    )
                )
                module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in reversed(before):
            module.__dict__.pop("forward", None)
            module.__dict__.update(own)


def _by_socket(
    sockets: Sequence[Socket], override: Callable[[Socket, Sequence[Forward]], Forward | None]
) -> Iterator[tuple[nn.Module, Forward | None]]:
    return ((s.modules[0], override(s, [m.forward for m in s.modules])) for s in sockets)


def _plans(
    wiring: Wiring,
    override: Callable[[Socket, Sequence[Forward]], Forward | None],
    activity: Activity,
) -> dict[nn.Module, Callable[..., object] | None]:
    """Forwards of the sockets' modules, and of the layers that an activity concerns, their attention and MLP.

    A module may be both, such as a norm behind attention; what is done to its output is then done to what the socket computes.
    """
    plans: dict[nn.Module, Callable[..., object] | None] = dict(
        _by_socket(wiring.sockets, override)
    )

    def edit(path: str, **changes: Any) -> None:
        if any(change is not None for change in changes.values()):
            module = module_at(wiring.model, path)
            plans[module] = _edited(plans.get(module) or module.forward, **changes)

    family, home = wiring.pair.family, wiring.pair.device
    for layer in sorted({hook.layer for hook in activity.edits} | set(activity.masks)):
        path = f"{family.layers}.{layer}"
        device = _device(module_at(wiring.model, path), home)
        at = {
            point: _at_home(activity.edits.get(Hook(layer, point)), device, home)
            for point in POINTS
        }
        mask = activity.masks.get(layer)
        edit(path, before=at["resid_pre"], after=at["resid_post"])
        edit(f"{path}.{family.attending}", mask=None if mask is None else mask.to(device))
        edit(f"{path}.{family.attention}", after=at["attn_out"])
        edit(f"{path}.{family.mlp}", after=at["mlp_out"])
    return plans


def _at_home(
    edit: Callable[[Tensor], Tensor] | None, device: torch.device, home: torch.device
) -> Callable[[Tensor], Tensor] | None:
    """An edit of activations that are on a device, where all that edits hold is on the pair's."""
    return edit if edit is None or device == home else lambda x: edit(x.to(home)).to(device)


def _edited(
    forward: Callable[..., Any],
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
    mask: Tensor | None = None,
) -> Callable[..., Any]:
    """A module's forward with its input, its (first) output and its attention mask replaced."""

    def edited(*inputs: Any, **options: Any) -> Any:
        if before is not None and inputs:
            inputs = (before(inputs[0]), *inputs[1:])
        elif before is not None:
            options["hidden_states"] = before(options["hidden_states"])
        if mask is not None:
            options["attention_mask"] = mask
        output = forward(*inputs, **options)
        if after is None:
            return output
        # A copy, since models may add to it in place, and what was noted of it is kept.
        return (
            (after(output[0]).clone(), *output[1:])
            if isinstance(output, tuple)
            else after(output).clone()
        )

    return edited
