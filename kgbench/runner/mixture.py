"""Averages of next-token probabilities over the random draws of a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kgbench.engine import Answers

__all__ = ["Mixed", "mixed"]

Mixed = tuple[Int[Tensor, " answer"], Int[Tensor, " answer"], Float[Tensor, "answer vocabulary"]]
"""Prompt, label and logits of each answer."""


def mixed(chunks: Iterable[Answers], labels: Sequence[int]) -> Iterator[Mixed]:
    """Answers by label; where several configurations share one, their probabilities are averaged, and the logits are their logarithms.

    Only averages whose configurations have not all come yet are held.

    Args:
        chunks: Answers with one readout per prompt.
        labels: Label of each configuration.
    """
    sizes = {label: labels.count(label) for label in labels}
    if max(sizes.values()) == 1:
        of = torch.tensor(labels)
        yield from ((chunk.prompt, of[chunk.configuration], chunk.logits) for chunk in chunks)
        return
    held: dict[tuple[int, int], tuple[int, Tensor]] = {}
    for chunk in chunks:
        done: list[tuple[int, int, Tensor]] = []
        for prompt, configuration, logits in zip(
            chunk.prompt.tolist(), chunk.configuration.tolist(), chunk.logits, strict=True
        ):
            label = labels[configuration]
            exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
            number, total = held.pop((prompt, label), (0, None))
            own = exact.log_softmax(0)
            total, number = own if total is None else torch.logaddexp(total, own), number + 1
            if number < sizes[label]:
                held[prompt, label] = (number, total)
            else:
                done.append((prompt, label, total - log(number)))
        if done:
            prompts, found, logits_of = zip(*done, strict=True)
            yield torch.tensor(prompts), torch.tensor(found), torch.stack(logits_of)
