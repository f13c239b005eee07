"""The first-order effect of patching activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.edits import Hook
from kgbench.engine.gradients import patch_effects
from kgbench.localizers._base import ScoringLocalizer
from kgbench.localizers._credit import by_token
from kgbench.localizers._hooks import STANDS_FOR
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores


@dataclass(frozen=True)
class AttributionPatch(ScoringLocalizer):
    """⟨∂m/∂h, h' - h⟩ summed over a site's tokens (attribution patching, arXiv 2310.10348).

    h are activations of the recipient, h' of the donor, m the targets' mean log-probability.
    Activations do not separate components: the effect of attention's output is credited in full to
    each of a layer's `ln_1 q k v o`, that of the MLP's output to each of its `ln_2 gate up down`,
    and that of the first layer's input to `emb` and `pos`. The donor's activations include the
    effect of all upstream differences, which are credited to the site as well.
    """

    name = "attribution_patch"
    needs = frozenset({"donor", "gradients"})
    cost = "backward"
    paper = "arXiv 2310.10348"
    about = (
        "first-order effect of copying the donor's activations, "
        "which cannot tell a layer's components apart"
    )
    score_meaning = "log-probability gained by the donor's activations, first order (nats)"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Effects summed over each site's tokens."""
        hooks = [Hook(0, "resid_pre")]
        for layer in range(pair.n_layers):
            hooks += [Hook(layer, "attn_out"), Hook(layer, "mlp_out")]
        rows = {place: hooks.index(_hook(*place)) for place in pair.slots.sites}
        return by_token(pair, prompts, patch_effects(pair, prompts, hooks), rows)


def _hook(layer: int | None, component: str) -> Hook:
    """The hook that carries a component's output."""
    if layer is None:
        return Hook(0, "resid_pre")
    return Hook(layer, "mlp_out" if component in STANDS_FOR["mlp_out"] else "attn_out")
