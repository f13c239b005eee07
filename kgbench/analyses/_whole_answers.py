"""Scores of whole answers: log-likelihood, rank among the answers of a data set, first tokens.

A candidate's log-likelihood is at most that of its first tokens. So candidates that go on from
tokens less likely than the whole answer need no scoring, and ranks are exact all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Float
from transformers import PreTrainedTokenizerBase

from kgbench.analyses.answers import ScoredAnswer
from kgbench.data import Dataset, Prompt
from kgbench.engine import Engine
from kgbench.engine.plan import Plan, make_plan
from kgbench.engine.treatment import Treatment, graft_treatments, parse_configuration
from kgbench.errors import InputError, RegionError
from kgbench.metrics import require_finite, score_logits, worst_rank
from kgbench.models.encoding import Encoder
from kgbench.models.pair import ModelPair

Tokens = tuple[int, ...]
"""Token ids that follow a prompt."""


@dataclass(frozen=True)
class Candidates:
    """All candidates of a prompt, as a trie of the tokens that each adds to it."""

    tokens: Mapping[str, Tokens]
    """By name."""

    @cached_property
    def children(self) -> Mapping[Tokens, tuple[int, ...]]:
        """The tokens of candidates after each prefix that one goes on from, () being the prompt."""
        children: dict[Tokens, dict[int, None]] = {}
        for tokens in self.tokens.values():
            for i, token in enumerate(tokens):
                children.setdefault(tokens[:i], {})[token] = None
        return {prefix: tuple(after) for prefix, after in children.items()}

    @cached_property
    def names(self) -> Mapping[Tokens, tuple[str, ...]]:
        """Candidates by tokens; several where a tokenizer maps names to the same tokens."""
        by_tokens: dict[Tokens, list[str]] = {}
        for name, tokens in self.tokens.items():
            by_tokens.setdefault(tokens, []).append(name)
        return {tokens: tuple(names) for tokens, names in by_tokens.items()}

    @cached_property
    def _only(self) -> Mapping[Tokens, Tokens | None]:
        """Of each prefix, what goes on from it, where that is but one."""
        found: dict[Tokens, Tokens | None] = {}
        for tokens in self.names:
            for i in range(len(tokens)):
                found[tokens[:i]] = None if tokens[:i] in found else tokens
        return found

    @cached_property
    def _sharing(self) -> Mapping[int, int]:
        return Counter(tokens[0] for tokens in self.tokens.values())

    def collisions(self, name: str) -> int:
        """How many other candidates have the same first token."""
        return self._sharing[self.tokens[name][0]] - 1

    def to_read(self, prefix: Tokens) -> Tokens:
        """Tokens to read after a prefix: where one candidate alone has it, all but its last."""
        only = self._only[prefix]
        return prefix if only is None else only[:-1]


def candidate_names(dataset: Dataset) -> tuple[str, ...]:
    """The distinct answers of a data set, in the order of its facts."""
    return tuple(dict.fromkeys(fact.fields[dataset.object] for fact in dataset.facts))


def continuation(encoder: Encoder, prompt: Prompt, name: str) -> str:
    """The answer as text after a prompt, with a blank before it unless the prompt ends with one."""
    return name if f"{prompt.text}{encoder.after}"[-1].isspace() else f" {name}"


def encode_candidates(
    encoder: Encoder, prompts: Sequence[Prompt], names: Sequence[str]
) -> Iterator[Candidates]:
    """The candidates of each prompt. Prompts after which all are the same tokens share them.

    Raises:
        RegionError: The prompt's tokens are not a prefix of those of prompt and candidate.
    """
    known: dict[tuple[Tokens, ...], Candidates] = {}
    for prompt in prompts:
        text = f"{encoder.before}{prompt.text}{encoder.after}"
        head, *whole = _ids(
            encoder, [text, *(text + continuation(encoder, prompt, name) for name in names)]
        )
        for name, ids in zip(names, whole, strict=True):
            if len(ids) <= len(head) or ids[: len(head)] != head:
                raise RegionError(
                    f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are "
                    f"not a prefix of the tokens of prompt and candidate {name!r}, so that the "
                    "candidate has no probability of its own"
                )
        tails = tuple(tuple(ids[len(head) :]) for ids in whole)
        if tails not in known:
            known[tails] = Candidates(dict(zip(names, tails, strict=True)))
        yield known[tails]


def _ids(encoder: Encoder, texts: Iterable[str]) -> list[list[int]]:
    return list(
        encoder.tokenizer(list(texts), add_special_tokens=not encoder.chat_template)["input_ids"]
    )


@lru_cache(maxsize=1)  # the tokens of a large vocabulary take seconds, and prompts come in groups
def token_texts(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tokens by the text that they add to a text before them.

    A token is decoded after another one, since some tokenizers drop a leading blank at the
    beginning. Left out are special tokens, those that add nothing or only blanks, with which every
    name begins, and those that are no text by themselves, such as a part of a character.

    Args:
        tokenizer: Of the pair; its own vocabulary may be smaller than the model's.
        vocabulary: Number of tokens that the model has logits of.
    """
    before = int(tokenizer("a", add_special_tokens=False)["input_ids"][-1])
    start = str(tokenizer.decode([before], clean_up_tokenization_spaces=False))
    special = set(tokenizer.all_special_ids)
    for i, token in tokenizer.added_tokens_decoder.items():
        if token.special:
            special.add(i)
    ids = [i for i in range(min(vocabulary, len(tokenizer))) if i not in special]
    pairs = [[before, i] for i in ids]
    texts = tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)
    by_text: dict[str, list[int]] = {}
    for i, text in zip(ids, texts, strict=True):
        added = text[len(start) :]
        if text.startswith(start) and added.strip():
            by_text.setdefault(added, []).append(i)
    return {text: tuple(tokens) for text, tokens in by_text.items()}


def first_tokens(texts: Mapping[str, tuple[int, ...]], answer: str, own: int) -> dict[int, str]:
    """The tokens whose text is a prefix of an answer's, the shortest first, and that text.

    Args:
        texts: Tokens by text, see `token_texts`.
        answer: The answer with the blank before it, if it has one.
        own: The token that the tokenizer begins it with, which always counts, even where it is a
            blank or a part of a character.
    """
    beginnings: dict[int, str] = {}
    for end in range(1, len(answer) + 1):
        for token in texts.get(answer[:end], ()):
            beginnings[token] = answer[:end]
    return beginnings if own in beginnings else {own: "", **beginnings}


@dataclass
class Search:
    """What is known of one prompt's candidates under one configuration."""

    candidates: Candidates
    answer: str
    known: dict[Tokens, dict[int, float]] = field(default_factory=dict)
    """Log-probabilities (nats) of the tokens that candidates have after a prefix."""

    @property
    def loglik(self) -> float:
        """Log-likelihood (nats) of the answer, the sum over its tokens; it must have been read."""
        tokens, loglik = self.candidates.tokens[self.answer], 0.0
        # Added up as those of candidates are, so that the answer is never more likely than itself.
        for i, token in enumerate(tokens):
            loglik += self.known[tokens[:i]][token]
        return loglik

    def missing(self) -> list[Tokens]:
        """Unread prefixes at least as likely as the whole answer; none once the rank is known."""
        unread = []
        for prefix, _ in self._likelier():
            if prefix in self.candidates.children and prefix not in self.known:
                unread.append(prefix)
        return unread

    def better(self) -> list[tuple[str, float]]:
        """Other candidates at least as likely as the answer, the likeliest first (nats)."""
        others = []
        for tokens, loglik in self._likelier():
            for name in self.candidates.names.get(tokens, ()):
                if name != self.answer:
                    others.append((name, loglik))
        return sorted(others, key=lambda other: (-other[1], other[0]))

    def scored(self) -> int:
        """How many candidates were scored to their last token."""
        n = 0
        for tokens in self.candidates.tokens.values():
            n += all(tokens[:i] in self.known for i in range(len(tokens)))
        return n

    def _likelier(self) -> Iterator[tuple[Tokens, float]]:
        """Known prefixes at least as likely as the answer, and their log-likelihoods (nats)."""
        least = self.loglik
        left: list[tuple[Tokens, float]] = [((), 0.0)]
        while left:
            prefix, loglik = left.pop()
            if loglik >= least:
                yield prefix, loglik
                for token, more in self.known.get(prefix, {}).items():
                    left.append(((*prefix, token), loglik + more))


PASSAGES_AT_ONCE = 1024
"""Passages planned together, so that descriptions of many do not pile up."""


@dataclass(frozen=True)
class Asked:
    """A prompt with tokens after it, read after the first `start` of them and each further one."""

    prompt: Prompt
    tokens: Tokens
    start: int
    configurations: tuple[int, ...]
    """Numbers of those that it is read under."""


def _plan(engine: Engine, asked: Sequence[Asked], configurations: Sequence[str]) -> Plan:
    """A plan in which every passage has but the configurations that are asked of it."""
    pair = engine.pair
    longest: dict[Prompt, int] = {}
    for one in asked:
        longest[one.prompt] = max(len(one.tokens), longest.get(one.prompt, 0))
    treatments = _treatments(pair, longest, configurations)
    # Passages of one length share rows, by which the plan recognises them.
    rows: dict[tuple[int, int], Sequence[Treatment]] = {}
    number_of = {prompt: number for number, prompt in enumerate(longest)}
    encoded, treated, readouts, stems = [], [], [], []
    for one in asked:
        bare = pair.encoded(one.prompt)
        ids = (*bare.ids, *one.tokens)
        encoded.append(replace(bare, ids=ids))
        whole = [treatments[number][one.prompt] for number in one.configurations]
        treated.append([rows.setdefault((id(row), len(ids)), row[: len(ids)]) for row in whole])
        readouts.append(range(len(bare.ids) - 1 + one.start, len(ids)))
        stems.append(number_of[one.prompt])
    equal = engine.equal_slots()
    return make_plan(engine.wiring.slots, encoded, treated, readouts, equal, stems)


def _treatments(
    pair: ModelPair, longest: Mapping[Prompt, int], configurations: Sequence[str]
) -> list[Mapping[Prompt, Sequence[Treatment]]]:
    """By configuration, treatments of prompts and of so many tokens after them, which are LT."""
    read = {}
    for prompt, n in longest.items():
        bare = pair.encoded(prompt)
        ids = (*bare.ids, *(0,) * n)
        last = tuple(range(len(bare.ids) - 1, len(ids)))
        read[prompt] = replace(bare, ids=ids, regions={**bare.regions, "LT": last})
    treatments = list[Mapping[Prompt, Sequence[Treatment]]]()
    with pair.read_as(read):
        for label in configurations:
            rows = graft_treatments(pair, list(read), parse_configuration(label))
            treatments.append(dict(zip(read, rows, strict=True)))
    return treatments


@dataclass
class _Question:
    """One prompt."""

    prompt: Prompt
    candidates: Candidates
    alternatives: Mapping[int, str]
    """Tokens that the answer can begin with, and their texts."""
    searches: list[Search]
    """By configuration."""
    first: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By configuration, scores of the first token and of its alternatives."""

    def missing(self) -> Iterator[Asked]:
        """What must be read next."""
        wanted: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for number, search in enumerate(self.searches):
            for prefix in search.missing():
                wanted.setdefault((self.candidates.to_read(prefix), len(prefix)), []).append(number)
        for (tokens, start), numbers in wanted.items():
            yield Asked(self.prompt, tokens, start, tuple(numbers))


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
        RegionError: The tokens of a prompt change with a candidate, or it lacks a graft's region.
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
    wanted = []
    for question in questions:
        tokens = question.candidates.tokens[question.prompt.target]
        wanted.append((question, Asked(question.prompt, tokens[:-1], 0, every)))
    while wanted:
        _read_all(engine, wanted, configurations)
        wanted = []
        for question in questions:
            wanted += [(question, asked) for asked in question.missing()]
    decode = engine.pair.tokenizer.decode
    scored = []
    for question in questions:
        for number, label in enumerate(configurations):
            scored.append(_scored(question, number, label, decode))
    return scored


def _check_length(engine: Engine, prompt: Prompt, candidates: Candidates) -> None:
    most = getattr(engine.pair.recipient.config, "max_position_embeddings", None)
    name, tokens = max(candidates.tokens.items(), key=lambda one: len(one[1]))
    n = len(engine.pair.encoded(prompt).ids) + len(tokens) - 1
    if most is not None and n > most:
        raise InputError(
            f"fact {prompt.fact.id}, prompt {prompt.name!r} has {n} tokens with the candidate "
            f"{name!r}; the model reads at most {most}"
        )


def _read_all(
    engine: Engine, wanted: Sequence[tuple[_Question, Asked]], configurations: Sequence[str]
) -> None:
    """Read what is asked, one chunk of logits in memory, and keep what candidates need."""
    for first in range(0, len(wanted), PASSAGES_AT_ONCE):
        some = wanted[first : first + PASSAGES_AT_ONCE]
        for answers in engine.run(_plan(engine, [asked for _, asked in some], configurations)):
            rows = []
            for place, number, readout in zip(
                answers.prompt.tolist(),
                answers.configuration.tolist(),
                answers.readout.tolist(),
                strict=True,
            ):
                question, asked = some[place]
                prefix = asked.tokens[: asked.start + readout]
                rows.append((question, asked.configurations[number], prefix))
            _note(answers.logits, rows, configurations)


def _note(
    logits: Float[torch.Tensor, "row vocabulary"],
    read: Sequence[tuple[_Question, int, Tokens]],
    configurations: Sequence[str],
) -> None:
    """Keep the log-probabilities that candidates need, and scores of first tokens.

    Args:
        logits: Of the token after each prefix.
        read: Question, number of the configuration, and prefix of each row.
        configurations: Names of the configurations.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()

    def which(row: int) -> str:
        question, number, _ = read[row]
        fact, name = question.prompt.fact.id, question.prompt.name
        return f"configuration {configurations[number]}, fact {fact}, prompt {name!r}"

    require_finite(logits, logits.argmax(dim=1), which)
    total = logits.logsumexp(dim=1).tolist()
    rows, tokens = list[int](), list[int]()
    for row, (question, _, prefix) in enumerate(read):
        children = question.candidates.children[prefix]
        rows += [row] * len(children)
        tokens += children
    values = logits[
        torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    ].tolist()
    for row, token, value in zip(rows, tokens, values, strict=True):
        question, number, prefix = read[row]
        known = question.searches[number].known.setdefault(prefix, {})
        known[token] = value - total[row]
    if bare := [row for row, (_, _, prefix) in enumerate(read) if not prefix]:
        own = logits[torch.tensor(bare, device=logits.device)]
        _note_first(own, [read[row][:2] for row in bare], lambda i: which(bare[i]))


def _note_first(
    logits: Float[torch.Tensor, "row vocabulary"],
    bare: Sequence[tuple[_Question, int]],
    which: Callable[[int], str],
) -> None:
    """Scores of first tokens and alternatives, from logits after bare prompts."""
    targets = torch.tensor([q.candidates.tokens[q.prompt.target][0] for q, _ in bare])
    scored = score_logits(logits, targets, which)
    total = logits.logsumexp(dim=1)
    for i, (question, configuration) in enumerate(bare):
        some = logits[i, torch.tensor(list(question.alternatives), device=logits.device)]
        question.first[configuration] = {
            "first_logprob": float(scored["logprob"][i]),
            "first_rank": int(scored["rank"][i]),
            "alternatives_prob": float((some - total[i]).double().exp().sum()),
            "alternatives_rank": int(worst_rank(logits[i], some.max())),
        }


def _scored(
    question: _Question, number: int, label: str, decode: Callable[..., Any]
) -> ScoredAnswer:
    search, prompt = question.searches[number], question.prompt
    better = search.better()
    tokens = question.candidates.tokens[prompt.target]
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
        alternatives=tuple(
            text or str(decode([token])) for token, text in question.alternatives.items()
        ),
        collisions=question.candidates.collisions(prompt.target),
        scored=search.scored(),
        **question.first[number],
    )
