"""Scores of continuations, and next tokens, of a model pair under graft configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Answers, Engine
from kgbench.engine.treatment import Configuration, graft_treatments, parse_configuration
from kgbench.errors import NotApplicableError, RegionError
from kgbench.harness.metrics import TokenScore
from kgbench.harness.passages import Passage
from kgbench.localizers import InterventionLocalizer, Treatments
from kgbench.localizers._base import asked
from kgbench.metrics import require_finite, score_logits
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.runner.measure import chunks, mixed, treated
from kgbench.sites import Graft, parse_graft

AT_ONCE = 64
"""Passages planned together; bounds the memory of their treatments."""

_SCORES = ("rank", "prob", "logprob")

_LATER = {"none": parse_graft("NONE"), "all": parse_graft("ALL")}
"""Grafts at the later tokens of a continuation, where they are not treated as LT is."""


@dataclass(frozen=True)
class Answering:
    """A method on a model pair.

    `continuation` is the treatment of tokens that predict later tokens of a continuation: `lt` as
    the last token of the prompt, `none` as where nothing is grafted, `all` as where everything is.
    """

    engine: Engine
    method: InterventionLocalizer
    continuation: str = "lt"
    learned: Mapping[Prompt, Encoded] = field(default_factory=dict)
    """Contexts that the method is fitted on; it may read them again when it treats others."""

    @property
    def pair(self) -> ModelPair:
        """The models."""
        return self.engine.pair

    def fitted(self, passages: Sequence[Passage]) -> Answering:
        """Fit the method on all contexts of one task, each once.

        Empty contexts, as of unconditional scores, are left out unless there are no others.
        """
        bare: dict[Prompt, Encoded] = {}
        for passage in passages:
            context = passage.without_continuation()
            bare[context.prompt] = context.encoded
        learned = {prompt: encoded for prompt, encoded in bare.items() if prompt.text} or bare
        with self.pair.read_as(learned):
            prompts = asked(self.method, self.pair, list(learned))
            method = self.method.fitted(self.pair, prompts)
        return replace(self, method=method, learned=learned)

    def scores(
        self,
        passages: Sequence[Passage],
        configuration: str,
        progress: Callable[[int], object] | None = None,
    ) -> list[TokenScore]:
        """Scores of every continuation under a configuration.

        Where a method draws at random, the probabilities of each next token are averaged over its
        draws, given the true tokens before it.

        Args:
            passages: Contexts with continuations, of any lengths.
            configuration: A graft expression, `PRE` or `SFT`.
            progress: Progress callback: number of further passages that are done.

        Raises:
            RegionError: A passage lacks a region that a graft names.
            NotApplicableError: The method cannot express a graft.
        """
        scores: dict[int, TokenScore] = {}
        for numbers, some in self._groups(passages):
            read = self._read(some, configuration)
            ends = np.cumsum([len(passage.readouts) for passage in some]).tolist()
            spans = zip(numbers, some, pairwise([0, *ends]), strict=True)
            for number, passage, (start, end) in spans:
                scores[number] = _score(read[:, start:end], len(passage.before))
            if progress is not None:
                progress(len(some))
        return list(map(scores.__getitem__, range(len(passages))))

    def next_tokens(self, passages: Sequence[Passage], configuration: str) -> list[int]:
        """The most probable token after each passage."""
        tokens = [0] * len(passages)
        for numbers, some in self._groups(passages):
            last = [range(len(p.encoded.ids) - 1, len(p.encoded.ids)) for p in some]
            for which, logits in self._answers(some, last, configuration):
                require_finite(logits, logits.argmax(1), lambda _: f"configuration {configuration}")
                for number, token in zip(which.tolist(), logits.argmax(1).tolist(), strict=True):
                    tokens[numbers[number]] = token
        return tokens

    def _groups(self, passages: Sequence[Passage]) -> Iterator[tuple[Sequence[int], list[Passage]]]:
        """Passages of similar length together, with their numbers."""
        order = sorted(range(len(passages)), key=lambda i: -len(passages[i].encoded.ids))
        for numbers in chunks(order, AT_ONCE):
            some = [passages[i] for i in numbers]
            if self.continuation == "lt":
                some = [passage.lead_everywhere() for passage in some]
            yield numbers, some

    def _read(self, passages: Sequence[Passage], configuration: str) -> np.ndarray:
        """Scores [score, readout] over all passages."""
        tokens: list[int] = []
        for passage in passages:
            tokens += (*passage.before, *passage.targets)
        wanted = torch.tensor(tokens)
        found = np.empty((len(_SCORES), len(tokens)))
        for which, logits in self._answers(*self._parts(passages), configuration):
            scored = score_logits(logits, wanted[which], lambda _: f"configuration {configuration}")
            for place, name in enumerate(_SCORES):
                found[place, which.numpy()] = scored[name]
        return found

    def _parts(self, passages: Sequence[Passage]) -> tuple[list[Passage], list[range]]:
        """Passages to run, and readouts of each.

        A method that acts at the last token of a prompt gets each passage once per readout, cut
        after it, since its treatment depends on the token that is read.
        """
        if self.method.reads_any_token:
            return list(passages), [passage.readouts for passage in passages]
        cut: list[Passage] = []
        readouts: list[range] = []
        for passage in passages:
            for part, token in passage.read_alone():
                cut.append(part)
                readouts.append(range(token, token + 1))
        return cut, readouts

    def _answers(
        self, passages: Sequence[Passage], readouts: Sequence[range], configuration: str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Number of the readout over all passages, and logits, of each answer."""
        # Long continuations are split, so that the logits of a piece stay within the budget.
        most = max(1, self.engine.budget.logits // int(self.pair.recipient.config.vocab_size))
        pieces: list[int] = []
        tokens: list[Sequence[int]] = []
        first: list[int] = []
        start = 0
        for number, each in enumerate(readouts):
            for some in chunks(each, most):
                pieces.append(number)
                tokens.append(list(some))
                first.append(start)
                start += len(some)
        with self._reading(passages):
            described: list[Treatments] = []
            for treatments in self._treatments(passages, parse_configuration(configuration)):
                described.append([treatments[piece] for piece in pieces])
            prompts = [passages[piece].prompt for piece in pieces]
            plan = self.engine.plan_treatments(prompts, described, tokens)

        def numbered(answers: Answers) -> Answers:
            return replace(answers, prompt=torch.tensor(first)[answers.prompt] + answers.readout)

        draws = [0] * len(described)
        for which, _, logits in mixed(map(numbered, self.engine.run(plan)), draws):
            yield which, logits

    def _reading(self, passages: Sequence[Passage]) -> AbstractContextManager[None]:
        encoded = {passage.prompt: passage.encoded for passage in passages}
        return self.pair.read_as({**self.learned, **encoded})

    def _treatments(
        self, passages: Sequence[Passage], configuration: Configuration
    ) -> list[Treatments]:
        """Treatments under a configuration, once per draw of a random method."""
        prompts = [passage.prompt for passage in passages]
        if not isinstance(configuration, Graft):
            return [graft_treatments(self.pair, prompts, configuration)]
        _check_regions(passages, configuration)
        draws = self.method.variants()
        if self.continuation == "lt":
            return [treated(draw, self.pair, prompts, configuration) for draw in draws]
        return [self._treated(draw, passages, configuration) for draw in draws]

    def _treated(
        self, draw: InterventionLocalizer, passages: Sequence[Passage], graft: Graft
    ) -> Treatments:
        """Treatments up to the last token of each prompt, and those of later tokens.

        A method that acts at the last token alone is asked for each passage by itself. Where it
        cannot act at a later token, that token gets the treatment of later ones.
        """
        prompts = [passage.prompt for passage in passages]
        rest = treated(draw, self.pair, prompts, _LATER[self.continuation])
        if draw.reads_any_token:
            leading = list(treated(draw, self.pair, prompts, graft))
        else:
            leading = []
            for passage, later in zip(passages, rest, strict=True):
                try:
                    leading += treated(draw, self.pair, [passage.prompt], graft)
                except NotApplicableError:
                    if passage.lead == len(passage.encoded.ids) - 1:
                        raise
                    leading.append(later)
        return [
            (*a[: p.lead + 1], *b[p.lead + 1 :])
            for p, a, b in zip(passages, leading, rest, strict=True)
        ]


def _check_regions(passages: Sequence[Passage], graft: Graft) -> None:
    """Refuse a graft with a region that a passage lacks, whether or not the method looks at it."""
    named = frozenset[str]().union(*(term.positions.regions() for term in graft.terms))
    for passage in passages:
        if missing := sorted(named - passage.encoded.regions.keys() - {"ALL", "NONE"}):
            raise RegionError(
                f"graft '{graft}' names {' and '.join(missing)}, which {passage.source.label} does "
                "not have: its row does not place it, or it was cut off with the beginning of the "
                "context; graft LT, ALL or NONE there"
            )


def _score(scored: np.ndarray, first: int) -> TokenScore:
    rank, prob, logprob = scored
    greedy = bool((rank == 1).all())
    return TokenScore(
        float(logprob.sum()), greedy, int(rank[first]), float(prob[first]), float(logprob[first])
    )
