"""Causal tracing, as in ROME."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Add, Copy, Edit, Hook, Treatment, Values
from kgbench.errors import InputError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit, one_of
from kgbench.localizers._fit import Corpus, FittedLocalizer, holding, seeded_number
from kgbench.localizers._hooks import (
    EMBEDDINGS,
    Reading,
    check_counts,
    hook_units,
    one_donor,
    own_run,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

BOTH = "attn_out+mlp_out"


@dataclass(frozen=True)
class CausalTrace(FittedLocalizer):
    """The donor's run with noise on the first entity, and clean activations restored at some sites.

    The noise is normal; its standard deviation is `noise` times that of all entries of the donor's
    embeddings of first-entity tokens over all prompts of the task (arXiv 2202.05262). These are
    token embeddings as they enter the residual stream: scaled where the model scales them (Gemma,
    Granite), projected where it projects them (some OPT), without learned positions. A fact has the
    same noise in every prompt. Probabilities are averaged over draws.

    Kept sites have the clean run's activations at `point`; where an expression names the embeddings
    (as `FE` and `ALL` do, and `ALL@0` does not), the noise is left out. Final norm and head are the
    recipient's unless the expression names them.

    A scan needs the point `resid_post`, or `attn_out+mlp_out`, which restores each separately in a
    window of layers: no hook at `resid_pre` represents the last layer, and `attn_out` and `mlp_out`
    alone each miss the other's components.
    """

    name = "causal_trace"
    about = (
        "the donor's run with noise on the first entity, "
        "and clean activations restored at some sites"
    )
    reads_any_token = True
    paper = "arXiv 2202.05262"
    floor = "destroyed_donor"

    point: str = one_of("resid_post", *POINTS, BOTH)
    """Where activations are restored."""
    window: int = 1
    """Layers of `attn_out` or `mlp_out` restored at once, centred at the one that is credited; the
    paper has 10 of 48."""
    noise: float = 3.0
    """Standard deviations."""
    draws: int = 10
    """Number of draws."""
    seed: int = 0
    """Of the noise."""

    draw: ClassVar[int] = 0
    """Index of a variant's draw."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such hook point.
            InputError: A number is out of range.
        """
        super().__post_init__()
        check_counts(self, window=self.window, draws=self.draws)
        if self.window > 1 and self.point.startswith("resid"):
            raise InputError(
                f"{self.name} has windows of attn_out and mlp_out only: the last layer of a window "
                f"sets the whole residual stream, so that window={self.window} would credit the "
                f"layers before it; give window=1 with point={self.point}"
            )
        if not 0 <= self.noise < float("inf"):
            raise InputError(
                f"{self.name} needs a noise of 0 or more standard deviations, got {self.noise}"
            )

    def variants(self) -> Sequence[InterventionLocalizer]:
        """One variant per draw."""
        return [holding(self, draw=draw) for draw in range(self.draws)]

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """Add noise at the input of the first layer, and copy activations from the clean run."""
        donor = one_donor(self, pair, sites)
        readings = read_sites(
            self, pair, prompts, sites, (EMBEDDINGS, *self.point.split("+")), donor
        )
        deviation, start = self._deviation(pair, self.corpus(prompts), donor), Hook(0, "resid_pre")

        def trace(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            entity = pair.encoded(prompt).tokens("FE")
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

        return treat_each(prompts, readings, trace, lambda prompt: prompt.fact)

    def standard_noise(self, pair: ModelPair, prompt: Prompt) -> Float[np.ndarray, "token width"]:
        """Standard normal draw for each token of the first entity; equal in a fact's prompts."""
        generator = np.random.default_rng(seeded_number(self.seed, self.draw, prompt.fact.id))
        return generator.standard_normal((len(pair.encoded(prompt).tokens("FE")), pair.width))

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per window of layers and region."""
        return hook_units(pair, prompts, (EMBEDDINGS, *self.point.split("+")), self.window)

    def _deviation(self, pair: ModelPair, corpus: Corpus, donor: int) -> float:
        """Standard deviation of the noise."""

        def deviation() -> float:
            model = tuple(pair.donors.values())[donor - 1]
            ids: list[int] = []
            for prompt in corpus.prompts:
                encoded = pair.encoded(prompt)
                ids += [encoded.ids[token] for token in encoded.tokens("FE")]
            x = torch.tensor(ids, device=pair.device)
            with torch.inference_mode():
                for path in pair.family.paths(None, "emb"):
                    x = model.get_submodule(path)(x)
            # Granite scales embeddings after their module; Gemma's module scales them itself.
            scale = float(getattr(model.config, "embedding_multiplier", 1.0))
            return self.noise * float(x.double().std()) * scale

        return corpus.once(("deviation", donor, self.noise), deviation)
