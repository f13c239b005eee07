"""Donors that stay on disk: the weights of a layer are read when it runs.

They are dropped when another layer runs. A streamed donor is a model of its own configuration with
empty weights. What differs from the recipient's is read from its safetensors files, in the
recipient's type and to the recipient's device; what is equal is the recipient's own tensor. So it
computes, bit for bit, what the donor would that is held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from kgbench.errors import ModelError
from kgbench.models.checkpoints import (
    Checkpoint,
    Stamp,
    refuse_unused,
    stamp_of,
    stored_tensors,
)
from kgbench.models.tensors import put_weight, refuse_non_finite, same_bits

_STREAM, _PLACE = "kgbench_stream", "kgbench_place"


@dataclass(frozen=True)
class Source:
    """Where a weight is stored, and what it is read as."""

    file: Path
    key: str
    dtype: torch.dtype
    device: torch.device
    origin: str
    """What to call the checkpoint in an error."""
    stamp: Stamp
    """Of the file when the model was made."""

    def read(self) -> Tensor:
        """The weight.

        Raises:
            ModelError: The file changed, or does not read.
        """
        try:
            with safe_open(self.file, framework="pt") as file:
                # A copy also where nothing is converted: otherwise it were the file itself, mapped.
                weight: Tensor = file.get_tensor(self.key).to(
                    device=self.device, dtype=self.dtype, copy=True
                )
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{self.origin} does not read: {self.file.name}: {error}") from error
        if stamp_of(self.file) != self.stamp:
            raise ModelError(
                f"{self.origin}: {self.file.name} changed on disk while it was in use; run again "
                "when it is whole"
            )
        return weight


class Stream:
    """The weights of one donor, of which those of one layer are held.

    Args:
        sources: Where each weight is, by its name in the model.
        layers: Path of the model's list of layers.
        home: Device of the model's input.
    """

    def __init__(self, sources: Mapping[str, Source], layers: str, home: torch.device) -> None:
        self.sources, self.home = dict(sources), home
        self._layers, self._group, self._held = f"{layers}.", "", dict[str, Tensor]()

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the weights that are in memory."""
        return tuple(self._held)

    def group(self, name: str) -> str:
        """What is held together with a weight: its layer, or outside the layers its module."""
        if name.startswith(self._layers):
            return self._layers + name.removeprefix(self._layers).partition(".")[0]
        return name.rpartition(".")[0]

    def __getitem__(self, name: str) -> Tensor:
        """A weight, kept until one of another layer is asked for."""
        group = self.group(name)
        if group != self._group:
            self._held, self._group = {}, group
        if name not in self._held:
            self._held[name] = self.read(name)
        return self._held[name]

    def read(self, name: str) -> Tensor:
        """A weight, which is not kept."""
        # An inference tensor could not take part in a derivative later.
        with torch.inference_mode(mode=False):
            return self.sources[name].read()


def streamed(model: nn.Module) -> Stream | None:
    """The stream that a model's weights come from; None where they are held."""
    source: Stream | None = vars(model).get(_STREAM)
    return source


def homes(model: nn.Module) -> set[torch.device]:
    """The devices that a model's weights are on, or are read to."""
    source = streamed(model)
    devices = {weight.device for weight in model.parameters() if not weight.is_meta}
    if source is not None:
        devices |= {each.device for each in source.sources.values()}
    return devices


def stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and values of all weights in the order of their names.

    Those of a streamed donor are read one at a time.
    """
    source = streamed(model)
    for name, tensor in sorted(model.state_dict().items()):
        yield name, source.read(name) if source is not None and tensor.is_meta else tensor


def stream(
    donor: PreTrainedModel, recipient: PreTrainedModel, place: Checkpoint, layers: str, share: bool
) -> None:
    """Let an empty donor read its weights from its checkpoint.

    Args:
        donor: As `kgbench.models.loading.read_empty` gives it; changed in place.
        recipient: The recipient, with input and output embeddings untied.
        place: The donor's checkpoint.
        layers: Path of the list of layers.
        share: Whether weights that are bit for bit the recipient's are the recipient's own, and so
            are not read again.

    Raises:
        ModelError: The files do not hold the weights by the names that the model has for them.
    """
    ours = recipient.state_dict()
    source = Stream(_sources(donor, ours, place), layers, recipient.device)
    with torch.no_grad():
        for name, buffer in list(donor.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            home = recipient.get_buffer(name).device
            read = source.read(name) if name in source.sources else buffer.to(home)
            setattr(donor.get_submodule(owner), leaf, read)
        for name, weight in list(donor.named_parameters(remove_duplicate=False)):
            value = source.read(name)
            refuse_non_finite(name, value, place.origin)
            shared = share and same_bits(ours[name], value)
            empty = torch.empty_like(weight, dtype=ours[name].dtype)
            put_weight(donor, name, ours[name].detach() if shared else empty)
    for path, module in donor.named_modules():
        if any(weight is not None and weight.is_meta for weight in module._parameters.values()):
            vars(module)[_PLACE] = source, path
            # A type is hashable, which its stub does not know.
            module.__class__ = _streaming(type(module))  # type: ignore[arg-type]
    vars(donor)[_STREAM] = source


@cache
def _streaming(kind: type[nn.Module]) -> type[nn.Module]:
    """A type of modules whose weights are read from disk on access, also by `forward`."""

    def attribute(self: nn.Module, name: str) -> Any:
        value = kind.__getattr__(self, name)
        if not (isinstance(value, nn.Parameter) and value.is_meta):
            return value
        source, path = vars(self)[_PLACE]
        return nn.Parameter(source[f"{path}.{name}"], requires_grad=False)

    return type(kind.__name__, (kind,), {"__getattr__": attribute})


def _sources(
    donor: PreTrainedModel, ours: Mapping[str, Tensor], place: Checkpoint
) -> dict[str, Source]:
    """Where each of a donor's weights is; of tied weights one alone may be there."""
    files = stored_tensors(place.directory, place.origin)
    # What the files call each weight, by the library's own rules; those that it would put together
    # of several are left out.
    rules = get_model_conversion_mapping(donor)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    shapes, keys = donor.state_dict(), {}
    for held in sorted(files):
        name, converted = rename_source_key(
            held, renamings, converters, donor.base_model_prefix, shapes
        )
        if converted is None:
            keys[name] = held
    stamps = place.stamps()
    by_weight: dict[int, list[str]] = {}
    tied: dict[str, list[str]] = {}
    for name, weight in donor.named_parameters(remove_duplicate=False):
        tied[name] = by_weight.setdefault(id(weight), [])
        tied[name].append(name)
    sources = {}
    for name, tensor in ours.items():
        key = next((keys[other] for other in (name, *tied.get(name, ())) if other in keys), None)
        if key is None:
            raise ModelError(
                f"{place.origin} cannot be streamed: its files hold no {name!r} by that name; load "
                "it whole, without --stream-donor"
            )
        if files[key].shape != tuple(tensor.shape):
            raise ModelError(
                f"{place.origin} does not fit the recipient: {name!r} is {list(tensor.shape)} "
                f"there, and {list(files[key].shape)} in its "
                "files"
            )
        sources[name] = Source(
            files[key].file, key, tensor.dtype, tensor.device, place.origin, stamps[files[key].file]
        )
    taken = {key for name, key in keys.items() if name in ours}
    ignored = donor._keys_to_ignore_on_load_unexpected or ()
    unused = set()
    for key in files:
        if key not in taken and not any(re.search(pattern, key) for pattern in ignored):
            unused.add(key)
    refuse_unused(place, unused, files)
    return sources
