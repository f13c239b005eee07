"""Two grafts of one model: sites of the donor in the recipient, and the rest the other way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kgbench.data import Prompt
from kgbench.engine import grafted_logits
from kgbench.engine.selftest import tolerance
from kgbench.engine.treatment import baseline_donor
from kgbench.models.pair import ModelPair
from kgbench.numbers import plain_text
from kgbench.sites import complement

__all__ = ["assert_complement_identity", "everything_else", "exchanged"]

SITES = ("FE", "LT", "FE+LT")
PROMPTS = 32
"""What holds of the method holds on any prompts; so many are tried."""


def exchanged(pair: ModelPair) -> ModelPair:
    """The same two models with their roles exchanged; nothing is loaded or copied."""
    donor = baseline_donor(pair)
    return ModelPair(
        pair.name,
        pair.donors[donor],
        {donor: pair.recipient},
        pair.tokenizer,
        pair.family,
        chat_template=pair.chat_template,
    )


def everything_else(positions: str) -> str:
    """Sites outside a graft of whole positions: other tokens, final norm and head."""
    return f"{complement(positions)}; ALL:ln_f+head"


def assert_complement_identity(pair: ModelPair, prompts: Sequence[Prompt]) -> float:
    """Grafting sites into the recipient answers as grafting everything else into the donor does.

    Args:
        pair: The models.
        prompts: Prompts; only the first of them are tried.

    Returns:
        The largest difference of two logits.

    Raises:
        AssertionError: Logits differ by more than rounding, or other tokens lead by more than that.
    """
    __tracebackhide__ = True
    some = prompts[:PROMPTS]
    one = grafted_logits(pair, some, SITES, "auto").double()
    other = grafted_logits(
        exchanged(pair), some, [everything_else(sites) for sites in SITES], "auto"
    ).double()
    differences = (one - other).abs().amax(dim=(0, 2)).tolist()
    for i, (sites, apart) in enumerate(zip(SITES, differences, strict=True)):
        rounding = tolerance(pair, one[:, i])
        what = (
            f"{sites} into the recipient and '{everything_else(sites)}' into the donor, "
            f"over {len(some)} prompts"
        )
        assert apart <= rounding, (
            f"{what}: logits differ by {plain_text(apart, 3)}, more than rounding's "
            f"{plain_text(rounding, 3)}"
        )
        changed = _leads(one[:, i], rounding) & (one[:, i].argmax(-1) != other[:, i].argmax(-1))
        assert not changed.any(), f"{what}: another token leads on {int(changed.sum())} of them"
    return float(max(differences))


def _leads(logits: torch.Tensor, rounding: float) -> torch.Tensor:
    """Where the first token is before the second by more than rounding."""
    first, second = logits.topk(2).values.unbind(-1)
    return first - second > rounding
