"""Prints how far planted blocks are found without a forward, by the change of weights alone.

python tests/weights_only.py            # average precision by level, of the shipped plants

- second: the second singular value of a change, relative to its norm;
- alignment: how far a change reads what its matrix reads, |R W'| / |W| with R its right singular
  vectors;
- composition: how far a change reads what the changes of earlier blocks write.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from kgbench.engine import load_pair
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.sites import Block, block_of, parse_graft
from kgbench.stats.ranking_quality import average_precision

Change = tuple[Tensor, Tensor, Tensor, Tensor]
"""Matrix as [output, input], and the change's singular vectors and values."""


def changes(pair: ModelPair) -> dict[Block, list[Change]]:
    """The changes of each block, in the order of computation."""
    made: dict[Block, dict[str, Change]] = {}
    for slot in pair.slots.sites:
        if (block := block_of(slot)) is None:
            continue
        for path in pair.family.paths(*slot):
            module = pair.recipient.get_submodule(path)
            weight = getattr(module, "weight", None)
            if weight is None or weight.ndim != 2:
                continue
            change = pair.donors["sft"].get_submodule(path).weight - weight
            if isinstance(module, Conv1D):
                weight, change = weight.T, change.T
            left, values, right = torch.linalg.svd(change.detach(), full_matrices=False)
            rank = int((values > 0.01 * values[0]).sum())
            parts = weight.detach(), left[:, :rank], values[:rank], right[:rank]
            made.setdefault(block, {})[path] = parts
    return {block: list(own.values()) for block, own in made.items()}


def statistics(blocks: dict[Block, list[Change]], width: int) -> dict[str, list[float]]:
    """Each statistic of each block; `width` is of the residual stream."""
    found: dict[str, list[float]] = {"second": [], "alignment": [], "composition": []}
    written: list[Tensor] = []
    for own in blocks.values():
        second = [float(values[1] / values.norm()) for _, _, values, _ in own]
        read = [float((right @ weight.T).norm() / weight.norm()) for weight, _, _, right in own]
        passed = []
        for _, _, _, right in own:
            if written and right.shape[1] == width:
                passed.append(float((right @ torch.cat(written, 1)).square().mean()))
        for name, values in {"second": second, "alignment": read, "composition": passed}.items():
            found[name].append(float(np.mean(values)) if values else 0.0)
        written += [left for _, left, _, _ in own if len(left) == width]
    return found


def main() -> None:
    """Print the table."""
    levels: dict[str, dict[str, list[float]]] = {}
    for name in catalog.plants_in_shipped_pairs():
        entry, pair = catalog.entry(name), load_pair(name)
        blocks = changes(pair)
        planted = set(map(block_of, parse_graft(str(entry.plant)).sites(pair.n_layers)))
        truth = np.array([block in planted for block in blocks])
        for statistic, scores in statistics(blocks, pair.recipient.config.hidden_size).items():
            value = average_precision(np.array(scores), truth).value
            levels.setdefault(str(entry.level), {}).setdefault(statistic, []).append(value or 0.0)
    for level, own in levels.items():
        cells = [f"{statistic} {np.mean(values):.2f}" for statistic, values in own.items()]
        print(f"{level:12}{len(own['second']):4}  {'  '.join(cells)}")


if __name__ == "__main__":
    main()
