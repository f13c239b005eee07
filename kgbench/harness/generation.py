"""Greedy generation from a context under a graft."""

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
from kgbench.harness.passages import Passage, Reader, TaskDocument

__all__ = ["Generation"]

DEFAULT_TOKENS = 256
"""Number of generated tokens where a task gives none: lm-eval's default."""

_IDLE = ("do_sample", "temperature", "top_p", "top_k")
"""Arguments that matter only where tokens are sampled."""


@dataclass
class _Text:
    """A context and the tokens generated so far."""

    passage: Passage
    stops: Sequence[str]
    most: int
    tokens: list[int] = field(default_factory=list)

    def take(self, token: int, ends: frozenset[int], text: str) -> bool:
        """Append a token; `text` is the generated text with it. Returns whether to continue."""
        self.tokens.append(token)
        self.passage = self.passage.extended(token)
        return (
            token not in ends
            and len(self.tokens) < self.most
            and not any(stop in text for stop in self.stops)
        )


@dataclass(frozen=True)
class Generation:
    """Greedy generation. Every step runs all unfinished texts again, so any localizer works."""

    answering: Answering
    reader: Reader
    graft: str
    ends: frozenset[int]
    """Ids of the tokens that end a text."""

    def __call__(
        self,
        requests: Sequence[tuple[str, Mapping[str, Any], TaskDocument]],
        progress: Callable[[int], object] | None = None,
    ) -> list[str]:
        """Continue contexts until the first stop sequence, which is cut off.

        Args:
            requests: Contexts, lm-eval's arguments of generation, and their sources.
            progress: Progress callback: number of further texts that are done.

        Raises:
            InputError: The task asks for sampling or more tokens than the model reads.
        """
        texts = [self._start(*request) for request in requests]
        answering = self.answering.fitted([text.passage for text in texts])
        unfinished = list(texts)
        while unfinished:
            tokens = answering.next_tokens([text.passage for text in unfinished], self.graft)
            more = [
                text.take(token, self.ends, self._decoded([*text.tokens, token]))
                for text, token in zip(unfinished, tokens, strict=True)
            ]
            if progress is not None:
                progress(more.count(False))
            unfinished = [
                text for text, continues in zip(unfinished, more, strict=True) if continues
            ]
        return [
            str(postprocess_generated_text(self._decoded(text.tokens), list(text.stops), None))
            for text in texts
        ]

    def _start(self, context: str, arguments: Mapping[str, Any], source: TaskDocument) -> _Text:
        asked = normalize_gen_kwargs(
            {**arguments, "until": arguments.get("until") or []}, DEFAULT_TOKENS
        )
        if asked.get("do_sample") or asked.get("temperature", 0.0):
            raise InputError(
                f"{source.label} asks for sampled text, but generation under a graft is greedy: "
                "--gen_kwargs do_sample=False"
            )
        for name in asked:
            if name not in (*_IDLE, "until", "max_gen_toks"):
                raise InputError(
                    f"{source.label}: generation under a graft takes until and max_gen_toks, "
                    f"not {name!r}"
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
