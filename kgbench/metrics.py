"""Per-fact scores of next-token logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int

from kgbench.errors import InputError

METRIC_VERSION = "2"
"""Incremented whenever a definition below changes, so that older records are recognised.

Version 2: a tie counts against the target. In version 1 it counted for it, see
`Identity.ties_count_for_the_target`.
"""


def worst_rank(
    logits: Float[torch.Tensor, "*answer vocabulary"], target: Float[torch.Tensor, ...]
) -> Int[torch.Tensor, "*answer"]:
    """Rank of the target's logit among all tokens, the worst of those that share it.

    Args:
        logits: Next-token logits, the target's own included.
        target: The target's logit of each answer [answer, 1], or one number for all.

    Returns:
        How many logits are not smaller than the target's: 1 where it is strictly the largest.
    """
    # `not smaller` rather than `greater or equal`: a NaN compares as false, and so counts against
    # the target.
    return torch.logical_not(logits < target).sum(dim=-1)


def require_finite(
    logits: Float[torch.Tensor, "answer vocabulary"],
    targets: Int[torch.Tensor, " answer"],
    which: Callable[[int], str] = "answer {}".format,
) -> None:
    """Refuse logits that give the target no probability.

    The logits of other tokens may be -inf: a masked token has probability 0.

    Args:
        logits: Next-token logits.
        targets: Target token of each answer.
        which: Name of an answer by its number, such as its configuration and fact.

    Raises:
        InputError: A logit is NaN or +inf, or the target's is -inf.
    """
    target_logits = logits.gather(1, targets.to(logits.device)[:, None])[:, 0]
    # The largest logit is NaN where any is, so that no mask of the whole array is needed.
    usable = torch.isfinite(target_logits) & torch.isfinite(logits.amax(dim=1))
    if not bool(usable.all()):
        wrong = torch.nonzero(~usable)[:, 0].tolist()
        more = f" and of {len(wrong) - 1} more answers" if len(wrong) > 1 else ""
        raise InputError(
            f"the logits of {which(wrong[0])}{more} hold NaN or infinity, so that the answer has "
            "no probability; "
            "look for such values in the checkpoints or in what the localizer writes, or use "
            "--dtype float32"
        )


def score_logits(
    logits: Float[torch.Tensor, "answer vocabulary"],
    targets: Int[torch.Tensor, " answer"],
    which: Callable[[int], str] = "answer {}".format,
) -> dict[str, np.ndarray]:
    """How well each answer's logits predict its target token.

    Args:
        logits: Next-token logits; 16-bit ones are scored in float32.
        targets: Target token of each answer.
        which: Name of an answer by its number, for errors.

    Returns:
        Arrays [answer]: `rank` (number of logits that are not smaller than the target's, itself
        included: the worst rank of the tied; logits order as probabilities do, without the rounding
        of the softmax), `prob`, `logprob` (nats), `logit_diff` (target minus the best other token;
        above 0 exactly at rank 1).

    Raises:
        InputError: A logit is NaN or +inf, or the target's is -inf.
    """
    exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    require_finite(exact, targets, which)
    index = targets.to(exact.device)[:, None]
    target = exact.gather(1, index)
    logprob = target - exact.logsumexp(dim=1, keepdim=True)
    best_other = exact.scatter(1, index, -torch.inf).amax(dim=1, keepdim=True)
    columns = {
        "rank": worst_rank(exact, target)[:, None],
        "logprob": logprob,
        "logit_diff": target - best_other,
    }
    arrays = {name: column[:, 0].cpu().numpy() for name, column in columns.items()}
    scores = {name: arrays[name].astype(np.float64) for name in ("logprob", "logit_diff")}
    return {"rank": arrays["rank"], "prob": np.exp(scores["logprob"]), **scores}
