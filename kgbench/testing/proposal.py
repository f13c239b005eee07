"""A proposed family map of an architecture, tried on a small random pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from kgbench.engine.forward import Wiring
from kgbench.engine.selftest import LAWS, packed_agrees
from kgbench.errors import KgbenchError
from kgbench.models.family import Family
from kgbench.models.infer_family import PROBES, infer_family, random_model, reduced_config
from kgbench.models.pair import ModelPair, prepare
from kgbench.testing.pico import pico_tokenizer

__all__ = ["Proposal", "propose", "try_map"]

COVERED = "every weight belongs to a component"


@dataclass(frozen=True)
class Proposal:
    """A map and the results of the self-test."""

    family: Family
    laws: Mapping[str, str | None]
    """Reason for which each law of the self-test does not hold; None where it does."""
    packed: str | None
    """Reason to run one row per configuration; None if all configurations run in one forward."""

    @property
    def holds(self) -> bool:
        """Whether all laws hold."""
        return not any(self.laws.values())


def propose(config: dict[str, Any]) -> Proposal:
    """Propose a map for the models of a configuration, and try it.

    Args:
        config: A checkpoint's `config.json`.

    Raises:
        ModelError: No small model can be made of it, or none that a map could describe.
    """
    configs = [reduced_config(config, probe) for probe in PROBES]
    family = infer_family([random_model(small, 0) for small in configs])
    proposals = [try_map(_random_pair(small, family)) for small in configs]
    return next((each for each in proposals if not each.holds), proposals[0])


def _random_pair(config: PreTrainedConfig, family: Family) -> ModelPair:
    recipient, donor = (prepare(random_model(config, seed)) for seed in (0, 1))
    return ModelPair(
        f"a small {config.model_type}", recipient, {"sft": donor}, pico_tokenizer(bos=False), family
    )


def try_map(pair: ModelPair) -> Proposal:
    """Try the map of a pair."""
    laws = {COVERED: _uncovered(pair)}
    for name, law in LAWS.items():
        try:
            with torch.inference_mode():
                law(pair)
            laws[name] = None
        except KgbenchError as error:
            laws[name] = str(error)
    holds = not any(laws.values())
    return Proposal(pair.family, laws, packed_agrees(pair) if holds else "the map does not hold")


def _uncovered(pair: ModelPair) -> str | None:
    held = {
        id(weight) for socket in Wiring(pair).sockets for weight in socket.modules[0].parameters()
    }
    left = [name for name, weight in pair.recipient.named_parameters() if id(weight) not in held]
    return f"{len(left)} weights belong to no component, such as {left[0]}" if left else None
