"""Methods that know the answers or write their own scores break a law, and are not verified; what
honest ones give travels as data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import cheats
import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import save_file

import kgbench
import kgbench.runner.measure as measure
import kgbench.runner.third_party_watch as guard
from kgbench.cli import main
from kgbench.data import Prompt, load_dataset, load_prompts
from kgbench.engine import Engine, Treatment, load_pair
from kgbench.engine.edits import Add, Cut, Hook, Values, Write
from kgbench.errors import InputError, LawError, NotApplicableError
from kgbench.localizers import InterventionLocalizer, Treatments, create
from kgbench.localizers._base import asked
from kgbench.models.pair import ModelPair
from kgbench.models.renaming import exchanged_answers, renamed_pair
from kgbench.records import StoredRecord, read_record
from kgbench.runner import Settings, Spec, run_job, third_party_answers
from kgbench.runner.third_party_answers import (
    Reply,
    Stage,
    Writer,
    declared,
    key_of,
    replies_in,
    reply_of,
)
from kgbench.runner.third_party_process import DECLARED, Method
from kgbench.sites import parse_graft
from kgbench.testing import pico_pair
from kgbench.testing.laws import names_and_answers_do_not_matter
from kgbench.testing.trial import Trial

HEADLINE = Spec(model="tiny-gemma", prompts=("headline",), limit=6)
CHEATS = (cheats.Data, cheats.Frames, cheats.Score)


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return pico_pair("llama")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts(load_dataset("tiny_movies"), ["headline", "qa"], limit=3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_breaks_a_law(
    cheat: Callable[[], InterventionLocalizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What depends on the name of the pair, or on the answers of its facts, is no localizer."""
    monkeypatch.setattr(measure, "score_labels", measure.score_labels)
    monkeypatch.setattr(guard, "state_changes", guard.state_changes)
    try:
        with pytest.raises(LawError, match="under another with answers exchanged"):
            names_and_answers_do_not_matter(Trial(cheat(), "gemma"))
    finally:
        vars(guard).pop("_before", None)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> StoredRecord:
    """What a graft gives that knows nothing."""
    return read_record(run_job(HEADLINE, Settings(output_dir=tmp_path_factory.mktemp("h"))).path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_not_verified(
    cheat: type[InterventionLocalizer],
    honest: StoredRecord,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A method that knows the pair's name or answers differs when it runs again."""
    name = f"{cheats.__file__}:{cheat.__name__}"
    found = run_job(replace(HEADLINE, localizer=name), Settings(output_dir=tmp_path))
    assert not read_record(found.path).facts().equals(honest.facts())
    assert main(["rerun", str(found.path), "--localizer", name, "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["agrees"]


def test_who_writes_scores_gains_nothing(tmp_path: Path) -> None:
    """What its treatments give is measured: here that of grafting nothing."""
    spec = replace(HEADLINE, localizer=f"{cheats.__file__}:Score")
    found = read_record(run_job(spec, Settings(output_dir=tmp_path)).path).facts()
    columns = ["fact", "rank", "logprob"]
    graft, base = (found.filter(pc.equal(found["graft"], of)) for of in ("FE+LT", "PRE"))
    assert graft.select(columns).equals(base.select(columns))


KNOWING = """
from kgbench.localizers.dynamic_graft import DynamicGraft

class Knowing(DynamicGraft):
    name = "knowing"
    about = "a graft that is given the answers"
    needs = frozenset({"donor", "answer"})

    def treat(self, pair, prompts, sites):
        assert all(prompt.target for prompt in prompts)
        return super().treat(pair, prompts, sites)
"""


def test_what_is_given_the_answers_is_not_verified(
    honest: StoredRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs, and agrees when it runs again; a line says that this verifies nothing."""
    (tmp_path / "knowing.py").write_text(KNOWING)
    name = f"{tmp_path / 'knowing.py'}:Knowing"
    found = run_job(replace(HEADLINE, localizer=name), Settings(output_dir=tmp_path / "runs"))
    assert read_record(found.path).facts().equals(honest.facts())
    assert main(["rerun", str(found.path), "--localizer", name]) == 0
    assert "verification  none: the method is given the answers" in capsys.readouterr().out


def test_exchanged_answers_have_the_old_logits(prompts: list[Prompt]) -> None:
    """To the bit, under every configuration, and no answer of more than one stays its own."""
    pair = load_pair("tiny-gemma", device="cpu")
    _ = pair.weight_hashes
    exchange, others = exchanged_answers(pair, prompts, seed=3)
    renamed = renamed_pair(pair, "another", exchange)
    assert len(exchange) > 1 and all(old != new for old, new in exchange.items())
    before, after = (
        Engine(of, "rows").logits(Engine(of, "rows").plan(some, ["PRE", "SFT", "FE"]))[:, :, 0]
        for of, some in ((pair, prompts), (renamed, others))
    )
    for i, (old, new) in enumerate(zip(prompts, others, strict=True)):
        target = pair.encoded(old).target
        assert renamed.encoded(new).target == exchange[target] != target
        assert torch.equal(after[i, :, exchange[target]], before[i, :, target])
    assert pair.changed() == ()


def test_an_answer_with_a_blank_of_its_own_stays() -> None:
    """It begins with a token that the model is given; of the others the prompts read as before."""
    pair = load_pair("tiny-gpt2", device="cpu")
    pets = {"Ann Lee": "small cat", "Bo Ray": "young dog", "Cy Orr": "old parrot"}
    rows = [{"who": who, "pet": pet} for who, pet in pets.items()]
    asked = {"subject": "who", "object": "pet"}
    prompts = kgbench.load_prompts(rows, {"has": "{who} has a"}, **asked)
    assert [pair.encoded(prompt).blanks for prompt in prompts] == [0, 1, 0]
    exchange, others = exchanged_answers(pair, prompts, seed=3)
    assert [prompt.target for prompt in others] == ["old parrot", "young dog", "small cat"]
    assert len(exchange) == 2
    for old, new in zip(prompts, others, strict=True):
        assert pair.encoded(old).ids == pair.encoded(new).ids


METHODS = (
    *("causal_trace", "directional_patch", "ablation", "attention_knockout", "path_patch"),
    *("dynamic_graft", "static_graft", "activation_patch"),
)


def given(
    folder: Path, pair: ModelPair, prompts: Sequence[Prompt], name: str, *grafts: str
) -> tuple[tuple[Reply, ...], InterventionLocalizer]:
    """What a built-in intervention gives, read back, and the method."""
    method = create(name, {}, 0)
    facts = frozenset(prompt.fact.id for prompt in prompts)
    scan = Stage(frozenset(prompt.fact.id for prompt in prompts[:2]))
    for number, stage in enumerate((Stage(facts, grafts), scan)):
        part = [prompt for prompt in prompts if prompt.fact.id in stage.facts]
        writer = Writer(name)
        content = {"prompts": list(map(key_of, part)), "spent": (0, 0, 0)}
        content |= reply_of(method, pair, part, stage, writer)
        writer.write(folder / f"stage-{number}.json", content)
    assert isinstance(method, InterventionLocalizer)
    return replies_in(folder, name), method


@pytest.mark.parametrize("name", METHODS)
def test_treatments_travel_as_data(
    tmp_path: Path, pair: ModelPair, prompts: list[Prompt], name: str
) -> None:
    """What comes back is equal to what the method gives, for grafts and units of a scan."""
    grafts = ("FE+LT", "LT:o.h1+ffn@1", "NONE")
    found, method = given(tmp_path, pair, prompts, name, *grafts)
    about = {key: getattr(method, key) for key in DECLARED}
    proxy = declared(Method(**about, parameters={}, arguments={}, code=""), found).localizer
    assert isinstance(proxy, InterventionLocalizer)
    own = method.fitted(pair, asked(method, pair, prompts))
    theirs = proxy.fitted(pair, prompts)
    assert len(own.variants()) == len(theirs.variants())
    questions = asked(method, pair, prompts)
    for graft in map(parse_graft, grafts):
        for one, other in zip(own.variants(), theirs.variants(), strict=True):
            expected = outcome(partial(one.treat, pair, questions, graft))
            got = outcome(partial(other.treat, pair, prompts, graft))
            assert got[0] == expected[0] and got[1].keys() == expected[1].keys()
            for place, tensor in expected[1].items():  # each was fitted by itself
                torch.testing.assert_close(got[1][place], tensor)
    part = [prompt for prompt in prompts if prompt.fact in (prompts[0].fact, prompts[1].fact)]
    units = method.fitted(pair, asked(method, pair, part)).units(pair, part)
    assert list(proxy.fitted(pair, part).units(pair, part)) == list(units)


def outcome(treat: Callable[[], Treatments]) -> tuple[object, dict[str, torch.Tensor]]:
    """Treatments with their tensors apart, or the words with which a method declines."""
    writer = Writer("")
    try:
        rows = [writer.row(row) for row in treat()]
    except NotApplicableError as error:
        return str(error), {}
    return (rows, writer.nodes), writer.tensors


def reply(prompt: Prompt, *rows: int) -> dict[str, object]:
    """What a stage gives of one prompt under FE."""
    key = key_of(prompt)
    return {"prompts": [key], "cells": {"FE": {key: rows}}, "spent": (0, 0, 0)}


def read(folder: Path, pair: ModelPair, prompts: Sequence[Prompt]) -> Treatments:
    """What was given of the facts of some prompts under FE."""
    about = ("mine", "intervention", "1", "recipient", frozenset[str](), False, "alone")
    proxy = declared(Method(*about, False, {}, {}, ""), replies_in(folder, "mine")).localizer
    assert isinstance(proxy, InterventionLocalizer)
    return proxy.fitted(pair, prompts).treat(pair, prompts, parse_graft("FE"))


TREATMENT = ["{weights}", [], [], 1.0, []]


@pytest.mark.parametrize(
    "nodes",
    [
        [[0], TREATMENT],  # a row of what comes later
        [TREATMENT, ["x"]],
        [TREATMENT, [[0]]],
        [["zz", [], [], 1.0, []], [0]],
        [["{weights}", [["read", [0, "resid_pre"], 0, None]], [], 1.0, []], [0]],
        [["{weights}", [["Copy", [0, "resid_pre"], 0, None]], [], 1.0, []], [0]],
        [["{weights}", [["Write", [0, "resid_pre"], 0, None]], [], 1.0, []], [0]],
        [["{weights}", [], [], "NaN", []], [0]],
        [None, [0]],
        [TREATMENT],
        [["{weights}00", [], [], 1.0, []], [0] * 40],  # weights of another model
        [["{weights}", [], [[99, [0]]], 1.0, []], [0] * 40],
        [["{weights}", [], [], 1.0, [[9999, 0, 1]]], [0] * 40],
        {"a": 1},
        3,
    ],
)
def test_what_is_no_treatment_is_refused(
    tmp_path: Path, pair: ModelPair, prompts: list[Prompt], nodes: object
) -> None:
    """A line that names the localizer, whatever its process wrote."""
    text = json.dumps(nodes).replace("{weights}", "00" * len(pair.slots))
    stage = json.dumps(reply(prompts[0], 0))
    (tmp_path / "stage-0.json").write_text(f'{{"nodes": {text}, {stage[1:]}')
    save_file({}, tmp_path / "stage-0.safetensors")
    with pytest.raises(InputError, match="localizer 'mine': its process gave what are no"):
        read(tmp_path, pair, prompts[:1])


def test_numbers_of_numpy_travel(tmp_path: Path, pair: ModelPair, prompts: list[Prompt]) -> None:
    """Layers and tokens that numpy counted are numbers on the other side."""
    layer, token, weights = np.arange(2)[1], np.arange(1)[0], bytes(len(pair.slots))
    hook, cut = Hook(layer, "resid_post"), Cut(layer, frozenset([token]))
    heads = ((token, token, token),)
    edits = (Add(hook, Values(torch.ones(pair.width))),)
    treatment = Treatment(weights, edits, (cut,), np.float32(0.5), heads)
    row, writer = [treatment] * len(pair.encode(prompts[0])), Writer("mine")
    writer.write(tmp_path / "stage-0.json", reply(prompts[0], writer.row(row)))
    assert read(tmp_path, pair, prompts[:1]) == [tuple(row)]


@pytest.mark.parametrize("name", ["stage-0.json", "stage-1.safetensors"])
def test_a_damaged_answer_is_asked_for_again(
    tmp_path: Path, prompts: list[Prompt], name: str
) -> None:
    """A file that is cut off is named, and its stage is no longer there for the next run."""
    for stage in range(2):
        Writer("mine").write(tmp_path / f"stage-{stage}.json", reply(prompts[0]))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(InputError, match=r"stage-[01]\.json"):
        replies_in(tmp_path, "mine")
    assert len([*tmp_path.glob("*.json")]) == 1


def test_too_much_to_hand_on_is_refused(monkeypatch: pytest.MonkeyPatch, pair: ModelPair) -> None:
    """The line says what fits: fewer facts, or the class in Python."""
    monkeypatch.setattr(third_party_answers, "LIMIT", 64)
    weights, edits = bytes(len(pair.slots)), (Write(Hook(0, "resid_pre"), Values(torch.ones(32))),)
    with pytest.raises(
        InputError, match=r"more than 0 GiB of tensors, and cannot .*: give fewer facts"
    ):
        Writer("mine").row([Treatment(weights, edits)])


def test_only_data_is_handed_on(tmp_path: Path, pair: ModelPair, prompts: list[Prompt]) -> None:
    """A treatment with code in it is refused by name."""

    class Sly(Write):
        pass

    edit, writer = Sly(Hook(0, "resid_pre"), Values(torch.ones(pair.width))), Writer("mine")
    row = [Treatment(bytes(len(pair.slots)), (edit,))] * len(pair.encode(prompts[0]))
    writer.write(tmp_path / "stage-0.json", reply(prompts[0], writer.row(row)))
    with pytest.raises(InputError, match=r"'mine': its process gave .*Input should be 'Copy'"):
        read(tmp_path, pair, prompts[:1])
