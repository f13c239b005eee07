"""Direct logit attribution of what finetuning changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.edits import Hook
from kgbench.engine.site_sets import all_sites, token_cells
from kgbench.engine.treatment import baseline_donor, graft_treatments
from kgbench.localizers import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores

__all__ = ["DirectLogit"]

WRITERS: Mapping[str, frozenset[str]] = {
    "attn_out": frozenset({"ln_1", "q", "k", "v", "o", "q_norm", "k_norm", "ln_1_post"}),
    "mlp_out": frozenset({"ln_2", "gate", "up", "down", "ln_2_post"}),
}
"""The components that stand behind what attention and MLP add to the residual stream."""


@dataclass(frozen=True)
class DirectLogit(ScoringLocalizer):
    """How much more the donor's layers write towards the target's token than the recipient's do.

    For attention and MLP of each layer: (y' - y) · u, where y' and y are what donor and recipient
    add to the residual stream and u is the donor's output embedding of the target, less the mean
    embedding; the final norm is left out. What is written at a token that is not read out reaches
    no logit directly, so `LT` alone is scored; what earlier tokens contribute through attention is
    not seen. (Logit lens; Elhage et al. 2021, A Mathematical Framework for Transformer Circuits,
    "direct effect on the logits".)
    """

    name = "direct_logit"
    about = (
        "what attention and MLP of each layer write directly towards the target, donor less"
        " recipient"
    )
    paper = "transformer-circuits.pub/2021/framework"
    cost = "forward"

    positive: bool = False
    """Score what writes against the target 0, as what writes nothing."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """The mean over prompts; components behind one write share its score, and embeddings, which
        write nothing here, have 0.
        """
        totals: defaultdict[tuple[int | None, str], float] = defaultdict(float)
        for prompt in prompts:  # one at a time, so that memory stays bounded
            for hook, written in self._written(pair, prompt):
                for component in WRITERS[hook.point]:
                    totals[hook.layer, component] += written / len(prompts)
        scores = {
            site: totals[site.layer, site.component] if site.region == "LT" else 0.0
            for site in all_sites(pair, prompts)
        }
        return {site: max(score, 0.0) if self.positive else score for site, score in scores.items()}

    def _written(self, pair: ModelPair, prompt: Prompt) -> Iterator[tuple[Hook, float]]:
        """What each hook writes towards the target at the prompt's last token."""
        hooks = [Hook(layer, point) for layer in range(pair.n_layers) for point in WRITERS]
        runs = (graft_treatments(pair, [prompt], run) for run in ("PRE", "SFT"))
        (before,), (after,) = (Engine(pair).activations([prompt], run, hooks) for run in runs)
        assert token_cells(pair, prompt)[-1] == "LT"
        towards = (after - before)[:, -1] @ self._direction(pair, prompt)
        return zip(hooks, towards.tolist(), strict=True)

    def _direction(self, pair: ModelPair, prompt: Prompt) -> Tensor:
        """The donor's output embedding of the target, less the mean one [width]."""
        head = cast(nn.Linear, pair.donors[baseline_donor(pair)].get_output_embeddings()).weight
        with torch.no_grad():
            return head[pair.encoded(prompt).target] - head.mean(dim=0)
