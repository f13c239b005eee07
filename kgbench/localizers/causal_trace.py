"""Causal tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Add, Copy, Edit, Hook, Values
from kgbench.engine.treatment import Treatment
from kgbench.errors import InputError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._fit import Corpus, FittedLocalizer, holding, seeded_number
from kgbench.localizers._hooks import (
    EMBEDDINGS,
    Reading,
    check_choice,
    hook_units,
    one_donor,
    own_run,
    read,
    treat_each,
)
from kgbench.models.family import module_at
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["CausalTrace"]

BOTH = "attn_out+mlp_out"


@dataclass(frozen=True)
class CausalTrace(FittedLocalizer):
    """The donor's run with noise on the first entity's embeddings, and the clean run's activations restored at some sites.

    The noise is normal, `noise` times the standard deviation of all entries of the donor's embeddings of the first entities' tokens, over
    all prompts of the task (arXiv 2202.05262). Scaled so are token embeddings as they enter the residual stream: multiplied where the
    model multiplies them (Gemma, Granite), projected where it projects them (some OPT), and without learned positions. A fact has the same
    noise whatever prompts it comes with. Probabilities are averaged over the draws. An expression keeps what it names: there the clean
    run's activations at `point` are put back, and where it names the embeddings (as `FE` and `ALL` do, `ALL@0` does not) the noise is
    left out. Final norm and head are the recipient's unless the expression names them.

    A scan needs the point `resid_post`, or `attn_out+mlp_out`, where each is restored by itself in a window of layers: at `resid_pre`
    no hook stands for the last layer, and `attn_out` and `mlp_out` alone each leave out the other's components.
    """

    name = "causal_trace"
    about = "the donor's run with noise on the first entity, and clean activations restored at some sites"
    reads_any_token = True
    paper = "arXiv 2202.05262"
    floor = "destroyed_donor"

    point: str = "resid_post"
    """Where activations are restored: `resid_pre`, `attn_out`, `mlp_out`, `resid_post`, or `attn_out+mlp_out`."""
    window: int = 1
    """Layers of `attn_out` or `mlp_out` restored at once, centred at the one that is credited; the paper has 10 of 48."""
    noise: float = 3.0
    """Standard deviations."""
    draws: int = 10
    """Number of draws."""
    seed: int = 0
    """Of the noise."""

    draw: ClassVar[int] = 0
    """Which of the draws a variant has."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such hook point.
            InputError: A number is out of range.
        """
        check_choice(f"hook point of {self.name}", self.point, (*POINTS, BOTH))
        for what, given in (("window", self.window), ("draws", self.draws)):
            if given < 1:
                raise InputError(f"{self.name} needs {what} of 1 or more, got {given}")
        if self.window > 1 and self.point.startswith("resid"):
            raise InputError(
                f"{self.name} has windows of attn_out and mlp_out only: the last layer of a window sets the whole residual stream, so that "
                f"window={self.window} would credit the layers before it; give window=1 with point={self.point}"
            )
        if not 0 <= self.noise < float("inf"):
            raise InputError(
                f"{self.name} needs a noise of 0 or more standard deviations, got {self.noise}"
            )

    def variants(self) -> Sequence[InterventionLocalizer]:
        """One for each draw."""
        return [holding(self, draw=draw) for draw in range(self.draws)]

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Noise added at the input of the first layer, and copies from the clean run."""
        donor = one_donor(self, pair, sites)
        readings = read(self, pair, prompts, sites, (EMBEDDINGS, *self.point.split("+")), donor)
        deviation, start = self._deviation(pair, self.corpus(prompts), donor), Hook(0, "resid_pre")

        def traced(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            entity = pair.encoded(prompt).regions["FE"]
            noise = deviation * torch.from_numpy(self.standard_noise(pair, prompt))
            values = dict(
                zip(entity, map(Values, noise.to(pair.dtype).to(pair.device)), strict=True)
            )
            clean = own_run(pair, len(reading.base), donor)

            def edits(token: int) -> Iterator[Edit]:
                if token in values and start not in reading.kept[token]:
                    yield Add(start, values[token])
                yield from (Copy(hook, clean) for hook in reading.kept[token])

            return reading.edited(edits)

        return treat_each(prompts, readings, traced, lambda prompt: prompt.fact)

    def standard_noise(self, pair: ModelPair, prompt: Prompt) -> Float[np.ndarray, "token width"]:
        """The draw for each token of the first entity, before it is scaled: the same for a fact, whatever the prompt."""
        generator = np.random.default_rng(seeded_number(self.seed, self.draw, prompt.fact.id))
        return generator.standard_normal(
            (len(pair.encoded(prompt).regions["FE"]), pair.recipient.config.hidden_size)
        )

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """A window of layers at one region each."""
        return hook_units(pair, prompts, (EMBEDDINGS, *self.point.split("+")), self.window)

    def _deviation(self, pair: ModelPair, corpus: Corpus, donor: int) -> float:
        def deviation() -> float:
            model = tuple(pair.donors.values())[donor - 1]
            ids = [
                pair.encoded(p).ids[token]
                for p in corpus.prompts
                for token in pair.encoded(p).regions["FE"]
            ]
            found = torch.tensor(ids, device=pair.device)
            with torch.inference_mode():
                for path in pair.family.paths(None, "emb"):
                    found = module_at(model, path)(found)
            # Granite's embeddings are multiplied behind their module; Gemma's module does it itself.
            return (
                self.noise
                * float(found.double().std())
                * float(getattr(model.config, "embedding_multiplier", 1.0))
            )

        return corpus.once(("deviation", donor, self.noise), deviation)
