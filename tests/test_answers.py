"""Whole answers: their likelihood is the models' own, their rank that of scoring all candidates,
their first token that of eval.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from nightly import nightly
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kgbench import evaluate
from kgbench.analyses import answers as module
from kgbench.analyses.answers import (
    FIGURES,
    AnswersRun,
    ScoredAnswer,
    answer_figures,
    answers_report,
    continuation,
    encode_candidates,
    first_tokens,
    score_answers,
    score_prompts,
    token_texts,
)
from kgbench.cli import main
from kgbench.data import Prompt, load_dataset
from kgbench.engine import Engine
from kgbench.errors import InputError, RegionError
from kgbench.harness.continuation_scores import Answering
from kgbench.harness.encoded_requests import Passage, TaskDocument
from kgbench.localizers.dynamic_graft import DynamicGraft
from kgbench.models.encoding import Encoder
from kgbench.models.pair import ModelPair
from kgbench.records import RecordStore
from kgbench.report import to_text
from kgbench.runner import Settings, Spec, load_prompts, run_job
from kgbench.stats import recovery
from kgbench.testing import pico_pair

NAMES = (
    "Ana Lee",
    "movie",
    "Ann",
    "An",
    "Anna",
    "actor Bo Chen",
    "Zoë O'Hara",
    "with",
    "stars",
    "star",
    "Émile Nagy",
    "Mo",
)
"""Of one token and of many, some of which begin others, and which begin with the same token, with a
blank or with a part of a character.
"""
GRAFTS = ("PRE", "SFT", "NONE", "FE", "LT:o+ffn@second_half", "FE+LT", "FE^C", "ALL; ALL:ln_f+head")


@pytest.fixture(scope="module", params=nightly(["gpt2", "gemma"], {"gpt2"}))
def pair(request: pytest.FixtureRequest) -> ModelPair:
    return pico_pair(request.param)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """Prompts of two templates, with answers among the candidates."""
    found = load_prompts("tiny_movies", ["headline", "qa"], limit=3)
    return [replace(prompt, target=NAMES[i % 3]) for i, prompt in enumerate(found)]


@pytest.fixture(scope="module")
def scored(pair: ModelPair, prompts: list[Prompt]) -> list[ScoredAnswer]:
    return score_prompts(Engine(pair), prompts, NAMES, GRAFTS)


def _plain(pair: ModelPair, prompt: Prompt, name: str, model: str) -> float:
    """What a model by itself says of a whole answer: the text is read at once, as anyone would."""
    head, ids = pair.encode(prompt.text), pair.encode(f"{prompt.text} {name}")
    with torch.no_grad():
        own = pair.donor(model)(torch.tensor([ids])).logits[0].double().log_softmax(1)
    return float(sum(own[i - 1, ids[i]] for i in range(len(head), len(ids))))


def _all_scores(pair: ModelPair, prompts: Sequence[Prompt], graft: str) -> list[list[float]]:
    """The log-likelihood of every candidate of each prompt, as lm-eval has continuations scored."""
    passages = []
    for prompt in prompts:
        for name in NAMES:
            ids, encoded = pair.encode(f"{prompt.text} {name}"), pair.encoded(prompt)
            lead, own = len(encoded.ids) - 1, replace(prompt, target=name)
            read = replace(encoded, ids=tuple(ids[:-1]))
            passages.append(
                Passage(TaskDocument(prompt.name, {}), own, read, lead, tuple(ids[lead + 1 :]))
            )
    scores = [
        float(score[0]) for score in Answering(Engine(pair), DynamicGraft()).scores(passages, graft)
    ]
    return [scores[i : i + len(NAMES)] for i in range(0, len(scores), len(NAMES))]


def test_models_alone_say_the_same(
    pair: ModelPair, prompts: list[Prompt], scored: list[ScoredAnswer]
) -> None:
    """PRE and NONE are the recipient by itself, SFT and everything grafted the donor by itself:
    likelihood, rank and likeliest candidate are those of reading the text of prompt and candidate,
    one candidate after the other.
    """
    rows = {(row.fact, row.prompt, row.graft): row for row in scored}
    same = {"recipient": ("PRE", "NONE"), "sft": ("SFT", "ALL; ALL:ln_f+head")}
    for prompt in prompts:
        for model, grafts in same.items():
            scores = {name: _plain(pair, prompt, name, model) for name in NAMES}
            own = scores[prompt.target]
            for row in (rows[prompt.fact.id, prompt.name, graft] for graft in grafts):
                assert row.logprob == pytest.approx(own, abs=1e-4)
                assert row.rank == sum(score >= own for score in scores.values())
                assert row.likeliest == max(scores, key=scores.__getitem__)
        for first, second in same.values():
            one, other = (rows[prompt.fact.id, prompt.name, graft] for graft in (first, second))
            assert one.first_rank == other.first_rank
            assert one.alternatives_rank == other.alternatives_rank


@pytest.mark.parametrize("graft", ["PRE", "FE", "LT:o+ffn@second_half", "FE^C"])
def test_rank_is_that_of_all_candidates(
    pair: ModelPair, prompts: list[Prompt], scored: list[ScoredAnswer], graft: str
) -> None:
    """Log-likelihood, rank and likeliest candidate are those of scoring every candidate by the
    harness.
    """
    rows = [row for row in scored if row.graft == graft]
    for prompt, row, scores in zip(prompts, rows, _all_scores(pair, prompts, graft), strict=True):
        own = scores[NAMES.index(prompt.target)]
        assert (row.fact, row.prompt) == (prompt.fact.id, prompt.name)
        assert row.logprob == pytest.approx(own, abs=1e-6)
        assert row.rank == 1 + sum(
            score >= own for i, score in enumerate(scores) if NAMES[i] != prompt.target
        )
        assert row.likeliest == NAMES[int(np.argmax(scores))]


def test_batches_and_company_do_not_matter(
    pair: ModelPair,
    prompts: list[Prompt],
    scored: list[ScoredAnswer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts scored alone, few passages at a time, are scored as together."""
    monkeypatch.setattr(module, "PASSAGES_AT_ONCE", 3)
    alone = score_prompts(Engine(pair), prompts[1:2], NAMES, ["FE+LT"])[0]
    together = next(
        r for r in scored if (r.fact, r.prompt, r.graft) == (alone.fact, alone.prompt, "FE+LT")
    )
    assert replace(alone, logprob=0, first_logprob=0, alternatives_prob=0) == replace(
        together, logprob=0, first_logprob=0, alternatives_prob=0
    )
    assert alone.logprob == pytest.approx(together.logprob, abs=1e-6)


def test_first_tokens_of_a_name(
    pair: ModelPair, prompts: list[Prompt], scored: list[ScoredAnswer]
) -> None:
    """Every token that decodes to a beginning of the name counts, whatever the tokenizer does; its
    best rank is never worse.
    """
    tokenizer, vocabulary = pair.tokenizer, pair.recipient.config.vocab_size
    logits = {
        p: pair.recipient(torch.tensor([pair.encode(p.text)])).logits[0, -1].double()
        for p in prompts
    }
    rows = [row for row in scored if row.graft == "PRE"]
    for prompt, row in zip(prompts, rows, strict=True):
        shown = {
            i: tokenizer.decode([i]) for i in range(3, vocabulary)
        }  # the first three are special
        wanted = [
            i for i, text in shown.items() if text.strip() and f" {prompt.target}".startswith(text)
        ]
        own = pair.encoded(prompt).target
        every = list(dict.fromkeys([*wanted, own]))
        assert sorted(row.alternatives) == sorted(shown[i] for i in every)
        chances = logits[prompt].softmax(0)
        assert row.alternatives_prob == pytest.approx(float(chances[every].sum()), rel=1e-5)
        assert row.alternatives_rank == min(int((chances >= chances[i]).sum()) for i in every)
        assert row.first_rank == int((chances >= chances[own]).sum())
    assert all(row.alternatives_rank <= row.first_rank for row in scored)
    assert all(row.alternatives_prob >= np.exp(row.first_logprob) - 1e-9 for row in scored)
    assert any(row.alternatives_rank < row.first_rank for row in scored)


def test_collisions(pair: ModelPair, prompts: list[Prompt], scored: list[ScoredAnswer]) -> None:
    """As many other candidates share the first token as share what comes after the prompt in their
    own tokens.
    """
    for prompt in prompts:
        n = len(pair.encode(prompt.text))
        own = pair.encoded(prompt).target
        others = [
            name
            for name in NAMES
            if name != prompt.target and pair.encode(f"{prompt.text} {name}")[n] == own
        ]
        rows = [row for row in scored if (row.fact, row.prompt) == (prompt.fact.id, prompt.name)]
        assert {row.collisions for row in rows} == {len(others)}
    assert any(row.collisions for row in scored)


def _metaspace() -> PreTrainedTokenizerFast:
    """A tokenizer as SentencePiece's are: a blank is a mark before the word, and the first of a
    text is dropped when it is decoded.
    """
    pieces = [
        "<s>",
        "▁",
        "▁a",
        "a",
        "▁R",
        "R",
        "▁Rob",
        "▁Robert",
        "Robert",
        "o",
        "b",
        "e",
        "r",
        "t",
        "▁Ro",
    ]
    inner = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a"), ("▁", "R")])
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


def test_first_tokens_where_decoding_drops_the_blank() -> None:
    """With and without the blank before it, a name has the tokens that are written so; the mark
    alone and special tokens never count.
    """
    texts = token_texts(_metaspace(), 99)
    assert sorted(first_tokens(texts, " Robert", 4).values()) == [" R", " Ro", " Rob", " Robert"]
    assert sorted(first_tokens(texts, "Robert", 5).values()) == ["R", "Robert"]
    assert (
        first_tokens(texts, " Robert", 1)[1] == ""
    )  # a tokenizer that begins the name with the mark alone: it is what is read
    assert not any("<s>" in text or not text.strip() for text in texts)


def test_tokens_beyond_the_model_do_not_count() -> None:
    """A model may have logits of fewer tokens than the tokenizer knows, or of more."""
    texts = token_texts(_metaspace(), 6)
    assert sorted(token for tokens in texts.values() for token in tokens) == [2, 3, 4, 5]


def test_first_token_is_that_of_eval(tmp_path: Path) -> None:
    """Log-probability and rank of the first token are what `kgbench eval` stores for the same
    prompts and configurations.
    """
    spec = Spec(model="tiny-gpt2", prompts=("headline",), grafts=("LT", "FE+LT"), limit=2)
    run = run_job(spec, Settings(device="cpu", output_dir=tmp_path))
    stored = RecordStore(tmp_path).find(run.record.id)
    assert stored is not None
    rows = {(row["fact"], row["graft"]): row for row in stored.facts().to_pylist()}
    found = score_answers(spec, Settings(device="cpu"), 2)
    assert len(found.candidates) == len(
        load_dataset("tiny_movies").facts
    )  # all answers, however few facts are scored
    assert [row.graft for row in found.answers] == ["PRE", "SFT", "LT", "FE+LT"] * 2
    for row in found.answers:
        assert row.first_logprob == pytest.approx(rows[row.fact, row.graft]["logprob"], abs=1e-4)
        assert row.first_rank == rows[row.fact, row.graft]["rank"]
        assert row.logprob <= row.first_logprob + 1e-6


def _row(graft: str, rank: int, first: int) -> ScoredAnswer:
    """A row whose numbers are all told apart."""
    chances = {"first_logprob": -1.0 / first, "alternatives_prob": 0.5 + 0.1 / first}
    return ScoredAnswer("f", "p", graft, "A", 2, -float(rank), rank, "B", "A", first_rank=first, alternatives=("A",), **chances,
                        alternatives_rank=max(1, first - 1), collisions=rank % 2)  # fmt: skip


def test_figures() -> None:
    """Each is the mean over facts of what its name says, and recoveries are those of
    `kgbench.stats`.
    """
    ranks = {"PRE": [9, 9, 8, 7, 9, 9], "SFT": [1, 1, 2, 1, 5, 1], "LT": [1, 6, 6, 5, 2, 9]}
    answers = [
        replace(_row(graft, rank, 7 - rank // 2), fact=str(i))
        for graft, some in ranks.items()
        for i, rank in enumerate(some)
    ]
    (prompt,) = answer_figures(answers)
    by_graft = prompt.configurations
    assert list(by_graft) == list(ranks)
    assert all(set(figures) == set(FIGURES) for figures in by_graft.values())
    for graft, some in ranks.items():
        own = by_graft[graft]
        assert own["logprob"].value == pytest.approx(-np.mean(some))
        assert own["top1"].value == pytest.approx(np.mean([rank == 1 for rank in some]))
        assert own["top5"].value == pytest.approx(np.mean([rank <= 5 for rank in some]))
        assert own["mrr"].value == pytest.approx(np.mean([1 / rank for rank in some]))
        assert own["first_top5"].value == pytest.approx(
            np.mean([7 - rank // 2 <= 5 for rank in some])
        )
        assert own["alternatives_top5"].value == pytest.approx(
            np.mean([max(1, 6 - rank // 2) <= 5 for rank in some])
        )
    scores = {graft: np.array(some) <= 5 for graft, some in ranks.items()}
    assert by_graft["LT"]["recovery"] == recovery(scores, "LT")
    assert prompt.colliding.value == pytest.approx(np.mean([rank % 2 for rank in ranks["PRE"]]))


def test_few_first_tokens_are_told() -> None:
    """Where always giving the most frequent ones hits as often, the report says so."""
    cells = {"PRE": 9, "SFT": 1, "LT": 4}
    rows = [_row(graft, rank, 1) for graft, rank in cells.items() for _ in range(60)]
    for distinct, told in ((9, True), (60, False)):
        answers = tuple(
            replace(row, first_token=f"t{i % 60 % distinct}", fact=f"f{i % 60}")
            for i, row in enumerate(rows)
        )
        run = AnswersRun("pico", "facts", "float64", 0, 60, ("A", "B"), answers)
        text = to_text(answers_report(run, answer_figures(answers)))
        assert (f"{distinct} distinct first tokens for 60 facts: always giving" in text) == told


def test_figures_of_one_fact_are_undefined() -> None:
    """Means of one fact have no interval, and the table says so; hits have one."""
    answers = tuple(_row(graft, rank, 3) for graft, rank in {"PRE": 9, "SFT": 1, "LT": 4}.items())
    run = AnswersRun("pico", "facts", "float64", 0, 1, ("A", "B"), answers)
    (prompt,) = answer_figures(answers)
    figures = list(prompt.configurations.values())[2]
    assert figures["logprob"].undefined and figures["top5"].value == 1
    table = to_text(answers_report(run, [prompt]))
    assert "all 1 fact:" in table
    assert "undefined (1)" in table
    assert "(1) 1 fact, and an interval needs two" in table


def test_candidate_that_changes_the_prompt() -> None:
    """Where the tokens of the prompt merge with those of a candidate, that is an error which names
    both.
    """
    inner = Tokenizer(models.BPE({"a": 0, " ": 1, "b": 2, "a ": 3, "<s>": 4}, [("a", " ")]))
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>"))
    prompt = replace(
        load_prompts("tiny_movies", ["headline"], limit=1)[0], text="bba", target="b", spans={}
    )
    with pytest.raises(RegionError, match=r"not a prefix of .* 'b'"):
        encode_candidates(encoder, prompt, ["b"])


def test_blank_before_the_answer() -> None:
    """There is one, unless the prompt ends with one."""
    assert continuation("Name:", "Ana") == " Ana"
    assert continuation("Name:\n", "Ana") == "Ana"


def test_one_candidate_has_no_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is said before anything is scored."""
    file = tmp_path / "one.jsonl"
    file.write_text(
        '{"who": "Ana Lee", "whom": "Bo Chen"}\n{"who": "Bo Diaz", "whom": "Bo Chen"}\n'
    )
    run = evaluate(
        "tiny-gpt2",
        dataset=str(file),
        subject="who",
        object="whom",
        prompts={"t": "{who} has"},
        output_dir=tmp_path / "runs",
        progress=False,
    )
    assert main(["answers", str(run.path)]) == 2
    assert "has only the answer 'Bo Chen'" in capsys.readouterr().err


def test_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables per prompt, JSON and CSV say the same; nothing else is written."""
    monkeypatch.chdir(tmp_path)
    facts = {"dataset": "tiny_movies:first60", "prompts": "headline"}
    run = evaluate("tiny-gpt2", **facts, output_dir="runs", progress=False)
    asked = ["answers", str(run.path), "--graft", "FE+LT", "--facts", "2", "--seed", "3"]
    assert main([*asked, "--csv", "rows.csv"]) == 0
    table = capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["graft"] for row in found["rows"]] == ["PRE", "SFT", "FE+LT"]
    assert found["candidates"] == 60
    assert all(row["n"] == 2 and set(FIGURES) < set(row) for row in found["rows"])
    assert "2 of 60 facts, seed 3" in table
    assert table.count("FE+LT ") >= 2
    assert max(map(len, table.splitlines())) <= 100
    with Path("rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["fact"], row["graft"], int(row["rank"])) for row in rows] == [
        (r["fact"], r["graft"], r["rank"]) for r in found["facts"]
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "rows.csv"}


def test_a_model_that_reads_too_little(prompts: list[Prompt]) -> None:
    """A prompt that fits the model may not with an answer."""
    pair = pico_pair("gpt2")
    with pytest.raises(InputError, match="reads at most 128"):
        score_prompts(
            Engine(pair), [replace(prompts[0], target="Bo " * 99)], ["Bo " * 99, "Ana"], ["PRE"]
        )
