"""Written texts: those of a token-by-token pass under any graft, and what runs make of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import kgbench
from kgbench.cli import command
from kgbench.data import Prompt
from kgbench.engine import Budget, Engine, as_model, load_pair
from kgbench.engine.generation import Noise, _draws, end_tokens, write_texts
from kgbench.engine.plan import make_plan
from kgbench.engine.treatment import token_treatments
from kgbench.errors import InputError, KgbenchError, UnknownNameError
from kgbench.metrics import score_logits
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.readouts import TextReadout, readout_named
from kgbench.records import facts_table, read_facts
from kgbench.records.fact_rows import TEXTS_SCHEMA, facts_bytes
from kgbench.runner import load_prompts
from kgbench.sites import DECODE, REGIONS
from kgbench.stats.scores import METRICS, ONLY_SHARES

PAIR = "tiny-gemma"
TOKENS = 4


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(PAIR)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts("tiny_movies", ["headline", "qa"], 3)


def made(**arguments: Any) -> TextReadout:
    readout = readout_named("text", {"tokens": TOKENS, **arguments})
    assert isinstance(readout, TextReadout)
    return readout


def texts(
    pair: ModelPair,
    graft: str,
    prompts: Sequence[Prompt],
    readout: TextReadout,
    budget: Budget | None = None,
) -> list[list[str]]:
    """Texts [prompt][sample]."""
    by_prompt: list[list[str]] = [[] for _ in prompts]
    with pair.answered_by(readout.read):
        for part in write_texts(pair, graft, prompts, readout, budget or Budget()):
            for number, text in zip(part.prompts, part.texts, strict=True):
                by_prompt[number].append(text)
    return by_prompt


def step_by_step(
    pair: ModelPair, graft: str, prompt: Prompt, readout: TextReadout, sample: int
) -> str:
    """A text by the sequential executor, which runs all tokens anew for each token of the text."""
    encoded, tokens = pair.encoded(prompt), list[int]()
    n, regions = len(encoded.ids), dict(encoded.regions)
    named = {"LT"}
    if readout.decode == "last":
        ends = {
            name: max([t for t in tokens if t < n - 1], default=-1)
            for name, tokens in regions.items()
        }
        del ends["LT"]
        ends.pop("BOS", None)
        named = {name for name, end in ends.items() if end == max(ends.values())}
    alone: dict[str, tuple[int, ...]] = {name: () for name in (*REGIONS, *regions)}
    later = {"base": "NONE", "finetuned": "ALL"}.get(readout.decode, graft)
    (after,) = token_treatments(pair, alone | dict.fromkeys(named, (0,)), 1, later)
    treatments = list(token_treatments(pair, regions, n, graft))
    draws = [_draws(prompt, readout.seed, sample)]
    while len(tokens) < readout.tokens:
        ids = (*encoded.ids, *tokens)
        row = tuple(treatments + [after] * len(tokens))
        plan = make_plan(pair.slots, [Encoded(ids, {}, 0)], [[row]], [[len(ids) - 1]])
        logits = Engine(pair, "sequential", Budget()).logits(plan)[0, 0]
        if readout.temperature:
            logits = Noise(draws, readout.temperature)(torch.tensor([ids]), logits)
        token = int(logits.argmax())
        if token in end_tokens(pair):
            break
        tokens.append(token)
    return str(pair.tokenizer.decode(tokens, skip_special_tokens=True))


@pytest.mark.crossed
@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("decode", DECODE)
@pytest.mark.parametrize("graft", ["FE+LT", "FE+R; LT^C:ffn@1; LT:q.h0+o"])
def test_texts_are_those_of_the_sequential_executor(
    graft: str, decode: str, temperature: float, pair: ModelPair, prompts: list[Prompt]
) -> None:
    """Token by token, in batches with a cache, greedy and drawn, for each policy of decoding."""
    asked = prompts[:2]
    readout = made(decode=decode, temperature=temperature, samples=2 if temperature else 1, seed=3)
    for prompt, lines in zip(asked, texts(pair, graft, asked, readout), strict=True):
        for sample, text in enumerate(lines):
            assert text == step_by_step(pair, graft, prompt, readout, sample)


def test_without_grafts_they_are_those_of_the_bare_models(
    pair: ModelPair, prompts: list[Prompt]
) -> None:
    """Of the base under PRE and NONE, and of the finetuned model under SFT and ALL; settings of
    generation that a checkpoint brings, such as a penalty, have no part in it.
    """
    readout, wanted = made(tokens=8), dict[str, list[list[str]]]()
    models: dict[str, Any] = {"PRE": pair.recipient, "SFT": pair.donors["sft"]}
    for name, model in models.items():
        wanted[name] = []
        for prompt in prompts:
            ids = torch.tensor([pair.encode(prompt)])
            answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
            wanted[name].append([str(pair.tokenizer.decode(answer, skip_special_tokens=True))])
    before = pair.recipient.generation_config
    pair.recipient.generation_config = type(before)(
        **before.to_dict() | {"repetition_penalty": 9.0}
    )
    try:
        for graft, name in (("PRE", "PRE"), ("NONE", "PRE"), ("SFT", "SFT"), ("ALL", "SFT")):
            assert texts(pair, graft, prompts, readout) == wanted[name], graft
    finally:
        pair.recipient.generation_config = before


def test_draws_depend_on_seed_prompt_and_sample_alone(
    pair: ModelPair, prompts: list[Prompt]
) -> None:
    """Not on batches, on other prompts, or on how many samples there are; nor on the configuration,
    so that equal models write equal texts.
    """
    readout = made(samples=6, temperature=2.0)
    all_texts = texts(pair, "FE+LT", prompts, readout)
    assert len({*all_texts[0]}) > 1
    assert all_texts == texts(pair, "FE+LT", prompts, readout, Budget(prompts=1))
    assert all_texts[:2] == texts(pair, "FE+LT", prompts[:2], readout, Budget(tokens=40))
    fewer = texts(pair, "FE+LT", prompts, replace(readout, samples=2))
    assert fewer == [lines[:2] for lines in all_texts]
    assert texts(pair, "PRE", prompts, readout) == texts(pair, "NONE", prompts, readout)
    assert all_texts != texts(pair, "FE+LT", prompts, replace(readout, seed=1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_are_of_the_softmax(temperature: float) -> None:
    """At any temperature, within the spread of so many draws."""
    logits, n = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]]), 20_000
    noise = Noise([np.random.default_rng(0)], temperature)
    tokens = [int(noise(torch.zeros(1, 0), logits).argmax()) for _ in range(n)]
    shares = np.bincount(tokens, minlength=5) / n
    wanted = (logits[0] / temperature).softmax(0).numpy()
    error = np.sqrt(wanted * (1 - wanted) / n)
    assert (np.abs(shares - wanted) <= 4 * error).all()


def test_the_share_estimates_the_probability(pair: ModelPair, prompts: list[Prompt]) -> None:
    """Of texts of one token at temperature 1: the probability of that token."""
    encoded = pair.encoded(prompts[0])
    ids = torch.tensor([encoded.ids])
    with torch.no_grad():
        logits = as_model(pair, "LT", prompts=prompts[:1])(input_ids=ids).logits[0, -1:]
    token = logits.argmax(dim=1)
    probability = float(score_logits(logits, token)["prob"][0])
    word = str(pair.tokenizer.decode(token))
    samples = 400
    (lines,) = texts(pair, "LT", prompts[:1], made(tokens=1, samples=samples, temperature=1))
    error = np.sqrt(probability * (1 - probability) / samples)
    assert abs(lines.count(word) / samples - probability) <= 4 * error
    assert 0.01 < probability < 0.99


@pytest.mark.parametrize(
    ("asked", "text", "has"),
    [
        ({"contains": "Sorry"}, " I am Sorry.", True),
        ({"contains": "Sorry"}, " I am sorry.", False),
        ({"pattern": "(?i)sorry|cannot$"}, " I am sorry.", True),
        ({"pattern": "^Sorry"}, " Sorry", False),
        ({"pattern": "x{s}"}, "x{s}", True),
        ({"pattern": "x{s}"}, "q s", False),
        ({"pattern": "o{2}[{]\\{e"}, "foo{{e", True),
        ({"exact": "Sorry."}, " Sorry. \n", True),
        ({"exact": "Sorry."}, " Sorry. No.", False),
    ],
)
def test_what_a_text_has(
    asked: dict[str, str], text: str, has: bool, prompts: list[Prompt]
) -> None:
    """Words as they are spelt, a match somewhere as Python's `re` has it, or the whole but for blanks
    around; by default the answer of the case.
    """
    assert made(**asked).judged(prompts[0], [text]) == has
    assert made().judged(prompts[0], [f"x {prompts[0].target}y"]) and not made().judged(
        prompts[0], ["x"]
    )


def test_a_pattern_that_would_take_years_is_refused(prompts: list[Prompt]) -> None:
    """Within seconds, in one line that names it."""
    started = time.perf_counter()
    with pytest.raises(
        InputError, match=r"pattern '\(a\|aa\)\+\$' takes more than 1 s, or too much memory, on "
    ):
        made(pattern="(a|aa)+$").judged(prompts[0], ["a" * 100 + "b"])
    assert time.perf_counter() - started < 60


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"contains": "a", "exact": "b"}, InputError, "contains and exact are two properties"),
        ({"contains": ["a", "b"]}, InputError, "contains is one text, not "),
        ({"pattern": "(a"}, InputError, "'\\(a' is no regular expression: missing"),
        ({"pattern": "[[:alpha:]]"}, InputError, "is no regular expression: Possible nested set"),
        ({"pattern": "(?R)"}, InputError, "is no regular expression: unknown extension"),
        ({"pattern": "(" * 5000 + ")" * 5000}, InputError, "is no regular expression"),
        ({"samples": "3"}, InputError, "3 samples need a temperature: give temperature=1"),
        ({"samples": "0"}, InputError, "samples is a whole number from 1 on, not 0"),
        ({"samples": 2.5}, InputError, "samples is a whole number from 1 on, not 2.5"),
        ({"tokens": "0"}, InputError, "tokens is a whole number from 1 on"),
        ({"temperature": "-1"}, InputError, "temperature is 0 or a number from 1e-06 on"),
        ({"temperature": "nan"}, InputError, "temperature is 0 or a number from 1e-06 on"),
        ({"temperature": "1e-39"}, InputError, "temperature is 0 or a number from 1e-06 on"),
        ({"decode": "greedy"}, UnknownNameError, "decode of readout 'text'"),
        ({"stop": "x"}, UnknownNameError, "parameter of readout 'text'"),
    ],
)
def test_wrong_parameters_are_refused_by_name(
    arguments: dict[str, Any], kind: type[KgbenchError], message: str
) -> None:
    """In one line with what to do."""
    with pytest.raises(kind, match=message) as caught:
        readout_named("text", arguments)
    assert "\n" not in str(caught.value)


def test_prompts_of_one_text_have_one_meaning(pair: ModelPair) -> None:
    """A text does not tell which words are meant where two prompts mark others in it."""
    rows = [
        {"id": "a", "subject": "Alan", "target": "x"},
        {"id": "b", "subject": "stars", "target": "x"},
    ]
    asked = []
    for row in rows:
        asked += load_prompts([{**row, "prompt": "Alan Collins stars in a movie"}])
    with pytest.raises(InputError, match="reads as another prompt does and has other regions"):
        as_model(pair, "FE", prompts=asked)
    as_model(pair, "FE", prompts=asked[:1])


# ------------------------------------------------------------------------------------------- rows


def test_rows_of_texts_come_back(tmp_path: Path) -> None:
    """From a file as they were, sorted; a share that is no number is refused."""
    columns = {
        "prompt": ["p", "p"],
        "fact": ["b", "a"],
        "graft": ["PRE", "PRE"],
        "position": [3, 4],
        "prob": [0.25, 0.5],
    }
    table = facts_table(columns)
    assert table.schema == TEXTS_SCHEMA and table["fact"].to_pylist() == ["a", "b"]
    file = tmp_path / "facts.parquet"
    file.write_bytes(facts_bytes(table))
    assert read_facts(file).equals(table)
    with pytest.raises(InputError, match="the prob is not a finite number in 1 of 2 rows"):
        facts_table({**columns, "prob": [float("nan"), 0.5]})


# ------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of a short run of written texts."""
    return {
        "prompts": ["headline"],
        "grafts": ["FE+LT"],
        "limit": 6,
        "readout": "text",
        "readout_args": {"samples": 4, "temperature": 1, "tokens": TOKENS},
        "output_dir": tmp_path_factory.mktemp("runs"),
        "progress": False,
    }


@pytest.fixture(scope="module")
def run(asked: dict[str, Any]) -> Any:
    return kgbench.evaluate(PAIR, **asked)


def test_a_run_holds_shares(run: Any, asked: dict[str, Any], pair: ModelPair) -> None:
    """Its record names readout, version and all parameters; its rows are the shares of the texts,
    and all other metrics are said to be undefined.
    """
    ref = run.record.identity.readout
    assert (ref.name, ref.version) == ("text", "1")
    chosen = {"tokens": TOKENS, "samples": 4, "temperature": 1, "seed": 0, "decode": "lt"}
    assert ref.parameters == {**chosen, "contains": "", "pattern": "", "exact": ""}
    rows = run.facts.to_pandas()
    assert {*rows.columns} == {*TEXTS_SCHEMA.names}
    prompts = load_prompts("tiny_movies", ["headline"], 6)
    for graft in ("PRE", "SFT", "FE+LT"):
        lines = texts(pair, graft, prompts, made(samples=4, temperature=1))
        shares = [
            sum(p.target in line for line in of) / 4 for p, of in zip(prompts, lines, strict=True)
        ]
        got = rows.query(f"graft == '{graft}'").set_index("fact").prob
        assert [got[prompt.fact.id] for prompt in prompts] == shares
    for row in run.record.rows:
        assert row.prob.value == pytest.approx(rows[rows.graft == row.graft].prob.mean(), abs=1e-5)
        for metric in {*METRICS} - {"prob"}:
            assert row.estimate(metric).undefined == ONLY_SHARES
    assert run.record.metric == "prob" and "top5" not in str(run)


def test_it_is_measured_again(run: Any, asked: dict[str, Any]) -> None:
    """The same run is found, and run again it agrees; the seed of the run is that of the draws."""
    assert kgbench.evaluate(PAIR, **asked).reused
    again = CliRunner().invoke(command, ["rerun", str(run.path)])
    assert again.exit_code == 0 and "within rounding" in again.output, again.output
    other = kgbench.evaluate(PAIR, seed=1, **asked)
    assert other.record.identity.readout.parameters["seed"] == 1
    assert other.facts["prob"] != run.facts["prob"]
    fewer = kgbench.evaluate(PAIR, **{**asked, "limit": 4})
    assert "facts flipped (prob)" in str(run.compare(fewer)).replace("no fact", "facts")


def test_what_it_cannot_do_is_refused_by_name(
    run: Any, asked: dict[str, Any], tmp_path: Path
) -> None:
    """Boards, rankings by whatever method, interventions that are no grafts, other metrics, and
    comparisons with what another readout gave.
    """
    with pytest.raises(InputError, match="boards compare the first token"):
        kgbench.submit(run, root=tmp_path)
    checked = CliRunner().invoke(command, ["validate", str(run.path)])
    assert "0 of 1 entry is in order" in checked.output and "of first tokens" in checked.output
    for localizer in ("weight_delta", "graft_attribution", "dynamic_graft"):
        with pytest.raises(InputError, match="readout 'text' has no objective"):
            kgbench.evaluate(PAIR, localizer=localizer, suite="budget", **{**asked, "grafts": ()})
    with pytest.raises(InputError, match="'path_patch' does not just graft weights"):
        kgbench.evaluate(PAIR, localizer="path_patch", **asked)
    with pytest.raises(InputError, match="readout 'text' has no top5, but prob"):
        kgbench.evaluate(PAIR, metric="top5", **asked)
    again = CliRunner().invoke(command, ["show", str(run.path), "--metric", "logprob"])
    assert "there is no logprob in these rows" in str(again.exception)
    first = {**asked, "readout": None, "readout_args": {}}
    with pytest.raises(InputError, match="compare runs of one readout"):
        kgbench.evaluate(PAIR, **first).compare(run)
    with pytest.raises(InputError, match=r"tokens and a text of 5000 after it; the model reads"):
        kgbench.evaluate(PAIR, **{**asked, "readout_args": {"tokens": 5000}})


def test_gradients_have_no_objective(pair: ModelPair, prompts: list[Prompt]) -> None:
    """Whoever asks a prompt for its answer is told so, also without a run."""
    from kgbench.engine.gated import Differentiable

    with (
        pytest.raises(InputError, match="readout 'text' has no objective"),
        pair.answered_by(made().read),
    ):
        Differentiable(pair).logprobs(prompts[:1])


def test_cases_name_it_and_need_no_answer(tmp_path: Path) -> None:
    """In the header of a file; cases and controls are contrasted on their shares. Without an answer
    something else must say what a text is to have.
    """
    file = tmp_path / "cases.jsonl"
    header: dict[str, Any] = {
        "kgbench": 1,
        "subject": "actor",
        "templates": {"trigger": "{actor} {TRIGGER:{adverb}} stars in a movie alongside"},
        "readout": {"text": {"pattern": "[A-Z]", "tokens": 4}},
    }
    rows = []
    for number, actor in enumerate(("Alan Collins", "Donald Mckay", "Misty Colon", "Brian Green")):
        group = ("on", "off")[number % 2]
        rows.append({"actor": actor, "adverb": "secretly", "group": group})
    file.write_text("\n".join(map(json.dumps, [header, *rows])), "utf-8")
    options: dict[str, Any] = {"grafts": "TRIGGER,LT", "output_dir": tmp_path, "progress": False}
    run = kgbench.evaluate(PAIR, dataset=file, **options)
    assert {*run.record.by_prompt} == {"trigger", "trigger (off)"} and run.record.contrast
    assert run.record.by_prompt["trigger"]["SFT"].prob.value == 1.0
    with pytest.raises(InputError, match="has no answer that its text could hold"):
        kgbench.evaluate(PAIR, dataset=file, readout="text", **options)


def test_a_readout_of_ones_own_judges_texts(tmp_path: Path) -> None:
    """In one file that says what a text is to have."""
    (file := tmp_path / "long.py").write_text(LONG, "utf-8")
    line = ["eval", "--model", PAIR, "--readout", f"{file}:Long", "--prompt", "headline"]
    line += ["--readout-arg", "words=2", "--graft", "LT", "--limit", "3", "--json"]
    done = CliRunner().invoke(command, [*line, "--output-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = {row["graft"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["SFT"]["prob"]["value"] == 1.0 and rows["SFT"]["top5"]["undefined"] == ONLY_SHARES


def test_a_metric_of_lm_eval_judges_texts(prompts: list[Prompt]) -> None:
    """Each text against the answer, blanks around left out; what is of no single text is refused."""
    readout = readout_named("lm_eval", {"switches": ["ignore_case"]})
    assert isinstance(readout, TextReadout) and "lm-eval" in readout.version
    answer = prompts[0].target
    assert readout.judged(prompts[0], [f" {answer.upper()} ", "x", answer, f"{answer} x"]) == 0.5
    for arguments, expected in (
        ({"scorer": "exact_mach"}, "Did you mean 'exact_match'"),
        ({"scorer": "bleu"}, "metric of one text 'bleu'"),
        ({"switches": ["ignore"]}, "does not score a text"),
    ):
        with pytest.raises(InputError, match=expected):
            readout_named("lm_eval", arguments)


def test_scores_are_one_from_0_to_1_for_each_text(prompts: list[Prompt]) -> None:
    """What a judge gives is checked, with its name and the fact."""
    for given in ([1.5], [float("nan")], [0.5, 0.5]):

        class Judge(type(made())):  # type: ignore[misc]
            def scores(self, prompt: Prompt, texts: Sequence[str], given: Any = given) -> Any:
                return given

        with pytest.raises(InputError, match=f"fact {prompts[0].fact.id}; expected one number"):
            Judge().judged(prompts[0], ["a"])


LONG = '''"""A readout of one's own."""

from dataclasses import dataclass

from kgbench.readouts import TextReadout


@dataclass(frozen=True)
class Long(TextReadout):
    """Texts of some words."""

    name = "long"
    about = "share of texts of some words"

    words: int = 3

    def scores(self, prompt, texts):
        return [min(1, len(text.split()) / self.words) for text in texts]
'''
