"""Candidate answers as tokens after a prompt: every distinct answer of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kgbench.data import Dataset, Prompt
from kgbench.errors import RegionError
from kgbench.models.encoding import Encoder

__all__ = ["Candidates", "Tokens", "candidate_names", "continuation", "encode_candidates"]

Tokens = tuple[int, ...]
"""Token ids that follow a prompt."""


@dataclass(frozen=True)
class Candidates:
    """All candidates of a prompt, as a trie of the tokens that each adds to it."""

    tokens: Mapping[str, Tokens]
    """By name."""

    @cached_property
    def children(self) -> Mapping[Tokens, tuple[int, ...]]:
        """The tokens that candidates have after each prefix, () for the prompt itself; what no candidate goes on from is not in it."""
        found: dict[Tokens, dict[int, None]] = {}
        for tokens in self.tokens.values():
            for i, token in enumerate(tokens):
                found.setdefault(tokens[:i], {})[token] = None
        return {prefix: tuple(after) for prefix, after in found.items()}

    @cached_property
    def names(self) -> Mapping[Tokens, tuple[str, ...]]:
        """Those that are these tokens: several where a tokenizer does not tell names apart."""
        found: dict[Tokens, list[str]] = {}
        for name, tokens in self.tokens.items():
            found.setdefault(tokens, []).append(name)
        return {tokens: tuple(names) for tokens, names in found.items()}

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
        """What is read to know how candidates go on from a prefix: where only one does, all of it but its last token."""
        only = self._only[prefix]
        return prefix if only is None else only[:-1]


def candidate_names(dataset: Dataset) -> tuple[str, ...]:
    """The distinct answers of a data set, in the order of its facts."""
    return tuple(dict.fromkeys(fact.fields[dataset.object] for fact in dataset.facts))


def continuation(encoder: Encoder, prompt: Prompt, name: str) -> str:
    """The text with which an answer goes on from a prompt: with a blank before it, unless the prompt as read ends with one."""
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
                    f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are not a prefix of the tokens of prompt and "
                    f"candidate {name!r}, so that the candidate has no probability of its own"
                )
        tails = tuple(tuple(ids[len(head) :]) for ids in whole)
        if tails not in known:
            known[tails] = Candidates(dict(zip(names, tails, strict=True)))
        yield known[tails]


def _ids(encoder: Encoder, texts: Iterable[str]) -> list[list[int]]:
    return list(
        encoder.tokenizer(list(texts), add_special_tokens=not encoder.chat_template)["input_ids"]
    )
