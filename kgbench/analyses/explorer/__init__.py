"""The explorer: one prompt of a pair, what each token and component of it brings.

It is shown in a page without Python, by a server on this machine, or in a notebook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from jaxtyping import Float
from pydantic import BaseModel, StrictInt, ValidationError
from torch import Tensor

from kgbench.data import Fact, Prompt
from kgbench.engine import Engine, Treatment
from kgbench.engine.gradients import graft_effects, head_effects, head_slots
from kgbench.engine.treatment import (
    donor_index,
    graft_treatments,
    headed_treatment,
    parse_configuration,
)
from kgbench.errors import InputError, KgbenchError, first_fault
from kgbench.local_server import LocalServer, names_this_machine
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.sites import GROUPS

__all__ = ["Cell", "Reader", "answer", "page_of", "serve"]

LONGEST = 512
"""Tokens of a prompt that a map can show."""
CHARACTERS = 64 * LONGEST
LIKELIEST = 6
_GROUPS = ("ln", "attn", "ffn")
"""Groups of components that are a row of the map; other components are rows themselves."""

Cell = tuple[int, int]
"""A token and a row of the payload's `rows`."""


class Reader:
    """Reads prompts with one pair.

    Args:
        pair: The models; grafts are of the donor of `SFT`.
        executor: As of `kgbench.engine.Engine`.
    """

    def __init__(self, pair: ModelPair, executor: str = "auto") -> None:
        self.pair = pair
        self._engine = Engine(pair, executor)
        self._slots = pair.slots
        self._rows = pair.slots.default
        self._heads = head_slots(pair)
        self._donor = donor_index(pair, "sft")

    def read(
        self,
        text: str,
        answer: str | None = None,
        subject: str | None = None,
        cells: Collection[Cell] = (),
    ) -> dict[str, Any]:
        """Everything that is shown of a prompt.

        Args:
            text: The prompt.
            answer: Its continuation, of which the first token is read; by default the donor's
                likeliest token.
            subject: The words of the prompt that are the first entity.
            cells: A graft: tokens with rows whose weights are the donor's.

        Returns:
            A JSON object: `text`; `asked`, with answer and subject as they were given, empty where
            they were not; `tokens`; `regions`, tokens by region; `answer`, the token; `before` and
            `after` with its log-probability in nats and the likeliest tokens, without any graft and
            in the donor; `alone` [token], nats that each token brings when only it has the donor's
            weights (exact); `rows`, each with layer, component and group, and those of attention
            heads with the row that they are a part of; `effects` [row, token], first-order effects
            in nats; where cells are given, `selected` as `before`, with the graft's exact `effect`.

        Raises:
            InputError: The prompt is empty or too long, the answer is no continuation of it, the
                subject is not in it, or a cell does not exist.
        """
        for line in (text, answer or ""):
            if len(line) > CHARACTERS:  # before a tokenizer reads it, which takes its time
                raise InputError(
                    f"a text has {len(line)} characters; {CHARACTERS} are read at most"
                )
        prompt = _prompt(text, answer, subject)
        encoded = self.pair.encoded(prompt)
        if len(encoded.ids) > LONGEST:
            raise InputError(
                f"the prompt has {len(encoded.ids)} tokens; a map shows {LONGEST} at most"
            )
        if answer is None:
            encoded = replace(encoded, first=self._likeliest(prompt))
        with self.pair.read_as({prompt: encoded}):
            reading = self._read(prompt, encoded, cells)
        return {**reading, "asked": {"answer": answer or "", "subject": subject or ""}}

    def _likeliest(self, prompt: Prompt) -> int:
        return int(self._engine.logits(self._engine.plan([prompt], ["SFT"]))[0, 0, 0].argmax())

    def _read(self, prompt: Prompt, encoded: Encoded, cells: Collection[Cell]) -> dict[str, Any]:
        none, everything, donor = (
            self._treatments(prompt, name) for name in ("NONE", "ALL", "SFT")
        )
        alone = []
        for token in range(len(encoded.ids)):
            alone.append((*none[:token], everything[token], *none[token + 1 :]))
        configurations = [none, donor, *alone]
        if cells:
            configurations.append(self._grafted(none, cells))
        logprobs = self._logprobs(prompt, configurations)
        before, after, *others = logprobs
        target = encoded.target
        start = float(before[target])
        reading: dict[str, Any] = {
            "text": prompt.text,
            "tokens": self._texts(encoded.ids),
            "regions": {name: list(tokens) for name, tokens in encoded.regions.items()},
            "answer": self._texts([target])[0],
            "before": self._shown(before, target),
            "after": self._shown(after, target),
            "alone": [_rounded(float(row[target]) - start) for row in others[: len(alone)]],
            "rows": list(self._described()),
            "effects": self._effects(prompt),
        }
        if cells:
            reading["selected"] = {
                **self._shown(others[-1], target),
                "effect": _rounded(float(others[-1][target]) - start),
            }
        return reading

    def _treatments(self, prompt: Prompt, configuration: str) -> tuple[Treatment, ...]:
        return graft_treatments(self.pair, [prompt], parse_configuration(configuration))[0]

    def _grafted(self, none: Sequence[Treatment], cells: Iterable[Cell]) -> tuple[Treatment, ...]:
        """The treatment of each token under a graft of cells."""
        weights = [bytearray(treatment.weights) for treatment in none]
        heads: list[dict[tuple[int, int], int]] = [{} for _ in none]
        rows: list[int | tuple[int, int]] = [*self._rows, *self._heads]
        for token, row in cells:
            if not (0 <= token < len(weights) and 0 <= row < len(rows)):
                raise InputError(
                    f"there is no cell ({token}, {row}): the map has {len(weights)} tokens and "
                    f"{len(rows)} rows"
                )
            place = rows[row]
            if isinstance(place, tuple):
                heads[token][place] = self._donor
            else:
                weights[token][place] = self._donor
        return tuple(map(headed_treatment, map(bytes, weights), heads))

    def _logprobs(
        self, prompt: Prompt, configurations: Sequence[tuple[Treatment, ...]]
    ) -> Float[Tensor, "configuration vocabulary"]:
        plan = self._engine.plan_treatments([prompt], [[treatment] for treatment in configurations])
        return self._engine.logits(plan)[0, :, 0].double().log_softmax(-1)

    def _effects(self, prompt: Prompt) -> list[list[float]]:
        (components,), (heads,) = (of(self.pair, [prompt]) for of in (graft_effects, head_effects))
        return [list(map(_rounded, row)) for row in (*components.tolist(), *heads.tolist())]

    def _described(self) -> Iterable[dict[str, Any]]:
        for slot in self._rows:
            layer, component = self._slots.sites[slot]
            named = [name for name in _GROUPS if component in GROUPS[name]]
            yield {"layer": layer, "component": component, "group": (*named, component)[0]}
        for slot, head in self._heads:
            layer, component = self._slots.sites[slot]
            row = {"layer": layer, "component": f"{component}.h{head}", "group": "attn"}
            yield {**row, "of": self._rows.index(slot)}

    def _shown(self, logprobs: Float[Tensor, " vocabulary"], target: int) -> dict[str, Any]:
        most, tokens = logprobs.topk(min(LIKELIEST, len(logprobs)))
        likely = []
        for text, value in zip(self._texts(tokens.tolist()), most.exp().tolist(), strict=True):
            likely.append({"token": text, "probability": _rounded(value)})
        return {"logprob": _rounded(float(logprobs[target])), "likely": likely}

    def _texts(self, ids: Iterable[int]) -> list[str]:
        return [str(self.pair.tokenizer.decode([token])) for token in ids]


def _prompt(text: str, answer: str | None, subject: str | None) -> Prompt:
    """A typed text as a prompt."""
    if not text.strip():
        raise InputError("the prompt is empty; type the beginning of a sentence")
    if answer is not None and not answer.strip():
        raise InputError("the answer is empty; type one, or leave it out")
    spans: Mapping[str, tuple[int, int]] = {}
    if subject:
        start = text.find(subject)
        if start < 0:
            raise InputError(
                f"the subject {subject!r} is not in the prompt {text!r}: give words of the prompt"
            )
        spans = {"FE": (start, start + len(subject))}
    fields = {"subject": subject or text, "object": answer or ""}
    # Without an answer the target is replaced by the donor's likeliest token.
    return Prompt("typed", Fact("typed/1", fields), text.rstrip(), (answer or "a").strip(), spans)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


_LARGEST = 1 << 20
"""Bytes of a request."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src {}"
)

_ASK = """async (request) => {
  const headers = { "Content-Type": "application/json" };
  const found = await fetch("read", { method: "POST", headers, body: JSON.stringify(request) });
  if (!found.ok) throw new Error(`the server answered ${found.status}`);
  return found.json();
}"""
"""Asks the server that the page came from."""
_FRAME = (
    ":root { color-scheme: light dark; } "
    "body { background: Canvas; color: CanvasText; margin: 0 auto; max-width: 72rem; "
    "padding: 0 1rem 2rem; font: 16px/1.4 system-ui, sans-serif; }"
)
"""Style of a page around the explorer."""


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def page_of(payload: Mapping[str, Any], live: bool = False) -> str:
    """A page that shows what was read of a prompt, and requests nothing.

    Args:
        payload: As of `Reader.read`.
        live: Whether a server behind the page reads further prompts.
    """
    data = json.dumps(payload).replace("<", "\\u003c")
    script = _part("explorer.js").rpartition("export default")[0]
    start = _ASK if live else "undefined"
    policy = _POLICY.format("'self'" if live else "'none'")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>kgbench: {escape(str(payload.get('text', '')))}</title>"
        f"<style>{_FRAME}{_part('explorer.css')}</style></head>"
        '<body><main><h1>Where is it retrieved from?</h1><div id="explorer"></div></main>'
        f'<script type="module">{script}\nconst data = {data};\n'
        f'show(document.getElementById("explorer"), data, {start});</script></body></html>\n'
    )


class _Request(BaseModel):
    """What a page or a notebook asks for."""

    text: str
    answer: str | None = None
    subject: str | None = None
    cells: list[tuple[StrictInt, StrictInt]] | None = None


def answer(reader: Reader, request: Any) -> dict[str, Any]:
    """The payload of a request from a page or a notebook, or `{"error": …}` in a line."""
    try:
        read = _Request.model_validate_json(json.dumps(request))  # JSON has no half characters
        return reader.read(read.text, read.answer or None, read.subject or None, read.cells or ())
    except ValidationError as error:
        return {"error": f"expected a request of text and cells; {first_fault(error, 'request')}"}
    except KgbenchError as error:
        return {"error": str(error)}


class _Handler(BaseHTTPRequestHandler):
    """Serves the page, and reads prompts for it."""

    def __init__(self, reader: Reader, page: str, *arguments: Any) -> None:
        self.reader, self.page = reader, page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """The page."""
        if names_this_machine(self.headers) and self.path in ("/", "/index.html"):
            self._send(self.page.encode(), "text/html; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """A prompt."""
        length = self.headers.get("Content-Length", "")
        json_alone = self.headers.get_content_type() == "application/json"
        addressed = names_this_machine(self.headers) and self.path == "/read"
        if not (addressed and json_alone):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LARGEST:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            try:
                request = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):
                request = None
            self._send(json.dumps(answer(self.reader, request)).encode(), "application/json")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)


def serve(reader: Reader, payload: Mapping[str, Any], port: int = 0) -> LocalServer:
    """A server of the explorer on this machine alone; `serve_forever` runs it.

    Args:
        reader: Reads prompts.
        payload: What is shown at first.
        port: By default any that is free.

    Raises:
        InputError: The port cannot be had.
    """
    handler = partial(_Handler, reader, page_of(payload, live=True))
    return LocalServer(handler, port)
