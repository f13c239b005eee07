"""Requests of lm-eval as tokens: a context, its continuation, and the tokens of each region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Fact, Prompt, token_regions
from kgbench.errors import InputError, RegionError
from kgbench.models.encoding import Encoded, first_word

Regions = Mapping[str, tuple[int, ...]]
Spans = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class TaskDocument:
    """The document of a request."""

    task: str
    document: Mapping[str, Any]
    """The task's row; kgbench's have a `fingerprint`, a `query` and `spans` of its regions."""
    number: int | None = None

    @property
    def label(self) -> str:
        """Name of the document in messages."""
        name = self.document["id"] if self.is_ours else self.number
        return f"document {name} of task {self.task!r}"

    @property
    def is_ours(self) -> bool:
        """Whether kgbench made the row; in others, columns of these names may mean anything."""
        return {"dataset", "fingerprint", "id", "prompt", "query", "spans"} <= self.document.keys()


def _prompt(context: str, continuation: str, spans: Spans, source: TaskDocument) -> Prompt:
    """A passage as a prompt, named as in `kgbench eval` where kgbench made the row."""
    row = source.document
    name, identifier = source.task, f"{source.task}/{source.number}"
    if source.is_ours:
        name, identifier = row["prompt"], row["id"]
    return Prompt(str(name), Fact(str(identifier), {}), context, continuation, spans)


@dataclass(frozen=True)
class Passage:
    """A context and its continuation as tokens."""

    source: TaskDocument
    prompt: Prompt
    encoded: Encoded
    """Regions, and ids without the last token of the continuation, whose prediction is unused."""
    lead: int
    """Index of LT, the last token of the prompt; it predicts the first of the continuation."""
    targets: tuple[int, ...]
    """Ids of the continuation; the first is predicted at `lead`."""
    before: tuple[int, ...] = ()
    """Ids of blanks before the continuation's first word, which lm-eval scores with it."""

    @property
    def readouts(self) -> range:
        """Indices of the tokens that predict the blanks and the continuation."""
        return range(self.lead - len(self.before), self.lead + len(self.targets))

    def lead_everywhere(self) -> Passage:
        """The same with all later readouts in LT."""
        return self._with(self.encoded.ids, tuple(range(self.lead, len(self.encoded.ids))))

    def without_continuation(self) -> Passage:
        """The context alone, as another prompt."""
        alone = self._with(self.encoded.ids[: self.lead + 1], (self.lead,))
        return replace(alone, prompt=replace(self.prompt, target=""), targets=(), before=())

    def read_alone(self) -> Iterator[tuple[Passage, int]]:
        """For each readout, the passage cut after it, as another prompt, and the readout.

        The cut passage ends with LT at the earliest, so that a method finds its last token.
        """
        for token in self.readouts:
            end = max(token, self.lead)
            last = tuple(t for t in self.encoded.regions["LT"] if t <= end)
            prompt = replace(self.prompt, target=f"{self.prompt.target}\n{token}")
            yield replace(self._with(self.encoded.ids[: end + 1], last), prompt=prompt), token

    def extended(self, tokens: Sequence[int]) -> Passage:
        """The same with generated tokens."""
        prompt = replace(self.prompt, target=" ".join(map(str, tokens)))
        ids = (*self.encoded.ids, *tokens)
        return replace(self, prompt=prompt, encoded=replace(self.encoded, ids=ids))

    def _with(self, ids: tuple[int, ...], last: tuple[int, ...]) -> Passage:
        regions = {}
        for name, tokens in self.encoded.regions.items():
            regions[name] = tuple(token for token in tokens if token < len(ids))
        regions["LT"] = last
        return replace(self, encoded=replace(self.encoded, ids=ids, regions=regions))


@dataclass(frozen=True)
class _Read:
    """Tokens of a text."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    special: list[bool]


class Reader:
    """Encodes requests exactly as lm-eval's Hugging Face model does.

    Args:
        tokenizer: A fast tokenizer.
        prefix: Id of the token in place of an empty context.
        max_length: Maximum number of tokens; longer texts lose their beginning.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prefix: int, max_length: int) -> None:
        self.tokenizer, self.prefix, self.max_length = tokenizer, prefix, max_length
        self._prefix_text = str(tokenizer.decode(prefix))

    def ids(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids; by default with special tokens, unless the text begins with one."""
        return self._read(text, add_special_tokens).ids

    def passage(self, context: str, continuation: str, source: TaskDocument) -> Passage:
        """Encode a context and the continuation that is scored after it.

        As in lm-eval, blanks at the end of the context are encoded with the continuation, whose
        first token is, as in `kgbench eval`, the first one beyond blanks; and where the tokens of the context depend on the
        continuation, those of the context alone are taken. Where regions are known, the latter is
        an error: no token would predict the first token of the answer.

        Raises:
            InputError: The continuation has no tokens, or more than the model reads; or the task's
                query is not in the context.
            RegionError: A region of the query cannot be located, or the context's tokens change
                with the continuation.
        """
        if not context:
            rest = self.ids(continuation, add_special_tokens=False)
            rest = rest[1:] if rest[:1] == [self.prefix] else rest
            return self._scored(source, _prompt("", continuation, {}, source), [self.prefix], rest)
        bare = context.rstrip()
        text = self._read(context + continuation)
        if not bare and text.ids[:1] != [self.prefix]:
            text = _Read([self.prefix, *text.ids], [(0, 0), *text.offsets], [True, *text.special])
        head = self.ids(bare) if bare else [self.prefix]
        spans = self._spans(context, source)
        if spans and text.ids[: len(head)] != head:
            raise RegionError(
                f"{source.label}: the tokens of the context are not a prefix of those of "
                f"context and continuation {continuation!r}, so that the answer has no first token"
            )
        ids = [*head, *text.ids[len(head) :]]
        first = first_word(context + continuation, text.offsets, len(head))
        first = max(len(head), min(first, len(ids) - 1))  # of blanks alone the last is read
        regions = self._regions(context, text, spans, source, first)
        prompt = _prompt(context, continuation, spans, source)
        before = ids[len(head) : first]
        return self._scored(source, prompt, ids[:first], ids[first:], before, regions)

    def tokens(
        self, head: Sequence[int], continuation: Sequence[int], source: TaskDocument
    ) -> Passage:
        """A continuation after a context, both given as tokens; LT is the only region."""
        before, after = " ".join(map(str, head)), " ".join(map(str, continuation))
        return self._scored(source, _prompt(before, after, {}, source), head, continuation)

    def context(self, context: str, room: int, source: TaskDocument) -> Passage:
        """Encode a context for generation, with room for so many tokens.

        Raises:
            InputError: The model does not read so many tokens.
        """
        if room >= self.max_length:
            raise InputError(
                f"{source.label} asks for {room} tokens, but the model reads at most "
                f"{self.max_length} in all; give fewer, as in --gen_kwargs max_gen_toks=16"
            )
        text, spans = self._read(context), self._spans(context, source)
        if not text.ids:
            text = _Read([self.prefix], [(0, 0)], [False])
        regions = self._regions(context, text, spans, source, len(text.ids))
        prompt, most = _prompt(context, "", spans, source), self.max_length - room
        return _passage(source, prompt, text.ids, regions, most, len(text.ids) - 1)

    def _scored(
        self,
        source: TaskDocument,
        prompt: Prompt,
        head: Sequence[int],
        targets: Sequence[int],
        before: Sequence[int] = (),
        regions: Regions = MappingProxyType({}),
    ) -> Passage:
        """A passage whose targets are scored after its head.

        Args:
            source: The document.
            prompt: The passage as a prompt.
            head: Tokens before the targets.
            targets: Tokens of the continuation from its first word on.
            before: Blanks at the head's end, which are scored too.
            regions: Tokens of each region but LT.
        """
        n = len(targets) + len(before)
        if n == 0:
            raise InputError(
                f"{source.label}: the continuation has no tokens, so that there is nothing to score"
            )
        if n > self.max_length:
            raise InputError(
                f"{source.label}: the continuation has {n} tokens; the model reads at most "
                f"{self.max_length}"
            )
        ids, lead = (*head, *targets[:-1]), len(head) - 1
        return _passage(source, prompt, ids, regions, self.max_length, lead, targets, before)

    def _read(self, text: str, add_special_tokens: bool | None = None) -> _Read:
        if add_special_tokens is None:
            add_special_tokens = not (self._prefix_text and text.startswith(self._prefix_text))
        encoding = self.tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
        )
        special = list(map(bool, encoding["special_tokens_mask"]))
        ids = list(encoding["input_ids"])
        # The mask leaves out a BOS written as text.
        if ids and ids[0] == self.tokenizer.bos_token_id:
            special[0] = True
        return _Read(ids, list(encoding["offset_mapping"]), special)

    def _spans(self, context: str, source: TaskDocument) -> Spans:
        """Character spans of regions at the last occurrence of the query; empty without regions."""
        query, spans = source.document.get("query"), source.document.get("spans")
        if not isinstance(query, str) or not isinstance(spans, Mapping) or not context:
            return {}
        start = context.rfind(query)
        if start < 0:
            raise InputError(
                f"{source.label}: its query {query!r} is not in the context, so that its regions "
                "are not known"
            )
        placed = {}
        for name, span in spans.items():
            if span is not None:  # a region that the row does not place
                placed[name] = (span[0] + start, span[1] + start)
        return placed

    def _regions(
        self, context: str, text: _Read, spans: Spans, source: TaskDocument, end: int
    ) -> Regions:
        """Tokens of each region of a context of `end` tokens, except LT."""
        regions: dict[str, tuple[int, ...]] = {"BOS": (0,)} if text.special[0] else {}
        if spans:
            located = token_regions(
                _prompt(context, "", spans, source),
                text.offsets[:end],
                text.special[:end],
                tokenizer=type(self.tokenizer).__name__,
            )
            regions.update({name: tuple(located[name]) for name in spans})
        return regions


def _passage(
    source: TaskDocument,
    prompt: Prompt,
    ids: Sequence[int],
    regions: Regions,
    most: int,
    lead: int,
    targets: Sequence[int] = (),
    before: Sequence[int] = (),
) -> Passage:
    """A passage of the last of its tokens, with the regions that are whole in them."""
    removed = max(0, len(ids) - most)
    located: dict[str, tuple[int, ...]] = {"LT": (lead - removed,)}
    for name, tokens in regions.items():
        if min(tokens) >= removed:
            located[name] = tuple(token - removed for token in tokens)
    encoded = Encoded(tuple(ids[removed:]), located, targets[0] if targets else 0)
    return Passage(source, prompt, encoded, lead - removed, tuple(targets), tuple(before))
