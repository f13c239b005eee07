"""Scores of continuations, and next tokens, of a model pair under graft configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.treatment import Configuration, graft_treatments, parse_configuration
from kgbench.errors import NotApplicableError, RegionError
from kgbench.harness.encoded_requests import Passage
from kgbench.harness.metrics import TokenScore
from kgbench.localizers import InterventionLocalizer, Treatments
from kgbench.localizers._base import asked
from kgbench.metrics import Mixed, Read, of_answers, require_finite, score_labels
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.runner.measure import chunks, mixed, treated
from kgbench.sites import Graft, parse_graft

AT_ONCE = 64
"""Passages planned together; bounds the memory of their treatments."""

_LATER = {"none": parse_graft("NONE"), "all": parse_graft("ALL")}
"""Grafts at the later tokens of a continuation, where they are not treated as LT is."""


Piece = tuple[Passage, Sequence[int]]
"""A passage, and the tokens that are read out."""


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
        scores: list[TokenScore] = []
        for group in self._groups(passages):
            scores += self._scored(group, configuration)
            if progress is not None:
                progress(len(group))
        return scores

    def next_tokens(self, passages: Sequence[Passage], configuration: str) -> list[int]:
        """The most probable token after each passage."""
        following: list[int] = []
        for group in self._groups(passages):
            last = [(p, range(len(p.encoded.ids) - 1, len(p.encoded.ids))) for p in group]
            tokens = torch.empty(len(group), dtype=torch.int64)
            for which, _, logits in self._answers(last, configuration):
                tokens[which] = best = logits.argmax(1).cpu()
                require_finite(logits, best, lambda _: f"configuration {configuration}")
            following += tokens.tolist()
        return following

    def _groups(self, passages: Sequence[Passage]) -> Iterator[Sequence[Passage]]:
        """Passages that are planned together, LT as the argument `continuation` has it."""
        for group in chunks(passages, AT_ONCE):
            later = self.continuation == "lt"
            yield [passage.lead_everywhere() for passage in group] if later else group

    def _scored(self, passages: Sequence[Passage], configuration: str) -> list[TokenScore]:
        reads, pieces = list[Read](), list[Piece]()
        for passage in passages:
            tokens = zip(passage.readouts, (*passage.before, *passage.targets), strict=True)
            reads += (Read(place, (token,)) for place, token in tokens)
            pieces += self._pieces(passage)
        label = f"configuration {configuration}"
        answers = self._answers(pieces, configuration)
        columns = score_labels(answers, reads, 1, lambda *_: label)
        owners = np.repeat(np.arange(len(passages)), [len(p.readouts) for p in passages])
        whole, scores, first = of_answers(columns, owners), list[TokenScore](), 0
        for number, passage in enumerate(passages):
            own = {name: values[0, first + len(passage.before)] for name, values in columns.items()}
            scores.append(
                TokenScore(
                    float(whole["logprob"][0, number]),
                    bool(whole["rank"][0, number] == 1),
                    int(own["rank"]),
                    float(own["prob"]),
                    float(own["logprob"]),
                )
            )
            first += len(passage.readouts)
        return scores

    def _pieces(self, passage: Passage) -> Iterator[Piece]:
        """Passages to run, and which tokens of each are read out, in the order of the tokens.

        A method that acts at the last token of a prompt gets a passage once per readout, cut after
        it, since its treatment depends on the token that is read. Long continuations are split, so
        that the logits of a piece stay within the budget.
        """
        if not self.method.reads_any_token:
            for part, token in passage.read_alone():
                yield part, range(token, token + 1)
            return
        most = max(1, self.engine.budget.logits // int(self.pair.recipient.config.vocab_size))
        for readouts in chunks(passage.readouts, most):
            yield passage, readouts

    def _answers(self, pieces: Sequence[Piece], configuration: str) -> Iterator[Mixed]:
        """The answers, whose reads are the readouts of all pieces."""
        passages, readouts = zip(*pieces, strict=True)
        prompts = [passage.prompt for passage in passages]
        encoded = {passage.prompt: passage.encoded for passage in passages}
        with self.pair.read_as({**self.learned, **encoded}):
            described = self._treatments(passages, parse_configuration(configuration))
            plan = self.engine.plan_treatments(prompts, described, list(map(list, readouts)))
        numbered = map(plan.numbered, self.engine.run(plan))
        yield from mixed(numbered, [0] * len(described))

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
