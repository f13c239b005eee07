"""Per-fact scores of next-token logits: what counts as an answer, and how well it is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from kgbench.errors import InputError

METRIC_VERSION = "2"
"""Incremented whenever a definition below changes, so that older records are recognised.

Version 2: a tie counts against the target. In version 1 it counted for it, see
`Identity.ties_count_for_the_target`.
"""


Mixed = tuple[
    Int[torch.Tensor, " answer"],
    Int[torch.Tensor, " answer"],
    Float[torch.Tensor, "answer vocabulary"],
]
"""Number of the read, label and logits of each answer."""


@dataclass(frozen=True)
class Read:
    """Where a part of an answer is read, and what counts there as the answer."""

    token: int
    """Index of the prompt's token after which it is read."""
    right: tuple[int, ...]
    """Tokens any of which is right."""
    among: tuple[int, ...] = ()
    """Tokens that it is measured among, the right ones included; empty for all."""


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
    best_other = exact.scatter(1, index, -torch.inf).amax(dim=1, keepdim=True)
    columns = {
        "rank": worst_rank(exact, target)[:, None],
        "logprob": token_logprobs(exact, targets)[:, None],
        "logit_diff": target - best_other,
    }
    arrays = {name: column[:, 0].cpu().numpy() for name, column in columns.items()}
    scores = {name: arrays[name].astype(np.float64) for name in ("logprob", "logit_diff")}
    return {"rank": arrays["rank"], "prob": np.exp(scores["logprob"]), **scores}


def score_reads(
    logits: Float[torch.Tensor, "read vocabulary"],
    reads: Sequence[Read],
    which: Callable[[int], str] = "answer {}".format,
) -> dict[str, np.ndarray]:
    """How well each read's logits predict a right token, as `score_logits` for one of all tokens.

    Args:
        logits: Next-token logits.
        reads: What counts at each of them.
        which: Name of a read by its number, for errors.

    Returns:
        Arrays [read]: `rank` (1 + the number of wrong tokens whose logits are not smaller than the
        best right one's), `prob` and `logprob` (nats) of all right tokens together, `logit_diff`
        (best right token minus best wrong one).

    Raises:
        InputError: The answer has no probability.
    """
    columns: dict[str, np.ndarray] = {}
    for (right, among), numbers in _alike(reads).items():
        exact = _rows(logits, numbers)
        exact = exact if exact.dtype in (torch.float32, torch.float64) else exact.float()

        def name(row: int, numbers: Sequence[int] = numbers) -> str:
            return which(numbers[row])

        if not right:
            scores = score_logits(exact, _targets(reads, numbers), name)
        else:
            first = torch.zeros(len(numbers), dtype=torch.int64)
            best = exact[:, list(right)].amax(dim=1)
            together = score_logits(_one_right(exact, right, among), first, name)
            scores = score_logits(_one_right(exact, right, among, best), first, name)
            scores |= {key: together[key] for key in ("prob", "logprob")}
        for key, values in scores.items():
            columns.setdefault(key, np.empty(len(reads), values.dtype))[numbers] = values
    return columns


def token_logprobs(
    logits: Float[torch.Tensor, "answer vocabulary"], targets: Int[torch.Tensor, " answer"]
) -> Float[torch.Tensor, " answer"]:
    """Log-probability (nats) of each answer's target, differentiable."""
    index = targets.to(logits.device)[:, None]
    return (logits.gather(1, index) - logits.logsumexp(dim=1, keepdim=True))[:, 0]


def read_logprobs(
    logits: Float[torch.Tensor, "read vocabulary"], reads: Sequence[Read]
) -> Float[torch.Tensor, " read"]:
    """Log-probability (nats) of all right tokens of each read together, differentiable."""
    logprobs = logits.new_empty(len(reads))
    for (right, among), numbers in _alike(reads).items():
        rows, index = _rows(logits, numbers), _targets(reads, numbers).to(logits.device)
        if right:
            rows, index = _one_right(rows, right, among), torch.zeros_like(index)
        # Rounded as the board's entries were, whose masks are trained on it.
        values = rows.log_softmax(dim=-1).gather(1, index[:, None])[:, 0]
        places = torch.tensor(numbers, device=logits.device)
        logprobs = logprobs.index_put((places,), values)
    return logprobs


def _rows(
    logits: Float[torch.Tensor, "read vocabulary"], numbers: Sequence[int]
) -> Float[torch.Tensor, "row vocabulary"]:
    """The logits of some reads; all of them, as where they are alike, without a copy."""
    return logits if len(numbers) == len(logits) else logits[numbers]


def _targets(reads: Sequence[Read], numbers: Sequence[int]) -> Int[torch.Tensor, " read"]:
    return torch.tensor([reads[number].right[0] for number in numbers])


def _alike(reads: Sequence[Read]) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Numbers of the reads by what counts at them; those of one token among all are together."""
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, read in enumerate(reads):
        is_plain = len(read.right) == 1 and not read.among
        key = ((), ()) if is_plain else (read.right, read.among)
        numbers.setdefault(key, []).append(number)
    return numbers


def _one_right(
    logits: Float[torch.Tensor, "read vocabulary"],
    right: Sequence[int],
    among: Sequence[int],
    value: Float[torch.Tensor, " read"] | None = None,
) -> Float[torch.Tensor, "read token"]:
    """Logits of a right token, by default all of them as one, and after it of the wrong ones."""
    wrong = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    wrong[list(among) if among else slice(None)] = True
    wrong[list(right)] = False
    value = logits[:, list(right)].logsumexp(dim=1) if value is None else value
    return torch.cat([value[:, None], logits[:, wrong]], dim=1)


def score_labels(
    parts: Iterable[Mixed],
    reads: Sequence[Read],
    n_labels: int,
    which: Callable[[int, int], str],
) -> dict[str, np.ndarray]:
    """Scores of all reads under all labels, whose logits come in parts.

    Args:
        parts: Numbers of the reads, labels and logits; each read under each label once.
        reads: What counts at each of them.
        n_labels: Number of labels, such as configurations.
        which: Name of an answer by its label and read, for errors.

    Returns:
        Arrays [label, read], as of `score_reads`.

    Raises:
        InputError: An answer has no probability.
    """
    columns: dict[str, np.ndarray] = {}
    for numbers, labels, logits in parts:
        cells = labels.numpy(), numbers.numpy()

        def name(row: int, cells: tuple[np.ndarray, ...] = cells) -> str:
            return which(cells[0][row], cells[1][row])

        scores = score_reads(logits, [reads[number] for number in cells[1]], name)
        for key, values in scores.items():
            empty = np.empty((n_labels, len(reads)), values.dtype)
            columns.setdefault(key, empty)[cells] = values
    return columns


def of_answers(
    columns: dict[str, np.ndarray], owners: Int[np.ndarray, " read"]
) -> dict[str, np.ndarray]:
    """Scores of answers of several reads: of the whole answer, given the reads before each.

    Args:
        columns: Scores [..., read] of the reads, as of `score_labels`.
        owners: Number of the answer of each read; those of one answer follow one another.

    Returns:
        The same by answer [..., answer]: the sum of `logprob` and its `prob`, and the worst `rank` and
        `logit_diff`, so that a rank of 1 means that the likeliest tokens are the answer.
    """
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    logprob = np.add.reduceat(columns["logprob"], starts, axis=-1)
    return {
        "rank": np.maximum.reduceat(columns["rank"], starts, axis=-1),
        "prob": np.exp(logprob),
        "logprob": logprob,
        "logit_diff": np.minimum.reduceat(columns["logit_diff"], starts, axis=-1),
    }
