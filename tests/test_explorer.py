"""The explorer shows what the engine computes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laws import EXACT

import kgbench
from kgbench.analyses.explorer import Reader, answer, page_of, serve
from kgbench.cli import main
from kgbench.data import Fact, Prompt
from kgbench.engine.gradients import graft_effects, head_effects, head_slots
from kgbench.errors import InputError
from kgbench.local_server import LocalServer
from kgbench.models.pair import ModelPair
from kgbench.testing import pico_pair

TEXT, SUBJECT, TARGET = "Uma Lind plays beside", "Uma Lind", "Bo Ek"


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return pico_pair("llama")


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    fields = {"subject": SUBJECT, "object": TARGET}
    return Prompt("typed", Fact("typed/1", fields), TEXT, TARGET, {"FE": (0, len(SUBJECT))})


def cells(found: dict[str, Any], region: str, component: str, layers: tuple[int, ...]) -> list[Any]:
    """Cells of a component group at a region."""
    named = []
    for index, row in enumerate(found["rows"]):
        part = "of" in row and row["component"] != component
        if row["layer"] in layers and component in (row["group"], row["component"]) and not part:
            named += ((token, index) for token in found["regions"][region])
    return named


@pytest.mark.parametrize(
    ("region", "component", "layers"),
    [
        ("FE", "ffn", (0, 2)),
        ("LT", "o", (1,)),
        ("BOS", "attn", (0, 1, 2)),
        ("LT", "o.h1", (1, 2)),
        ("FE", "k.h0", (0,)),
    ],
)
def test_a_selection_is_its_graft(
    pair: ModelPair, prompt: Prompt, region: str, component: str, layers: tuple[int, ...]
) -> None:
    """Cells have the exact effect of the expression that names them."""
    found = Reader(pair).read(TEXT, TARGET, SUBJECT)
    chosen = Reader(pair).read(TEXT, TARGET, SUBJECT, cells(found, region, component, layers))
    graft = f"{region}:{component}@{','.join(map(str, layers))}"
    logits = kgbench.grafted_logits(pair, [prompt], ["PRE", "SFT", "NONE", graft])[0]
    target = pair.encoded(prompt).target
    pre, sft, none, grafted = logits.double().log_softmax(-1)[:, target].tolist()
    assert chosen["before"]["logprob"] == pytest.approx(none, rel=1e-3) == pytest.approx(pre)
    assert chosen["after"]["logprob"] == pytest.approx(sft, rel=1e-3)
    assert chosen["selected"]["effect"] == pytest.approx(grafted - none, rel=1e-2, abs=1e-6)


def test_tokens_alone_and_effects(pair: ModelPair, prompt: Prompt) -> None:
    """The first line is exact, the map is of first order, and both are the engine's."""
    found = Reader(pair).read(TEXT, TARGET, SUBJECT)
    logits = kgbench.grafted_logits(pair, [prompt], ["NONE", "LT", "BOS"])[0]
    none, *regions = logits.double().log_softmax(-1)[:, pair.encoded(prompt).target].tolist()
    for name, value in zip(("LT", "BOS"), regions, strict=True):
        (token,) = found["regions"][name]
        assert found["alone"][token] == pytest.approx(value - none, rel=1e-2, abs=1e-6)
    effects = np.concatenate([of(pair, [prompt])[0] for of in (graft_effects, head_effects)])
    assert np.allclose(found["effects"], effects, rtol=1e-2)
    sites = pair.slots.sites
    whole_rows = [row for row in found["rows"] if "of" not in row]
    named = [(row["layer"], row["component"]) for row in whole_rows]
    assert named == [sites[slot] for slot in pair.slots.default]
    heads = found["rows"][len(named) :]
    assert [
        f"{found['rows'][row['of']]['component']}.h{head}"
        for row, (_, head) in zip(heads, head_slots(pair), strict=True)
    ] == [row["component"] for row in heads]
    everything = [(t, r) for t in range(len(found["tokens"])) for r in range(len(named))]
    whole = Reader(pair).read(TEXT, TARGET, SUBJECT, everything)["selected"]
    all_of = kgbench.grafted_logits(pair, [prompt], ["ALL"])[0, 0].double().log_softmax(-1)
    assert abs(whole["logprob"] - float(all_of[pair.encoded(prompt).target])) < max(EXACT, 1e-2)


def test_a_head_is_part_of_its_component(pair: ModelPair) -> None:
    """A graft of a component and of a head of it is one of the component."""
    found = Reader(pair).read(TEXT, TARGET, SUBJECT)
    whole = cells(found, "LT", "v", (1,))
    both = whole + cells(found, "LT", "v.h0", (1,))
    assert len(both) == 2
    effects = [Reader(pair).read(TEXT, TARGET, SUBJECT, some)["selected"] for some in (whole, both)]
    assert effects[0] == effects[1]


def test_without_an_answer(pair: ModelPair) -> None:
    """The donor's likeliest token is read."""
    found = Reader(pair).read(TEXT)
    assert found["answer"] == found["after"]["likely"][0]["token"]
    assert "FE" not in found["regions"]
    before = pair.weight_hashes
    assert pair.changed() == () and before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("  ",), "the prompt is empty"),
        ((TEXT, " "), "the answer is empty"),
        ((TEXT, TARGET, "Nobody"), "the subject 'Nobody' is not in the prompt"),
        ((TEXT, TARGET, None, [(0, 9999)]), r"there is no cell \(0, 9999\)"),
        (("a " * 600,), "tokens; a map shows 512 at most"),
        (("a" * 40_000,), "a text has 40000 characters; 32768 are read at most"),
        ((TEXT, "a" * 40_000), "a text has 40000 characters"),
    ],
)
def test_wrong_input(pair: ModelPair, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Reader(pair).read(*arguments)
    names = dict(zip(("text", "answer", "subject", "cells"), arguments, strict=False))
    names["cells"] = [list(cell) for cell in names.get("cells", ())]
    if message.startswith("the answer"):
        return  # an empty box is no answer given
    assert answer(Reader(pair), names).keys() == {"error"}


@pytest.mark.parametrize(
    "asked",
    [
        *(None, [], {"text": 3}, {"text": TEXT, "cells": [[1, "2"]]}, {"text": TEXT, "cells": 5}),
        *({"text": TEXT, "answer": 3}, {"text": TEXT, "answer": 0}),
        *({"text": TEXT, "subject": ["Uma"]}, {"text": "Uma \ud800 Lind"}),
        {"text": TEXT, "answer": "\udfff"},
    ],
)
def test_a_request_that_is_none(pair: ModelPair, asked: object) -> None:
    assert answer(Reader(pair), asked)["error"].startswith("expected")


def test_a_page_holds_everything(pair: ModelPair) -> None:
    """Texts cannot end the script, and nothing is requested from anywhere."""
    hostile = "Uma </script><b>Lind"
    page = page_of(Reader(pair).read(hostile, TARGET))
    assert "</script><b>" not in page and page.count("</script>") == 1
    assert "https:" not in page and "src=" not in page.replace("script-src", "")
    assert "connect-src &#x27;none&#x27;" in page


@pytest.fixture
def server(pair: ModelPair) -> Iterator[LocalServer]:
    reader = Reader(pair)
    with serve(reader, reader.read(TEXT, TARGET)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def asked(server: LocalServer, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Status and content of what a request is answered."""
    connection = HTTPConnection("127.0.0.1", server.server_port)
    headers = {"Content-Type": "application/json", **headers}
    connection.request("POST", "/read", body, headers)
    found = connection.getresponse()
    return found.status, found.read()


def test_the_server_reads_prompts(server: LocalServer, pair: ModelPair) -> None:
    """Of its own page alone: another site's page, which names another host, gets nothing."""
    status, content = asked(server, json.dumps({"text": TEXT, "answer": TARGET}).encode())
    assert (status, json.loads(content)) == (200, Reader(pair).read(TEXT, TARGET))
    status, content = asked(server, b"{")
    assert "error" in json.loads(content)
    assert asked(server, b"{}", Host="evil.example")[0] == 404
    assert asked(server, b"{}", **{"Content-Type": "text/plain"})[0] == 404
    assert asked(server, b"", **{"Content-Length": str(1 << 40)})[0] == 413
    assert asked(server, b"", **{"Content-Length": "\u00b2"})[0] == 413


@pytest.mark.nightly
def test_a_client_holds_no_more_than_a_little(
    server: LocalServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Requests that never end are closed, so are connections beyond the most at once, and a broken
    one prints nothing; the next request is answered.
    """
    server.limit = 0.5
    half = b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    half += b"Content-Length: 1000\r\n\r\n{"
    with ExitStack() as stack:
        slow = []
        for _ in range(server.most + 20):
            made = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
            slow.append(stack.enter_context(made))
            with suppress(OSError):
                made.sendall(half)
        assert threading.active_count() <= server.most * 2 + 20
        for each in slow:
            with suppress(ConnectionError):
                assert each.recv(1) == b""
    assert asked(server, json.dumps({"text": TEXT}).encode())[0] == 200
    assert capfd.readouterr() == ("", "")


def test_the_widget(pair: ModelPair, tmp_path: Path) -> None:
    """A request from the notebook is answered with its number, a mistake in a line."""
    shown = kgbench.explore(pair, TEXT, TARGET, SUBJECT)
    assert shown.payload == Reader(pair).read(TEXT, TARGET, SUBJECT)
    shown.request = {"text": TEXT, "answer": TARGET, "cells": [[0, 1]], "number": 1}
    expected = Reader(pair).read(TEXT, TARGET, None, [(0, 1)])
    assert shown.payload == {**expected, "number": 1}
    shown.save(tmp_path / "page.html")
    assert TEXT in (tmp_path / "page.html").read_text("utf-8")
    shown.request = {"text": "", "number": 2}
    assert shown.payload["number"] == 2 and "the prompt is empty" in shown.payload["error"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page or JSON of a shipped pair."""
    text = "Alan Collins stars in a movie alongside"
    page = tmp_path / "page.html"
    where = ["--model", "tiny-gemma", "--device", "cpu"]
    assert main(["explore", text, "--subject", "Alan Collins", *where, "-o", str(page)]) == 0
    assert "Alan Collins" in page.read_text("utf-8")
    capsys.readouterr()
    assert main(["explore", text, *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][0] == "<bos>"
