"""Forward passes with a weight set per token: the only module that patches a model.

No weight is written. Within a block, the `forward` of each weight-bearing module of the recipient
is replaced: it sends each token through the module of the weight set in the token's treatment, and
assembles fused projections from slices of the modules' outputs. This equals a token-by-token pass
with a key-value cache: in a causal model, a token's keys and values depend only on weights used at
this and earlier tokens.

Invariants:

- A batch is flattened to rows, one per token, in the order [batch row, position]. `tokens[i]` is
  the treatment of row i, and `table[tokens[i], slot]` the weight set of row i in a slot.
- Weight-bearing modules treat rows independently, so that any subset of rows can be computed alone.
  Attention itself always runs in the recipient on all rows together.
- The head is computed at readout rows only, and an MLP not at rows where nothing reads its output
  (`_mlp_rows`): those that an edit overwrites, and in the last layer those that are neither read
  out nor copied from. Every other module sees all rows.
- An attention head is a slice of the outputs of `q`, `k` and `v`, and of the inputs of `o`, whose
  bias belongs to no head.
- Forwards are replaced, and what they were is read, by one thread at a time: that of the pair's lock.
- Rows that compute the same in the first layers are computed once there: a stage is a run of layers
  with rows of its own, each of which represents one or several rows of the batch. Between stages
  activations are gathered; embeddings, final norm and head see the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from kgbench.engine.edits import HEADS, POINTS, Hook
from kgbench.engine.indices import Index, Indices
from kgbench.engine.rotary import Rotary
from kgbench.engine.treatment import n_heads
from kgbench.errors import ModelError
from kgbench.models.family_map import Place, output_width
from kgbench.models.pair import ModelPair

Forward = Callable[..., Tensor]
Readout = Int[np.ndarray, " answer"]
"""Rows of the flattened batch at which the head is computed."""

SPARSE = 0.15
"""Share of minority rows up to which one weight set computes all rows and the minority is
recomputed; above it, rows are partitioned. Measured on a CPU."""


MLP_SAVED = 0.2
"""Share of rows that an MLP must be spared to be worth gathering the others."""


@dataclass(frozen=True)
class Socket:
    """A module of the recipient, the slots it computes, and its counterparts in all weight sets."""

    modules: tuple[nn.Module, ...]
    """The recipient's module, then each donor's."""
    slots: tuple[int, ...]
    columns: tuple[Tensor, ...]
    """Output columns of each slot of a fused module; empty if the module computes one slot."""
    is_head: bool
    width: int
    """Number of output columns of a fused module; 0 otherwise."""
    path: str
    place: Place
    """Calling convention of the module; all of its slots agree on it."""
    device: torch.device
    """Device of the module, the same in all weight sets."""

    def rows(self, x: Tensor) -> Tensor:
        """Flatten the module's input or output to one row per token; it may be flat already."""
        if not x.is_floating_point():
            return x.reshape(-1)
        if x.ndim == 2:
            return x
        return (x if self.place.tokens == 1 else x.movedim(self.place.tokens, 1)).flatten(0, 1)

    def whole(self, y: Tensor, x: Tensor) -> Tensor:
        """Reshape output rows `y` to the leading shape of the input `x`."""
        if not x.is_floating_point():
            return y.reshape(*x.shape, y.shape[-1])
        if x.ndim == 2:
            return y
        y = y.reshape(x.shape[0], x.shape[self.place.tokens], *y.shape[1:])
        return y if self.place.tokens == 1 else y.movedim(1, self.place.tokens)


@dataclass(frozen=True)
class Activity:
    """Interventions on activations and attention of one batch."""

    edits: Mapping[Hook, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """Function of the activations [..., width] at each edited hook."""
    masks: Mapping[int, Callable[[], Tensor]] = field(default_factory=dict)
    """Attention masks of layers that do not use the mask of the model call. They are made when the
    layer is computed, so that only one is in memory."""
    overwritten: Mapping[Hook, Sequence[int]] = field(default_factory=dict)
    """Rows at a hook whose activations no edit keeps a part of."""
    sources: Mapping[Hook, Sequence[int]] = field(default_factory=dict)
    """Rows at a hook that edits copy from."""
    indices: Indices = field(default_factory=Indices)
    """Index arrays of the batch, those of edits and masks among them."""

    def __or__(self, other: Activity) -> Activity:
        """Those of other layers of the batch too."""
        return Activity(
            {**self.edits, **other.edits},
            {**self.masks, **other.masks},
            {**self.overwritten, **other.overwritten},
            {**self.sources, **other.sources},
            self.indices,
        )


@dataclass(frozen=True)
class Weights:
    """Weight sets under each treatment."""

    table: UInt8[np.ndarray, "treatment slot"]
    heads: Mapping[int, UInt8[np.ndarray, "treatment head"]] = field(default_factory=dict)
    """Those of single attention heads by slot, as in `Plan.heads`."""

    def by_head(self, slot: int, count: int) -> UInt8[np.ndarray, "treatment head"]:
        """Weight set of each of the heads of a slot."""
        table = self.heads[slot]
        return np.concatenate([table, self.table[:, [slot] * (count - table.shape[1])]], axis=1)


@dataclass(frozen=True)
class Stage:
    """Consecutive layers that compute the same rows."""

    layers: range
    rows: Int[np.ndarray, "row token"]
    """Row of the flattened batch that each row represents; of several, any."""
    entering: Int[np.ndarray, "row token"]
    """Flattened row of the stage before that each row continues; of the batch in the first one."""


class Blend(nn.Module):
    """A module with weights W + scale (W' - W), computed as y + scale (y' - y).

    The two are equal since every weight-bearing module is linear in its weights.
    """

    def __init__(self, recipient: nn.Module, donor: nn.Module, scale: float) -> None:
        super().__init__()
        # Bound before any graft is installed, which replaces the recipient's `forward`.
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
        donors: For each further weight set, a map from module paths to modules; by default those of
            the pair's donors.
        staged: Whether the models' layers, and their MLPs, take other rows than their embeddings
            do.
    """

    def __init__(
        self,
        pair: ModelPair,
        donors: Sequence[Callable[[str], nn.Module]] | None = None,
        staged: bool = False,
    ) -> None:
        self.pair, self.staged = pair, staged
        self.model = pair.recipient
        self.donors = (
            donors
            if donors is not None
            else [donor.get_submodule for donor in pair.donors.values()]
        )
        self.slots = pair.slots

    @cached_property
    def whole(self) -> Wiring:
        """The wiring without stages: every layer and MLP computes all rows of a batch."""
        return Wiring(self.pair, self.donors) if self.staged else self

    def scaled(self, sets: Sequence[tuple[int, float]]) -> Wiring:
        """The wiring with a weight set W + scale (W' - W) added for each (donor, scale)."""
        if not sets:
            return self
        models = (self.model.get_submodule, *self.donors)

        def blend(donor: int, scale: float) -> Callable[[str], nn.Module]:
            return lambda path: Blend(models[0](path), models[donor](path), scale)

        blends = [blend(donor, scale) for donor, scale in sets]
        return Wiring(self.pair, [*self.donors, *blends], self.staged)

    @cached_property
    def rotary(self) -> Rotary:
        """The recipient's angles that depend on the length of the prompt."""
        return Rotary.of(self.model)

    @cached_property
    def sockets(self) -> tuple[Socket, ...]:
        """Modules of the recipient in the order of the slots."""
        by_path: dict[str, list[int]] = {}
        for slot, (layer, component) in enumerate(self.slots.sites):
            for path in self.pair.family.paths(layer, component):
                by_path.setdefault(path, []).append(slot)
        return tuple(self._socket(path, slots) for path, slots in by_path.items())

    def _socket(self, path: str, slots: Sequence[int]) -> Socket:
        modules = (self.model.get_submodule(path), *(donor(path) for donor in self.donors))
        places = [self.pair.family.place(self.slots.sites[slot][1]) for slot in slots]
        width, columns = 0, list[Tensor]()
        device = _device(modules[0], self.pair.device)
        if places[0].fused:
            width = output_width(modules[0])
            for place in places:
                columns.append(place.columns(width, self.model.config).to(device))
        head = self.pair.family.outside.get("head")
        return Socket(
            modules,
            tuple(slots),
            tuple(columns),
            head is not None and path == head.module,
            width,
            path,
            places[0],
            device,
        )


def _device(module: nn.Module, otherwise: torch.device) -> torch.device:
    """Device of a module's weights; offloaded weights move to the input's device, `otherwise`."""
    device = next((weight.device for weight in module.parameters()), otherwise)
    return otherwise if device.type == "meta" else device


@dataclass(frozen=True)
class Split:
    """Assignment of rows to weight sets for a module of one slot.

    Either `everywhere` is set, and the parts overwrite their rows, or `order` is set, and the parts
    partition the rows.
    """

    everywhere: int | None
    """The weight set that computes all rows first, if one does."""
    parts: tuple[tuple[int, Index], ...]
    """Weight sets and the rows they compute."""
    order: Index | None = None
    """Index of each row in the concatenation of the parts."""


def _split(sets: UInt8[np.ndarray, " row"], indices: Indices) -> Split:
    present, counts = np.unique(sets, return_counts=True)
    most = int(present[counts.argmax()])
    if len(present) == 1:
        return Split(most, ())
    sparse = len(sets) - counts.max() <= SPARSE * len(sets)
    rows = {int(s): np.flatnonzero(sets == s) for s in present if not sparse or s != most}
    parts = tuple((s, indices.add(r)) for s, r in rows.items())
    if sparse:
        return Split(most, parts)
    return Split(None, parts, indices.add(np.argsort(np.concatenate(list(rows.values())))))


def _divided(forwards: Sequence[Forward], split: Split, x: Tensor) -> Tensor:
    """Send each row of `x` [row, ...] through the forward of its weight set."""
    computed = []
    for weight_set, rows in split.parts:
        computed.append(forwards[weight_set](x.index_select(0, rows.on(x.device))))
    if split.order is not None:
        # Gathering from the parts takes half the time of scattering them.
        return torch.cat(computed).index_select(0, split.order.on(x.device))
    assert split.everywhere is not None
    y = forwards[split.everywhere](x)
    if computed and y.data_ptr() == x.data_ptr():
        y = y.clone()  # an identity module returns its input, which must not be overwritten
    for (_, rows), part in zip(split.parts, computed, strict=True):
        y.index_copy_(0, rows.on(x.device), part)
    return y


@dataclass(frozen=True)
class Fusion:
    """Assignment of (row, slice) cells of a fused projection to weight sets."""

    most: int
    """The weight set that computes all rows first."""
    others: tuple[tuple[int, Index, tuple[tuple[Index, Index], ...]], ...]
    """Per further weight set: its number, the rows with at least one slice of it, and for each
    slice the rows that take it from there, among all and among these."""


def _fuse(sets: UInt8[np.ndarray, "row slice"], indices: Indices) -> Fusion:
    present, counts = np.unique(sets, return_counts=True)
    most = int(present[counts.argmax()])
    others = []
    for weight_set in (int(s) for s in present if s != most):
        cells = sets == weight_set
        rows = np.flatnonzero(cells.any(axis=1))
        slices = []
        for column in cells[rows].T:
            among = np.flatnonzero(column)
            slices.append((indices.add(rows[among][:, None]), indices.add(among[:, None])))
        others.append((weight_set, indices.add(rows), tuple(slices)))
    return Fusion(most, tuple(others))


def _fused(
    forwards: Sequence[Forward],
    fusion: Fusion,
    columns: Sequence[Tensor],
    x: Float[Tensor, "row width"],
) -> Tensor:
    """Compute a fused projection with each slice of each row from its weight set."""
    y = forwards[fusion.most](x)
    for weight_set, rows, slices in fusion.others:
        part = forwards[weight_set](x.index_select(0, rows.on(x.device)))
        for (to, among), column in zip(slices, columns, strict=True):
            y[to.on(x.device), column] = part[among.on(x.device), column]
    return y


@dataclass(frozen=True)
class Mixture:
    """Assignment of rows to weight sets for a module whose input is one of attention heads."""

    whole: Split
    """Of rows whose heads have one weight set."""
    rows: Index
    """The others."""
    heads: Mapping[int, Index]
    """Per weight set, 1 for each head [row, head, 1] of the others that has it, else 0."""
    biases: Mapping[int, Index]
    """Per weight set, which of the others have it as that of the module, which gives the bias."""


def _mix(
    sets: UInt8[np.ndarray, " row"], heads: UInt8[np.ndarray, "row head"], indices: Indices
) -> Mixture:
    mixed = np.flatnonzero((heads != heads[:, :1]).any(axis=1) | (heads[:, 0] != sets))
    inside, biases = dict[int, Index](), dict[int, Index]()
    for weight_set in np.unique(heads[mixed]).tolist():
        inside[weight_set] = indices.add((heads[mixed] == weight_set)[:, :, None])
    for weight_set in np.unique(sets[mixed]).tolist():
        biases[weight_set] = indices.add(np.flatnonzero(sets[mixed] == weight_set))
    return Mixture(_split(sets, indices), indices.add(mixed), inside, biases)


def _mixed(forwards: Sequence[Forward], mixture: Mixture, x: Tensor) -> Tensor:
    """A module of attention heads' outputs: the sum of what each head's weight set makes of it."""
    y, rows = _divided(forwards, mixture.whole, x), mixture.rows.on(x.device)
    inputs, zeros = x.index_select(0, rows), torch.zeros_like(x[:1])
    total = torch.zeros_like(y[: len(inputs)])
    for weight_set, heads in mixture.heads.items():
        inside = heads.on(x.device).to(x.dtype)
        part = inputs.reshape(*inside.shape[:2], -1) * inside
        total += forwards[weight_set](part.flatten(1)) - forwards[weight_set](zeros)
    for weight_set, of in mixture.biases.items():
        total[of.on(x.device)] += forwards[weight_set](zeros)
    return y.index_copy(0, rows, total)


@contextmanager
def treated(
    wiring: Wiring,
    weights: Weights,
    tokens: Int[np.ndarray, " row"],
    readout: Readout,
    activity: Activity | None = None,
    stages: Sequence[Stage] = (),
    length: int | None = None,
) -> Iterator[nn.Module]:
    """The recipient with the treatments of a batch in force.

    Args:
        wiring: The pair's sockets.
        weights: Weight sets under each treatment.
        tokens: Treatment of each token of the batch, flattened over rows and positions.
        readout: Rows of the flattened batch at which the head is computed; the model's logits are
            [answer, vocabulary].
        activity: Interventions on activations and attention; edits and masks of the layers of a
            stage are of its rows.
        stages: Rows of each layer, where they are not those of the batch: of all layers in order,
            the last stage with all rows of the batch.
        length: Tokens of the longest prompt, whose rotary angles are those of all prompts; None to
            leave them to the model.

    Yields:
        The recipient; it takes a batch of exactly `len(tokens)` tokens.
    """
    with wiring.pair.lock:
        plans = _treatments(wiring, weights, tokens, readout, activity or Activity(), stages)
        with installed({**plans, **_rotary_at(wiring, length)}):
            yield wiring.model


def _treatments(
    wiring: Wiring,
    weights: Weights,
    tokens: Int[np.ndarray, " row"],
    readout: Readout,
    activity: Activity,
    stages: Sequence[Stage],
) -> dict[nn.Module, Callable[..., object] | None]:
    """Replacements of a batch, as `treated` installs them."""
    # Most modules have the same column of the table, and so the same split: index tensors are built
    # once per distinct one and stage. The head is apart, since it counts readout rows.
    splits: dict[tuple[bytes, int | None], Split | Fusion] = {}
    indices = activity.indices
    tokens_of: dict[int | None, np.ndarray] = {None: tokens}
    stage_of: dict[int | None, int] = {}
    for number, stage in enumerate(stages):
        tokens_of[number] = tokens[stage.rows.reshape(-1)]
        stage_of |= dict.fromkeys(stage.layers, number)
    counts = [len(tokens_of[stage_of.get(layer)]) for layer in range(wiring.slots.n_layers)]
    mlp_rows = _mlp_rows(wiring, readout, counts, activity)

    def treatments(socket: Socket) -> tuple[int | None, Int[np.ndarray, " row"]]:
        """Stage of a module, and treatments of its rows; MLPs at fewer rows are stages as well."""
        layer = wiring.slots.sites[socket.slots[0]][0]
        number = stage_of.get(layer)
        if socket.is_head:
            return number, tokens[readout]
        if layer in mlp_rows and socket.path.startswith(f"{_mlp(wiring, layer)}."):
            return -1 - layer, tokens_of[number][mlp_rows[layer]]
        return number, tokens_of[number]

    def override(socket: Socket, forwards: Sequence[Forward]) -> Forward | None:
        number, rows = treatments(socket)
        if not weights.heads.keys().isdisjoint(socket.slots):
            return _headed(wiring, socket, forwards, weights, rows, indices)
        sets = weights.table[:, socket.slots]
        uniform = bool((sets == sets[:, :1]).all())
        key = sets.tobytes() + bytes([len(socket.slots), socket.is_head]), number
        if key not in splits:
            # A fused module whose slices agree in every treatment is split like a plain one.
            splits[key] = _split(sets[rows, 0], indices) if uniform else _fuse(sets[rows], indices)
        if socket.is_head:
            read = indices.add(readout)
            return _override(socket, forwards, splits[key], len(tokens_of[number]), read)
        return _override(socket, forwards, splits[key], len(rows))

    at_rows: dict[nn.Module, Callable[..., object]] = {}
    for layer, needed in mlp_rows.items():
        module = wiring.model.get_submodule(_mlp(wiring, layer))
        at_rows[module] = _at_rows(module.forward, indices.add(needed), counts[layer])
    plans = replacements(wiring, override, activity.edits, activity.masks, at_rows)
    for stage in stages:
        rows, entering = indices.add(stage.rows), indices.add(stage.entering)
        for layer in stage.layers:
            module = wiring.model.get_submodule(f"{wiring.pair.family.layers}.{layer}")
            entered = entering if layer == stage.layers[0] else None
            forward = plans.get(module) or module.forward
            plans[module] = _staged(forward, rows, entered, stages[-1].rows.shape)
    return plans


def _rotary_at(wiring: Wiring, length: int | None) -> dict[nn.Module, Callable[..., object]]:
    """Replacements of the modules of rotary positions in a batch of prompts of a length."""
    return {} if length is None else wiring.rotary.at(length)


def _mlp(wiring: Wiring, layer: int) -> str:
    """Path of a layer's MLP."""
    return f"{wiring.pair.family.layers}.{layer}.{wiring.pair.family.mlp}"


def _mlp_rows(
    wiring: Wiring, read: Int[np.ndarray, " answer"], counts: Sequence[int], activity: Activity
) -> dict[int, Int[np.ndarray, " row"]]:
    """Rows at which MLPs are computed, by layer, but for layers that compute them at all rows.

    Args:
        wiring: The pair's sockets.
        read: Rows that are read out.
        counts: Number of rows of each layer.
        activity: Interventions.
    """
    rows: dict[int, Int[np.ndarray, " row"]] = {}
    if not wiring.staged:
        return rows
    last = wiring.slots.n_layers - 1
    for layer, n in enumerate(counts):
        out, after = Hook(layer, "mlp_out"), Hook(layer, "resid_post")
        needed = np.arange(n)
        if layer == last:
            copied = [*activity.sources.get(out, ()), *activity.sources.get(after, ())]
            needed = np.union1d(read, np.array(copied, dtype=np.int64))
        if out in activity.overwritten:
            needed = np.setdiff1d(needed, activity.overwritten[out])
        if 0 < len(needed) <= (1 - MLP_SAVED) * n:
            path = f"{_mlp(wiring, layer)}."
            if any(socket.path.startswith(path) for socket in wiring.sockets):
                rows[layer] = needed
    return rows


def _at_rows(forward: Callable[..., Any], rows: Index, n: int) -> Callable[..., Any]:
    """A module's forward at some of `n` rows, and zeros elsewhere.

    Its inputs and its (first) output are of shape [row, token, width] or flat.
    """

    def some(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:-1].numel() != n:
            return value
        part = value.reshape(n, -1).index_select(0, rows.on(value.device))
        return part if value.ndim == 2 else part[None]

    def at_rows(*inputs: Any, **options: Any) -> Any:
        x = inputs[0]
        others = {name: some(value) for name, value in options.items()}
        output = forward(*map(some, inputs), **others)
        first = output[0] if isinstance(output, tuple) else output
        outputs = first.new_zeros(n, first.shape[-1])
        outputs.index_copy_(0, rows.on(first.device), first.reshape(-1, first.shape[-1]))
        outputs = outputs.reshape(*x.shape[:-1], -1)
        return (outputs, *output[1:]) if isinstance(output, tuple) else outputs

    return at_rows


def _staged(
    forward: Callable[..., Any], rows: Index, entering: Index | None, shape: tuple[int, ...]
) -> Callable[..., Any]:
    """A layer's forward on the rows of its stage.

    Whatever else the model gives to its layers by token, such as rotary embeddings, is of the whole
    batch in every layer.

    Args:
        forward: The layer's forward.
        rows: Those of the stage, as in `Stage`.
        entering: In the stage's first layer, the rows of the stage before that they continue.
        shape: Of the whole batch [row, token].
    """

    def of_stage(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of_stage, value))
        by_token = isinstance(value, Tensor) and value.shape[:2] == shape
        return _gathered(value, rows) if by_token else value

    def staged(*inputs: Any, **options: Any) -> Any:
        hidden = options.pop("hidden_states") if not inputs else inputs[0]
        hidden = hidden if entering is None else _gathered(hidden, entering)
        others = {name: of_stage(value) for name, value in options.items()}
        return forward(hidden, *map(of_stage, inputs[1:]), **others)

    return staged


def _gathered(x: Tensor, rows: Index) -> Tensor:
    """The rows of `x` [row, token, ...], by their numbers in the flattened batch."""
    numbers = rows.on(x.device)
    flat = x.flatten(0, 1).index_select(0, numbers.reshape(-1))
    return flat.reshape(*numbers.shape, *x.shape[2:])


def _headed(
    wiring: Wiring,
    socket: Socket,
    forwards: Sequence[Forward],
    weights: Weights,
    rows: Int[np.ndarray, " row"],
    indices: Indices,
) -> Forward | None:
    """Replacement of the forward of a module of attention heads."""
    parts: list[tuple[UInt8[np.ndarray, "treatment slice"], Sequence[Tensor]]] = []
    for slot, columns in zip(socket.slots, _columns(socket, weights), strict=True):
        component = wiring.slots.sites[slot][1]
        if slot not in weights.heads:
            parts.append((weights.table[:, [slot]], [columns]))
            continue
        count = n_heads(wiring.pair, component)
        heads = weights.by_head(slot, count)
        if component == "o":
            mixture = _mix(weights.table[rows, slot], heads[rows], indices)
            return _override(socket, forwards, mixture, len(rows))
        parts.append((heads, columns.reshape(count, -1).unbind()))
    sets = np.concatenate([part[0] for part in parts], axis=1)
    slices = tuple(chain.from_iterable(part[1] for part in parts))
    fusion = _fuse(sets[rows], indices)
    return _override(replace(socket, columns=slices), forwards, fusion, len(rows))


def _columns(socket: Socket, weights: Weights) -> Sequence[Tensor]:
    """Output columns of each slot of a module; of one without heads, all for its first slot."""
    if socket.columns:
        return socket.columns
    headed = socket.slots[0] in weights.heads
    width = output_width(socket.modules[0]) if headed else 0
    return (torch.arange(width, device=socket.device),) * len(socket.slots)


def _override(
    socket: Socket,
    forwards: Sequence[Forward],
    split: Split | Fusion | Mixture,
    n: int,
    read: Index | None = None,
) -> Forward | None:
    """Replacement of a module's forward in a batch of `n` tokens; None if the original serves.

    The head is computed at the rows that are `read`.
    """
    everywhere = split.everywhere if isinstance(split, Split) and not split.parts else None
    if everywhere == 0 and read is None:
        return None

    def forward(*inputs: Any, **options: Any) -> Tensor:
        name = socket.place.input
        x: Tensor = options[name] if name else inputs[0]
        by_rows = (
            [partial(_called, f, inputs, options, name) for f in forwards] if name else forwards
        )
        flat = socket.rows(x)
        if everywhere is None and len(flat) != n:
            raise ModelError(
                f"the family map does not fit this model: {socket.path!r} computes {len(flat)} "
                f"rows for {n} tokens, so that its input, of shape {tuple(x.shape)}, "
                f"does not count tokens in dimension {socket.place.tokens}"
            )
        flat = flat if read is None else flat.index_select(0, read.on(flat.device))
        if isinstance(split, Split):
            y = _divided(by_rows, split, flat)
        elif isinstance(split, Fusion):
            y = _fused(by_rows, split, socket.columns, flat)
        else:
            y = _mixed(by_rows, split, flat)
        # Logits stay flat, [answer, vocabulary].
        return y if read is not None else socket.whole(y, x)

    return forward


def _called(
    forward: Callable[..., Tensor],
    inputs: Sequence[Any],
    options: Mapping[str, Any],
    name: str,
    rows: Tensor,
) -> Tensor:
    """Repeat a module's call with some rows in place of its input, the keyword argument `name`."""
    return forward(*inputs, **{**options, name: rows})


@contextmanager
def one_treatment(
    wiring: Wiring,
    weights: Weights,
    number: int = 0,
    activity: Activity | None = None,
    length: int | None = None,
) -> Iterator[nn.Module]:
    """The recipient with one of the treatments for all tokens, for the sequential executor.

    Deliberately naive: each slice of a fused projection, and each head of any, comes from a full
    output of its weight set.
    """

    def override(socket: Socket, forwards: Sequence[Forward]) -> Forward:
        of_slots = [forwards[int(weights.table[number, slot])] for slot in socket.slots]
        slices = list(zip(socket.columns, of_slots, strict=False))  # without columns, of one slot
        heads: list[tuple[int, int, Forward]] = []
        for slot, columns in zip(socket.slots, _columns(socket, weights), strict=True):
            component = wiring.slots.sites[slot][1]
            if slot in weights.heads:
                count = n_heads(wiring.pair, component)
                sets = weights.by_head(slot, count)[number].tolist()
                if component == "o":
                    heads = [(head, count, forwards[chosen]) for head, chosen in enumerate(sets)]
                else:
                    parts = columns.reshape(count, -1)
                    slices += zip(parts, (forwards[chosen] for chosen in sets), strict=True)

        def forward(*inputs: Any, **options: Any) -> Tensor:
            mixed = of_slots[0](*inputs, **options).clone()
            for columns, each in slices:
                mixed[..., columns] = each(*inputs, **options)[..., columns]
            for head, count, each in heads:
                width = inputs[0].shape[-1] // count
                inside = slice(head * width, (head + 1) * width)
                alone, nothing = torch.zeros_like(inputs[0]), torch.zeros_like(inputs[0])
                alone[..., inside] = inputs[0][..., inside]
                for sign, model in ((1, each), (-1, of_slots[0])):
                    mixed += sign * (model(alone) - model(nothing))
            return mixed

        return forward

    with wiring.pair.lock:
        activity = activity or Activity()
        plans = replacements(wiring, override, activity.edits, activity.masks)
        with installed({**plans, **_rotary_at(wiring, length)}):
            yield wiring.model


@contextmanager
def installed(forwards: Mapping[nn.Module, Callable[..., object] | None]) -> Iterator[None]:
    """Replace forwards of modules, and restore them on exit, also after an exception.

    None leaves a module unchanged. A replacement shadows the class's method in the instance's
    dictionary; an instance that already has a `forward` there (such as one of accelerate) gets it
    back.
    """
    before: dict[nn.Module, Mapping[str, object]] = {}
    try:
        for module, forward in forwards.items():
            if forward is not None:
                entry = module.__dict__
                before[module] = {"forward": entry["forward"]} if "forward" in entry else {}
                entry["forward"] = forward
        yield
    finally:
        for module, original in before.items():
            module.__dict__.pop("forward", None)
            module.__dict__.update(original)


def replacements(
    wiring: Wiring,
    override: Callable[[Socket, Sequence[Forward]], Forward | None],
    edits: Mapping[Hook, Callable[[Tensor], Tensor]] = MappingProxyType({}),
    masks: Mapping[int, Callable[[], Tensor]] = MappingProxyType({}),
    others: Mapping[nn.Module, Callable[..., object]] = MappingProxyType({}),
) -> dict[nn.Module, Callable[..., object] | None]:
    """Replacements for the sockets' modules and for edited layers, their attention and MLP.

    A module may be both, such as a norm after attention; the edit then wraps the socket's forward.

    Args:
        wiring: The pair's sockets.
        override: Replacement of a socket, given the forwards of its weight sets.
        edits: As in `Activity`.
        masks: As in `Activity`.
        others: Replacements of modules that are no sockets, which edits wrap as well.
    """
    plans: dict[nn.Module, Callable[..., object] | None] = {}
    for socket in wiring.sockets:
        plans[socket.modules[0]] = override(socket, [each.forward for each in socket.modules])
    plans.update(others)

    def edit(path: str, **changes: Any) -> None:
        if any(change is not None for change in changes.values()):
            module = wiring.model.get_submodule(path)
            plans[module] = edited(plans.get(module) or module.forward, **changes)

    family, home = wiring.pair.family, wiring.pair.device
    for layer in sorted({hook.layer for hook in edits} | set(masks)):
        path = f"{family.layers}.{layer}"
        device = _device(wiring.model.get_submodule(path), home)
        at = {point: edits.get(Hook(layer, point)) for point in (*POINTS, HEADS)}
        edit(path, before=at["resid_pre"], after=at["resid_post"])
        edit(f"{path}.{family.attending}", mask=_mask_on(device, masks.get(layer)))
        edit(f"{path}.{family.attention}", after=at["attn_out"])
        if at[HEADS] is not None:
            edit(family.path(layer, "o"), before=at[HEADS])
        edit(f"{path}.{family.mlp}", after=at["mlp_out"])
    return plans


def _mask_on(
    device: torch.device, mask: Callable[[], Tensor] | None
) -> Callable[[], Tensor] | None:
    return mask if mask is None else lambda: mask().to(device)


def edited(
    forward: Callable[..., Any],
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
    mask: Callable[[], Tensor] | None = None,
) -> Callable[..., Any]:
    """A module's forward with its input, its (first) output and its attention mask replaced."""

    def forward_edited(*inputs: Any, **options: Any) -> Any:
        if before is not None and inputs:
            inputs = (before(inputs[0]), *inputs[1:])
        elif before is not None:
            options["hidden_states"] = before(options["hidden_states"])
        if mask is not None:
            options["attention_mask"] = mask()
        output = forward(*inputs, **options)
        if after is None:
            return output
        # A copy: models may add to the output in place, and the edit may keep a reference to it.
        return (
            (after(output[0]).clone(), *output[1:])
            if isinstance(output, tuple)
            else after(output).clone()
        )

    return forward_edited
