"""Jobs on a pair of the catalog that is not on this machine: counted on a small stand-in, and scaled up.

The stand-in has the architecture, the layers and the donors of the pair, random weights of small width, and the tokenizer of the shipped
pair of that architecture. So every configuration is laid out as it would be, by an engine that runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from kgbench.engine import Budget
from kgbench.models import catalog
from kgbench.models.catalog import Entry
from kgbench.models.checkpoints import find_here, locate
from kgbench.models.family import load_family
from kgbench.models.fitting import read_tokenizer
from kgbench.models.pair import DTYPES, ModelPair, prepare
from kgbench.runner.measure import GROUP
from kgbench.runner.memory import piece_bytes
from kgbench.runner.pairs import Pairs, main_device_of
from kgbench.runner.spec import Settings, Spec
from kgbench.training.finetuning_forecast import FLOPS

if TYPE_CHECKING:
    from kgbench.runner.estimate import Forecast

__all__ = ["StandIns", "absent_entry", "itemsize", "scaled", "stand_ins", "with_some_donor"]

_SIZES = {"hidden_size": 16, "n_embd": 16, "intermediate_size": 32, "n_inner": 32, "head_dim": 8}
_READS = {"max_position_embeddings": 4096, "n_positions": 4096}
"""More than the tokenizer of a tiny pair makes of a prompt, which is more than that of a large one does."""
_OPERATIONS = 2
"""Of a weight and token in a forward pass (arXiv 2001.08361)."""


def absent_entry(spec: Spec) -> Entry | None:
    """The catalog's entry of a job whose recipient is not on this machine, where the catalog knows how large it is."""
    entry = catalog.entry(spec.model) if spec.model is not None else None
    if entry is None or entry.like is None or spec.recipient not in (None, entry.recipient):
        return None
    return entry if find_here(entry.recipient, spec.revision) is None else None


def with_some_donor(spec: Spec) -> Spec:
    """The specification, with the recipient as its own donor where nobody has named or trained one: it takes as long."""
    entry = catalog.entry(spec.model) if spec.model is not None else None
    if entry is None or entry.like is None or spec.donors or entry.donors:
        return spec
    return replace(
        spec,
        recipient=spec.recipient or entry.recipient,
        donors={"sft": spec.recipient or entry.recipient},
    )


@lru_cache(maxsize=1)
def stand_ins(model: str) -> Pairs:
    """Stand-ins of a pair of the catalog; the last are kept, since the evaluations of a figure come one after another."""
    return StandIns(catalog.entry(model))


class StandIns(Pairs):
    """Gives a stand-in of one pair, whatever checkpoints are named."""

    def __init__(self, entry: Entry) -> None:
        """Name the pair.

        Args:
            entry: Its entry, which says how many layers it has and which shipped pair it is like.
        """
        super().__init__()
        assert entry.like is not None
        self._entry, self._like = entry, locate(catalog.entry(entry.like).recipient)
        self._made: ModelPair | None = None

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The stand-in, on a CPU; chat templates are not in its tokenizer and count for nothing."""
        names = tuple(spec.donors)
        if self._made is None or tuple(self._made.donors) != names:
            family = load_family(str(self._like.config["model_type"]))
            donors = {name: self._model() for name in names}
            origins = {"recipient": self._entry.recipient, **spec.donors}
            self._made = ModelPair(
                self._entry.name, self._model(), donors, read_tokenizer(self._like), family, origins
            )
        return self._made

    def _model(self) -> PreTrainedModel:
        said = self._like.config
        small = {key: size for key, size in {**_SIZES, **_READS}.items() if key in said}
        depth: dict[str, Any] = {
            key: self._entry.layers for key in ("num_hidden_layers", "n_layer") if key in said
        }
        made: dict[str, Any] = {**said, **small, **depth, "dtype": "float32"}
        with torch.random.fork_rng(devices=[]):
            return prepare(AutoModelForCausalLM.from_config(AutoConfig.for_model(**made)))


def itemsize(entry: Entry, spec: Spec, settings: Settings) -> int:
    """Bytes of each weight of a pair, as it would be loaded."""
    assert entry.stored is not None
    on_cpu = torch.device(main_device_of(settings)).type == "cpu"
    return DTYPES[spec.dtype or ("float32" if on_cpu else entry.stored)].itemsize


def scaled(counted: Forecast, entry: Entry, spec: Spec, settings: Settings) -> Forecast:
    """What a job would take, from what it takes on the stand-in.

    Args:
        counted: On the stand-in.
        entry: The pair.
        spec: The job, with its donors.
        settings: How it would be computed.
    """
    assert entry.parameters is not None and entry.width is not None and entry.vocabulary is not None
    assert entry.layers is not None and entry.stored is not None
    kind, size, embeddings = (
        torch.device(main_device_of(settings)).type,
        itemsize(entry, spec, settings),
        entry.vocabulary * entry.width,
    )
    # A pair holds tied embeddings twice, see `prepare`.
    held = (entry.parameters + (embeddings if entry.tied else 0)) * size
    donor = (
        piece_bytes(entry.parameters, entry.layers, embeddings, size)
        if settings.stream_donors
        else held
    )
    token = _OPERATIONS * entry.parameters / FLOPS[kind]
    share = counted.scoring_seconds / counted.seconds if counted.seconds else 0.0
    seconds = token * (counted.token_rows + counted.plain_token_rows)
    return replace(
        counted,
        weights_bytes=held + len(spec.donors) * donor,
        logits_bytes=min(GROUP * counted.configurations * entry.vocabulary, Budget.logits) * size,
        seconds=seconds,
        scoring_seconds=seconds * share,
        download_bytes=entry.parameters * DTYPES[entry.stored].itemsize,
        basis=f"the catalog's number of parameters, tokens of {entry.like}'s tokenizer and {FLOPS[kind] / 1e12:g} Tflop/s assumed on "
        f"{kind}, since {entry.recipient} is not on this machine",
    )
