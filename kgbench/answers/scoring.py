"""Scores of whole answers, fact by fact: their log-likelihood, their rank among all candidates, and all first tokens of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kgbench.answers.candidates import Candidates, continuation, encode_candidates
from kgbench.answers.first_tokens import first_tokens, token_texts
from kgbench.answers.reading import Asked, Chunk, read
from kgbench.answers.search import Search
from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.errors import InputError
from kgbench.metrics import require_finite, score_logits, worst_rank
from kgbench.models.encoding import Encoder

__all__ = ["ScoredAnswer", "score_prompts"]


@dataclass(frozen=True)
class ScoredAnswer:
    """The answer to one prompt under one configuration."""

    fact: str
    prompt: str
    graft: str
    answer: str
    n_tokens: int
    """Of the answer."""
    logprob: float
    """Log-likelihood (nats) of the whole answer."""
    rank: int
    """1 + the number of other candidates that are at least as likely."""
    likeliest: str
    """The likeliest candidate; the answer itself where no other is as likely."""
    first_token: str
    """Text of the answer's first token."""
    first_logprob: float
    """Its log-probability (nats)."""
    first_rank: int
    """1 + the number of other tokens that are at least as probable, as `kgbench eval` has it."""
    alternatives: tuple[str, ...]
    """Texts of all tokens that the name can begin with, the answer's own first token included."""
    alternatives_prob: float
    """Their probability together."""
    alternatives_rank: int
    """The best of their ranks."""
    collisions: int
    """How many other candidates have the same first token."""
    scored: int
    """How many candidates had to be scored to their last token."""

    def to_json(self) -> dict[str, Any]:
        """The row that `kgbench answers --json` prints."""
        return {**asdict(self), "alternatives": list(self.alternatives)}


@dataclass
class _Question:
    """One prompt."""

    prompt: Prompt
    candidates: Candidates
    alternatives: Mapping[int, str]
    """Tokens that the answer can begin with, and their texts."""
    searches: list[Search]
    """By configuration."""
    first: dict[int, dict[str, float]] = field(default_factory=dict)
    """By configuration, scores of the first token and of its alternatives."""

    def missing(self) -> Iterator[Asked]:
        """What must be read next."""
        wanted: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for number, search in enumerate(self.searches):
            for prefix in search.missing():
                wanted.setdefault((self.candidates.to_read(prefix), len(prefix)), []).append(number)
        return (
            Asked(self.prompt, tokens, start, tuple(numbers))
            for (tokens, start), numbers in wanted.items()
        )


def score_prompts(
    engine: Engine, prompts: Sequence[Prompt], names: Sequence[str], configurations: Sequence[str]
) -> list[ScoredAnswer]:
    """Score the answers to some prompts.

    Args:
        engine: Of the pair.
        prompts: Prompts whose targets are among the candidates.
        names: All candidates.
        configurations: Graft expressions, `PRE` or `SFT`.

    Returns:
        By prompt, then configuration.

    Raises:
        RegionError: The tokens of a prompt change with a candidate, or it does not have a region that a graft names.
        InputError: A prompt with a candidate is longer than the model reads.
    """
    encoder = Encoder(engine.pair.tokenizer, engine.pair.chat_template)
    texts = token_texts(encoder.tokenizer, int(engine.pair.recipient.config.vocab_size))
    questions = []
    for prompt, candidates in zip(prompts, encode_candidates(encoder, prompts, names), strict=True):
        _check_length(engine, prompt, candidates)
        own = candidates.tokens[prompt.target][0]
        alternatives = first_tokens(texts, continuation(encoder, prompt, prompt.target), own)
        searches = [Search(candidates, prompt.target) for _ in configurations]
        questions.append(_Question(prompt, candidates, alternatives, searches))
    every = tuple(range(len(configurations)))
    _read(
        engine,
        [
            (q, Asked(q.prompt, q.candidates.tokens[q.prompt.target][:-1], 0, every))
            for q in questions
        ],
        configurations,
    )
    while left := [(question, asked) for question in questions for asked in question.missing()]:
        _read(engine, left, configurations)
    decode = engine.pair.tokenizer.decode
    return [
        _scored(q, number, label, decode)
        for q in questions
        for number, label in enumerate(configurations)
    ]


def _check_length(engine: Engine, prompt: Prompt, candidates: Candidates) -> None:
    most = getattr(engine.pair.recipient.config, "max_position_embeddings", None)
    name, tokens = max(candidates.tokens.items(), key=lambda one: len(one[1]))
    n = len(engine.pair.encoded(prompt).ids) + len(tokens) - 1
    if most is not None and n > most:
        raise InputError(
            f"fact {prompt.fact.id}, prompt {prompt.name!r} has {n} tokens with the candidate {name!r}; the model reads at most {most}"
        )


def _read(
    engine: Engine, wanted: Sequence[tuple[_Question, Asked]], configurations: Sequence[str]
) -> None:
    for chunk in read(engine, [asked for _, asked in wanted], configurations):
        _note(chunk, wanted, configurations)


def _note(
    chunk: Chunk, wanted: Sequence[tuple[_Question, Asked]], configurations: Sequence[str]
) -> None:
    """Keep of a chunk's logits what candidates need, and of those after the bare prompt the scores of first tokens."""
    logits = (
        chunk.logits
        if chunk.logits.dtype in (torch.float32, torch.float64)
        else chunk.logits.float()
    )

    def which(row: int) -> str:
        prompt = wanted[chunk.asked[row]][0].prompt
        return f"configuration {configurations[chunk.configuration[row]]}, fact {prompt.fact.id}, prompt {prompt.name!r}"

    require_finite(logits, logits.argmax(dim=1), which)
    total = logits.logsumexp(dim=1).tolist()
    rows, tokens, where = list[int](), list[int](), list[tuple[dict[int, float], int, float]]()
    bare = list[tuple[int, _Question, int]]()
    for row, (number, configuration, after) in enumerate(
        zip(chunk.asked, chunk.configuration, chunk.after, strict=True)
    ):
        question, asked = wanted[number]
        prefix = asked.tokens[:after]
        known = question.searches[configuration].known.setdefault(prefix, {})
        for token in question.candidates.children[prefix]:
            rows.append(row)
            tokens.append(token)
            where.append((known, token, total[row]))
        if after == 0:
            bare.append((row, question, int(configuration)))
    values = logits[
        torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    ].tolist()
    for (known, token, whole), value in zip(where, values, strict=True):
        known[token] = value - whole
    if bare:
        _note_first(logits, bare, which)


def _note_first(
    logits: torch.Tensor, bare: Sequence[tuple[int, _Question, int]], which: Callable[[int], str]
) -> None:
    """Scores of the first token and of its alternatives, from the logits [answer, vocabulary] after bare prompts."""
    own = logits[torch.tensor([row for row, _, _ in bare], device=logits.device)]
    targets = torch.tensor([q.candidates.tokens[q.prompt.target][0] for _, q, _ in bare])
    scored = score_logits(own, targets, lambda i: which(bare[i][0]))
    total = own.logsumexp(dim=1)
    for i, (_, question, configuration) in enumerate(bare):
        some = own[i, torch.tensor(list(question.alternatives), device=own.device)]
        question.first[configuration] = {
            "first_logprob": float(scored["logprob"][i]),
            "first_rank": int(scored["rank"][i]),
            "alternatives_prob": float((some - total[i]).double().exp().sum()),
            "alternatives_rank": int(worst_rank(own[i], some.max())),
        }


def _scored(
    question: _Question, number: int, label: str, decode: Callable[..., Any]
) -> ScoredAnswer:
    search, prompt = question.searches[number], question.prompt
    better = search.better()
    tokens = question.candidates.tokens[prompt.target]
    first = question.first[number]
    return ScoredAnswer(
        fact=prompt.fact.id,
        prompt=prompt.name,
        graft=label,
        answer=prompt.target,
        n_tokens=len(tokens),
        logprob=search.loglik,
        rank=1 + len(better),
        likeliest=better[0][0] if better else prompt.target,
        first_token=str(decode([tokens[0]])),
        first_logprob=first["first_logprob"],
        first_rank=int(first["first_rank"]),
        alternatives=tuple(
            text or str(decode([token])) for token, text in question.alternatives.items()
        ),
        alternatives_prob=first["alternatives_prob"],
        alternatives_rank=int(first["alternatives_rank"]),
        collisions=question.candidates.collisions(prompt.target),
        scored=search.scored(),
    )
