"""Going on from a context, token by token, under a graft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from kgbench.errors import InputError
from kgbench.harness.answering import Answering
from kgbench.harness.passages import Passage, Reader, Source

__all__ = ["Generation"]

MOST = 256
"""Tokens that are generated where a task does not say, as lm-eval has it."""

_IDLE = ("do_sample", "temperature", "top_p", "top_k")
"""Arguments about sampling, which matter only where tokens are sampled."""


@dataclass
class _Text:
    """A context, and what was generated so far."""

    passage: Passage
    stops: Sequence[str]
    most: int
    made: list[int] = field(default_factory=list)

    def take(self, token: int, ends: frozenset[int], text: str) -> bool:
        """Go on by a token that makes the generated text `text`; returns whether there is more to come."""
        self.made.append(token)
        self.passage = self.passage.extended(token)
        return (
            token not in ends
            and len(self.made) < self.most
            and not any(stop in text for stop in self.stops)
        )


@dataclass(frozen=True)
class Generation:
    """Greedy generation: every step runs all unfinished texts anew, so that any localizer can treat them."""

    answering: Answering
    reader: Reader
    graft: str
    ends: frozenset[int]
    """Ids of the tokens that end a text."""

    def __call__(
        self,
        requests: Sequence[tuple[str, Mapping[str, Any], Source]],
        progress: Callable[[int], object] | None = None,
    ) -> list[str]:
        """Continuations of contexts, cut before the first stop sequence.

        Args:
            requests: Contexts, lm-eval's arguments of generation, and where they come from.
            progress: Told of how many more texts are done.

        Raises:
            InputError: Sampling or anything else that is not greedy is asked for, or more tokens than the model reads.
        """
        texts = [self._begun(*request) for request in requests]
        answering = self.answering.fitted([text.passage for text in texts])
        open_ones = list(texts)
        while open_ones:
            tokens = answering.next_tokens([text.passage for text in open_ones], self.graft)
            more = [
                text.take(token, self.ends, self._decoded([*text.made, token]))
                for text, token in zip(open_ones, tokens, strict=True)
            ]
            if progress is not None:
                progress(more.count(False))
            open_ones = [text for text, goes_on in zip(open_ones, more, strict=True) if goes_on]
        return [
            str(postprocess_generated_text(self._decoded(text.made), list(text.stops), None))
            for text in texts
        ]

    def _begun(self, context: str, arguments: Mapping[str, Any], source: Source) -> _Text:
        asked = normalize_gen_kwargs({**arguments, "until": arguments.get("until") or []}, MOST)
        if asked.get("do_sample") or asked.get("temperature", 0.0):
            raise InputError(
                f"{source.label} asks for sampled text; a graft goes on greedily: --gen_kwargs do_sample=False"
            )
        for name in asked:
            if name not in (*_IDLE, "until", "max_gen_toks"):
                raise InputError(
                    f"{source.label}: generation takes no {name!r} under a graft; it takes until and max_gen_toks"
                )
        stops = handle_stop_sequences(
            asked["until"], eos=self._decoded([int(self.reader.tokenizer.eos_token_id)], skip=False)
        )
        return _Text(
            self.reader.context(context, asked["max_gen_toks"], source),
            stops,
            asked["max_gen_toks"],
        )

    def _decoded(self, tokens: Sequence[int], skip: bool = True) -> str:
        return str(self.reader.tokenizer.decode(list(tokens), skip_special_tokens=skip))
