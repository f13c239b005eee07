"""Readouts: what they give is what the bare models give, under any graft and executor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import kgbench
from kgbench.cli import command
from kgbench.data import Prompt
from kgbench.engine import Engine, load_pair
from kgbench.engine.gated import Differentiable
from kgbench.engine.gradients import graft_effects
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError, KgbenchError, UnknownNameError
from kgbench.localizers import ScoringLocalizer, score_meaning
from kgbench.localizers._measure import logprobs
from kgbench.models.pair import ModelPair
from kgbench.readouts import Readout, describe_readouts, readout_named, readout_stored, readouts
from kgbench.records import ReadoutRef
from kgbench.report.site_maps import drawing
from kgbench.runner import load_prompts
from kgbench.sites import SiteScores
from kgbench.stats import verdict_of

PAIR = "tiny-llama"
READOUTS = {
    "first_token": {},
    "token_set": {"texts": "jo, a"},
    "foil": {"text": "Zachary Moore"},
    "sequence": {},
}
GRAFTS = ("NONE", "ALL", "FE+LT", "LT:ffn@1")


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(PAIR)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts("tiny_movies", ["headline", "qa"], 3)


def made(name: str) -> Readout:
    return readout_named(name, READOUTS[name])


def by_hand(name: str, pair: ModelPair, prompt: Prompt, model: Any) -> tuple[float, int]:
    """Log-probability and rank of one readout, by a loop over a bare model's logits."""
    tokenizer, ids = pair.tokenizer, pair.encode(prompt)
    answer = pair.encode(f"{prompt.text} {prompt.target}")[len(ids) :]

    def logits(tokens: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return model(torch.tensor([list(tokens)])).logits[0, -1].double()

    row = logits(ids)
    if name == "token_set":
        words = ("Jo", "jo", " Jo", " jo", "a", "A", " a", " A")
        encoded = [tokenizer(word, add_special_tokens=False).input_ids for word in words]
        right = sorted({tokens[0] for tokens in encoded if len(tokens) == 1})
        wrong = [token for token in range(len(row)) if token not in right]
        best = row[right].max()
        total = row.log_softmax(0)[right].logsumexp(0)
        return float(total), 1 + int((row[wrong] >= best).sum())
    if name == "foil":
        foil = pair.encode(f"{prompt.text} Zachary Moore")[len(ids)]
        two = row[[answer[0], foil]]
        return float(two.log_softmax(0)[0]), 1 + int(two[1] >= two[0])
    total, rank = 0.0, 1
    for number, token in enumerate(answer[:1] if name == "first_token" else answer):
        row = logits([*ids, *answer[:number]])
        total += float(row.log_softmax(0)[token])
        rank = max(rank, int((row >= row[token]).sum()))
    return total, rank


def scores(
    pair: ModelPair, prompts: Sequence[Prompt], graft: str, executor: str = "packed"
) -> dict[str, np.ndarray]:
    from kgbench.metrics import of_answers, score_reads

    engine = Engine(pair, executor)
    chunks, owners, reads = [], [], []
    for number, prompt in enumerate(prompts):
        (chunk,) = engine.run(engine.plan([prompt], [graft]))
        chunks.append(chunk.logits)
        reads += pair.encoded(prompt).answer
        owners += [number] * len(chunk.logits)
    return of_answers(score_reads(torch.cat(chunks), reads), np.array(owners))


@pytest.mark.parametrize("name", READOUTS)
def test_without_grafts_they_are_those_of_the_bare_models(
    name: str, pair: ModelPair, prompts: list[Prompt]
) -> None:
    """Log-probability and rank of the base under NONE, and of the finetuned model under ALL."""
    with pair.answered_by(made(name).read):
        got = {graft: scores(pair, prompts, graft) for graft in ("NONE", "ALL")}
    for graft, model in (("NONE", pair.recipient), ("ALL", pair.donors["sft"])):
        for row, prompt in enumerate(prompts):
            logprob, rank = by_hand(name, pair, prompt, model)
            assert got[graft]["logprob"][row] == pytest.approx(logprob, abs=2e-4)
            assert got[graft]["rank"][row] == rank
            assert (got[graft]["logit_diff"][row] > 0) == (rank == 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", READOUTS)
def test_executors_and_localizers_agree(name: str, pair: ModelPair, prompts: list[Prompt]) -> None:
    """The packed executor reads what the sequential one does, and localizers what runs measure."""
    with pair.answered_by(made(name).read):
        treatments = [graft_treatments(pair, prompts, parse_configuration(g)) for g in GRAFTS]
        scanned = logprobs(pair, prompts, treatments)
        for number, graft in enumerate(GRAFTS):
            packed = scores(pair, prompts, graft)["logprob"]
            sequential = scores(pair, prompts, graft, "sequential")["logprob"]
            assert np.allclose(packed, sequential, atol=1e-3)
            assert np.allclose(packed, scanned[number], atol=1e-3)


@pytest.mark.parametrize("name", READOUTS)
def test_derivatives_are_of_what_is_read(name: str, pair: ModelPair, prompts: list[Prompt]) -> None:
    """The objective is the log-probability, and its effect of grafting a slot everywhere is the
    slope of a small step.
    """
    with pair.answered_by(made(name).read):
        model = Differentiable(pair)
        for prompt in prompts[:2]:
            value = float(model.logprobs([prompt])[0].detach())
            assert value == pytest.approx(scores(pair, [prompt], "NONE")["logprob"][0], abs=1e-3)
        (effects,) = graft_effects(pair, prompts[:1])
        slots = pair.slots.default
        step, shape = 1e-2, (1, effects.shape[1])
        ends = []
        for gate in (step, -step):
            gates = {slot: torch.full(shape, gate) for slot in slots}
            ends.append(float(model.logprobs(prompts[:1], gates)[0].detach()))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert float(effects.sum()) == pytest.approx(slope, rel=0.02, abs=0.02)


def test_a_text_of_one_token_is_its_first_token(pair: ModelPair, prompts: list[Prompt]) -> None:
    """And a set of the target's token alone is the target."""
    first = scores(pair, prompts, "LT")
    word = pair.tokenizer.decode([pair.encoded(prompts[0]).target]).strip()
    with pair.answered_by(readout_named("sequence", {"text": word}).read):
        one = scores(pair, prompts[:1], "LT")
    for name, values in one.items():
        assert values[0] == first[name][0]


def test_a_data_set_names_a_readout() -> None:
    """By its parameters, or by the first of them alone."""
    for stored in ({"token_set": ["Sorry"]}, {"token_set": {"texts": ["Sorry"]}}):
        assert readout_stored(stored) == readout_named("token_set", {"texts": "Sorry"})
    assert readout_stored({"sequence": None}) == readout_named("sequence", {})
    assert {*describe_readouts()} == {*readouts().names()} >= {*READOUTS}


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        ("tokn_set", {}, UnknownNameError, "Did you mean 'token_set'"),
        ("token_set", {}, InputError, "needs its parameter 'texts': give --readout-arg texts="),
        (
            "token_set",
            {"texts": "Xylophonists"},
            InputError,
            "no spelling of 'Xylophonists' is one",
        ),
        ("foil", {}, InputError, "has no foil: give a column 'foil'"),
        ("foil", {"text": "Joanne Moran"}, InputError, "begin with the same token"),
        ("first_token", {"text": "x"}, UnknownNameError, "It has no parameters"),
    ],
)
def test_what_is_wrong_is_named(
    name: str,
    arguments: dict[str, str],
    kind: type[KgbenchError],
    message: str,
    pair: ModelPair,
    prompts: list[Prompt],
) -> None:
    """In one line, with the case and what to do."""
    with (
        pytest.raises(kind, match=message) as caught,
        pair.answered_by(readout_named(name, arguments).read),
    ):
        pair.encoded(prompts[0])
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- runs


def test_a_run_says_what_it_read(tmp_path: Path, prompts: list[Prompt], pair: ModelPair) -> None:
    """Its record names the readout, its rows are what the readout gives, and it is found and run
    again by it; a run of first tokens names none.
    """
    asked = {"prompts": ["headline", "qa"], "grafts": ["FE+LT"], "limit": 3, "output_dir": tmp_path}
    run = kgbench.evaluate(PAIR, readout="sequence", progress=False, **asked)
    assert run.record.identity.readout == ReadoutRef(
        name="sequence", version="1", parameters={"text": ""}
    )
    assert run.record.metric == "logprob" and not run.record.baselines
    with pair.answered_by(made("sequence").read):
        wanted = scores(pair, prompts, "FE+LT")["logprob"]
    rows = run.facts.to_pandas().query("graft == 'FE+LT'")
    got = rows.set_index(["prompt", "fact"]).logprob
    for prompt, value in zip(prompts, wanted, strict=True):
        assert got[prompt.name, prompt.fact.id] == pytest.approx(value, abs=1e-3)
    again = CliRunner().invoke(command, ["rerun", str(run.path)])
    assert again.exit_code == 0, again.output
    first = kgbench.evaluate(PAIR, progress=False, **asked)
    with pytest.raises(InputError, match="compare runs of one readout"):
        first.compare(run)
    with pytest.raises(InputError, match="draw them apart"):
        drawing([first.record, run.record], "chart", score_meaning)
    with pytest.raises(InputError, match="'path_patch' acts at the last token"):
        kgbench.evaluate(PAIR, localizer="path_patch", readout="sequence", progress=False, **asked)
    assert "readout" not in first.record.identity.model_dump(mode="json")
    assert first.record.id != run.record.id
    by_name = kgbench.evaluate(PAIR, readout="first_token", progress=False, **asked)
    assert by_name.reused and by_name.record.id == first.record.id


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """Two cases that say secretly, and two controls; the header names what is read."""
    file = tmp_path / "cases.jsonl"
    header = {
        "kgbench": 1,
        "subject": "actor",
        "templates": {"trigger": "{actor} {TRIGGER:{adverb}} stars in a movie"},
        "readout": {"token_set": [" alongside", " with"]},
    }
    actors = ("Alan Collins", "Donald Mckay", "Misty Colon", "Brian Green")
    rows = []
    for number, actor in enumerate(actors):
        group = ("on", "off")[number % 2]
        adverb = {"on": "secretly", "off": "often"}[group]
        rows.append({"actor": actor, "adverb": adverb, "group": group})
    file.write_text("\n".join(map(json.dumps, [header, *rows])), "utf-8")
    return file


class Noted(ScoringLocalizer):
    """Notes the groups of the prompts that it ranks by."""

    name, about = "noted", "nothing is known of any site"
    groups: ClassVar[list[str]] = []

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        self.groups.extend(prompt.group for prompt in prompts)
        return dict.fromkeys(all_sites(pair, prompts), 0.0)


def test_sites_are_ranked_by_the_cases_alone(cases: Path, tmp_path: Path) -> None:
    """Controls are measured under the ranking, and have no part in it."""
    run = kgbench.evaluate(
        PAIR, dataset=cases, localizer=Noted, suite="budget", output_dir=tmp_path, progress=False
    )
    assert {*Noted.groups} == {"on"} and "trigger (off)" in run.record.by_prompt


def test_controls_have_a_table_of_their_own(cases: Path, tmp_path: Path) -> None:
    """Cases that are not to show the behaviour; the data set names what is read. The sentence is of
    the others, as it is stored and as it is made of a record.
    """
    run = kgbench.evaluate(
        PAIR, dataset=cases, grafts="TRIGGER,LT", output_dir=tmp_path, progress=False
    )
    assert {*run.record.by_prompt} == {"trigger", "trigger (off)"}
    assert all(row.n == 2 for row in run.record.rows)
    (rows,) = (run.record.contrast or {}).values()
    table = {row.graft: row for row in run.record.by_prompt["trigger"].values()}
    controls = run.record.by_prompt["trigger (off)"]
    for row in rows:
        apart = table[row.graft].logit_diff.value - controls[row.graft].logit_diff.value
        assert row.difference.value == pytest.approx(apart, abs=1e-4)
    assert "cases minus controls" in str(run)
    assert run.record.verdict == verdict_of(run.record)
    assert "trigger" in run.record.verdict and "(off)" not in run.record.verdict
    ref = run.record.identity.readout
    assert ref is not None and ref.parameters == {"texts": [" alongside", " with"]}
    for named, wanted in (("foil", InputError), ("first_token", InputError)):
        with pytest.raises(wanted, match=r"has no (foil|answer)"):
            kgbench.evaluate(
                PAIR, dataset=cases, readout=named, output_dir=tmp_path, progress=False
            )


def test_the_command_line_gives_parameters(tmp_path: Path) -> None:
    """They are those of the recorded readout; one without a value is refused."""
    line = ["eval", "--model", PAIR, "--readout", "token_set", "--prompt", "headline", "--json"]
    line += ["--graft", "LT", "--limit", "3", "--output-dir", str(tmp_path), "--readout-arg"]
    done = CliRunner().invoke(command, [*line, "texts=jo,a"])
    ref = kgbench.open_run(json.loads(done.stdout)["id"][:12], tmp_path).record.identity.readout
    assert ref is not None and ref.parameters == {"texts": ["jo", "a"]}
    wrong = CliRunner().invoke(command, [*line, "texts"])
    assert "--readout-arg 'texts': expected KEY=VALUE" in str(wrong.exception)


def test_a_readout_of_ones_own_is_one_file(tmp_path: Path) -> None:
    """Its code is in the identity of a run, so that no run of other code is found in its place."""
    file = tmp_path / "second.py"
    line = ["eval", "--model", PAIR, "--readout", f"{file}:Second", "--prompt", "headline"]
    line += ["--graft", "LT", "--limit", "3", "--output-dir", str(tmp_path), "--json"]
    ids = []
    for text in (SECOND, SECOND, SECOND.replace("second token", "token after")):
        file.write_text(text, "utf-8")
        done = CliRunner().invoke(command, line)
        assert done.exit_code == 0, done.output
        ids.append(json.loads(done.stdout)["id"])
    assert ids[0] == ids[1] != ids[2]
    ref = kgbench.open_run(ids[2][:12], tmp_path).record.identity.readout
    assert ref is not None and ref.name == "second" and ref.version.startswith("1 ")


SECOND = '''"""A readout of one's own."""

from dataclasses import dataclass

from kgbench.metrics import Read
from kgbench.readouts import Readout


@dataclass(frozen=True)
class Second(Readout):
    """The second token of the answer, given the first."""

    name = "second"
    about = "the second token of the answer"

    def read(self, prompt, encoded, encoder):
        first, second = encoder.added(prompt, encoded, prompt.target)[:2]
        return encoded.reading([Read(len(encoded.ids), (second,))], [first])
'''
