"""Next-token logits after a prompt and some tokens of an answer, by the engine; later tokens are treated as the prompt's last token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from kgbench.answers.candidates import Tokens
from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.plan import Plan, make_plan
from kgbench.engine.treatment import Treatment, graft_treatments, parse_configuration
from kgbench.harness.passages import Passage, TaskDocument
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair

__all__ = ["Asked", "Chunk", "read"]

AT_ONCE = 1024
"""Passages planned together, so that descriptions of many do not pile up."""


@dataclass(frozen=True)
class Asked:
    """A prompt that some tokens follow: it is read after the first `start` of them, and after each further one."""

    prompt: Prompt
    tokens: Tokens
    start: int
    configurations: tuple[int, ...]
    """Numbers of those that it is read under."""

    def passage(self, pair: ModelPair) -> Passage:
        """As the harness reads a context and its continuation, under a prompt of its own."""
        bare = pair.encoded(self.prompt)
        own = replace(
            self.prompt, target=f"{self.prompt.target}\n{' '.join(map(str, self.tokens))}"
        )
        encoded = Encoded((*bare.ids, *self.tokens), bare.regions, bare.target)
        return Passage(
            TaskDocument(own.name, {}), own, encoded, len(bare.ids) - 1, self.tokens
        ).lead_everywhere()


@dataclass(frozen=True)
class Chunk:
    """Some answers; row i is of what was asked for as number `asked[i]`, under `configuration[i]`, after `after[i]` of its tokens."""

    asked: Int[np.ndarray, " answer"]
    configuration: Int[np.ndarray, " answer"]
    after: Int[np.ndarray, " answer"]
    logits: Float[torch.Tensor, "answer vocabulary"]


def read(engine: Engine, asked: Sequence[Asked], configurations: Sequence[str]) -> Iterator[Chunk]:
    """Read prompts and tokens of answers, each under its own configurations; never more than one chunk's logits are held.

    Args:
        engine: Of the pair.
        asked: What is read, of any lengths.
        configurations: Graft expressions, `PRE` or `SFT`, by the numbers that `asked` names.

    Raises:
        RegionError: A prompt does not have a region that a graft names.
    """
    for first in range(0, len(asked), AT_ONCE):
        some = asked[first : first + AT_ONCE]
        starts = np.array([one.start for one in some])
        for answers in engine.run(_plan(engine, some, configurations)):
            which, number, readout = (
                x.cpu().numpy() for x in (answers.prompt, answers.configuration, answers.readout)
            )
            chosen = np.array(
                [
                    some[a].configurations[c]
                    for a, c in zip(which.tolist(), number.tolist(), strict=True)
                ]
            )
            yield Chunk(first + which, chosen, starts[which] + readout, answers.logits)


def _plan(engine: Engine, asked: Sequence[Asked], configurations: Sequence[str]) -> Plan:
    """A plan in which every passage has but the configurations that are asked of it."""
    pair = engine.pair
    passages = [one.passage(pair) for one in asked]
    rows: list[dict[int, Sequence[Treatment]]] = [{} for _ in asked]
    with pair.read_as({passage.prompt: passage.encoded for passage in passages}):
        for number, label in enumerate(configurations):
            wanted = [i for i, one in enumerate(asked) if number in one.configurations]
            treatments = graft_treatments(
                pair, [passages[i].prompt for i in wanted], parse_configuration(label)
            )
            for i, row in zip(wanted, treatments, strict=True):
                rows[i][number] = row
    treated = [[rows[i][number] for number in one.configurations] for i, one in enumerate(asked)]
    leads = [passage.lead for passage in passages]
    readouts = [
        range(lead + one.start, lead + len(one.tokens) + 1)
        for lead, one in zip(leads, asked, strict=True)
    ]
    return make_plan(
        engine.wiring.slots,
        [passage.encoded for passage in passages],
        treated,
        readouts,
        1 + len(pair.donors),
    )
