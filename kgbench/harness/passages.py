"""Requests of lm-eval as tokens: a context and its continuation, and which tokens are which region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kgbench.data import Fact, Prompt
from kgbench.models.encoding import Encoded

__all__ = ["Passage", "Source", "prompt_of"]


@dataclass(frozen=True)
class Source:
    """Where a request comes from."""

    task: str
    document: Mapping[str, Any]
    """The task's row. Ours say under `query` and `spans` where the regions of the bare query are, and have a `fingerprint`."""
    number: int | None = None

    @property
    def label(self) -> str:
        """What the document is called in messages."""
        return (
            f"document {self.document['id'] if self.is_ours else self.number} of task {self.task!r}"
        )

    @property
    def is_ours(self) -> bool:
        """Whether the row is one of kgbench's; others may have columns of the same names that mean something else."""
        return {"fingerprint", "id", "prompt", "query", "spans"} <= self.document.keys()


def prompt_of(
    context: str, continuation: str, spans: Mapping[str, tuple[int, int]], source: Source
) -> Prompt:
    """What stands for a passage wherever prompts are asked for; named as in `kgbench eval` where the row is ours."""
    row = source.document
    name, identifier = (
        (row["prompt"], row["id"])
        if source.is_ours
        else (source.task, f"{source.task}/{source.number}")
    )
    return Prompt(str(name), Fact(str(identifier), {}), context, continuation, spans)


@dataclass(frozen=True)
class Passage:
    """A context and its continuation as a model reads them."""

    source: Source
    prompt: Prompt
    encoded: Encoded
    """Ids without the last token of the continuation, which predicts nothing that is asked for, and the regions."""
    lead: int
    """The token that predicts the first token of the continuation: the last token LT of the prompt."""
    targets: tuple[int, ...]
    """Ids of the continuation; the first is predicted at `lead`."""
    before: tuple[int, ...] = ()
    """Ids of blanks at the end of the context that are scored with the continuation, as lm-eval has it; predicted before `lead`."""

    @property
    def readouts(self) -> range:
        """The tokens that predict the blanks and the continuation."""
        return range(self.lead - len(self.before), self.lead + len(self.targets))

    def lead_everywhere(self) -> Passage:
        """The same with all later predicting tokens counted to LT."""
        return self._with(self.encoded.ids, tuple(range(self.lead, len(self.encoded.ids))))

    def without_continuation(self) -> Passage:
        """The context alone, as another prompt."""
        alone = self._with(self.encoded.ids[: self.lead + 1], (self.lead,))
        return replace(alone, prompt=replace(self.prompt, target=""), targets=(), before=())

    def read_alone(self) -> Iterator[tuple[Passage, int]]:
        """For each token that is read out, the passage up to it, as another prompt in which it is the last, and LT is in it."""
        for token in self.readouts:
            end = max(token, self.lead)
            last = tuple(t for t in self.encoded.regions["LT"] if t <= end)
            prompt = replace(self.prompt, target=f"{self.prompt.target}\n{token}")
            yield replace(self._with(self.encoded.ids[: end + 1], last), prompt=prompt), token

    def extended(self, token: int) -> Passage:
        """The same after one more token was generated."""
        prompt = replace(self.prompt, target=f"{self.prompt.target} {token}")
        return replace(
            self, prompt=prompt, encoded=replace(self.encoded, ids=(*self.encoded.ids, token))
        )

    def _with(self, ids: tuple[int, ...], last: tuple[int, ...]) -> Passage:
        regions = {
            name: tuple(t for t in tokens if t < len(ids))
            for name, tokens in self.encoded.regions.items()
        }
        return replace(
            self, encoded=replace(self.encoded, ids=ids, regions={**regions, "LT": last})
        )
