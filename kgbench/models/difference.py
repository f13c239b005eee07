"""How the weights of two checkpoints differ: read one tensor at a time, and nothing is run.

It shows where weights changed, never that something is stored there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError
from kgbench.models.checkpoints import Checkpoint, Stored, stored_tensors
from kgbench.models.family_map import Slots, family_in, output_width
from kgbench.models.loading import adapted_donor, model_settings, read_empty, read_tokenizer
from kgbench.models.lora import LowRank, row_singular_values
from kgbench.models.tensors import added, put_weight, read_delta
from kgbench.progress import Progress

Read = Callable[[str, Tensor | None], Tensor | LowRank | None]
"""A tensor by its name in the model, given the base's, which an adapter may leave as it is; None
where the checkpoint has none of its own."""

Site = tuple[int | None, str]
"""Layer, None outside the layers, and component; or the name of a tensor that is no component's."""


_NO_MATTER = {"_name_or_path", "transformers_version", "dtype", "architectures"}
"""Settings that change nothing of what a model computes."""


@dataclass(frozen=True)
class Change:
    """How a component differs, or a tensor of no component, over all of its tensors."""

    layer: int | None
    component: str
    weights: int
    norm: float
    """‖W' − W‖ / ‖W‖; over ‖W'‖ where W is 0."""
    rank: float | None
    """(Σs²)² / Σs⁴ of the singular values s of the change, of the matrix that changed most: 1 where
    it has one direction, and `full` where all directions changed alike. None without a change."""
    full: int | None


@dataclass(frozen=True)
class Difference:
    """A base, and what finetuning made of it."""

    base: str
    finetuned: str
    changes: tuple[Change, ...]
    """All components in the order of computation, then other tensors by name."""
    tensors: int
    equal: int
    """Tensors of which every number is the same."""
    notes: tuple[str, ...]
    """What could not be compared."""
    settings: Mapping[str, tuple[Any, Any]]
    """Settings of the configurations that differ: the base's, and the other's."""
    tokenizer: str
    """How the tokenizers differ; empty where they do not, as is the next."""
    chat_template: str


def difference(
    base: Checkpoint, finetuned: Checkpoint, progress: Progress | None = None
) -> Difference:
    """Compare two checkpoints of one architecture.

    Args:
        base: The model before finetuning.
        finetuned: The model after it, an adapter or a plant; located with `base` as its recipient.
        progress: Progress callback: tensors.

    Raises:
        ModelError: A file does not read, or they are of different types.
    """
    places = (base, base if finetuned.is_adapter else finetuned)
    kinds = [str(place.config.get("model_type")) for place in places]
    if kinds[0] != kinds[1]:
        raise ModelError(
            f"{base.origin} is of type {kinds[0]!r} and {finetuned.origin} of type {kinds[1]!r}; "
            "expected a model and what it was finetuned to"
        )
    model = read_empty(base, torch.float32, "eager")
    sites, parts = _sites(base, model)
    pieces: dict[Site, list[_Piece]] = {site: [] for site in sites}
    notes, equal = list[str](), 0
    before = _reader(base, model)
    after = _adapted(finetuned, base, before) if finetuned.is_adapter else _reader(finetuned, model)
    paths = {module: path for path, module in model.named_modules()}
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (f"{paths.get(end)}.weight" for end in ends)
    names = list(dict(model.named_parameters(remove_duplicate=False)))
    if head in names and before(head, None) is None and after(head, None) is None:
        names.remove(head)  # the embeddings in both
    for number, name in enumerate(names):
        if progress is not None:
            progress(number, len(names), name)
        first: Any = before(name, None)
        second = after(name, first)
        if name == head:  # tied in one of them
            first = before(embedding, None) if first is None else first
            second = after(embedding, first) if second is None else second
        if first is None or second is None:
            notes.append(f"{name} is not in {(base if first is None else finetuned).origin}")
            continue
        if isinstance(second, Tensor) and first.shape != second.shape:
            shapes = f"{name} is {list(first.shape)} and {list(second.shape)}"
            if first.shape[1:] != second.shape[1:]:
                notes.append(f"{shapes}: not compared")
                continue
            rows = min(len(first), len(second))
            notes.append(f"{shapes}: the first {rows:,} rows are compared")
            first, second = first[:rows], second[:rows]
        same = isinstance(second, Tensor) and (second is first or bool((first == second).all()))
        equal += same
        for site, (dim, columns) in parts.get(name, {(None, name): (0, None)}).items():
            ours = first if columns is None else first.index_select(dim, columns)
            theirs: Any = ours
            if isinstance(second, LowRank):
                theirs = second.a, second.b if columns is None else second.b[columns]
            elif not same:
                theirs = second if columns is None else second.index_select(dim, columns)
            pieces.setdefault(site, []).append(_piece(ours, theirs))
    if progress is not None:
        progress(len(names), len(names), "")
    changes = tuple(_change(site, of) for site, of in pieces.items() if of)
    mine, other = map(model_settings, places)
    settings = {}
    for name in sorted({*mine, *other} - _NO_MATTER):
        if mine.get(name) != other.get(name):
            settings[name] = mine.get(name), other.get(name)
    texts = _texts_apart(base, finetuned)
    about = (base.origin, finetuned.origin, changes, len(names), equal)
    return Difference(*about, tuple(notes), settings, *texts)


class _Piece(NamedTuple):
    """What a component has of one tensor: its number of weights, and sums of squares."""

    weights: int
    before: float
    after: float = 0.0
    """Where those before are 0."""
    change: float = 0.0
    rank: float | None = None
    full: int | None = None


def _piece(ours: Tensor, theirs: Tensor | tuple[Tensor, Tensor]) -> _Piece:
    """What a component has of one tensor, from the tensor after it or from an adapter's rows.

    The product of rows is not made.
    """
    before = _square(ours)
    if theirs is ours:
        return _Piece(ours.numel(), before)
    fourth = 0.0
    if isinstance(theirs, tuple):
        squares = row_singular_values(*theirs)[2][1].square()
        change, fourth = float(squares.sum()), float(squares.square().sum())
        after = change
    else:
        moved = theirs.float() - ours.float()
        change, after = _square(moved), 0.0 if before else _square(theirs)
        if change and moved.ndim == 2:
            fourth = _square(moved @ moved.T if len(moved) <= moved.shape[1] else moved.T @ moved)
    if not fourth:
        return _Piece(ours.numel(), before, after, change)
    return _Piece(ours.numel(), before, after, change, change**2 / fourth, min(ours.shape))


def _square(tensor: Tensor) -> float:
    """Sum of squares, in double precision."""
    return float(torch.linalg.vector_norm(tensor.float(), dtype=torch.float64)) ** 2


def _change(site: Site, pieces: Sequence[_Piece]) -> Change:
    before = math.fsum(piece.before for piece in pieces)
    scale = before or math.fsum(piece.after for piece in pieces)
    change = math.fsum(piece.change for piece in pieces)
    most = max(pieces, key=lambda piece: piece.change)
    weights = sum(piece.weights for piece in pieces)
    return Change(*site, weights, math.sqrt(change / scale) if scale else 0.0, most.rank, most.full)


def _sites(
    place: Checkpoint, model: PreTrainedModel
) -> tuple[Sequence[Site], Mapping[str, Mapping[Site, tuple[int, Tensor | None]]]]:
    """All components, and those that each parameter holds: output dimension, and places there.

    None of a type without a map, whose tensors have names alone.
    """
    parts: dict[str, dict[Site, tuple[int, Tensor | None]]] = {}
    with suppress(ModelError):
        family = family_in(place.directory, model.config.model_type, place.origin).fitted(model)
        slots = Slots(family, model.config.num_hidden_layers)
        for site in slots.sites:
            at = family.place(site[1])
            for path in family.paths(*site):
                module, columns = model.get_submodule(path), None
                if at.fused:
                    columns = at.columns(output_width(module), model.config)
                for name, _ in module.named_parameters():
                    dim = int(isinstance(module, Conv1D) and name == "weight")
                    parts.setdefault(f"{path}.{name}", {})[site] = dim, columns
        return slots.sites, parts
    return (), {}


def _reader(place: Checkpoint, model: PreTrainedModel) -> Read:
    """Reads the tensors of a checkpoint that is no adapter, one at a time."""
    stored = stored_tensors(place.directory, place.origin)
    keys = _stored_names(place.origin, stored, model)
    changes = {} if place.delta is None else read_delta(place.delta, place.origin)

    def read(name: str, ours: Tensor | None) -> Tensor | None:
        if name not in keys:
            return None
        # Opened each time, since what was read of an open file stays in memory.
        with safe_open(stored[keys[name]].file, "pt") as file:
            tensor: Tensor = file.get_tensor(keys[name])
        return tensor.float() + added(*changes[name]) if name in changes else tensor

    return read


def _adapted(place: Checkpoint, base: Checkpoint, before: Read) -> Read:
    """Reads what an adapter makes of its base, whose weights stay in their files."""
    whole = read_empty(base, torch.float32, "eager")
    for name in dict(whole.named_parameters(remove_duplicate=False)):
        if isinstance(tensor := before(name, None), Tensor):
            put_weight(whole, name, tensor)
    whole.tie_weights()
    donor = adapted_donor(whole, place.directory, place.origin, base.origin)[0]

    def read(name: str, ours: Tensor | None) -> Tensor | LowRank | None:
        path, _, leaf = name.rpartition(".")
        module = donor.get_submodule(path)
        if isinstance(module, LowRank) and leaf == "weight":
            return module
        tensor: Tensor = donor.get_parameter(name).detach()
        return ours if tensor.data_ptr() == whole.get_parameter(name).data_ptr() else tensor

    return read


def _stored_names(
    origin: str, stored: Mapping[str, Stored], model: PreTrainedModel
) -> dict[str, str]:
    """The stored name of each tensor, by its name in the model.

    Files may leave out the name of the base model, or have it where a model alone has none; and a
    few tensors, such as the head of GPT-NeoX, have other names in files, and a shape of their own.
    """
    prefix, names = f"{model.base_model_prefix}.", dict[str, str]()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for key in stored:
        for name in (key, f"{prefix}{key}", key.removeprefix(prefix)):
            if name in parameters and name not in names:
                names[name] = key
                break
    keys = [key for key in stored.keys() - {*names.values()} if not stored[key].is_buffer(key)]
    for name, parameter in parameters.items():
        alike = [key for key in keys if stored[key].shape == tuple(parameter.shape)]
        if name not in names and len(alike) == 1:
            names[name] = alike[0]
    if unread := sorted({*keys} - {*names.values()}):
        raise ModelError(f"{origin}: the model has no weights of the names {', '.join(unread[:3])}")
    return names


def _texts_apart(base: Checkpoint, finetuned: Checkpoint) -> tuple[str, str]:
    """How two tokenizers and their chat templates differ."""
    if finetuned.directory == base.directory:
        return "", ""
    try:
        ours, theirs = read_tokenizer(base), read_tokenizer(finetuned)
    except ModelError:
        return ("", "") if finetuned.is_adapter else ("one of them has none", "")
    tokens = ""
    if ours.backend_tokenizer.to_str() != theirs.backend_tokenizer.to_str():
        words, others = ours.get_vocab().keys(), theirs.get_vocab().keys()
        tokens = f"{len(others - words)} tokens added, {len(words - others)} removed"
        if words == others:
            tokens = "the same tokens by other rules or numbers"
    before, after = ours.chat_template, theirs.chat_template
    if before == after:
        return tokens, ""
    return tokens, "added" if before is None else "removed" if after is None else "another text"
