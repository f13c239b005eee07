"""Requests of lm-eval as tokens: a context and its continuation, and which tokens are which region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Fact, Prompt, token_regions
from kgbench.errors import InputError, RegionError
from kgbench.models.encoding import Encoded

__all__ = ["Passage", "Reader", "Source"]


@dataclass(frozen=True)
class Source:
    """Where a request comes from."""

    task: str
    document: Mapping[str, Any]
    """The task's row. Ours say under `query` and `spans` where the regions of the bare query are."""
    number: int | None = None

    @property
    def label(self) -> str:
        """What the document is called in messages."""
        return f"document {self.document.get('id', self.number)} of task {self.task!r}"


@dataclass(frozen=True)
class Passage:
    """A context and its continuation as a model reads them."""

    source: Source
    prompt: Prompt
    """Stands for the passage wherever prompts are asked for; named as in `kgbench eval` where the document says which prompt it is."""
    encoded: Encoded
    """Ids without the last token of the continuation, which predicts nothing that is asked for, and the regions."""
    lead: int
    """The token that predicts the first token of the continuation: the last token LT of the prompt."""
    targets: tuple[int, ...]
    """Ids of the continuation; the first is predicted at `lead`."""
    before: tuple[int, ...] = ()
    """Ids of blanks at the end of the context that are scored with the continuation, as lm-eval has it; predicted before `lead`."""

    def lead_everywhere(self) -> Passage:
        """The same with all later predicting tokens counted to LT."""
        regions = {**self.encoded.regions, "LT": tuple(range(self.lead, len(self.encoded.ids)))}
        return replace(self, encoded=replace(self.encoded, regions=regions))

    def without_continuation(self) -> Passage:
        """The context alone, as another prompt."""
        encoded = replace(self.encoded, ids=self.encoded.ids[: self.lead + 1], regions={**self.encoded.regions, "LT": (self.lead,)})
        return replace(self, prompt=replace(self.prompt, target=""), encoded=encoded, targets=())

    def extended(self, token: int) -> Passage:
        """The same after one more token was generated."""
        prompt = replace(self.prompt, target=f"{self.prompt.target} {token}")
        return replace(self, prompt=prompt, encoded=replace(self.encoded, ids=(*self.encoded.ids, token)))


class Reader:
    """Reads requests as lm-eval's own Hugging Face model does, to the token.

    Args:
        tokenizer: A fast tokenizer.
        prefix: Id of the token that an empty context is replaced by.
        max_length: Most tokens that the model reads; longer ones lose their beginning.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prefix: int, max_length: int) -> None:
        self.tokenizer, self.prefix, self.max_length = tokenizer, prefix, max_length
        self._prefix_text = str(tokenizer.decode(prefix))

    def ids(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids; with special tokens unless told otherwise or the text begins with one."""
        return list(self._encode(text, add_special_tokens)["input_ids"])

    def passage(self, context: str, continuation: str, source: Source) -> Passage:
        """A context and the continuation that is scored after it.

        Blanks at the end of the context are read together with the continuation, as lm-eval does; the first token of the continuation is
        the first one beyond them.

        Raises:
            InputError: The continuation has no tokens, or more than the model reads; or the task's query is not in the context.
            RegionError: A region of the query cannot be located, or the context's tokens change where the continuation follows.
        """
        if not context:
            return self.tokens([self.prefix], self.ids(continuation, add_special_tokens=False), source)
        bare = context.rstrip()
        head, whole = (self.ids(bare) if bare else [self.prefix]), self._encode(context + continuation)
        ids, offsets = list(whole["input_ids"]), whole["offset_mapping"]
        moved = len(context) > len(bare)
        first = next((i for i in range(len(head), len(ids)) if not moved or offsets[i][1] > len(context)), len(ids) - 1)
        regions = self._regions(context, whole, source, first - 1)
        if regions.keys() - {"BOS"} and ids[: len(head)] != head:
            raise RegionError(
                f"{source.label}: the tokens of the context are not a prefix of those of context and continuation {continuation!r}, "
                "so there is no first token of the answer"
            )
        return self._made(ids, len(head), first, regions, _prompt(context, source, continuation), source)

    def tokens(self, head: Sequence[int], continuation: Sequence[int], source: Source) -> Passage:
        """A continuation after a context, both given as tokens; it has no regions but LT."""
        if not continuation:
            raise InputError(f"{source.label}: the continuation has no tokens, so that there is nothing to score")
        ids = [*head, *continuation]
        before, after = (" ".join(map(str, some)) for some in (head, continuation))
        return self._made(ids, len(head), len(head), {}, _prompt(before, source, after), source)

    def context(self, context: str, room: int, source: Source) -> Passage:
        """A context to go on from, with room for so many tokens.

        Raises:
            InputError: The model does not read so many tokens.
        """
        if room >= self.max_length:
            raise InputError(
                f"{source.label} asks for {room} tokens, but the model reads at most {self.max_length} in all; "
                "give fewer, as in --gen_kwargs max_gen_toks=16"
            )
        whole = self._encode(context)
        ids = list(whole["input_ids"]) or [self.prefix]
        regions = self._regions(context, whole, source, len(ids) - 1) if context else {}
        kept, regions, _ = _cut(ids, regions, self.max_length - room)
        encoded = Encoded(kept, {**regions, "LT": (len(kept) - 1,)}, 0)
        return Passage(source, _prompt(context, source), encoded, len(kept) - 1, ())

    def _made(
        self, ids: Sequence[int], head: int, first: int, regions: Mapping[str, Sequence[int]], prompt: Prompt, source: Source
    ) -> Passage:
        if len(ids) == head:
            raise InputError(f"{source.label}: the continuation has no tokens, so that there is nothing to score")
        if len(ids) - head > self.max_length:
            raise InputError(f"{source.label}: the continuation has {len(ids) - head} tokens; the model reads at most {self.max_length}")
        kept, regions, gone = _cut(ids[:-1], regions, self.max_length)
        encoded = Encoded(kept, {**regions, "LT": (first - 1 - gone,)}, ids[first])
        return Passage(source, prompt, encoded, first - 1 - gone, tuple(ids[first:]), tuple(ids[head:first]))

    def _encode(self, text: str, add_special_tokens: bool | None = None) -> Any:
        if add_special_tokens is None:
            add_special_tokens = not (self._prefix_text and text.startswith(self._prefix_text))
        return self.tokenizer(
            text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
        )

    def _regions(self, context: str, encoding: Any, source: Source, lead: int) -> dict[str, tuple[int, ...]]:
        """Regions of the query, the last one in the context, and BOS; a row that says nothing of regions has none."""
        special = [bool(flag) for flag in encoding["special_tokens_mask"]][: lead + 1]
        special[0] = special[0] or encoding["input_ids"][0] == self.tokenizer.bos_token_id
        found: dict[str, tuple[int, ...]] = {"BOS": (0,)} if special[0] else {}
        query, spans = source.document.get("query"), source.document.get("spans")
        if not isinstance(query, str) or not isinstance(spans, Mapping):
            return found
        start = context.rfind(query)
        if start < 0:
            raise InputError(f"{source.label}: its query {query!r} is not in the context, so that its regions are not known")
        shifted = {name: (span[0] + start, span[1] + start) for name, span in spans.items() if span is not None}
        prompt = replace(_prompt(context, source), spans=shifted)
        located = token_regions(prompt, encoding["offset_mapping"][: lead + 1], special, tokenizer=type(self.tokenizer).__name__)
        return {**found, **{name: tuple(tokens) for name, tokens in located.items() if name not in ("LT", "BOS")}}


def _prompt(context: str, source: Source, continuation: str = "") -> Prompt:
    identifier = str(source.document.get("id", f"{source.task}/{source.number}"))
    name = source.document.get("prompt")
    return Prompt(name if isinstance(name, str) else source.task, Fact(identifier, {}), context, continuation, {})


def _cut(ids: Sequence[int], regions: Mapping[str, Sequence[int]], most: int) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]], int]:
    """The last tokens, the regions that are whole among them, and how many tokens are gone."""
    gone = max(0, len(ids) - most)
    whole = {name: tuple(token - gone for token in tokens) for name, tokens in regions.items() if min(tokens) >= gone}
    return tuple(ids[gone:]), whole, gone
