"""Scores of whole answers: log-likelihood, rank among the answers of a data set, first tokens.

A candidate's log-likelihood is at most that of its first tokens. So candidates that go on from
tokens less likely than the whole answer need no scoring, and ranks are exact all the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise, starmap
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from transformers import PreTrainedTokenizerBase

from kgbench.analyses.answers import ScoredAnswer
from kgbench.data import Dataset, Prompt
from kgbench.engine import Engine
from kgbench.engine.edits import Treatment
from kgbench.engine.plan import Plan, make_plan
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError, RegionError
from kgbench.metrics import require_finite, score_logits, worst_rank
from kgbench.models.encoding import Encoded, Encoder
from kgbench.models.pair import ModelPair

Tokens = tuple[int, ...]
"""Token ids that follow a prompt."""


@dataclass(frozen=True)
class Candidates:
    """All candidates of a prompt, as a trie of the tokens that each adds to it."""

    tokens: Mapping[str, Tokens]
    """By name."""

    @cached_property
    def nodes(self) -> Mapping[Tokens, int]:
        """Numbers of all prefixes of candidates, by length from (), the prompt, which is 0."""
        children: dict[Tokens, dict[Tokens, None]] = {}
        for tokens in self.tokens.values():
            for i in range(len(tokens)):
                children.setdefault(tokens[:i], {})[tokens[: i + 1]] = None
        prefixes: list[Tokens] = [()]
        for prefix in prefixes:  # children are appended on the way, side by side
            prefixes += children.get(prefix, ())
        return {prefix: node for node, prefix in enumerate(prefixes)}

    @cached_property
    def prefixes(self) -> Sequence[Tokens]:
        """Tokens of each node."""
        return list(self.nodes)

    @cached_property
    def parents(self) -> Int[np.ndarray, " node"]:
        """Each node without its last token; the prompt's is itself."""
        return np.array([self.nodes[prefix[:-1]] for prefix in self.prefixes])

    @cached_property
    def levels(self) -> Sequence[slice]:
        """Nodes of each length from 1."""
        ends = np.cumsum(np.bincount(list(map(len, self.prefixes)))).tolist()
        return list(starmap(slice, pairwise(ends)))

    @cached_property
    def after(self) -> Sequence[slice]:
        """Children of each node."""
        ends = 1 + np.cumsum(np.bincount(self.parents[1:], minlength=len(self.nodes)))
        return list(starmap(slice, pairwise([1, *ends.tolist()])))

    @cached_property
    def last(self) -> Int[np.ndarray, " node"]:
        """Last token of each node."""
        return np.array([-1, *(prefix[-1] for prefix in self.prefixes[1:])])

    @cached_property
    def inner(self) -> Bool[np.ndarray, " node"]:
        """Nodes that a candidate goes on from."""
        return np.array([after.start < after.stop for after in self.after])

    @cached_property
    def alone(self) -> Bool[np.ndarray, " node"]:
        """Nodes that a candidate goes on from, and no other tokens do."""
        n = np.zeros(len(self.nodes), dtype=np.int64)
        for tokens in set(self.tokens.values()):
            n[self.way(tokens)] += 1
        alone: np.ndarray = n == 1
        return alone

    @cached_property
    def ends(self) -> Int[np.ndarray, " name"]:
        """Node of each candidate."""
        return np.array([self.nodes[tokens] for tokens in self.tokens.values()])

    @cached_property
    def parted(self) -> Int[np.ndarray, " name"]:
        """Where each one goes on alone, or else its last node but one."""
        parted = []
        for tokens in self.tokens.values():
            way = self.way(tokens)
            parted.append(next((node for node in way if self.alone[node]), way[-1]))
        return np.array(parted)

    @cached_property
    def _sharing(self) -> Mapping[int, int]:
        return Counter(tokens[0] for tokens in self.tokens.values())

    def collisions(self, name: str) -> int:
        """How many other candidates have the same first token."""
        return self._sharing[self.tokens[name][0]] - 1

    def way(self, tokens: Tokens) -> list[int]:
        """Nodes that are read to score a candidate."""
        return [self.nodes[tokens[:i]] for i in range(len(tokens))]


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
    """What is known of one prompt's candidates under one configuration.

    The nodes read are closed under prefixes, so that a log-likelihood is known after its parent.
    """

    candidates: Candidates
    answer: str
    unread: float
    """Log-probability (nats) that is expected of a token that is not read yet."""

    @cached_property
    def read(self) -> Bool[np.ndarray, " node"]:
        """Nodes after which it is read."""
        return np.zeros(len(self.candidates.nodes), dtype=bool)

    @cached_property
    def logprobs(self) -> Float[np.ndarray, " node"]:
        """Of the last token of each node (nats)."""
        return np.array([0.0, *[self.unread] * (len(self.candidates.nodes) - 1)])

    def note(self, node: int, logprobs: Float[np.ndarray, " child"]) -> None:
        """Keep what was read after a node: log-probabilities (nats) of its children."""
        self.read[node] = True
        self.logprobs[self.candidates.after[node]] = logprobs

    def logliks(self) -> Float[np.ndarray, " node"]:
        """Log-likelihood (nats) of each node, the sum over its tokens."""
        # All are added up from the prompt, so that the answer is never more likely than itself.
        logliks = self.logprobs.copy()
        for level in self.candidates.levels:
            logliks[level] += logliks[self.candidates.parents[level]]
        return logliks

    def missing(self) -> Bool[np.ndarray, " node"]:
        """Nodes to read next: first those of the answer; none once the rank is known.

        Those at least as likely as the answer must be read, and where a candidate goes on alone, it
        is read to its end. Those that are expected to be as likely are read at once.
        """
        trie = self.candidates
        way = trie.way(trie.tokens[self.answer])
        if not self.read[way[-1]]:
            missing = np.zeros_like(self.read)
            missing[way] = True
            return missing
        likely, known = self._likely()
        whole = likely & known & trie.alone
        for level in trie.levels:
            whole[level] |= trie.alone[level] & whole[trie.parents[level]]
        unread: np.ndarray = trie.inner & ~self.read & (likely | whole)
        return unread

    def better(self) -> list[tuple[str, float]]:
        """Other candidates at least as likely as the answer, the likeliest first (nats)."""
        likely, known = self._likely()
        logliks, others = self.logliks()[self.candidates.ends].tolist(), []
        better = (likely & known)[self.candidates.ends].tolist()
        for name, loglik, is_better in zip(self.candidates.tokens, logliks, better, strict=True):
            if is_better and name != self.answer:
                others.append((name, loglik))
        return sorted(others, key=lambda other: (-other[1], other[0]))

    @property
    def loglik(self) -> float:
        """Log-likelihood (nats) of the answer; it must have been read."""
        return float(self.logliks()[self._own])

    def scored(self) -> int:
        """How many candidates had to be scored to their last token."""
        likely, known = self._likely()
        return int((likely & known)[self.candidates.parted].sum())

    @property
    def _own(self) -> int:
        return self.candidates.nodes[self.candidates.tokens[self.answer]]

    def _likely(self) -> tuple[Bool[np.ndarray, " node"], Bool[np.ndarray, " node"]]:
        """Nodes at least as likely as the answer, and those of known likelihood."""
        logliks = self.logliks()
        return logliks >= logliks[self._own], self.read[self.candidates.parents]


SURPRISE = 0.25
"""Of a token that is not read yet, as a share of that of a uniform guess. Less reads candidates
that prove unlikely, more reads prompts again for those that prove likely."""

PASSAGES_AT_ONCE = 4096
"""Passages planned together, so that descriptions of many do not pile up."""


@dataclass(frozen=True)
class Asked:
    """A prompt with the tokens of the last of some nodes, read after each of them."""

    question: _Question
    nodes: Sequence[int]
    """Each a child of the one before."""
    configurations: Sequence[int]
    """Numbers of those that it is read under."""

    @property
    def tokens(self) -> Tokens:
        """All that is read after the prompt."""
        return self.question.candidates.prefixes[self.nodes[-1]]


def _plan(engine: Engine, asked: Sequence[Asked], equal: Sequence[Collection[int]]) -> Plan:
    """A plan in which every passage has but the configurations that are asked of it."""
    # Passages of one length share rows, by which the plan recognises them.
    rows: dict[tuple[int, int], Sequence[Treatment]] = {}
    stems: dict[int, int] = {}
    prompts, treated, readouts, stem_of = [], [], [], []
    for one in asked:
        question, bare = one.question, one.question.encoded
        prompt = replace(bare, ids=(*bare.ids, *one.tokens))
        own = []
        for number in one.configurations:
            whole = question.treatments[number]
            key = id(whole), len(prompt.ids)
            if key not in rows:
                rows[key] = whole[: len(prompt.ids)]
            own.append(rows[key])
        prompts.append(prompt)
        treated.append(own)
        readouts.append(range(len(prompt.ids) - len(one.nodes), len(prompt.ids)))
        stem_of.append(stems.setdefault(id(question), len(stems)))
    return make_plan(engine.wiring.slots, prompts, treated, readouts, equal, stem_of)


def _treatments(
    pair: ModelPair, longest: Mapping[Prompt, int], configurations: Sequence[str]
) -> Mapping[Prompt, Sequence[Sequence[Treatment]]]:
    """Treatments of prompts and of so many tokens after them, which are LT, by configuration."""
    read = {}
    for prompt, n in longest.items():
        bare = pair.encoded(prompt)
        ids = (*bare.ids, *(0,) * n)
        last = tuple(range(len(bare.ids) - 1, len(ids)))
        read[prompt] = replace(bare, ids=ids, regions={**bare.regions, "LT": last})
    parsed = list(map(parse_configuration, configurations))
    with pair.read_as(read):
        treatments = [graft_treatments(pair, list(read), one) for one in parsed]
    return dict(zip(read, zip(*treatments, strict=True), strict=True))


@dataclass
class _Question:
    """One prompt."""

    prompt: Prompt
    encoded: Encoded
    candidates: Candidates
    alternatives: Mapping[int, str]
    """Tokens that the answer can begin with, and their texts."""
    treatments: Sequence[Sequence[Treatment]]
    """By configuration, those of the prompt and of the longest candidate."""
    searches: Sequence[Search]
    """By configuration."""
    first: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By configuration, scores of the first token and of its alternatives."""

    def asked(self) -> Iterator[Asked]:
        """What must be read next."""
        missing = np.array([search.missing() for search in self.searches])
        numbers = np.flatnonzero(missing.any(axis=0))
        under = dict(zip(numbers.tolist(), map(bytes, missing.T[numbers]), strict=True))
        parents = self.candidates.parents.tolist()
        # The longest come first, and each takes the nodes before it that are missing like it.
        while under:
            node, own = under.popitem()
            nodes = [node]
            while under.get(parents[node]) == own:
                node = parents[node]
                nodes.append(node)
                del under[node]
            yield Asked(self, nodes[::-1], np.flatnonzero(missing[:, node]).tolist())


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
    pair = engine.pair
    encoder = Encoder(pair.tokenizer, pair.chat_template)
    vocabulary = int(pair.recipient.config.vocab_size)
    texts = token_texts(encoder.tokenizer, vocabulary)
    tries = list(encode_candidates(encoder, prompts, names))
    longest = {}
    for prompt, candidates in zip(prompts, tries, strict=True):
        _check_length(engine, prompt, candidates)
        longest[prompt] = max(map(len, candidates.tokens.values()))
    treatments = _treatments(pair, longest, configurations)
    questions, unread = [], -SURPRISE * math.log(vocabulary)
    for prompt, candidates in zip(prompts, tries, strict=True):
        own = candidates.tokens[prompt.target][0]
        alternatives = first_tokens(texts, continuation(encoder, prompt, prompt.target), own)
        searches = []
        for _ in configurations:
            searches.append(Search(candidates, prompt.target, unread))
        encoded = pair.encoded(prompt)
        questions.append(
            _Question(prompt, encoded, candidates, alternatives, treatments[prompt], searches)
        )
    equal = engine.equal_slots()
    while asked := list(chain.from_iterable(question.asked() for question in questions)):
        for start in range(0, len(asked), PASSAGES_AT_ONCE):
            _read(engine, asked[start : start + PASSAGES_AT_ONCE], configurations, equal)
    scored = []
    for question in questions:
        for number, label in enumerate(configurations):
            scored.append(_scored(question, number, label, pair.tokenizer.decode))
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


def _read(
    engine: Engine,
    asked: Sequence[Asked],
    configurations: Sequence[str],
    equal: Sequence[Collection[int]],
) -> None:
    """Read what is asked, one chunk of logits in memory, and keep what candidates need."""
    for answers in engine.run(_plan(engine, asked, equal)):
        rows = []
        for place, number, readout in zip(
            answers.prompt.tolist(),
            answers.configuration.tolist(),
            answers.readout.tolist(),
            strict=True,
        ):
            one = asked[place]
            rows.append((one.question, one.configurations[number], one.nodes[readout]))
        _note(answers.logits, rows, configurations)


def _note(
    logits: Float[torch.Tensor, "row vocabulary"],
    read: Sequence[tuple[_Question, int, int]],
    configurations: Sequence[str],
) -> None:
    """Keep the log-probabilities that candidates need, and scores of first tokens.

    Args:
        logits: Of the token after each node.
        read: Question, number of the configuration, and node of each row.
        configurations: Names of the configurations.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()

    def which(row: int) -> str:
        question, number, _ = read[row]
        fact, name = question.prompt.fact.id, question.prompt.name
        return f"configuration {configurations[number]}, fact {fact}, prompt {name!r}"

    largest = logits.amax(dim=1, keepdim=True)  # NaN where any logit is
    require_finite(largest, torch.zeros(len(read), dtype=torch.int64), which)
    total = logits.logsumexp(dim=1).double()
    tokens = []
    for question, _, node in read:
        tokens.append(question.candidates.last[question.candidates.after[node]])
    counts = list(map(len, tokens))
    rows = torch.arange(len(read)).repeat_interleave(torch.tensor(counts)).to(logits.device)
    own = logits[rows, torch.from_numpy(np.concatenate(tokens)).to(logits.device)]
    logprobs = (own.double() - total[rows]).cpu().numpy()
    stop = 0
    for (question, number, node), n in zip(read, counts, strict=True):
        start, stop = stop, stop + n
        question.searches[number].note(node, logprobs[start:stop])
    if bare := [row for row, (_, _, node) in enumerate(read) if node == 0]:
        first = logits[torch.tensor(bare, device=logits.device)]
        _note_first(first, [read[row][:2] for row in bare], lambda i: which(bare[i]))


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
